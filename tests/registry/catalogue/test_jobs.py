"""The queue: one claim a job, leases, retries, cancellation, and workers that come back from the dead."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from registry.catalogue import jobs as jobs_module
from registry.catalogue.jobs import TURN_WINDOW
from registry.catalogue.rows import JobRow
from registry.errors import NotFound
from tests.registry.catalogue_rows import undone

KINDS = ["embed", "fit"]
LEASE = 60.0


def soon(seconds: float = 1.0) -> datetime:
    """A moment after everything that is due now has become due."""
    return datetime.now(UTC) + timedelta(seconds=seconds)


def enqueue(catalogue, kind: str = "embed", namespace: str = "acme", **options):
    return catalogue.jobs.enqueue(kind, {"adapter_id": 1}, namespace=namespace, created_by="key-1", **options)


def claim(catalogue, worker: str = "w1", kinds=KINDS, at: datetime | None = None, **options):
    return catalogue.jobs.claim(worker, kinds, LEASE, at or soon(), **options)


# --- the queue ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "arguments", "is_requested"),
    [
        ("embed", {}, False),
        ("fit", {"asked": False}, False),
        ("fit", {"asked": True}, True),
        ("cook", {}, True),
        ("of a newer release", {}, True),
    ],
)
def test_a_job_that_a_push_enqueues_is_not_requested_and_counts_for_no_quota(catalogue, kind, arguments, is_requested):
    row = catalogue.jobs.enqueue(kind, arguments, namespace="acme", created_by="key-1")
    assert row.is_requested is is_requested
    assert catalogue.limits.jobs("key", "key-1") == is_requested


def test_first_come_first_served_by_the_time_they_are_due(catalogue):
    late, far = enqueue(catalogue, delay=50), enqueue(catalogue, delay=1000)
    first, second = enqueue(catalogue), enqueue(catalogue)
    assert [claim(catalogue, at=soon(100)).id for _ in range(3)] == [first.id, second.id, late.id]
    assert claim(catalogue, at=soon(100)) is None
    assert claim(catalogue, at=soon(1001)).id == far.id


def test_what_was_queued_before_the_clock_was_set_back_does_not_wait_for_it(catalogue, monkeypatch):
    with monkeypatch.context() as ahead:
        ahead.setattr(jobs_module, "now", lambda: soon(86_400))
        queued, failed = enqueue(catalogue), enqueue(catalogue)
        assert claim(catalogue, at=soon(86_401)).id == queued.id
        catalogue.jobs.fail(queued.id, {"code": "busy"}, 2.0)
    assert {claim(catalogue).id for _ in range(2)} == {queued.id, failed.id}
    assert claim(catalogue) is None


def test_a_worker_takes_the_kinds_it_knows_and_leases_them(catalogue):
    moment = soon()
    row = enqueue(catalogue, "fit")
    assert claim(catalogue, kinds=["embed"]) is None
    assert claim(catalogue, kinds=[]) is None
    claimed = claim(catalogue, kinds=["fit"], at=moment)
    assert (claimed.id, claimed.state, claimed.attempts) == (row.id, "running", 1)
    assert claimed.lease_until == moment + timedelta(seconds=LEASE)


def test_the_same_dedupe_key_is_one_queued_job(catalogue):
    row = enqueue(catalogue, dedupe_key="k")
    assert enqueue(catalogue, dedupe_key="k").id == row.id
    assert enqueue(catalogue, dedupe_key="other").id != row.id
    assert enqueue(catalogue).id != enqueue(catalogue).id
    claim(catalogue)
    assert enqueue(catalogue, dedupe_key="k").id != row.id, "a running job does not swallow what happened since"


def test_who_waits_brings_a_debounced_job_forward_and_nobody_puts_it_off(catalogue):
    row = enqueue(catalogue, dedupe_key="k", delay=100)
    sooner = enqueue(catalogue, dedupe_key="k", delay=10)
    assert (sooner.id, sooner.run_after < row.run_after) == (row.id, True)
    assert enqueue(catalogue, dedupe_key="k", delay=200).run_after == sooner.run_after
    enqueue(catalogue, dedupe_key="k")
    assert claim(catalogue).id == row.id


# --- turns ----------------------------------------------------------------------------------------


def test_who_queues_much_keeps_nobody_waiting_for_more_than_one_job(catalogue):
    greedy = [enqueue(catalogue, namespace="greedy") for _ in range(4)]
    claim(catalogue, at=soon(1))
    small, another = enqueue(catalogue, namespace="small"), enqueue(catalogue, namespace="other")
    second = enqueue(catalogue, namespace="small")
    order = [claim(catalogue, at=soon(2 + number)).id for number in range(6)]
    assert order == [small.id, another.id, greedy[1].id, second.id, greedy[2].id, greedy[3].id]


def test_turns_are_of_one_lane(catalogue):
    """Who had its turn to embed a moment ago has not had one to fit."""
    for namespace in ("a", "b"):
        enqueue(catalogue, "fit", namespace=namespace)
        enqueue(catalogue, namespace=namespace)
    for seconds, kind, namespace in ((1, "fit", "a"), (2, "embed", "a"), (3, "fit", "b")):
        assert claim(catalogue, kinds=[kind], lane=kind, at=soon(seconds)).namespace == namespace


def test_whoever_comes_back_is_served_before_those_who_never_left(catalogue):
    for namespace, number in (("old", 0), ("busy", 1000), ("busy", 2000)):
        enqueue(catalogue, namespace=namespace)
        assert run(catalogue, soon(number), seconds=1).namespace == namespace
    enqueue(catalogue, namespace="busy")
    enqueue(catalogue, namespace="old")
    assert [claim(catalogue, at=soon(number)).namespace for number in (3003, 3004)] == ["old", "busy"]


def test_turns_count_seconds_and_not_jobs(catalogue):
    """Jobs of a minute and jobs of three seconds, on one worker: each namespace has half of the time."""
    used, moment = {"long": 0, "short": 0}, soon(1)
    for namespace, jobs in (("long", 10), ("short", 100)):
        for _ in range(jobs):
            enqueue(catalogue, namespace=namespace)
    for _ in range(90):
        seconds = {"long": 60, "short": 3}
        row = run(catalogue, moment, seconds=seconds)
        used[row.namespace] += seconds[row.namespace]
        moment += timedelta(seconds=seconds[row.namespace])
    assert sum(used.values()) > 400
    assert abs(used["long"] - used["short"]) <= 60


def test_nobody_is_put_off_for_longer_than_is_remembered(catalogue):
    """A training of hours counts as some minutes: who comes behind it does not have hours for themselves."""
    enqueue(catalogue, namespace="long")
    run(catalogue, soon(1), seconds=36_000)
    moment, order = soon(36_002), []
    for namespace in ("long", *["new"] * 12):
        enqueue(catalogue, namespace=namespace)
    for _ in range(10):
        order.append(run(catalogue, moment, seconds=60).namespace)
        moment += timedelta(seconds=60)
    assert order[0] == "new"
    assert "long" in order[: TURN_WINDOW.seconds // 60 + 2]


def test_of_several_workers_one_namespace_has_not_all(catalogue):
    for namespace in ("a", "a", "a", "b"):
        enqueue(catalogue, namespace=namespace)
    assert [claim(catalogue, worker, at=soon(1)).namespace for worker in ("w1", "w2", "w3")] == ["a", "b", "a"]


def run(catalogue, moment: datetime, *, seconds: float | dict[str, int]) -> JobRow:
    """The next job, which takes so many seconds, by its namespace or any, and succeeds."""
    row = claim(catalogue, at=moment, lane="")
    took = seconds[row.namespace] if isinstance(seconds, dict) else seconds
    assert catalogue.jobs.charge_lane("", row, moment + timedelta(seconds=took))
    assert catalogue.jobs.succeed(row.id, {}, worker="w1")
    return row


def test_another_key_that_asks_for_the_same_is_remembered_and_takes_over(catalogue):
    rights = {"namespaces": ("acme",), "scopes": {"write"}, "prefix": "sk-soup-"}
    first, second, third = (catalogue.keys.add(name, name, **rights).id for name in ("first", "second", "third"))
    about = {"scope": ["acme"], "request_id": "r-1", "pool": "p"}
    row = catalogue.jobs.enqueue("fit", about, namespace="acme", created_by=first, dedupe_key="k")
    assert catalogue.jobs.next_requester(row) is None
    for key in (second, first, third, second):
        arguments = {**about, "request_id": f"of {key}"}
        catalogue.jobs.enqueue("fit", arguments, namespace="acme", created_by=key, dedupe_key="k")
    catalogue.keys.revoke(second)
    heir = catalogue.jobs.next_requester(row)
    assert (heir.key_id, heir.namespaces, heir.request_id) == (third, ("acme",), f"of {third}")
    now = catalogue.jobs.hand_over(row, heir)
    assert (now.created_by, now.owner, now.state) == (third, "third", "queued")
    assert now.arguments == {"scope": ["acme"], "request_id": f"of {third}", "pool": "p"}
    assert [job.id for job in catalogue.jobs.active_of_key(third)] == [row.id]
    assert catalogue.jobs.active_of_key(first) == []
    assert catalogue.jobs.next_requester(now) is None, "who had it before is not asked again"


def test_what_waits_and_runs_by_kind_and_key(catalogue):
    for namespace in ("acme", "acme", "other"):
        enqueue(catalogue, namespace=namespace)
    catalogue.jobs.enqueue("embed", {}, namespace="acme", created_by="key-2")
    for is_requested in (False, False, True):
        catalogue.jobs.enqueue("fit", {"asked": is_requested}, namespace="acme", created_by="key-2")
    claim(catalogue, kinds=["embed"])
    jobs = catalogue.jobs
    assert (jobs.count_active("embed"), jobs.count_active("embed", created_by="key-2")) == (4, 1)
    assert (jobs.count_active("fit"), jobs.count_active("fit", created_by="key-2")) == (1, 1), "refits do not count"


def test_how_long_jobs_take_is_the_mean_of_those_that_succeeded(catalogue):
    assert catalogue.jobs.mean_seconds("embed") is None
    for seconds in (10, 20):
        row = enqueue(catalogue)
        claim(catalogue, at=datetime.now(UTC) - timedelta(seconds=seconds)) or claim(catalogue)
        catalogue.jobs.succeed(row.id, {})
    failed = enqueue(catalogue)
    claim(catalogue)
    catalogue.jobs.fail(failed.id, {"code": "x"}, None)
    rows = [row for row in catalogue.jobs.list(None, limit=9).rows if row.state == "succeeded"]
    took = [(row.finished_at - row.started_at).total_seconds() for row in rows]
    assert catalogue.jobs.mean_seconds("embed") == pytest.approx(sum(took) / 2)
    assert catalogue.jobs.mean_seconds("embed", of_last=1) == pytest.approx(took[0])


ENDS = {
    "succeeded": lambda jobs, id: jobs.succeed(id, {"x": 1}),
    "failed": lambda jobs, id: jobs.fail(id, {"code": "x"}, None),
    "cancelled": lambda jobs, id: jobs.cancel(id),
}
"""What ends a job, by the state that it has then."""


# --- the end --------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ENDS)
def test_what_has_ended_says_when_and_stays_as_it_is(catalogue, state):
    """It began when it was begun the last time."""
    row = enqueue(catalogue)
    assert (row.started_at, row.finished_at) == (None, None)
    first = claim(catalogue, at=soon(1))
    assert (first.started_at, first.finished_at) == (first.updated_at, None)
    catalogue.jobs.fail(row.id, {"code": "busy"}, 0.0)
    second = claim(catalogue, at=soon(5))
    assert (second.started_at > first.started_at, second.finished_at) == (True, None)
    assert catalogue.jobs.progress(row.id, done=1, total=3, message="on the way")
    ENDS[state](catalogue.jobs, row.id)
    ended = catalogue.jobs.get(None, row.id)
    assert (ended.state, ended.lease_until, ended.started_at) == (state, None, second.started_at)
    assert ended.finished_at is not None
    assert ended.progress == {"done": 1, "total": 3, "message": "on the way"}
    assert ended.result == ({"x": 1} if state == "succeeded" else None)
    for end in ENDS.values():
        end(catalogue.jobs, row.id)
    catalogue.jobs.progress(row.id, done=1, total=1, message="late")
    assert catalogue.jobs.requeue_expired(soon(10**6)) == 0
    assert not catalogue.jobs.heartbeat(row.id, "w1", LEASE, soon())
    assert claim(catalogue) is None
    assert catalogue.jobs.get(None, row.id) == ended


def test_one_that_is_cancelled_before_it_ran_has_no_beginning(catalogue):
    row = catalogue.jobs.cancel(enqueue(catalogue).id)
    assert (row.state, row.started_at, claim(catalogue)) == ("cancelled", None, None)
    assert row.finished_at is not None
    assert catalogue.jobs.cancel(row.id) == row


def test_a_released_job_is_as_if_never_claimed_and_only_its_worker_releases_it(catalogue):
    row = enqueue(catalogue)
    claim(catalogue)
    assert not catalogue.jobs.release(row.id, "w2")
    assert catalogue.jobs.release(row.id, "w1")
    assert not catalogue.jobs.release(row.id, "w1")
    back = catalogue.jobs.get(None, row.id)
    assert (back.state, back.attempts, back.error, back.lease_until) == ("queued", 0, None, None)
    assert claim(catalogue, "w2").attempts == 1


def test_a_retry_waits_and_its_success_forgets_the_failure(catalogue):
    row = enqueue(catalogue)
    claim(catalogue)
    catalogue.jobs.fail(row.id, {"code": "busy"}, 100.0)
    requeued = catalogue.jobs.get(None, row.id)
    assert (requeued.state, requeued.error, claim(catalogue)) == ("queued", {"code": "busy"}, None)
    assert claim(catalogue, at=soon(101)).attempts == 2
    catalogue.jobs.succeed(row.id, {})
    assert catalogue.jobs.get(None, row.id).error is None


# --- leases ---------------------------------------------------------------------------------------


def test_a_heartbeat_prolongs(catalogue):
    row = enqueue(catalogue)
    claim(catalogue)
    assert catalogue.jobs.heartbeat(row.id, "w1", LEASE, soon(1000))
    assert catalogue.jobs.requeue_expired(soon(1000)) == 0
    assert not catalogue.jobs.heartbeat("job-unknown", "w1", LEASE, soon())


def test_a_worker_back_from_the_dead_touches_nothing(catalogue):
    row = enqueue(catalogue)
    claim(catalogue, "w1")
    catalogue.jobs.requeue_expired(soon(2 * LEASE))
    theirs = claim(catalogue, "w2")
    jobs = catalogue.jobs
    assert [
        jobs.heartbeat(row.id, "w1", LEASE, soon()),
        jobs.progress(row.id, done=1, total=1, message="", worker="w1"),
        jobs.fail(row.id, {"code": "x"}, None, worker="w1"),
        jobs.fail(row.id, {"code": "x"}, 0.0, worker="w1"),
        jobs.succeed(row.id, {}, worker="w1"),
    ] == [False] * 5
    assert jobs.get(None, row.id) == theirs
    assert jobs.succeed(row.id, {}, worker="w2")


def test_what_was_its_own_fault_and_what_its_process_did(catalogue):
    row = enqueue(catalogue)
    counts = lambda: (lambda job: (job.attempts, job.failures, job.crashes, job.reached))(  # noqa: E731
        catalogue.jobs.get(None, row.id)
    )
    claim(catalogue)
    catalogue.jobs.fail(row.id, {"code": "busy"}, 0.0)
    assert counts() == (1, 1, 0, 0)
    for crashes in (1, 2):
        claim(catalogue)
        catalogue.jobs.requeue_expired(soon(2 * LEASE))
        assert counts() == (1 + crashes, 1, crashes, 0)
    claim(catalogue)
    assert not catalogue.jobs.forgive_failures(row.id, 0, worker="w1")
    assert not catalogue.jobs.forgive_failures(row.id, 10, worker="w2")
    assert counts() == (4, 1, 2, 0)
    assert catalogue.jobs.forgive_failures(row.id, 10, worker="w1")
    assert not catalogue.jobs.forgive_failures(row.id, 10, worker="w1")
    assert counts() == (4, 0, 0, 10)


def test_foreign_is_unknown(catalogue):
    row = enqueue(catalogue)
    assert catalogue.jobs.get(("acme", "x"), row.id) == row
    for scope, id in ((("other",), row.id), ((), row.id), (None, "job-unknown"), (None, "x" * 5000)):
        with pytest.raises(NotFound, match="no job"):
            catalogue.jobs.get(scope, id)


def test_lists_filter(catalogue):
    def ids(**by):
        return [row.id for row in catalogue.jobs.list(None, limit=9, **by).rows]

    embed, fit = enqueue(catalogue), enqueue(catalogue, "fit")
    claim(catalogue, kinds=["fit"])
    assert ids() == [fit.id, embed.id]
    assert (ids(kind="embed"), ids(state="running"), ids(state="lost")) == ([embed.id], [fit.id], [])
    assert catalogue.jobs.list(("other",), limit=9).rows == ()


class QueueIsSound(RuleBasedStateMachine):
    """Against a plain model: no job is lost, run by two, or run again after its end, whatever workers do."""

    def __init__(self) -> None:
        super().__init__()
        self.context = undone(self.database)
        self.jobs = self.context.__enter__().jobs
        self.state: dict[str, str] = {}
        self.holder: dict[str, str] = {}
        self.moment = soon()

    def teardown(self) -> None:
        self.context.__exit__(None, None, None)

    workers = st.sampled_from(["w1", "w2"])

    @rule()
    def enqueue(self) -> None:
        self.state[self.jobs.enqueue("embed", {}, namespace="acme", created_by="k").id] = "queued"

    @rule(worker=workers)
    def claim(self, worker: str) -> None:
        self.moment = max(self.moment, soon())  # jobs become due by the clock, however slow the machine is
        row = self.jobs.claim(worker, KINDS, LEASE, self.moment)
        queued = [id for id, state in self.state.items() if state == "queued"]
        assert (row is None) == (not queued)
        if row is not None:
            assert row.id in queued
            self.state[row.id], self.holder[row.id] = "running", worker

    @precondition(lambda self: self.state)
    @rule(data=st.data(), worker=workers, outcome=st.sampled_from(["succeed", "fail", "retry", "cancel", "beat"]))
    def end(self, data, worker: str, outcome: str) -> None:
        id = data.draw(st.sampled_from(sorted(self.state)))
        mine = self.state[id] == "running" and self.holder[id] == worker
        if outcome == "cancel":
            self.jobs.cancel(id)
            if self.state[id] in ("queued", "running"):
                self.state[id] = "cancelled"
            return
        done = {
            "succeed": lambda: self.jobs.succeed(id, {}, worker=worker),
            "fail": lambda: self.jobs.fail(id, {}, None, worker=worker),
            "retry": lambda: self.jobs.fail(id, {}, 0.0, worker=worker),
            "beat": lambda: self.jobs.heartbeat(id, worker, LEASE, self.moment),
        }[outcome]()
        assert done is mine
        if mine and outcome != "beat":
            self.state[id] = {"succeed": "succeeded", "fail": "failed", "retry": "queued"}[outcome]

    @rule()
    def everybody_dies(self) -> None:
        self.moment += timedelta(seconds=2 * LEASE)
        running = [id for id, state in self.state.items() if state == "running"]
        assert self.jobs.requeue_expired(self.moment) == len(running)
        self.state.update(dict.fromkeys(running, "queued"))

    @invariant()
    def is_the_model(self) -> None:
        assert {row.id: row.state for row in self.jobs.list(None, limit=100).rows} == self.state


def test_the_queue_is_sound(database):
    QueueIsSound.database = database
    QueueIsSound.TestCase.settings = settings(max_examples=15, stateful_step_count=20)
    QueueIsSound.TestCase().runTest()
