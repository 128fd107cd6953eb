"""The runner alone: a real queue, kinds made for the test, and everything that can come between a claim and an end."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from registry.catalogue import Database
from registry.catalogue.jobs import Jobs
from registry.catalogue.rows import JobRow
from registry.context import Caller, Registry
from registry.errors import Busy, Cancelled, Incompatible, InvalidSample, SoupError, Unavailable
from registry.progress import silent
from registry.samples.sample import embed
from registry.spec import BaseEntry
from registry.spec.weighing import WeighingRequest
from service.http.answers.waiting import result_of, wait_for_job
from service.job_board import JobBoard
from service.jobs import fit_process, gradient_process
from service.jobs import runner as module
from service.jobs.contract import JobContext, JobKind
from service.jobs.kinds import KINDS
from service.jobs.runner import FINAL, JobRunner, after_withdrawal, cancel, withdraw
from service.observability import logs
from service.observability.logs import JsonFormatter
from service.settings import Settings
from tests.postgres import Databases
from tests.registry.memory_blobs import MemoryBlobs
from tests.registry.toy_registry import ToyRegistry, passages
from training.process import Child

ON_DATABASES = ("sqlite",)  # what the queue's own SQL does on each is asked in `registry/catalogue/test_jobs.py`
PATIENCE = 60.0
SILENT_CHILD = "tests.training.silent_child"
LATER = timedelta(days=1)
Run = Callable[[JobContext], dict[str, Any]]
SECRET = "secret text of a sample"


def fails(error: Exception) -> Run:
    """A run that raises."""

    def run(*_: Any) -> dict[str, Any]:
        raise error

    return run


class Stage:
    """A queue, a runner over it, and one kind of job, `test`, that does what a test says."""

    def __init__(self, database: Database, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.database, self.patch = database, patch
        self.settings = Settings(data=folder, job_lease_seconds=60.0)
        self.started = threading.Semaphore(0)
        self.go_on = threading.Event()
        self.cleaned: list[str] = []
        self.without: list[str] = []
        self.run: Run = lambda context: {"did": context.row.id}
        self.runners: list[JobRunner] = []

    def kind(self) -> JobKind:
        def clean(_: Any, row: JobRow) -> None:
            self.cleaned.append(row.id)

        return JobKind(
            run=lambda context: self.run(context),
            on_unsuccessful_end=lambda catalogue, row: self.without.append(row.id),
            clean=clean,
            reach=lambda row: (row.namespace,),
        )

    def runner(self, *, start: bool = True, sole_owner: bool = True, **settings: Any) -> JobRunner:
        services = SimpleNamespace(
            settings=self.settings.model_copy(update=settings),
            registry=Registry(self.database, MemoryBlobs()),
            jobs=JobBoard(),
            tracing=None,
        )
        runner = JobRunner(services, sole_owner=sole_owner)  # type: ignore[arg-type]
        self.runners.append(runner)
        if start:
            runner.start()
        return runner

    def plays(self, **changes: Any) -> None:
        """Have the kind `test` differ in these fields."""
        self.patch.setattr(module, "KINDS", {"test": replace(self.kind(), **changes)})

    def enqueue(self, kind: str = "test", **arguments: str) -> str:
        with self.database.write() as catalogue:
            job = catalogue.jobs.enqueue(kind, arguments, namespace="acme", created_by="key-1")
        for runner in self.runners:
            runner.services.jobs.wake()
        return job.id

    def lost(self) -> Any:
        """Every job that runs is taken for one whose process died."""
        return self.change(lambda jobs: jobs.requeue_expired(datetime.now(UTC) + LATER))

    def row(self, job: str) -> JobRow:
        with self.database.read() as catalogue:
            return catalogue.jobs.get(None, job)

    def change(self, change: Callable[[Jobs], Any]) -> Any:
        with self.database.write() as catalogue:
            return change(catalogue.jobs)

    def until(self, runner: JobRunner, job: str, done: Callable[[JobRow], bool]) -> JobRow:
        """The job once `done` says so of it, told by the runner's watch."""
        changed = threading.Event()
        deadline = datetime.now(UTC) + timedelta(seconds=PATIENCE)
        with runner.services.jobs.watched(job, changed.set):
            while not done(row := self.row(job)):
                assert datetime.now(UTC) < deadline, row
                changed.wait(0.2)
                changed.clear()
        return row

    def ended(self, runner: JobRunner, job: str) -> JobRow:
        """The job once it ended and was cleaned up after."""
        return self.until(runner, job, lambda row: row.state in FINAL and job in self.cleaned)

    def done(self) -> JobRow:
        """A new job, run to its end by a new runner."""
        return self.ended(self.runner(), self.enqueue())

    def holding(self, **settings: Any) -> tuple[JobRunner, str]:
        """A runner and the job that it runs, which goes on until the test lets it."""
        self.run = self.hold
        runner, job = self.runner(**settings), self.enqueue()
        assert self.started.acquire(timeout=PATIENCE)
        return runner, job

    def hold(self, context: JobContext) -> dict[str, Any]:
        """A run that goes on, reporting, until the test lets it."""
        self.started.release()
        while not self.go_on.wait(0.01):
            context.progress(1, 2, "half-way")
        return {"held": True}


def claim(runner: JobRunner) -> JobRow:
    claimed = runner._claim("quick")
    assert claimed is not None
    return claimed


@pytest.fixture
def stage(databases: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.1)
    monkeypatch.setattr(module, "PROGRESS_SECONDS", 0.0)
    with databases.new(tmp_path) as database:
        stage = Stage(database, tmp_path, monkeypatch)
        stage.plays()
        yield stage
        stage.go_on.set()
        for runner in stage.runners:
            runner.stop()


CALLER = Caller("key-1", ("acme",), "req-1")


class TestEnds:
    def test_success_with_its_result_and_its_progress(self, stage: Stage) -> None:
        runner, job = stage.holding()
        half = stage.until(runner, job, lambda row: row.progress.get("done") == 1)
        assert (half.state, half.progress) == ("running", {"done": 1, "total": 2, "message": "half-way"})
        stage.go_on.set()
        row = stage.ended(runner, job)
        assert (row.state, row.error, row.attempts, result_of(row)) == ("succeeded", None, 1, {"held": True})
        assert cancel(runner.services, CALLER, job) == row, "what ended stays as it is"
        assert stage.without == []

    def test_a_failure_is_not_tried_again_but_stored_whole_and_raised_again(self, stage: Stage) -> None:
        stage.run = fails(Incompatible("No.", param="recipe", problems=["a", "b"]))
        row = stage.done()
        assert (row.state, row.attempts, stage.without) == ("failed", 1, [row.id])
        with pytest.raises(Incompatible, match=r"No\.") as caught:
            result_of(row)
        assert (caught.value.param, caught.value.problems) == ("recipe", ("a", "b"))

    @pytest.mark.parametrize("error", [Busy("full"), RuntimeError(SECRET)])
    def test_what_may_pass_is_tried_again(self, stage: Stage, error: Exception) -> None:
        stage.run = lambda context: fails(error)(context) if context.row.attempts < 3 else {"at": context.row.attempts}
        row = stage.done()
        assert (row.state, row.result, row.error) == ("succeeded", {"at": 3}, None)

    def test_but_not_for_ever_and_its_words_stay_out_of_the_row_and_its_places_are_logged(
        self, stage: Stage, caplog: pytest.LogCaptureFixture
    ) -> None:
        stage.run = fails(OSError(errno.EIO, SECRET))
        with caplog.at_level(logging.INFO, "soup.jobs"):
            row = stage.done()
        assert (row.state, row.attempts, stage.without, stage.cleaned) == ("failed", 3, [row.id], [row.id])
        assert (row.error["code"], "OSError" in row.error["message"]) == ("internal", True)
        assert SECRET not in str(row.error)
        records = [record for record in caplog.records if row.id in str(vars(record))]
        assert len(records) == 3
        for record in records:
            entry = json.loads(JsonFormatter().format(record))
            assert (entry["level"], entry["job"], entry["error"], entry["errno"]) == ("error", row.id, "OSError", "EIO")
            assert any(Path(__file__).name in place and place.endswith(" run") for place in entry["where"])
            assert SECRET not in str(entry)

    def test_one_bad_end_does_not_end_the_worker(self, stage: Stage) -> None:
        def clean(_: Any, row: JobRow) -> None:
            stage.cleaned.append(row.id)
            raise OSError("the disk is gone")

        stage.plays(clean=clean)
        runner = stage.runner()
        for _ in range(2):
            assert stage.ended(runner, stage.enqueue()).state == "succeeded"

    def test_a_database_that_is_away_for_a_while(self, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
        real, failures = Jobs.claim, [OSError("away"), OSError("still away")]

        def claim(*args: Any, **named: Any) -> Any:
            if failures:
                raise failures.pop()
            return real(*args, **named)

        monkeypatch.setattr(Jobs, "claim", claim)
        assert stage.done().state == "succeeded"


class TestCancel:
    def test_a_queued_job_never_runs(self, stage: Stage) -> None:
        runner = stage.runner(start=False)
        job = stage.enqueue()
        assert cancel(runner.services, CALLER, job).state == "cancelled"
        assert (stage.cleaned, stage.without) == ([job], [job])
        runner.start()
        stage.ended(runner, stage.enqueue())
        assert stage.row(job).attempts == 0
        with pytest.raises(Cancelled):
            result_of(stage.row(job))

    def test_a_running_job_ends_at_its_next_word_and_is_cleaned_up_once(self, stage: Stage) -> None:
        runner, job = stage.holding()
        cancel(runner.services, Caller("key-1", None, "req-1"), job)
        row = stage.ended(runner, job)
        assert (row.state, row.result, row.error) == ("cancelled", None, None)
        assert (stage.cleaned, stage.without) == ([job], [job])

    def test_between_the_claim_and_the_start(self, stage: Stage) -> None:
        stage.run = stage.hold
        runner = stage.runner(start=False)
        job = stage.enqueue()
        claimed = claim(runner)
        cancel(runner.services, CALLER, job)
        runner._run(claimed)
        assert stage.row(job).state == "cancelled"

    def test_in_another_process_is_noticed_by_the_heartbeat(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "PROGRESS_SECONDS", 1e9)
        runner, job = stage.holding(job_lease_seconds=0.2)
        stage.change(lambda jobs: jobs.cancel(job))
        assert stage.ended(runner, job).state == "cancelled"

    def test_a_cancellation_nobody_asked_for_is_a_failure(self, stage: Stage) -> None:
        stage.run = fails(Cancelled("The engine dropped it."))
        row = stage.done()
        assert (row.state, row.error["message"]) == ("failed", "The engine dropped it.")


class TestProcesses:
    def test_a_server_that_stops_gives_its_jobs_back_as_they_were(self, stage: Stage) -> None:
        first, job = stage.holding()
        assert first.stop() is True
        row = stage.row(job)
        assert (row.state, row.attempts, row.error, stage.cleaned) == ("queued", 0, None, [])
        stage.go_on.set()
        assert stage.ended(stage.runner(), job).state == "succeeded"

    def test_a_job_that_does_not_hear_of_it_is_given_back_all_the_same(self, stage: Stage) -> None:
        """The later outcome of its thread does not end the job, which the next server runs anew."""
        over = threading.Event()

        def deaf(_: JobContext) -> dict[str, Any]:
            stage.started.release()
            stage.go_on.wait(PATIENCE)
            over.set()
            return {"by": "the deaf"}

        stage.run = deaf
        first = stage.runner()
        job = stage.enqueue()
        assert stage.started.acquire(timeout=PATIENCE)
        assert first.stop(seconds=0.0) is False
        row = stage.row(job)
        assert (row.state, row.attempts, stage.cleaned) == ("queued", 0, [])
        stage.go_on.set()
        assert over.wait(PATIENCE)
        stage.run = lambda context: {"by": "the next"}
        assert stage.ended(stage.runner(), job).result == {"by": "the next"}

    def test_a_job_whose_process_the_stop_has_killed_is_given_back(self, stage: Stage) -> None:
        def killed(_: JobContext) -> dict[str, Any]:
            stage.started.release()
            stage.go_on.wait(PATIENCE)
            raise Unavailable("The process that computes gradients ended with status -9; try again.")

        stage.run = killed
        runner, job = stage.runner(job_attempts=1), stage.enqueue()
        assert stage.started.acquire(timeout=PATIENCE)
        runner.begin_stop()
        stage.go_on.set()
        assert runner.stop() is True
        assert (stage.row(job).state, stage.row(job).error, stage.cleaned) == ("queued", None, [])

    def test_who_waits_for_a_job_hears_that_the_server_stops(self, stage: Stage) -> None:
        runner = stage.runner(start=False)
        job, is_told = stage.enqueue(), threading.Event()

        async def ask() -> JobRow:
            waiting = asyncio.ensure_future(wait_for_job(runner.services, stage.row(job), 10 * PATIENCE))
            await asyncio.sleep(0)
            runner.begin_stop()
            return await asyncio.wait_for(waiting, PATIENCE)

        with runner.services.jobs.watched(job, is_told.set):
            assert asyncio.run(ask()).state == "queued"
        assert is_told.is_set()
        assert runner.services.jobs.closed
        assert runner.stop() is True

    def test_who_waits_is_told_of_the_end_though_the_database_was_away_meanwhile(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        runner, get, errors = stage.runner(start=False), Jobs.get, [Busy("busy"), Unavailable("away")]
        queued = stage.row(stage.enqueue())
        cancel(runner.services, CALLER, queued.id)

        def fail_first(*args: Any) -> JobRow:
            if errors:
                runner.services.jobs.tell(queued.id)
                raise errors.pop()
            return get(*args)

        monkeypatch.setattr(Jobs, "get", fail_first)
        assert asyncio.run(wait_for_job(runner.services, queued, PATIENCE)).state == "cancelled"

    def test_what_a_dead_process_was_at_is_taken_up_at_once_by_the_only_owner(self, stage: Stage) -> None:
        job = stage.enqueue()
        claim(stage.runner(start=False))
        row = stage.ended(stage.runner(), job)
        assert (row.state, row.attempts) == ("succeeded", 2)

    def test_others_wait_for_its_lease(self, stage: Stage) -> None:
        lost, leased = stage.enqueue(), stage.enqueue()
        claim(stage.runner(start=False, job_lease_seconds=0.3))
        claim(stage.runner(start=False))
        runner = stage.runner(sole_owner=False, job_lease_seconds=1.0)
        assert stage.ended(runner, lost).attempts == 2
        assert stage.row(leased).state == "running"

    def test_servers_whose_database_was_away_for_longer_than_a_lease_keep_their_jobs(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Jobs that nobody beats for are taken over once there was a lease without an outage."""
        clock = [0.0]
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
        first, second, _ = servers = [stage.runner(start=False, sole_owner=False) for _ in range(3)]
        for _ in servers:
            stage.enqueue()
        jobs = [claim(server).id for server in servers]

        def beat(*beating: JobRunner, after: float) -> list[str]:
            clock[0] += after
            for server in beating:
                with server.services.jobs.runs(jobs[servers.index(server)]):
                    server._beat()
            return [stage.row(job).state for job in jobs]

        for _ in range(5):
            beat(first, second, after=15)
        for job, server in zip(jobs, servers, strict=True):  # their leases are over
            stage.change(
                partial(Jobs.heartbeat, id=job, worker=server._name, lease_seconds=-1, moment=datetime.now(UTC))
            )
        assert beat(first, second, after=90) == ["running"] * 3
        assert [beat(first, second, after=15) for _ in range(4)][2:] == [["running"] * 3, ["running"] * 2 + ["queued"]]

    def test_a_job_that_ends_its_process_each_time_is_given_up_and_cleaned_up(self, stage: Stage) -> None:
        job = stage.enqueue()
        for _ in range(3):
            claim(stage.runner(start=False))
            stage.lost()
        row = stage.ended(stage.runner(), job)
        assert (row.state, stage.without, stage.cleaned) == ("failed", [job], [job])
        assert "crashed 3 times" in row.error["message"]

    def test_what_comes_further_each_time_is_not_given_up_however_often_its_process_ends(self, stage: Stage) -> None:
        """A training that saves itself: a server that crashes is no failure of its own."""
        began: list[int] = []
        stage.plays(reached=lambda _services, _row: 100 * len(began))
        job = stage.enqueue()

        def crash(context: JobContext) -> dict[str, Any]:
            began.append(context.row.attempts)
            stage.lost()
            raise RuntimeError("the process is gone, and with it whatever it would say")

        stage.run = crash
        for _ in range(6):
            runner = stage.runner(start=False)
            runner._run(claim(runner))
        assert began == [1, 2, 3, 4, 5, 6]
        stage.run = lambda context: {"saved": True}
        row = stage.ended(stage.runner(), job)
        assert (row.state, row.result, row.attempts) == ("succeeded", {"saved": True}, 7)

    def test_nor_however_often_it_fails_for_a_while(self, stage: Stage) -> None:
        """A training whose process is killed where memory runs out; at first before it has saved anything."""
        saved_at = [0, 0, 100, 200, 300, 400, 500]
        began: list[int] = []
        stage.plays(reached=lambda _services, _row: saved_at[min(len(began), len(saved_at)) - 1])
        job = stage.enqueue()

        def fail(context: JobContext) -> dict[str, Any]:
            began.append(context.row.attempts)
            raise Unavailable("the process that trains was killed")

        stage.run = fail
        runner = stage.runner(start=False)
        for _ in saved_at:
            runner._run(claim(runner))
        assert stage.row(job).state == "queued"
        for _ in range(2):
            runner._run(claim(runner))
        assert stage.row(job).state == "failed", "it comes no further"

    def test_and_given_up_once_it_comes_no_further(self, stage: Stage) -> None:
        stage.plays(reached=lambda _services, _row: 100)
        job = stage.enqueue()
        stage.run = lambda _context: {"lost": stage.lost()}
        for _ in range(4):
            runner = stage.runner(start=False)
            runner._run(claim(runner))
        row = stage.ended(stage.runner(), job)
        assert (row.state, stage.without) == ("failed", [job])
        assert "crashed 3 times" in row.error["message"]

    @pytest.mark.parametrize("end", [lambda _: {"stale": True}, fails(InvalidSample("stale")), fails(Busy("stale"))])
    def test_a_job_given_to_another_meanwhile_is_the_others_to_end(self, stage: Stage, end: Run) -> None:
        runner = stage.runner(start=False)
        job = stage.enqueue()

        def lose(context: JobContext) -> dict[str, Any]:
            stage.lost()
            assert stage.change(lambda jobs: jobs.claim("other", ["test"], 60, datetime.now(UTC) + LATER)).id == job
            return end(context)

        stage.run = lose
        runner._run(claim(runner))
        row = stage.row(job)
        assert (row.state, row.result, row.error, stage.cleaned, stage.without) == ("running", None, None, [], [])
        assert stage.change(lambda jobs: jobs.succeed(job, {"fresh": True}, worker="other"))

    def test_a_job_that_is_lost_while_it_runs_is_claimed_here_again_only_when_it_has_ended(self, stage: Stage) -> None:
        runner, job = stage.runner(start=False), stage.enqueue()
        claimed: list[JobRow | None] = []

        def lose(_: JobContext) -> dict[str, Any]:
            stage.lost()
            claimed.append(runner._claim("quick"))
            raise Cancelled("Its lease was over.")

        stage.run = lose
        runner._run(claim(runner))
        assert (claimed, stage.row(job).state, stage.without) == ([None], "queued", [])
        assert claim(runner).id == job

    def test_while_the_blobs_cannot_be_used_no_try_is_spent(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        runner, job = stage.runner(start=False), stage.enqueue()
        trouble: list[str | None] = ["is gone"]
        monkeypatch.setattr(MemoryBlobs, "is_failing", True)
        monkeypatch.setattr(MemoryBlobs, "probe", lambda _: trouble[0])
        for _ in range(3):
            assert runner._claim("quick") is None
        assert (stage.row(job).state, stage.row(job).attempts) == ("queued", 0)
        trouble[0] = None
        assert claim(runner).id == job

    def test_who_waits_is_told_of_the_end_though_cleaning_fails_and_the_next_collection_deletes_the_text(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cook = replace(stage.kind(), clean=fails(Unavailable("The folder is gone.")))
        monkeypatch.setattr(module, "KINDS", {"cook": cook})
        runner = stage.runner(start=False)
        told_jobs: list[str] = []
        monkeypatch.setattr(runner.services.jobs, "tell", told_jobs.append)
        blobs = runner.services.registry.blobs
        job = stage.enqueue("cook", request=blobs.put_bytes(SECRET.encode()))
        runner._run(claim(runner))
        assert (stage.row(job).state, told_jobs) == ("succeeded", [job])
        runner._collect()
        assert list(blobs.digests()) == []

    def test_a_success_that_is_stored_although_its_answer_is_lost_is_cleaned_up_after(
        self, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        runner, job, succeed = stage.runner(start=False), stage.enqueue(), JobRunner._succeed

        def lose_answer(*args: Any) -> bool:
            succeed(*args)
            raise Unavailable("It is not known whether the database has stored this.")

        monkeypatch.setattr(JobRunner, "_succeed", lose_answer)
        runner._run(claim(runner))
        assert (stage.row(job).state, stage.cleaned, stage.without) == ("succeeded", [job], [])


def test_codes_of_a_newer_server_stay_errors(stage: Stage) -> None:
    job = stage.enqueue()
    stage.change(lambda jobs: jobs.claim("w", ["test"], 60, datetime.now(UTC)))
    stage.change(lambda jobs: jobs.fail(job, {"code": "from_the_future", "message": "New."}, None))
    with pytest.raises(SoupError, match=r"New\."):
        result_of(stage.row(job))


def test_a_job_of_a_newer_servers_kind_can_be_cancelled(stage: Stage) -> None:
    job = stage.enqueue("from_the_future")
    assert cancel(stage.runner(start=False).services, CALLER, job).state == "cancelled"


def test_a_key_with_a_job_of_a_newer_servers_kind_can_be_revoked(stage: Stage) -> None:
    job, runner = stage.enqueue("from_the_future"), stage.runner(start=False)
    with stage.database.write() as catalogue:
        withdrawn = withdraw(catalogue, "key-1")
    after_withdrawal(runner.services, withdrawn)
    assert [row.id for row in withdrawn] == [job]


def test_a_sample_whose_base_model_was_missing_is_embedded_by_the_next_start_that_serves_it(stage: Stage) -> None:
    verbs = ToyRegistry(stage.database)
    pushed = verbs.push(sample={"texts": passages("law")}).row

    def run(context: JobContext) -> dict[str, Any]:
        return {"adapter": embed(context.services.registry, pushed.id, progress=context.progress).ref}

    stage.patch.setattr(module, "KINDS", {"embed": replace(KINDS["embed"], run=run, clean=stage.kind().clean)})
    for bases, sample_state in (({}, "failed"), ({}, "failed"), (verbs.registry.bases, "ready")):
        runner = stage.runner(start=False, job_attempts=1)
        runner.services.registry = replace(verbs.registry, bases=bases)  # type: ignore[misc]
        runner.start()
        with stage.database.read() as catalogue:
            newest = catalogue.jobs.list(None, kind="embed", limit=1).rows[0]
        stage.ended(runner, newest.id)
        runner.stop()
        assert verbs.row(pushed.id).sample_state == sample_state


class TestLanes:
    @pytest.mark.parametrize("kind", sorted(set(KINDS) - {"cook"}))
    def test_nothing_slow_keeps_a_cook_waiting(self, stage: Stage, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
        """In the lanes of the real kinds: neither training nor fit, neither search nor a large sample."""
        quick = JobKind(lambda _: {"quick": True}, lambda _: None, lane=KINDS["cook"].lane)
        slow = replace(stage.kind(), lane=KINDS[kind].lane)
        monkeypatch.setattr(module, "KINDS", {"test": slow, "quick": quick})
        runner, training = stage.holding()
        job = stage.enqueue("quick")
        assert stage.until(runner, job, lambda row: row.state in FINAL).result == {"quick": True}
        assert stage.row(training).state == "running"
        stage.go_on.set()
        assert stage.ended(runner, training).state == "succeeded"

    def test_a_server_that_trains_nothing_leaves_trainings_queued(self, stage: Stage) -> None:
        stage.plays(lane="training")
        idle = stage.runner(training_workers=0)
        job = stage.enqueue()
        idle.stop()
        assert stage.row(job).state == "queued"


def test_processes_log_at_the_level_of_their_server(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, child, levels = Settings(log_level="error"), Mock(side_effect=Unavailable("No process.")), []
    for process in (fit_process, gradient_process):
        monkeypatch.setattr(process, "Child", child)
    monkeypatch.setattr(logs, "configure_logging", levels.append)
    with pytest.raises(Unavailable):
        fit_process.FitProcess(Mock(), settings)
    with pytest.raises(Unavailable):
        request = WeighingRequest.model_construct()
        gradient_process.GradientProcess(settings).weigh(BaseEntry(id="a", source="a"), request, progress=silent)
    for call in child.call_args_list:
        logs.logged(Mock())(call.args[1])
    assert levels == ["error", "error"]


@pytest.mark.parametrize("module", [fit_process, gradient_process])
def test_a_process_is_ended_although_the_thread_of_its_task_waits(monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
    """Such as for a database that another process has locked, longer than a server takes to stop."""
    monkeypatch.setattr(module, "Child", lambda _, setup, **named: Child(SILENT_CHILD, setup, **named))
    process: Any
    if module is fit_process:
        process, spec = fit_process.FitProcess(Mock(), Settings()), Mock(model_dump=Mock(return_value={}))
        run = partial(process.fit, spec, spec, None)
    else:
        process = gradient_process.GradientProcess(Settings())
        run = partial(process._run, BaseEntry(id="a", source="a"), {"seconds": PATIENCE})
    waits, go_on, errors = threading.Event(), threading.Event(), []

    def progress(*_: Any) -> None:
        waits.set()
        go_on.wait(PATIENCE)

    def task() -> None:
        try:
            run(progress=progress)
        except SoupError as error:
            errors.append(type(error))

    thread = threading.Thread(target=task)
    thread.start()
    assert waits.wait(PATIENCE)
    began = time.monotonic()
    process.stop()
    assert time.monotonic() - began < PATIENCE / 2
    go_on.set()
    thread.join(PATIENCE)
    assert errors == [Unavailable]
