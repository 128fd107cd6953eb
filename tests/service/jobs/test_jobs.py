"""Jobs over HTTP: followed, cancelled, shown to whom they concern, and finished by the next server after kill -9."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from adaptersoup.client.client import SoupClient
from registry.adapters import paper_config
from registry.errors import Cancelled, NotFound, SoupError, Unavailable
from registry.names import parse_ref, sha256_digest
from registry.progress import silent
from registry.spec import StoredAdapter, WeighingRequest
from service.jobs import runner as jobs_module
from service.jobs.cook import COOK
from tests.postgres import KINDS
from tests.registry.catalogue_rows import statements
from tests.service.answers import answered
from tests.service.cluster import ended, until
from tests.service.passages import WORDS, passages
from tests.service.servers import DECLARED, Live, World

DATABASES = KINDS
PROCESSES = True
pytestmark = pytest.mark.one_database  # the queue is asked on each in `registry/catalogue/test_jobs.py`
SETTINGS = {"job_workers": 2, "refit_delay_seconds": 0.0}


@pytest.fixture(scope="module", autouse=True)
def _stocked(live: Live) -> None:
    """Three domains with samples, and one adapter of another namespace."""
    pushed = [
        live.world.push(
            f"acme/{domain}", seed=seed, domain=domain, provenance=DECLARED, sample={"texts": passages(domain, 25)}
        )
        for seed, domain in enumerate(WORDS)
    ]
    live.world.push("theirs/secret", seed=9, domain="hidden", provenance=DECLARED)
    for adapter in pushed:
        ended(live.world.client, adapter["job"])


def job_of(world: World, job: str) -> dict[str, Any]:
    return dict(world.client.get(f"/v1/jobs/{job}").json())


def cook(world: World, secret: str | None = None, **body: Any) -> Any:
    headers = world.headers(secret) if secret else {}
    return world.client.post("/v1/soups", json={"verify": False, "wait": 0, **body}, headers=headers)


def by_hand(*names: str, weight: float = 1.0) -> dict[str, Any]:
    return {"ingredients": [{"ref": name, "weight": weight + number} for number, name in enumerate(names)]}


def add_evidence(world: World, soup: dict[str, Any], evidence: dict[str, Any]) -> None:
    """Store evidence of a soup, as a further cook of it does."""
    with world.registry.database.write() as catalogue:
        row = catalogue.adapters.resolve(None, parse_ref(soup["model"]))
        catalogue.soups.add_evidence(row.id, soup["recipe_digest"], evidence)


def held_texts(world: World) -> list[str]:
    """Blobs that hold a request of somebody's."""
    blobs = world.registry.blobs
    return [digest for digest in blobs.digests() if blobs.read(digest).startswith(b'{"request"')]


@pytest.fixture
def _retried_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(jobs_module, "IDLE_SECONDS", 0.02)


@pytest.fixture
def held_score(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Verification goes on until the event is set."""
    go_on = threading.Event()
    real = world.runtime.engine.score

    def score(*args: Any, progress: Any = None, **kwargs: Any) -> Any:
        while progress is not None and not go_on.wait(0.01):
            progress(0, 1)
        return real(*args, progress=progress, **kwargs)

    monkeypatch.setattr(world.runtime.engine, "score", score)
    yield go_on
    go_on.set()


class TestFollowing:
    def test_events_tell_the_progress_and_then_the_whole_job(
        self, live: Live, client: SoupClient, held_score: threading.Event
    ) -> None:
        sample = {"texts": passages("kitchen", 25, seed=3)}
        job = answered(cook(live.world, sample=sample, recipe=by_hand("acme/kitchen"), verify=True), 202)
        assert (job["object"], job["kind"], job["result"]) == ("job", "cook", None)
        until(lambda: job_of(live.world, job["id"])["state"] == "running")
        messages: list[str] = []

        def listen(done: int, total: int, message: str) -> None:
            messages.append(message)
            held_score.set()

        done = client.wait_job(job["id"], progress=listen)
        assert messages
        assert (done["state"], done["attempts"], done["error"]) == ("succeeded", 1, None)
        assert done["result"]["object"] == "soup"
        assert done["progress"]["done"] == done["progress"]["total"] > 1  # what was stored last may be a step before
        moments = [datetime.fromisoformat(done[name]) for name in ("created_at", "started_at", "finished_at")]
        assert moments == sorted(moments)
        events = live.world.client.get(f"/v1/jobs/{job['id']}/events")
        assert events.headers["content-type"].startswith("text/event-stream")
        name, data = events.text.strip().split("\n")
        assert name == "event: done"
        assert json.loads(data.removeprefix("data: "))["result"] == done["result"]

    def test_a_job_says_whose_it_is_to_whom_sees_all_that_its_key_sees(self, world: World) -> None:
        """The embedding in `acme` is of the admin key, the training in it of a key that sees more than `acme`."""

        def owners(secret: str) -> dict[str, Any]:
            jobs = world.client.get("/v1/jobs?limit=200", headers=world.headers(secret)).json()["data"]
            return {job["id"]: (job["created_by"], job["owner"]) for job in jobs}

        def cooked(secret: str) -> dict[str, Any]:
            """The job of a cook, which may have ended before it was answered."""
            cook(world, secret, recipe=by_hand("acme/code"))
            jobs = world.client.get("/v1/jobs?kind=cook&limit=1", headers=world.headers(secret)).json()["data"]
            return dict(jobs[0])

        embed = world.client.get("/v1/jobs?kind=embed&limit=1").json()["data"][0]
        assert embed["owner"] == "admin"
        both, first_key, second_key = (
            world.key(["read", "write"], spaces) for spaces in (["acme", "theirs"], ["acme"], ["acme"])
        )
        wide, near = cooked(both)["id"], cooked(second_key)
        newest = world.client.get("/v1/keys").json()["data"][-1]
        assert (near["created_by"], near["owner"]) == (newest["id"], newest["name"]) == (newest["id"], "test")
        assert job_of(world, near["id"])["owner"] == "test"
        owners_seen = owners(first_key)
        assert owners_seen[embed["id"]] == (embed["created_by"], None)
        assert owners_seen[wide] == (None, None)  # it may read what this key does not see
        assert owners_seen[near["id"]] == (near["created_by"], "test")
        assert owners(both)[wide][1] == owners(both)[near["id"]][1] == "test"
        assert owners(world.admin)[wide][1] == "test"


class TestCooking:
    def test_two_that_cook_the_same_at_once_share_one_soup(self, world: World) -> None:
        body = {"recipe": by_hand("acme/court", "acme/code", weight=2.5), "name": "acme/shared", "wait": 60}
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda _: cook(world, **body), range(4)))
        assert sorted(answer.status_code for answer in answers) == [200, 200, 200, 201]
        assert len({answer.json()["digest"] for answer in answers}) == 1
        assert {answer.json()["model"] for answer in answers} == {"acme/shared@1"}
        lineage = world.client.get("/v1/adapters/acme/shared/lineage").json()
        assert len(lineage["evidence"]) == 4

    def test_no_text_of_a_request_outlives_its_job(self, world: World, held_score: threading.Event) -> None:
        texts = {"texts": passages("court", 25, seed=4)}
        running = cook(world, sample=texts, recipe=by_hand("acme/court"), verify=True).json()["id"]
        until(lambda: job_of(world, running)["state"] == "running")
        (blob,) = held_texts(world)
        assert world.client.get(f"/v1/blobs/{blob}").status_code == 404
        cancelled = world.client.post(f"/v1/jobs/{running}/cancel").json()
        assert cancelled["state"] == "cancelled"
        until(lambda: not held_texts(world))
        held_score.set()
        for body in ({"sample": texts}, {"sample": {"texts": ["few"]}}, {"recipe": by_hand("acme/nobody")}):
            cook(world, **body, wait=60)
            until(lambda: not held_texts(world))
        everything = b"".join(world.registry.blobs.read(digest) for digest in world.registry.blobs.digests())
        assert texts["texts"][0].encode() not in everything

    def test_a_cook_that_is_cancelled_leaves_no_soup_and_who_waits_for_it_is_told(
        self, world: World, client: SoupClient, held_score: threading.Event
    ) -> None:
        body = {"sample": {"texts": passages("court", 25)}, "recipe": by_hand("acme/court", "acme/kitchen")}
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(cook, world, **body, verify=True, name="acme/never", wait=60)
            job = until(lambda: world.client.get("/v1/jobs?kind=cook&state=running").json()["data"])[0]["id"]
            assert client.cancel_job(job)["state"] == "cancelled"
            answer = waiting.result(60)
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "cancelled")
        with pytest.raises(Cancelled):
            client.wait_job(job)
        held_score.set()
        assert client.cancel_job(job)["state"] == "cancelled"
        assert world.client.get("/v1/adapters/acme/never").status_code == 404
        until(lambda: not held_texts(world))

    def test_a_wait_beyond_the_limit_or_a_request_for_nothing_starts_nothing(self, world: World) -> None:
        jobs_before = world.client.get("/v1/jobs?kind=cook").json()["data"]
        assert "Give a 'sample'" in cook(world).json()["error"]["message"]
        assert cook(world, recipe=by_hand("acme/court"), wait=1e6).status_code == 400
        assert cook(world, recipe=by_hand("acme/court"), wait=-1).status_code == 400
        assert world.client.get("/v1/jobs?kind=cook").json()["data"] == jobs_before


class TestKinds:
    DATABASES = ("sqlite",)

    def test_a_cook_whose_pool_is_to_be_fitted_first_keeps_no_other_waiting(self, world: World) -> None:
        """It takes as long as a fit, so it waits with those that search; a recipe by hand and a known pool never do."""
        selector, sample = {"kind": "cosine", "encoder": "base", "seed": 77}, {"texts": passages("court", 25)}
        kinds = []
        for _ in range(2):
            answer = cook(world, sample=sample, selector=selector).json()
            until(lambda job=answer["id"]: job_of(world, job)["state"] == "succeeded")
            kinds.append(answer["kind"])
        assert kinds == ["search", "cook"]
        assert cook(world, recipe=by_hand("acme/court", "acme/code", weight=5)).json()["kind"] == "cook"


class TestFitting:
    """The process that fits: what becomes of it has nothing to do with the database."""

    DATABASES = ("sqlite",)

    def fit(self, world: World, seed: int, wait: float = 60) -> Any:
        """A fit that was never done before, of a kind whose process starts without scikit-learn."""
        body = {"selector": {"kind": "cosine", "encoder": "base", "seed": seed}, "wait": wait}
        return world.client.post("/v1/selectors", json=body)

    @pytest.mark.usefixtures("_retried_at_once")
    def test_a_process_that_never_starts_is_one_sentence(
        self, world: World, client: SoupClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world.runtime.jobs.fitting.stop()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", "/bin/false")
            job = self.fit(world, 1, wait=0).json()["id"]
            with pytest.raises(Unavailable, match="process that fits selectors"):
                client.wait_job(job)
        assert self.fit(world, 2).status_code == 201

    def test_a_fit_that_is_cancelled_ends_at_once(self, world: World) -> None:
        fitting = world.runtime.jobs.fitting
        fitting.stop()
        job = self.fit(world, 5, wait=0).json()["id"]
        pid = until(lambda: fitting._child.pid)
        os.kill(pid, signal.SIGSTOP)  # before it has come to the fit
        until(lambda: job_of(world, job)["state"] == "running")
        assert world.client.post(f"/v1/jobs/{job}/cancel").json()["state"] == "cancelled"
        until(lambda: not alive(pid))


class TestWeighing:
    """The process that weighs, tunes and computes statistics, with a base model of its own."""

    DATABASES = ("sqlite",)

    def quick(self, world: World, seed: int) -> str:
        sample = {"texts": passages("kitchen", 25, seed=seed)}
        return str(cook(world, sample=sample, effort="quick", verify=True).json()["id"])

    def stopped_child(self, world: World, seed: int) -> tuple[str, int]:
        """A job, and the process that weighs for it, made to stand still."""
        job, computing = self.quick(world, seed), world.runtime.jobs.computing
        pid = until(lambda: computing._child and computing._child.pid)
        os.kill(pid, signal.SIGSTOP)
        return job, pid

    def test_others_do_not_wait_behind_one_that_is_cancelled_at_once(self, world: World) -> None:
        job, pid = self.stopped_child(world, 21)
        plain = cook(world, recipe=by_hand("acme/court", "acme/kitchen"), name="acme/meanwhile", wait=60)
        assert plain.status_code in (200, 201), plain.text
        search = job_of(world, job)
        assert (search["state"], search["kind"]) == ("running", "search")
        assert world.client.post(f"/v1/jobs/{job}/cancel").json()["state"] == "cancelled"
        until(lambda: not alive(pid))

    @pytest.mark.usefixtures("_retried_at_once")
    def test_one_whose_process_is_killed_is_tried_again(self, world: World, client: SoupClient) -> None:
        job, pid = self.stopped_child(world, 23)
        os.kill(pid, signal.SIGKILL)
        done = client.wait_job(job)
        assert (done["state"], done["attempts"], done["error"]) == ("succeeded", 2, None)
        assert done["result"]["search"]["decided_on"] == 19

    def test_the_process_waits_for_the_next_weighing_for_a_while(
        self, world: World, client: SoupClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        computing = world.runtime.jobs.computing
        assert client.wait_job(self.quick(world, 31))["state"] == "succeeded"
        first = computing._child and computing._child.pid
        assert first is not None
        assert client.wait_job(self.quick(world, 34))["state"] == "succeeded"
        assert computing._child.pid == first
        short = world.runtime.services.settings.model_copy(update={"gradients_idle_seconds": 0})
        monkeypatch.setattr(computing, "_settings", short)
        assert client.wait_job(self.quick(world, 32))["result"]["search"]["seconds"] > 0
        until(lambda: not alive(first))
        until(lambda: computing._child and computing._child.pid is None)

    def test_it_tunes_soups_and_computes_statistics_too(self, world: World, client: SoupClient) -> None:
        computing, blobs = world.runtime.jobs.computing, world.registry.blobs
        tasks, sample = computing._tasks, {"texts": passages("kitchen", 25, seed=35)}
        tune_job = cook(world, sample=sample, effort="tune", verify=True, tuning={"passes": 2}).json()["id"]
        tuned = client.wait_job(tune_job)["result"]
        assert tuned["recipe"]["tuning"]["sample"] == tuned["sample"]["digest"]
        assert computing._tasks == tasks + 1
        statistics_job = cook(world, recipe=by_hand("acme/court", "acme/kitchen"), mixing={"method": "fisher"}).json()[
            "id"
        ]
        statistics = [
            ingredient["statistic"] for ingredient in client.wait_job(statistics_job)["result"]["recipe"]["ingredients"]
        ]
        assert len(set(statistics)) == 2
        assert all(map(blobs.is_whole, statistics))
        assert computing._tasks == tasks + 3
        assert computing._child.pid is not None

    def test_an_error_ends_the_process(self, world: World) -> None:
        computing, (base, *_) = world.runtime.jobs.computing, world.runtime.services.registry.bases.values()
        missing = StoredAdapter(config=paper_config("bapna_firat", bottleneck=2), blob="sha256:" + "0" * 64)
        request = WeighingRequest(texts=("some words",), candidates=(missing,))
        with pytest.raises(SoupError):
            computing.weigh(base.entry, request, progress=silent)
        assert computing._child.pid is None


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


class TestWhose:
    def test_what_was_done_with_wider_rights_is_shown_without_its_contents(
        self, world: World, client: SoupClient
    ) -> None:
        """An administrator cooks into a team's namespace, from adapters the team does not see."""
        recipe = by_hand("acme/court", "theirs/secret")
        sample = {"texts": passages("court", 25)}
        job = cook(world, recipe=recipe, sample=sample, name="acme/given").json()["id"]
        model = client.wait_job(job)["result"]["model"]
        team = world.headers(world.key(["read", "write"], ["acme"]))
        answer_to_team = world.client.get(f"/v1/jobs/{job}", headers=team)
        assert answer_to_team.json()["state"] == "succeeded"
        assert answer_to_team.json()["result"] is None
        assert answer_to_team.json()["owner"] is None
        assert world.client.post(f"/v1/jobs/{job}/cancel", headers=team).status_code == 403
        listed = world.client.get("/v1/jobs?limit=200", headers=team)
        events = world.client.get(f"/v1/jobs/{job}/events", headers=team)
        soup = world.client.get(f"/v1/adapters/{model}", headers=team)
        lineage = world.client.get(f"/v1/adapters/{model}/lineage", headers=team)
        for answer in (answer_to_team, listed, events, soup, lineage):
            assert answer.status_code == 200
            assert "theirs" not in answer.text
            assert "hidden" not in answer.text
        assert {parent["ref"] for parent in lineage.json()["parents"]} == {"acme/court@1", None}

    def test_an_admins_failed_job_keeps_its_words(self, world: World, client: SoupClient) -> None:
        cook(world, recipe=by_hand("theirs/nobody"), name="acme/failing")  # it may have failed before the answer
        job = world.client.get("/v1/jobs", params={"kind": "cook", "limit": 1}).json()["data"][0]["id"]
        until(lambda: job_of(world, job)["state"] == "failed")
        assert "theirs/nobody" in job_of(world, job)["error"]["message"]
        team = world.headers(world.key(["read"], ["acme"]))
        error = world.client.get(f"/v1/jobs/{job}", headers=team).json()["error"]
        assert error["code"] == "not_found"
        assert "theirs" not in error["message"]

    def test_evidence_names_only_what_the_reader_sees(self, world: World, client: SoupClient) -> None:
        sample = {"texts": passages("court", 25, seed=2)}
        pushed = world.push(
            "theirs/open", seed=8, domain="hidden", provenance=DECLARED, sample={"texts": passages("code", 25, seed=9)}
        )
        client.wait_job(pushed["job"])
        both = world.key(["read", "write"], ["acme", "theirs"])
        cooked = cook(world, both, sample=sample, selector={"kind": "uniform"}, name="acme/all", wait=60).json()
        assert "hidden" in json.dumps(cooked["selection"])
        lineage = "/v1/adapters/acme/all/lineage"
        (whole,) = world.client.get(lineage).json()["evidence"]
        assert whole["selection"]["selected"]
        counted = {"selected": [], "left_out": [], "more_left_out": {"Out.": 1}}
        cut = {**whole, "selection": {**whole["selection"], **counted}, "not_yet_included": []}
        add_evidence(world, cooked, cut)
        visible = world.client.get(lineage, headers=world.headers(world.key(["read"], ["acme"]))).json()["evidence"]
        assert [entry["selection"] for entry in visible] == [None, None]
        assert visible[0]["sample"] == whole["sample"]
        listed, counted = world.client.get(lineage, headers=world.headers(both)).json()["evidence"]
        assert (listed, counted["selection"]) == (whole, cut["selection"])
        world.client.delete("/v1/adapters/theirs/open")

    def test_nor_does_evidence_name_what_was_weighed(self, world: World) -> None:
        cooked = cook(world, recipe=by_hand("acme/court", "acme/code"), name="acme/weighed", wait=60).json()
        secret = {"ref": "theirs/secret@1", "domain": "hidden"}
        search = {"candidates": [secret], "left_out": [secret], "more_left_out": {"theirs": 1}, "single": secret}
        add_evidence(world, cooked, {"selection": None, "search": {**search, "trials": [{"way": "weighed"}]}})
        lineage = "/v1/adapters/acme/weighed/lineage"
        assert secret in world.client.get(lineage).json()["evidence"][-1]["search"]["candidates"]
        only = world.headers(world.key(["read"], ["acme"]))
        evidence = world.client.get(lineage, headers=only).json()["evidence"][-1]
        assert "theirs" not in json.dumps(evidence)
        assert [evidence["search"][field] for field in search] == [[], [], {}, None]
        assert evidence["search"]["trials"] == [{"way": "weighed"}]

    def test_the_gain_of_past_cooks_is_of_soups_that_a_key_sees(self, world: World) -> None:
        answer = cook(world, recipe=by_hand("acme/court", "theirs/secret"), name="theirs/tried", wait=60).json()
        search = {"effort": "tune", "trials": [{"way": "selected", "difference": -0.1}]}
        add_evidence(world, answer, {"search": search, "verification": {"difference": -0.4}})
        request = {"sample": {"texts": passages("court", 25)}, "effort": "instant", "verify": True, "wait": 60}
        gains = []
        for namespaces in (["acme", "theirs"], ["acme"]):
            cooked = cook(world, world.key(["read", "write"], namespaces), **request).json()
            gains.append([price["gain"] for price in cooked["beyond"] if price["effort"] == "tune"])
        assert gains == [[pytest.approx(0.3)], [None]]
        with statements(world.runtime.services.registry.database) as texts:
            listed = world.client.get("/v1/jobs", params={"kind": "search"}).json()["data"]
        assert len([job for job in listed if job["result"] and job["result"]["beyond"]]) > 1
        assert len([text for text in texts if "AS trials" in text]) == 1  # a list reads past cooks once

    def test_a_key_cooks_from_what_it_sees_and_into_its_own(self, world: World) -> None:
        secret = world.key(["read", "write"], ["acme"])
        digest = world.client.get("/v1/adapters/theirs/secret").json()["digest"]
        for ref in ("theirs/secret", "theirs/secret@1", digest):
            answer = cook(world, secret, recipe=by_hand("acme/court", ref), wait=60)
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found"), ref
        into = cook(world, secret, recipe=by_hand("acme/court", "acme/code"), name="theirs/soup", wait=60)
        assert (into.status_code, into.json()["error"]["code"]) == (403, "forbidden")
        pool = cook(world, secret, sample={"texts": passages("court", 25)}, pool={"namespaces": ["theirs"]}, wait=60)
        assert (pool.status_code, pool.json()["error"]["code"]) == (403, "forbidden")
        mine = cook(world, secret, recipe=by_hand("acme/court", "acme/code", weight=9), wait=60)
        assert mine.json()["model"].startswith("acme/soup-")


def test_a_cook_whose_text_a_restore_has_not_brought_back_says_so(world: World) -> None:
    gone = SimpleNamespace(arguments={"request": sha256_digest(b"a request that was not copied")})
    context: Any = SimpleNamespace(services=world.runtime.services, row=gone)
    with pytest.raises(NotFound, match="send it again"):
        COOK.run(context)
