"""Limits on what one key may have queued, and what becomes of it when the key is revoked."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from registry.errors import Unauthenticated
from registry.names import sha256_digest
from registry.spec import CookRequest
from service.access.keys import Principal
from service.jobs.cook_requests import begin_cook
from tests.service.answers import refusal
from tests.service.passages import passages
from tests.service.servers import BASE_ID, World

SETTINGS = {"job_workers": 0, "training_workers": 0, "job_queue_per_key": 2, "job_queue": 3}
RECIPE = {"ingredients": [{"ref": "acme/law", "weight": 1}]}
TEXTS = b"".join(
    json.dumps({"text": f"The judge of court {i} held that contract {i * 7} was void."}).encode() + b"\n"
    for i in range(60)
)


@pytest.fixture(autouse=True)
def _empty_queue(world: World) -> None:
    world.push("acme/law")
    with world.runtime.database.write() as catalogue:
        for kind in ("cook", "search", "fit", "train", "embed"):
            for row in catalogue.jobs.active(kind):
                catalogue.jobs.cancel(row.id)


class Key:
    """A key and its headers."""

    def __init__(self, world: World, *namespaces: str) -> None:
        body = {"name": "k", "scopes": ["read", "write"], "namespaces": list(namespaces or ("acme",))}
        created = world.client.post("/v1/keys", json=body).json()
        self.world, self.id, self.headers = world, created["id"], world.headers(created["secret"])

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return self.world.client.post(path, json=body, headers=self.headers)

    def cook(self) -> Any:
        return self.post("/v1/soups", {"recipe": RECIPE, "verify": False, "wait": 0})

    def train(self, name: str = "acme/new") -> Any:
        put = self.world.client.put(f"/v1/blobs/{sha256_digest(TEXTS)}", content=TEXTS, headers=self.headers)
        assert put.status_code in {200, 201}, put.text
        spec = {"adapter": {"bottleneck": 4}, "recipe": {"steps": 4, "batch": 2, "block": 32}}
        body = {"name": name, "domain": "law", "base_model": BASE_ID, "texts": sha256_digest(TEXTS), "spec": spec}
        return self.post("/v1/trainings", body)

    def revoke(self) -> None:
        assert self.world.client.delete(f"/v1/keys/{self.id}").status_code == 200


def state_of(world: World, answer: Any) -> str:
    return str(world.client.get(f"/v1/jobs/{answer.json()['id']}").json()["state"])


class TestBounds:
    def test_a_key_that_has_its_share_queued_is_told_to_wait_and_another_is_served(self, world: World) -> None:
        greedy, patient = Key(world), Key(world)
        assert [greedy.cook().status_code for _ in range(2)] == [202, 202]
        digests_before = set(world.registry.blobs.digests())
        message = refusal(greedy.cook(), 429)
        assert set(world.registry.blobs.digests()) == digests_before, "nothing is left of it"
        assert "2 waiting or running jobs of kind 'cook'" in message
        assert "the maximum is 2 (SOUP_JOB_QUEUE_PER_KEY)" in message
        assert patient.cook().status_code == 202
        assert "3 waiting or running jobs of kind 'cook'" in refusal(patient.cook(), 429)

    def test_every_kind_that_a_key_asks_for_is_bounded(self, world: World) -> None:
        key = Key(world)
        trainings = [key.train(f"acme/new{n}") for n in range(3)]
        assert [answer.status_code for answer in trainings] == [202, 202, 429]
        world.push("acme/one", seed=1, sample={"texts": passages("court", 25)})
        with world.runtime.database.write() as catalogue:
            for _ in range(2):
                catalogue.jobs.enqueue("fit", {"asked": True}, namespace="acme", created_by=key.id)
        assert "'fit'" in refusal(key.post("/v1/selectors", {"selector": {"kind": "gmm"}, "wait": 5}), 429)
        with world.runtime.database.write() as catalogue:
            for number in range(3):
                catalogue.jobs.enqueue("embed", {"adapter_id": number}, namespace="acme", created_by="key-x")
        manifest = {
            "name": "acme/two",
            "domain": "d",
            "base_model": BASE_ID,
            "sample": {"texts": passages("court", 25)},
        }
        assert "'embed'" in refusal(key.post("/v1/adapters", {**manifest, "peft_config": {}, "files": {}}), 429)

    @pytest.mark.parametrize(("took", "pause"), [(None, 5), (42, 42), (0.1, 1), (90_000, 3600)])
    def test_when_to_come_back_follows_from_how_long_such_jobs_take(
        self, world: World, took: float | None, pause: int
    ) -> None:
        greedy = Key(world)
        with world.runtime.database.write() as catalogue:
            for _ in range(0 if took is None else 20):
                moment = datetime.now(UTC) + timedelta(seconds=1)
                row = catalogue.jobs.enqueue("cook", {}, namespace="acme", created_by="key-x")
                assert catalogue.jobs.claim("w", ["cook"], 60, moment, lane="test") is not None
                catalogue.jobs.succeed(row.id, {})
                ended = catalogue.jobs.get(None, row.id).finished_at
                catalogue.jobs._change(row.id, "succeeded", started_at=ended - timedelta(seconds=took or 0))
        for _ in range(2):
            greedy.cook()
        refused = greedy.cook()
        assert (refused.status_code, refused.headers["retry-after"]) == (429, str(pause))


class TestRevoked:
    def test_what_its_key_has_queued_and_running_is_cancelled(self, world: World) -> None:
        key = Key(world)
        cook, training = key.cook(), key.train()
        with world.runtime.database.write() as catalogue:
            claimed = catalogue.jobs.claim("another server", ["train"], 60, datetime.now(UTC) + timedelta(seconds=1))
        blob = self.row(world, cook).arguments["request"]
        with world.runtime.services.jobs.runs(claimed.id) as cancelled:
            key.revoke()
            assert cancelled.is_set(), "what runs here is asked to stop"
        assert [state_of(world, answer) for answer in (cook, training)] == ["cancelled", "cancelled"]
        assert not world.registry.blobs.has(blob), "the cook's text is gone with it"
        entry = next(entry for entry in world.client.get("/v1/audit").json()["data"] if entry["action"] == "key.revoke")
        assert (entry["subject"], entry["detail"]["jobs_cancelled"]) == (key.id, 2)

    def test_a_request_that_it_sent_before_is_not_queued(self, world: World) -> None:
        key = Key(world)
        principal = Principal(key.id, ("acme",), frozenset({"write"}))
        key.revoke()
        with pytest.raises(Unauthenticated, match="revoked"):
            begin_cook(world.runtime.services, principal, CookRequest.model_validate({"recipe": RECIPE}))

    def test_what_another_key_asked_for_too_goes_on_for_that_one(self, world: World) -> None:
        first, second = Key(world), Key(world, "acme", "other")
        job = first.train()
        assert second.train().json()["id"] == job.json()["id"]
        first.revoke()
        row = self.row(world, job)
        assert (row.state, row.created_by) == ("queued", second.id)
        assert row.arguments["scope"] == ["acme", "other"]
        second.revoke()
        assert state_of(world, job) == "cancelled"

    def test_what_it_has_pushed_is_embedded_all_the_same(self, world: World) -> None:
        """A push that was answered is durable, its sample included."""
        key = Key(world)
        with world.runtime.database.write() as catalogue:
            job = catalogue.jobs.enqueue("embed", {"adapter_id": 1}, namespace="acme", created_by=key.id)
        key.revoke()
        assert world.client.get(f"/v1/jobs/{job.id}").json()["state"] == "queued"

    def row(self, world: World, answer: Any) -> Any:
        with world.runtime.database.read() as catalogue:
            return catalogue.jobs.get(None, answer.json()["id"])
