"""Bad input at `POST /v1/adapters`: refused with status, code and one sentence, and nothing left that anybody sees."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from registry.names import sha256_digest
from registry.spec.passage import encode_lines
from tests.postgres import KINDS
from tests.service.answers import answered
from tests.service.pushes import WEIGHTS, manifest
from tests.service.servers import CONFIG, World, adapter_weights

DATABASES = KINDS
pytestmark = pytest.mark.one_database  # journeys ask each kind the same

LORA: dict[str, Any] = {"method": "lora", "groups": [{"targets": ["a.*"], "rank": 1, "alpha": 1}]}
DEEP = json.loads("[" * 300 + "]" * 300)
PASSAGES = [f"passage number {number}" for number in range(700)]


SETTINGS = {
    "job_workers": 0,  # jobs stay in the queue
    "max_inline_bytes": 64 * 1024,
    "max_json_bytes": 2**20,
    "max_sample_bytes": 2**16,
}


@pytest.fixture(scope="module")
def good(world: World) -> bytes:
    return adapter_weights(world.runtime, seed=0)


def push_of(good: bytes, **fields: Any) -> dict[str, Any]:
    return {**manifest("acme/bad", good), **fields}


def visible_state(world: World) -> dict[str, Any]:
    """Everything that a push could leave visible."""
    with world.runtime.database.read() as catalogue:
        audit = len(catalogue.audit.list(None, limit=200).rows)
    return {
        "adapters": [adapter["ref"] for adapter in world.client.get("/v1/adapters?limit=200").json()["data"]],
        "jobs": [job["id"] for job in world.client.get("/v1/jobs?limit=200").json()["data"]],
        "audit": audit,
    }


def refused(
    world: World, body: dict[str, Any], status: int, code: str, sentence: str, **request: Any
) -> dict[str, Any]:
    """The error of a push that is refused, after which nothing is to be seen of it."""
    state_before = visible_state(world)
    answer = world.client.post("/v1/adapters", json=body, **request)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, code), answer.text
    assert sentence in error["message"], error["message"]
    assert error["message"].endswith((".", ")"))
    assert len(error["message"]) < 600
    assert "Traceback" not in answer.text
    assert visible_state(world) == state_before
    return dict(error)


def upload(world: World, data: bytes, secret: str | None = None) -> str:
    digest = sha256_digest(data)
    answer = world.client.put(f"/v1/blobs/{digest}", content=data, headers=world.headers(secret) if secret else {})
    assert answer.status_code in {200, 201}, answer.text
    return digest


# --- the manifest ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "status", "code", "sentence"),
    [
        ({"config": {**CONFIG.model_dump(), "method": "hypernetwork"}}, 400, "unknown_method", "config.method"),
        ({"config": {"structure": "pfeiffer"}}, 400, "invalid_parameter", "set it to one of adamix, bottleneck,"),
        ({"config": LORA | {"groups": []}}, 400, "invalid_parameter", "'config.groups': must have at least 1 item"),
        ({"config": LORA}, 400, "invalid_parameter", "'config.groups.0': target 'a.*' needs one '*' for the numbers"),
        ({"config": None}, 400, "invalid_parameter", "either 'config' or 'peft_config'"),
        ({"peft_config": {}}, 400, "invalid_parameter", "either 'config' or 'peft_config'"),
        ({"config": {**CONFIG.model_dump(), "structure": "spiral"}}, 400, "unknown_method", "config.structure"),
        ({"config": {**CONFIG.model_dump(), "bottleneck": 10**9}}, 400, "invalid_parameter", "config.bottleneck"),
        ({"config": {**CONFIG.model_dump(), "size": 1}}, 400, "invalid_parameter", "'config.size' is not known"),
        ({"name": "acme/" + "a" * 500}, 400, "invalid_parameter", "name"),
        ({"files": {WEIGHTS: {}}}, 400, "invalid_parameter", "either 'digest'"),
        ({"files": {WEIGHTS: {"path": "/etc/passwd"}}}, 400, "invalid_parameter", "not known"),
        ({"files": {WEIGHTS: {"digest": "sha256:../../x"}}}, 400, "invalid_parameter", "digest"),
        ({"sample": {"texts": PASSAGES[:1] * 50}}, 422, "invalid_sample", "has 1 different"),
        ({"sample": {"texts": [" ", ""] * 20}}, 422, "invalid_sample", "has 0 different"),
        ({"sample": {}}, 400, "invalid_parameter", "exactly one of"),
        ({"card": {"tags": ["Not a tag"]}}, 400, "invalid_parameter", "card.tags"),
        ({"provenance": {"init_source": "declared"}}, 400, "invalid_parameter", "init_hash"),
        ({"provenance": {"training": {"log": "x" * 65_536}}}, 400, "invalid_parameter", "the most is 65536"),
        ({"provenance": {"training": {"log": DEEP}}}, 400, "invalid_parameter", "more than 64 levels"),
        ({"card": {"metadata": {"note": "x" * 1025}}}, 400, "invalid_parameter", "'note' has 1025 characters"),
        ({"card": {"metadata": {"k" * 129: 1}}}, 400, "invalid_parameter", "129 characters; the most is 128"),
        ({"extra": 1}, 400, "invalid_parameter", "'extra' is not known"),
    ],
)
def test_one_sentence(world: World, good: bytes, fields: Any, status: int, code: str, sentence: str) -> None:
    refused(world, push_of(good, **fields), status, code, sentence)


def test_sizes_beyond_the_settings(world: World, good: bytes) -> None:
    large = {WEIGHTS: {"base64": base64.b64encode(bytes(70_000)).decode()}}
    refused(world, push_of(good, files=large), 413, "too_large", "upload it as a blob")
    refused(world, push_of(good, card={"description": "x" * 2**20}), 413, "too_large", "SOUP_MAX_JSON_BYTES")
    lines = encode_lines(f"{text} " + "x" * 3000 for text in PASSAGES[:30])
    refused(world, push_of(good, sample={"blob": upload(world, lines)}), 413, "too_large", "the limit is 65536")


# --- what is not the caller's ---------------------------------------------------------------------


def test_foreign_blobs_are_as_good_as_unknown(world: World, good: bytes) -> None:
    """Neither an upload of another namespace, nor what its adapters hold, can be pushed by its digest."""
    uploaded = upload(world, adapter_weights(world.runtime, seed=77), world.key(["read", "write"], ["theirs"]))
    pushed = world.push("theirs/law", seed=78, sample={"texts": PASSAGES[:30]})
    headers = world.headers(world.key(["read", "write"], ["ours"]))
    for files in ({"digest": uploaded}, {"digest": pushed["weights_blob"]}):
        body = push_of(good, name="ours/x", files={WEIGHTS: files})
        refused(world, body, 404, "not_found", "is not known", headers=headers)
    body = push_of(good, name="ours/x", sample={"blob": pushed["sample"]["digest"]})
    refused(world, body, 404, "not_found", "is not known", headers=headers)


def test_a_refused_push_grants_no_blob(world: World) -> None:
    """Weights that came with a bad sample are not to be had afterwards."""
    data = adapter_weights(world.runtime, seed=79)
    writer = world.key(["read", "write"], ["ours"])
    body = push_of(data, name="ours/x", sample={"texts": ["one"]})
    refused(world, body, 422, "invalid_sample", "at least 20", headers=world.headers(writer))
    assert world.client.get(f"/v1/blobs/{sha256_digest(data)}", headers=world.headers(writer)).status_code == 404
    assert not world.registry.blobs.has(sha256_digest(data))


# --- what is taken, and what is said about it -----------------------------------------------------


def test_an_adapter_with_a_sample_is_answered_before_its_sample_is_embedded(world: World, good: bytes) -> None:
    answer = world.client.post("/v1/adapters", json=manifest("acme/drawn", good, sample={"texts": PASSAGES[:30]}))
    body = answered(answer, 201)
    assert (body["sample_state"], body["job"][:4]) == ("pending", "job-")
    assert answer.headers["location"] == "/v1/adapters/acme/drawn@1"
