"""`POST /v1/trainings`: trained in a process beside the server, pushed with its whole history, and the same once."""

from __future__ import annotations

import fcntl
import gzip
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from adaptersoup.client.client import SoupClient
from registry.base_model import LoadedBase
from registry.errors import Busy, Forbidden, InvalidParameter, Unavailable, rebuild
from registry.names import sha256_digest
from registry.progress import silent
from registry.spec import BaseShape
from registry.spec.passage import encode_lines
from service.jobs import runner as jobs_module
from service.jobs import train as training_job
from service.jobs.contract import JobContext
from service.jobs.training_folder import TURN, sweep
from service.jobs.training_requests import remove_old_trainings
from tests.service.answers import answered
from tests.service.cluster import KEY, ended, one_server, until
from tests.service.servers import BASE_ID, World, open_world, write_bases
from tests.service.without_processes import InChild, trains_here
from tests.tiny_models import build_tiny_encoder
from training import checkpoint
from training.build import inputs_of
from training.data import Data, draw
from training.request import TrainingRequest
from training.spec import TrainingSpec
from training.trainer import Trained, train_adapter
from training.worker import WorkerRequest, WorkerSetup

TEXTS = [f"The judge of court {i} held that contract {i * 7} was void." for i in range(60)]
VALID = [f"The judge of court {i} held that contract {i * 3} was void." for i in range(100, 125)]
RECIPE = {"steps": 4, "batch": 2, "block": 32, "learning_rate": 0.01}
SPEC: dict[str, Any] = {"adapter": {"bottleneck": 4}, "recipe": RECIPE}
STEPS = 400
LONG: dict[str, Any] = {**SPEC, "recipe": {**RECIPE, "steps": STEPS}}
WILD: dict[str, Any] = {**SPEC, "recipe": {**RECIPE, "steps": 60, "learning_rate": 1e30}}


def put(world: World, data: bytes, key: str | None = None) -> str:
    headers = world.headers(key or world.admin)
    answer = world.client.put(f"/v1/blobs/{sha256_digest(data)}", content=data, headers=headers)
    assert answer.status_code in {200, 201}, answer.text
    return sha256_digest(data)


def training_body(world: World, name: str, **changes: Any) -> dict[str, Any]:
    """A request that trains."""
    return {
        "name": name,
        "domain": "law",
        "base_model": BASE_ID,
        "texts": put(world, encode_lines(TEXTS)),
        "valid": put(world, encode_lines(VALID)),
        "spec": SPEC,
        **changes,
    }


def started(world: World, body: dict[str, Any], key: str | None = None) -> dict[str, Any]:
    answer = world.client.post("/v1/trainings", json=body, headers=world.headers(key or world.admin))
    assert answer.status_code == 202, answer.text
    assert answer.headers["location"] == f"/v1/jobs/{answer.json()['id']}"
    return dict(answer.json())


def done(world: World, body: dict[str, Any], state: str = "succeeded") -> dict[str, Any]:
    """The job of a training, once it is over and has come to this."""
    job = ended(world.client, started(world, body)["id"])
    assert job["state"] == state, job
    return job


def training_result(world: World, body: dict[str, Any]) -> dict[str, Any]:
    """The result of a training that succeeds."""
    return dict(done(world, body)["result"])


def failure(world: World, body: dict[str, Any]) -> str:
    """The sentence of a training that fails."""
    return str(done(world, body, "failed")["error"]["message"])


def cancelled(world: World, job: dict[str, Any]) -> None:
    assert world.client.post(f"/v1/jobs/{job['id']}/cancel").json()["state"] == "cancelled"


def adapter(world: World, name: str) -> dict[str, Any]:
    return dict(answered(world.client.get(f"/v1/adapters/{name}")))


def is_pushed(world: World, name: str) -> bool:
    return bool(world.client.get(f"/v1/adapters/{name}").status_code == 200)


def make(spec: dict[str, Any], base: LoadedBase, saving: checkpoint.Saving | None = None) -> Trained:
    """The adapter and record of a spec that is trained in this process."""
    inputs = inputs_of(TrainingSpec.model_validate(spec), base, Data(TEXTS, VALID))
    return train_adapter(base, inputs, saving=saving)


@pytest.fixture(scope="module")
def uninterrupted(world: World, base: LoadedBase) -> Trained:
    """The long training without an interruption, with as many threads as the server."""
    return make(LONG, base)


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch, base: LoadedBase) -> InChild:
    """Trainings are done in the server's own process."""
    return trains_here(monkeypatch, base)


@pytest.fixture
def child_results(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    return recorded_results(monkeypatch)


def recorded_results(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A list that fills with the results of trainings, whether a child or this process trains."""
    results: list[dict[str, Any]] = []
    real: InChild = vars(training_job)["in_child"]

    def recording(*args: Any, **named: Any) -> dict[str, Any]:
        results.append(real(*args, **named))
        return results[-1]

    monkeypatch.setattr(training_job, "in_child", recording)
    return results


def training_folders(world: World) -> list[Path]:
    """The folders that trainings have on disk."""
    folder = world.runtime.settings.trainings_dir
    return list(folder.iterdir()) if folder.exists() else []


def test_cancelled_it_is_kept_and_the_same_request_goes_on_to_the_same_and_pushes_it_once(
    world: World, base: LoadedBase, uninterrupted: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It begins in a child of the server, whose checkpoint serves whoever goes on."""
    body = training_body(world, "acme/long", spec=LONG)
    job = started(world, body)
    assert started(world, body)["id"] == job["id"], "a second client asks for the same while it is at work"
    path = f"/v1/jobs/{job['id']}"
    running = until(lambda: (now := world.client.get(path).json())["progress"]["done"] > 0 and now)
    assert "loss" in running["progress"]["message"]
    assert running["progress"]["total"] == STEPS
    cancelled(world, job)
    [place] = training_folders(world)
    until(lambda: sorted(file.name for file in place.iterdir()) == ["checkpoint", TURN])  # the data are gone
    trains_here(monkeypatch, base)
    outcomes = recorded_results(monkeypatch)
    result = training_result(world, body)
    assert [0 < outcome["resumed_at"] < STEPS for outcome in outcomes] == [True]
    assert (result["adapter"], result["created"]) == ("acme/long@1", True)
    assert result["warnings"] == ["60 sequences: about 100 are better."]
    row = adapter(world, "acme/long")
    assert (row["digest"], row["domain"], row["sample"]["kept"]) == (result["digest"], "law", 60)
    provenance = row["provenance"]
    assert provenance["init_hash"] == uninterrupted.init_hash
    assert {**provenance["training"], **uninterrupted.record} == provenance["training"]
    assert provenance["training"]["blobs"] == {"train": body["texts"], "valid": body["valid"]}
    audit = world.client.get("/v1/audit").json()["data"]
    assert any(entry["action"] == "adapter.push" and entry["subject"] == "acme/long@1" for entry in audit)
    of_job = [(entry["action"], entry["namespace"]) for entry in audit if entry["subject"] == job["id"]]
    assert of_job == [("job.cancel", "acme"), ("training.ask", "acme"), ("training.ask", "acme")]
    assert not training_folders(world)
    place.mkdir()  # as a server leaves it that ends after the push
    repeated = training_result(world, body)
    assert (repeated["adapter"], repeated["created"], repeated["digest"]) == ("acme/long@1", False, result["digest"])
    assert len(outcomes) == 1, "no process is started for it"
    assert not training_folders(world)


@pytest.mark.long
@pytest.mark.parametrize(
    ("signal_sent", "attempts"),
    [(signal.SIGKILL, 2), (signal.SIGTERM, 1)],  # after SIGTERM it is given back as if never begun
)
def test_after_a_signal_the_next_server_goes_on_with_it(
    tiny_base_dir: Path,
    tmp_path: Path,
    uninterrupted: Trained,
    beside: InChild,
    child_results: list[dict[str, Any]],
    signal_sent: signal.Signals,
    attempts: int,
) -> None:
    data, bases = tmp_path / "data", write_bases(tmp_path / "bases.toml", {BASE_ID: tiny_base_dir})
    with one_server(data, bases) as first, SoupClient(first.url, KEY) as client:
        blobs = {name: client.upload(encode_lines(texts)) for name, texts in (("texts", TEXTS), ("valid", VALID))}
        request = {"name": "acme/long", "domain": "law", "base_model": f"base/{BASE_ID}", "spec": LONG, **blobs}
        job = client.train(TrainingRequest.model_validate(request), wait=False)["id"]
        until(lambda: client.job(job)["progress"]["done"] > 0)
        first.end(signal_sent)
    assert first.process.returncode == (0 if signal_sent is signal.SIGTERM else -signal_sent)
    for second in open_world(data, bases):
        row = ended(second.client, job)  # the child of the first saves what it has done before the turn is another's
        assert (row["state"], row["attempts"]) == ("succeeded", attempts)
        assert [0 < child_result["resumed_at"] < STEPS for child_result in child_results] == [True]
        training = adapter(second, "acme/long")["provenance"]["training"]
        assert training["train_history"] == uninterrupted.record["train_history"]
        assert not training_folders(second)


def curve_of(world: World, job: dict[str, Any]) -> dict[str, Any] | None:
    with world.registry.database.read() as catalogue:
        return catalogue.curves.get(job["id"])


def test_a_loss_that_diverges_is_told_and_of_it_the_losses_are_kept_that_led_there(
    world: World, beside: InChild
) -> None:
    job = done(world, training_body(world, "acme/wild", spec=WILD), "failed")
    error = job["error"]
    assert error["code"] == InvalidParameter.code
    assert "diverged at step" in error["message"]
    assert "learning rate" in error["message"]
    curve = curve_of(world, job)
    assert curve["valid_history"][0][0] == 0
    page = world.client.get(f"/trainings/{job['id']}.json", headers=world.headers(world.admin)).json()
    assert page["losses"]["held_out"] == curve["valid_history"]
    assert page["job"]["error"]["message"] == error["message"]
    assert not training_folders(world)
    assert not is_pushed(world, "acme/wild")


def test_one_that_is_cancelled_keeps_its_losses_and_one_that_succeeds_has_them_in_its_record(
    world: World, beside: InChild, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_job, "CURVE_SECONDS", 0.0)
    body = training_body(world, "acme/halfway", spec=LONG)
    job = started(world, body)
    until(lambda: len((curve_of(world, job) or {}).get("train_history", ())) > 2)  # while it runs
    cancelled(world, job)
    until(lambda: not world.runtime.services.jobs.running())
    curve = curve_of(world, job)
    assert curve_of(world, done(world, body)) is None
    record = adapter(world, "acme/halfway")["provenance"]["training"]
    history = curve["train_history"]
    assert record["train_history"][: len(history)] == history  # the same points, to the last bit
    with world.registry.database.write() as catalogue:
        catalogue.pruning.jobs(datetime.now(UTC) + timedelta(days=1), 100)
    assert curve_of(world, job) is None


def test_a_bank_is_pushed_beside_its_merge(world: World, beside: None) -> None:
    spec = {**SPEC, "adamix": {"experts": 2}}
    result = training_result(world, training_body(world, "acme/mixed", spec=spec, owner="us"))
    assert (result["bank"], result["adapter"]) == ("acme/mixed-bank@1", "acme/mixed@1")
    merged, bank = adapter(world, "acme/mixed"), adapter(world, "acme/mixed-bank")
    assert (merged["config"]["method"], merged["digest"]) == ("bottleneck", result["digest"])
    assert (bank["config"]["method"], bank["provenance"]["training"]["consistency"]) == ("adamix", "released")
    lineage = world.client.get("/v1/adapters/acme/mixed/lineage").json()
    assert [parent["ref"] for parent in lineage["parents"]] == ["acme/mixed-bank@1"]
    assert (bank["owner"], merged["owner"]) == ("us", "us")
    for owner in (None, "them"):
        repeated = training_result(world, training_body(world, "acme/mixed", spec=spec, owner=owner))
        assert (repeated["adapter"], repeated["created"]) == ("acme/mixed@1", False), (
            "the same training, whoever's it is"
        )
        owners = {adapter(world, f"acme/{name}")["owner"] for name in ("mixed", "mixed-bank")}
        assert owners == {owner or "us"}


def test_a_fusion_is_over_adapters_of_the_server(world: World, beside: None) -> None:
    for number, name in enumerate(("one", "two")):
        world.push(f"acme/{name}", seed=number)
    spec = {**SPEC, "adapter": {"method": "fusion", "members": ["acme/one", "acme/two@1"]}}
    training_result(world, training_body(world, "acme/fused", spec=spec))
    config = adapter(world, "acme/fused")["config"]
    assert (config["method"], config["members"]) == ("fusion", 2)


@pytest.mark.parametrize(
    "spec",
    [
        {"adapter": {"method": "lora", "rank": 2}},
        {"adapter": {"method": "prefix", "length": 4}},
        {"adapter": {"method": "mam", "length": 4, "bottleneck": 4}},
        {"adapter": {"structure": "houlsby", "bottleneck": 4}, "pruning": {"sparsity": 0.5}},
        {"adapter": {"bottleneck": 4}, "pruning": {"widen": 2, "score": "magnitude"}},
    ],
    ids=["lora", "prefix", "mam", "sparse", "large-sparse"],
)
def test_every_structure_is_trained_and_pushed(world: World, beside: None, spec: dict[str, Any]) -> None:
    method = spec["adapter"].get("method", "sparse" if "sparsity" in spec.get("pruning", {}) else "bottleneck")
    name = f"every/{method}"
    training_result(world, training_body(world, name, spec={**spec, "recipe": {**RECIPE, "block": 24}}))
    row = adapter(world, name)
    assert row["provenance"]["init_source"] == "trained_here"
    if "pruning" in spec:
        assert row["config"]["pruned"]["sparsity"] == pytest.approx(0.5)


def test_without_other_data_a_share_is_held_out_and_said(world: World, beside: None) -> None:
    body = training_body(world, "acme/shared", valid=None, valid_share=0.25, sample=10)
    result = training_result(world, body)
    assert "without a sample: 10 different passages" in result["warnings"][0]
    training = adapter(world, "acme/shared")["provenance"]["training"]
    assert (training["valid_share"], training["texts"], training["valid_texts"]) == (0.25, 45, 15)


def test_how_far_it_was_saved_is_read_from_its_checkpoint(world: World, base: LoadedBase) -> None:
    with world.runtime.database.write() as catalogue:
        row = catalogue.jobs.enqueue(
            "train", {"key": "sha256:" + "7" * 64}, namespace="acme", created_by="k", delay=1e6
        )
        catalogue.jobs.cancel(row.id)
    reached = training_job.TRAIN.reached
    assert reached(world.runtime.services, row) == 0
    place = training_job.training_folder(world.runtime.settings, row.arguments["key"])
    make(SPEC, base, saving=checkpoint.Saving(place / training_job.CHECKPOINT))
    assert reached(world.runtime.services, row) == RECIPE["steps"]
    (place / training_job.CHECKPOINT / checkpoint.FILE).write_bytes(b"torn")
    assert reached(world.runtime.services, row) == 0
    shutil.rmtree(place)


class TestFailures:
    @pytest.mark.parametrize(
        ("data", "message"),
        [
            (b"", "holds 0 texts"),
            (encode_lines(TEXTS[:5]), "holds 5 texts"),
            (b'{"text": "a"}\n{"txt": "b"}\n', 'texts, line 2, is not JSON with a string "text"'),
            (b"\xff\xfe", "texts is not UTF-8"),
            (b"[1, 2", "texts, line 1, is not JSON"),
        ],
    )
    def test_data_that_cannot_be_used(self, world: World, beside: None, data: bytes, message: str) -> None:
        refusal = failure(world, training_body(world, "acme/bad", texts=put(world, data)))
        assert message in refusal
        assert str(world.runtime.settings.data) not in refusal

    def test_a_full_disk_is_tried_again_and_then_told_without_a_path(
        self, world: World, beside: InChild, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(jobs_module, "RETRY_SECONDS", 0.01)
        monkeypatch.setattr(jobs_module, "IDLE_SECONDS", 0.02)
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, "replace_file", Mock(side_effect=OSError(28, "No space left on device")))
            job = done(world, training_body(world, "acme/full"), "failed")
        assert "No space left on device" in job["error"]["message"]
        assert str(world.runtime.settings.data) not in job["error"]["message"]
        assert job["attempts"] == 3
        assert training_result(world, training_body(world, "acme/full"))["adapter"] == "acme/full@1"

    @pytest.mark.parametrize("is_torn", [False, True])
    def test_a_checkpoint_of_another_version_is_given_up(
        self, world: World, base: LoadedBase, beside: InChild, monkeypatch: pytest.MonkeyPatch, is_torn: bool
    ) -> None:
        calls, name = [], f"acme/anew-{is_torn}".lower()

        def torn_or_foreign(setup: WorkerSetup, request: WorkerRequest, **named: Any) -> dict[str, Any]:
            calls.append(request)
            if len(calls) == 1:
                make({**SPEC, "init_seed": 9}, base, saving=checkpoint.Saving(request.run.checkpoint))
                if is_torn:
                    (request.run.checkpoint / checkpoint.FILE).write_bytes(b"torn")
            return beside(setup, request, **named)

        monkeypatch.setattr(training_job, "in_child", torn_or_foreign)
        assert training_result(world, training_body(world, name))["created"]
        assert len(calls) == 2
        assert adapter(world, name)["provenance"]["init_hash"] == make(SPEC, base).init_hash

    def test_cancelled_when_all_is_trained_it_is_not_pushed(
        self, world: World, beside: InChild, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job: dict[str, Any] = {}

        def late(*args: Any, **named: Any) -> dict[str, Any]:
            answer = beside(*args, **named)
            until(lambda: job)
            cancelled(world, job)
            return answer

        monkeypatch.setattr(training_job, "in_child", late)
        job |= started(world, training_body(world, "acme/late"))
        [place] = until(lambda: training_folders(world))
        until(lambda: (place / "adapter").exists() and not list(place.glob("data-*")))
        assert ended(world.client, job["id"])["state"] == "cancelled"
        assert not is_pushed(world, "acme/late")
        monkeypatch.setattr(training_job, "in_child", beside)
        assert training_result(world, training_body(world, "acme/late"))["created"], "and the same request does"

    def test_a_key_that_is_revoked_while_it_trains_pushes_nothing(
        self, world: World, beside: InChild, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        key = writer(world)

        def revoking(*args: Any, **named: Any) -> dict[str, Any]:
            revoke(world, key)
            return beside(*args, **named)

        monkeypatch.setattr(training_job, "in_child", revoking)
        job = started(world, training_body(world, "acme/revoked"), key)
        assert ended(world.client, job["id"])["state"] == "cancelled"
        assert not is_pushed(world, "acme/revoked")

    def test_it_is_pushed_for_another_key_that_asked_for_the_same(
        self, world: World, beside: InChild, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        keys, go_on = [writer(world) for _ in range(2)], threading.Event()

        def revoking(*args: Any, **named: Any) -> dict[str, Any]:
            assert go_on.wait(60)
            revoke(world, keys[0])
            return beside(*args, **named)

        monkeypatch.setattr(training_job, "in_child", revoking)
        body = training_body(world, "acme/shared-by-two", owner="us")
        first, second = (started(world, body, key) for key in keys)
        go_on.set()
        assert first["id"] == second["id"]
        row = ended(world.client, second["id"])
        assert (row["state"], row["result"]["created"]) == ("succeeded", True)
        ids = {key["prefix"]: key["id"] for key in world.client.get("/v1/keys").json()["data"]}
        heir = next(key_id for prefix, key_id in ids.items() if keys[1].startswith(prefix))
        assert row["created_by"] == heir
        audit = world.client.get("/v1/audit").json()["data"]
        changes = {entry["action"]: entry["key_id"] for entry in audit if entry["subject"] == "acme/shared-by-two@1"}
        assert changes == {"adapter.push": heir, "adapter.change": heir}

    def test_a_push_that_a_quota_refuses_succeeds_for_the_same_request_without_another_training(
        self, world: World, beside: InChild, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fill(*args: Any, **named: Any) -> dict[str, Any]:
            answer = beside(*args, **named)
            limit_adapters(world, "full", 0)
            return answer

        monkeypatch.setattr(training_job, "in_child", fill)
        assert done(world, training_body(world, "full/law"), "failed")["error"]["code"] == "quota_exceeded"
        monkeypatch.setattr(training_job, "in_child", beside)
        monkeypatch.setattr("training.worker.train", Mock(side_effect=AssertionError("trained again")))
        limit_adapters(world, "full", 1)
        assert training_result(world, training_body(world, "full/law"))["created"]
        assert not training_result(world, training_body(world, "full/law"))["created"], (
            "a full quota does not refuse what is pushed"
        )

    def test_one_whose_result_was_stored_before_is_not_trained_again(
        self, world: World, beside: InChild, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A request for another domain gives the same tensors, which keep the domain that they were pushed with."""
        drawn = {"sample": 30, "spec": {**SPEC, "recipe": {**RECIPE, "data_seed": 7}}}
        first = training_result(world, training_body(world, "acme/alike", **drawn))
        sample = encode_lines(draw(TEXTS, 30, seed=7))
        assert adapter(world, "acme/alike")["sample"]["digest"] == sha256_digest(sample), "the seed is the sample's too"
        second = training_result(world, training_body(world, "acme/alike", domain="tax", **drawn))
        assert "domain" in second["warnings"][-1]
        monkeypatch.setattr("training.worker.train", Mock(side_effect=AssertionError("trained again")))
        third = training_result(world, training_body(world, "acme/alike", domain="tax", **drawn))
        assert first["adapter"] == second["adapter"] == third["adapter"]
        assert not third["created"]

    def test_a_crash_after_the_push_leaves_no_losses_with_the_job(
        self, world: World, beside: InChild, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(jobs_module, "RETRY_SECONDS", 0.01)
        push = vars(training_job)["push"]

        def push_and_crash(*args: Any) -> None:
            push(*args)
            raise Unavailable("It crashed.")

        monkeypatch.setattr(training_job, "push", push_and_crash)
        job = done(world, training_body(world, "acme/crashed"))
        assert (job["attempts"], job["result"]["created"]) == (2, False)
        assert curve_of(world, job) is None

    def test_another_base_than_asked_for(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """The request sees another base than the thread that trains does, whichever of the two is faster."""
        real = world.runtime.bases.allowed.shape
        changed_shape = real(BASE_ID).model_copy(update={"fingerprint": "sha256:" + "0" * 64})

        def shape(base_id: str) -> BaseShape:
            return real(base_id) if threading.current_thread().name.startswith("soup-jobs") else changed_shape

        with monkeypatch.context() as patch:
            patch.setattr(world.runtime.bases.allowed, "shape", shape)
            assert "send the request again" in failure(world, training_body(world, "acme/moved"))


def limit_adapters(world: World, namespace: str, most: int | None) -> None:
    answered(world.client.patch(f"/v1/namespaces/{namespace}/limits", json={"adapters": most}))


def writer(world: World) -> str:
    """The secret of a key of `acme` that has uploaded what is trained on."""
    key = world.key(["read", "write"], ["acme"])
    for data in (encode_lines(TEXTS), encode_lines(VALID)):
        put(world, data, key)
    return key


def revoke(world: World, secret: str) -> None:
    keys = world.client.get("/v1/keys").json()["data"]
    [key_id] = [key["id"] for key in keys if secret.startswith(key["prefix"])]
    assert world.client.delete(f"/v1/keys/{key_id}").status_code == 200


@pytest.fixture(scope="module")
def idle(tiny_base_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A server that trains nothing, with little room."""
    folder = tmp_path_factory.mktemp("idle")
    bases = write_bases(folder / "bases.toml", {BASE_ID: tiny_base_dir, "bert": build_tiny_encoder(folder / "bert")})
    with bases.open("a") as file:
        file.write('kind = "encoder"\n')
    limits = {"training_queue": 2, "max_training_bytes": 10_000, "max_weights_bytes": 50_000}
    for world in open_world(folder / "data", bases, training_workers=0, **limits):
        for number in range(2):
            world.push(f"acme/{number}", seed=number)
        yield world


class TestRefusals:
    """Requests that can be seen to be wrong without reading the data are refused at once, and nothing is queued."""

    @pytest.mark.parametrize(
        ("changes", "status", "message"),
        [
            ({"base_model": "other"}, 404, "no base model"),
            ({"name": "law"}, 400, "namespace"),
            ({"name": "base/law"}, 400, "reserved"),
            ({"texts": "sha256:" + "0" * 64}, 404, "upload it first"),
            ({"texts": "../../etc/passwd"}, 400, "texts"),
            ({"valid_share": 0.5}, 400, "not both"),
            ({"valid": None, "valid_share": 1.5}, 400, "valid_share"),
            ({"spec": {"adapter": {"rank": 4}}}, 400, "'spec.adapter.rank' is not known"),
            ({"spec": {"adapter": {"method": "none"}}}, 400, "'spec.adapter.method'"),
            ({"spec": {"adapter": {"method": "lora", "targets": ["q_proj"]}}}, 422, "no linear module"),
            ({"spec": {"recipe": {"steps": 200_000}}}, 413, "SOUP_MAX_TRAINING_STEPS"),
            ({"spec": {"recipe": {"batch": 4096}}}, 413, "SOUP_MAX_TRAINING_TOKENS"),
            ({"spec": {"adapter": {"bottleneck": 60_000}}}, 413, "SOUP_MAX_WEIGHTS_BYTES"),
            ({"spec": {"recipe": {"steps": 100, "accumulate": 2000}}}, 413, "100 steps of 2000 passes"),
            ({"spec": {"recipe": {"evaluations": 201}}}, 400, "201 'evaluations' in 200 steps"),
            (
                {"spec": {"recipe": {"steps": 99_997}, "pruning": {}}},
                413,
                "99997 steps of 1 passes and 4 passes to score what is pruned",
            ),
            (
                {"spec": {"recipe": {"steps": 99_000}, "pruning": {"score": "grasp", "batches": 501}}},
                413,
                "and 1002 passes to score",
            ),
            (
                {"spec": {"adapter": {"method": "prefix", "length": 40}, "recipe": {"batch": 2000, "block": 8}}},
                413,
                "2000 blocks of 8 tokens and a prefix of 40 is 96000",
            ),
            ({"spec": {"task": "classification", "adapter": {"bottleneck": 60_000}}}, 413, "SOUP_MAX_WEIGHTS_BYTES"),
            ({"spec": {"task": "question_answering", "adamix": {"experts": 64}}}, 413, "SOUP_MAX_WEIGHTS_BYTES"),
            ({"spec": {"recipe": {"block": 65}}}, 400, "A block of 65 tokens does not fit"),
            (
                {"spec": {"adapter": {"method": "prefix", "length": 40}, "recipe": {"block": 30}}},
                400,
                "of 64, of which the prefix takes 40",
            ),
            ({"spec": {"adapter": {"method": "prefix", "length": 63}}}, 400, "a block has at least 2"),
            ({"spec": {"adapter": {"method": "mam", "length": 80}}}, 400, "leaves 0 of the base model's context of 64"),
            ({"base_model": "bert"}, 422, "'bert' is an encoder"),
            ({"spec": {"recipe": {"learning_rate": "1e-3x"}}}, 400, "learning_rate"),
            ({"spec": {"adamix": {}, "pruning": {}}}, 400, "exclude each other"),
            ({"spec": {"adamix": {}}, "name": "acme/" + "a" * 64}, 400, "name of the bank"),
            ({"spec": {"adapter": {"method": "fusion", "members": ["acme/no", "acme/none"]}}}, 404, "acme/no"),
            ({"spec": {"adapter": {"method": "fusion", "members": ["acme/no"]}}}, 400, "members"),
            ({"spec": {"adapter": {"method": "fusion"}}}, 400, "members"),
            (
                {"spec": {"adapter": {"method": "fusion", "members": ["acme/0", "acme/1", "acme/0@1"]}}},
                400,
                "'acme/0' and 'acme/0@1' are the same adapter",
            ),
            (
                {"spec": {"adapter": {"method": "fusion", "members": ["acme/0", "acme/0"]}, "task": "classification"}},
                400,
                "fusion",
            ),
            ({"valid": sha256_digest(encode_lines(TEXTS))}, 400, "hold out a part of 'texts'"),
            ({"wait": 3}, 400, "'wait' is not known"),
        ],
    )
    def test_in_one_sentence(self, idle: World, changes: dict[str, Any], status: int, message: str) -> None:
        body = {**training_body(idle, "acme/law"), **changes}
        answer = idle.client.post("/v1/trainings", json={k: v for k, v in body.items() if v is not None})
        assert (answer.status_code, message in answer.json()["error"]["message"]) == (status, True), answer.text
        assert idle.client.get("/v1/jobs", params={"kind": "train"}).json()["data"] == []

    def test_gzip_and_what_is_too_large(self, idle: World) -> None:
        for data, status, message in (
            (gzip.compress(encode_lines(TEXTS)), 400, "gzip"),
            (encode_lines(TEXTS * 10), 413, "10000"),
        ):
            answer = idle.client.post("/v1/trainings", json=training_body(idle, "acme/law", texts=put(idle, data)))
            assert (answer.status_code, message in answer.json()["error"]["message"]) == (status, True), answer.text

    def test_more_adapters_than_the_quota_has_left(self, idle: World) -> None:
        body = training_body(idle, "few/law")
        for most, spec in ((0, SPEC), (1, {**SPEC, "adamix": {"experts": 2}})):
            limit_adapters(idle, "few", most)
            answer = idle.client.post("/v1/trainings", json={**body, "spec": spec})
            assert (answer.status_code, answer.json()["error"]["code"]) == (413, "quota_exceeded"), answer.text
        job = started(idle, body)
        assert started(idle, body)["id"] == job["id"]
        cancelled(idle, job)

    def test_what_a_key_does_not_see_is_not_there_for_it(self, idle: World) -> None:
        ours = idle.key(["read", "write"], ["ours"])
        body = training_body(idle, "ours/law")  # the blobs are the admin's
        assert idle.client.post("/v1/trainings", json=body, headers=idle.headers(ours)).status_code == 404
        put(idle, encode_lines(TEXTS), ours)
        put(idle, encode_lines(VALID), ours)
        foreign = idle.client.post("/v1/trainings", json={**body, "name": "acme/law"}, headers=idle.headers(ours))
        assert foreign.status_code == 403
        spec = {"adapter": {"method": "fusion", "members": ["acme/0", "acme/1"]}}
        fusion = idle.client.post("/v1/trainings", json={**body, "spec": spec}, headers=idle.headers(ours))
        assert fusion.status_code == 404
        reader = idle.headers(idle.key(["read", "infer"], ["ours"]))
        assert idle.client.post("/v1/trainings", json=body, headers=reader).status_code == 403

    def test_a_key_that_is_revoked_while_it_waits_trains_nothing(
        self, idle: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(training_job, "in_child", None)
        key = writer(idle)
        job = started(idle, training_body(idle, "acme/revoked"), key)
        revoke(idle, key)
        with idle.runtime.database.read() as catalogue:
            row = catalogue.jobs.get(None, job["id"])
        request = TrainingRequest.model_validate(row.arguments["request"])
        context = JobContext(idle.runtime.services, idle.runtime.jobs.fitting, idle.runtime.jobs.computing, row, silent)
        training = training_job.Training(context, request)
        with pytest.raises(Forbidden, match="revoked"):
            training_job.train(training)
        assert not training_folders(idle)
        cancelled(idle, job)

    def test_a_full_queue_is_429_and_like_requests_are_one(self, idle: World) -> None:
        first, second, third = (training_body(idle, f"acme/queued{number}") for number in range(3))
        first_job, second_job = started(idle, first), started(idle, second)
        assert started(idle, first)["id"] == first_job["id"] != second_job["id"]
        for owner in ("us", "them"):
            assert started(idle, {**first, "owner": owner})["id"] == first_job["id"]
        with idle.runtime.database.read() as catalogue:
            arguments = catalogue.jobs.get(None, first_job["id"]).arguments
        assert (arguments["owner"], "owner" in arguments["request"]) == ("them", False), "the last, beside the request"
        answer = idle.client.post("/v1/trainings", json=third)
        assert answer.status_code == 429
        assert rebuild(answer.json()["error"]["code"], "").code == Busy.code
        for job in (first_job, second_job):
            cancelled(idle, job)


def test_what_nobody_goes_on_with_is_removed_in_the_end(tmp_path: Path) -> None:
    assert sweep(tmp_path / "none", older_than=0) == 0
    old, new, busy, changing = (digit * 32 for digit in "abcd")
    for name in (old, new, busy, changing, "backups"):
        (tmp_path / name / "checkpoint").mkdir(parents=True)
        (tmp_path / name / TURN).touch()
    long_ago = time.time() - 1000
    aged = [tmp_path / name for name in (old, busy, "backups")]
    for path in (tmp_path / new, *aged, *(nested for folder in aged for nested in folder.rglob("*"))):
        os.utime(path, (long_ago, long_ago))
    (tmp_path / changing / "checkpoint" / "gone").symlink_to("nowhere")  # a file that is gone when it is looked at
    with (tmp_path / busy / TURN).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert sweep(tmp_path, older_than=500) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backups", new, busy, changing]
    assert sweep(tmp_path, older_than=500) == 1


def test_a_training_that_waits_for_a_worker_keeps_its_saved_state(idle: World) -> None:
    job = started(idle, training_body(idle, "acme/waiting"))
    with idle.runtime.database.read() as catalogue:
        key = catalogue.jobs.get(None, job["id"]).arguments["key"]
    settings = idle.runtime.settings.model_copy(update={"keep_training_seconds": 0})
    place = training_job.training_folder(settings, key)
    place.mkdir(parents=True)
    os.utime(place, (0, 0))
    remove_old_trainings(idle.registry.database, settings)
    assert place.is_dir()
    cancelled(idle, job)
    remove_old_trainings(idle.registry.database, settings)
    assert not place.exists()


def test_a_saved_state_is_removed_at_its_age_while_the_server_runs_unless_the_clock_was_set(
    tiny_base_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, threads = Mock(), []
    clock.is_steady.side_effect = lambda: threads.append(threading.current_thread().name)
    monkeypatch.setattr(jobs_module, "ClockSteps", lambda: clock)
    bases = write_bases(tmp_path / "bases.toml", {BASE_ID: tiny_base_dir})
    for world in open_world(tmp_path / "data", bases, training_workers=0, collect_seconds=0.02):
        place = world.runtime.settings.trainings_dir / ("0" * 32)
        place.mkdir(parents=True)
        os.utime(place, (0, 0))
        threads.clear()
        until(lambda: threads.count("soup-removal of old trainings") > 1)
        assert place.is_dir()
        clock.is_steady.side_effect = lambda: True
        until(lambda place=place: not place.exists())


@pytest.mark.slow
def test_a_process_that_trains_ends_with_its_server_and_is_the_first_where_memory_runs_out() -> None:
    code = (
        "import time\nfrom pathlib import Path\nfrom service.jobs import train_process as module\n"
        "module.GRACE_SECONDS = 0.01\nmodule.end_with_server()\n"
        "print(Path('/proc/self/oom_score_adj').read_text(), flush=True)\ntime.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"1000\n"
        assert process.poll() is None
        process.stdin.close()
        assert process.wait(60) == 1
