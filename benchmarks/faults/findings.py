"""What an attack on the registry found, in the 15 groups of its issue, and the tests that fail where one comes back.

A group is mended while each of its tests is there and passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.faults.tested import run_tests

TESTS: Mapping[str, tuple[str, ...]] = {
    "1 a start without its database deletes blobs": (
        "tests/service/journeys/test_lost_database.py::test_it_is_noticed_before_a_push_is_acknowledged",
        "tests/service/journeys/test_lost_database.py::test_a_start_without_it_is_refused_until_it_is_back",
        "tests/service/journeys/test_lost_database.py::test_an_older_copy_sets_aside_what_it_does_not_know_and_the_newer_one_has_it_back",
    ),
    "2 one large JSON body freezes the process": (
        "tests/service/http/test_bodies.py::test_more_values_than_a_call_takes_are_refused_while_they_come",
        "tests/service/http/test_bodies.py::test_a_key_without_the_scope_is_refused_before_a_byte_of_the_body",
        "tests/service/http/test_bodies.py::test_a_body_is_parsed_once_and_a_large_one_not_on_the_event_loop",
        "tests/service/http/test_bodies.py::test_bytes_are_held_up_to_the_limit_and_half_of_it_by_one_key",
        "tests/attacks/test_resources.py::test_it_is_refused",
    ),
    "3 one push with a big sample blocks the jobs of all": (
        "tests/service/http/test_push_route.py::test_a_sample_of_more_characters_than_the_setting_allows_is_refused",
        "tests/service/jobs/test_job_runner.py::TestLanes::test_nothing_slow_keeps_a_cook_waiting",
        "tests/service/jobs/test_job_runner.py::TestProcesses::test_a_job_that_does_not_hear_of_it_is_given_back_all_the_same",
    ),
    "4 no fairness in the engine between keys": (
        "tests/service/engine/test_shares.py::test_a_small_request_of_another_key_is_answered_soon",
        "tests/service/engine/test_shares.py::test_who_floods_the_queue_does_not_shut_others_out",
    ),
    "5 unbounded metadata": (
        "tests/attacks/test_json.py::test_it_is_refused",
    ),
    "6 damaged bytes are served": (
        "tests/service/http/test_damaged_blobs.py::test_a_download_is_refused_before_its_first_byte",
        "tests/service/http/test_damaged_blobs.py::test_an_upload_of_the_right_bytes_repairs_and_is_told",
        "tests/service/http/test_damaged_blobs.py::test_the_weights_of_an_adapter",
    ),
    "7 the log lacks what the answer promises": (
        "tests/service/http/test_observe.py::test_the_log_has_the_details_of_an_internal_error_of_ours",
        "tests/service/http/test_observe.py::test_a_failed_system_call_is_logged_by_its_number",
    ),
    "8 the first admin key, revoked, stops the start": (
        "tests/service/test_keys.py::test_a_revoked_first_key_does_not_stop_the_start_where_there_is_another",
        "tests/service/http/test_keys_route.py::test_the_last_admin_key_is_not_revoked",
    ),
    "9 text of others reaches the terminal": (
        "tests/attacks/test_terminal.py::test_it_is_shown_as_text",
    ),
    "10 half-sent requests are never timed out": (
        "tests/attacks/test_slow.py::test_it_is_cut_off",
        "tests/service/http/test_connections.py::test_beyond_the_most_connections_those_that_wait_the_longest_give_way",
    ),
    "11 the newest adapter of a label wins across namespaces": (
        "tests/registry/test_fit.py::TestMembers::test_nobody_takes_the_place_of_another_namespaces_adapter",
    ),
    "12 a blob folder that is gone is a 404, and ready": (
        "tests/service/journeys/test_blob_folder.py::test_gone_and_back",
        "tests/service/journeys/test_blob_folder.py::test_read_only_and_writable_again",
    ),
    "13 100,000 empty tensors take 13 s to refuse": (
        "tests/attacks/test_safetensors.py::test_it_is_refused",
        "tests/registry/adapters/test_weights_attacks.py::test_absurdly_many_tensors_are_refused_before_one_is_looked_at",
    ),
    "14 queues without an end, open folders, work of revoked keys": (
        "tests/service/jobs/test_queue_bounds.py::TestBounds::test_a_key_that_has_its_share_queued_is_told_to_wait_and_another_is_served",
        "tests/service/jobs/test_queue_bounds.py::TestRevoked::test_what_its_key_has_queued_and_running_is_cancelled",
        "tests/service/jobs/test_queue_bounds.py::TestRevoked::test_what_another_key_asked_for_too_goes_on_for_that_one",
        "tests/service/jobs/test_job_runner.py::TestProcesses::test_what_comes_further_each_time_is_not_given_up_however_often_its_process_ends",
        "tests/service/test_runtime.py::TestStart::test_a_folder_that_was_open_to_others_is_closed",
        "tests/attacks/test_keys.py::test_it_is_refused",
    ),
    "15 progress, durations and owners of jobs": (
        "tests/service/jobs/test_job_runner.py::TestEnds::test_success_with_its_result_and_its_progress",
        "tests/service/jobs/test_jobs.py::TestFollowing::test_a_job_says_whose_it_is",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Group:
    """One group: what was found, and those of its tests that did not pass, or are not there."""

    found: str
    tests: int
    lacking: tuple[str, ...]


def check_groups() -> list[Group]:
    """Every group, after its tests have run."""
    outcome = run_tests(sorted({test for tests in TESTS.values() for test in tests}))
    return [
        Group(found, len(tests), tuple(test for test in tests if not held(test, outcome.passed, outcome.failed)))
        for found, tests in TESTS.items()
    ]


def held(test: str, passed: tuple[str, ...], failed: tuple[str, ...]) -> bool:
    """Whether a test passed in each of its cases, of which there is at least one."""

    def cases(ran: tuple[str, ...]) -> list[str]:
        return [one for one in ran if one == test or one.startswith(f"{test}[")]

    return bool(cases(passed)) and not cases(failed)
