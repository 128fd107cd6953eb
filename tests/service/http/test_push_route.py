"""Bad input at `POST /v1/adapters`: refused with status, code and one sentence, and nothing left that anybody sees."""

from __future__ import annotations

import base64
import io
import json
import pickle
import struct
import zipfile
from typing import Any

import numpy as np
import pytest

from registry.adapters.weights import load_tensors, save_tensors
from registry.files import encode_lines
from registry.names import sha256_digest
from registry.samples.embeddings_file import save_embeddings
from tests.postgres import KINDS
from tests.service.servers import BASE_ID, CONFIG, World, adapter_weights

DATABASES = KINDS
pytestmark = pytest.mark.one_database  # journeys ask each kind what these do

WEIGHTS = "adapter_model.safetensors"
NOBODY = "sha256:" + "0" * 64
LORA = {"method": "lora", "groups": [{"targets": ["a.*"], "rank": 1, "alpha": 1}]}
PASSAGES = [f"passage number {number}" for number in range(700)]


SETTINGS = {
    "job_workers": 0,  # jobs stay in the queue
    "max_inline_bytes": 64 * 1024,
    "max_json_bytes": 2**20,
    "max_sample_bytes": 2**16,
    "max_sample_chars": 2**15,
}


@pytest.fixture(scope="module")
def good(world: World) -> bytes:
    return adapter_weights(world.runtime, seed=0)


def inline(data: bytes) -> dict[str, str]:
    return {"base64": base64.b64encode(data).decode()}


def manifest(good: bytes, **fields: Any) -> dict[str, Any]:
    body = {
        "name": "acme/bad",
        "domain": "bad",
        "base_model": BASE_ID,
        "config": CONFIG.model_dump(),
        "files": {WEIGHTS: inline(good)},
    }
    return {**body, **fields}


def seen(world: World) -> dict[str, Any]:
    """Everything that a push could leave visible."""
    with world.runtime.database.read() as catalogue:
        audit = len(catalogue.audit.list(None, limit=200).rows)
    return {
        "adapters": [one["ref"] for one in world.client.get("/v1/adapters?limit=200").json()["data"]],
        "jobs": [one["id"] for one in world.client.get("/v1/jobs?limit=200").json()["data"]],
        "audit": audit,
    }


def refused(world: World, body: Any, status: int, code: str, sentence: str, **request: Any) -> dict[str, Any]:
    """The error of a push that is refused, after which nothing is to be seen of it."""
    before = seen(world)
    sent = (
        {"content": body, "headers": {"content-type": "application/json"}}
        if isinstance(body, bytes)
        else {"json": body}
    )
    answer = world.client.post("/v1/adapters", **{**sent, **request})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, code), answer.text
    assert sentence in error["message"], error["message"]
    assert error["message"].endswith((".", ")"))
    assert len(error["message"]) < 600
    assert "Traceback" not in answer.text
    assert seen(world) == before
    return dict(error)


def upload(world: World, data: bytes, secret: str | None = None) -> str:
    digest = sha256_digest(data)
    headers = world.headers(secret) if secret else {}
    answer = world.client.put(f"/v1/blobs/{digest}", content=data, headers=headers)
    assert answer.status_code in {200, 201}, answer.text
    return digest


# --- weights --------------------------------------------------------------------------------------


class Boom:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("the pickle was opened",))


def zipped() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Boom()))
    return buffer.getvalue()


def file(header: bytes | dict[str, Any], body: bytes = b"") -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + body


TENSOR = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
OVERLAP = {"a": TENSOR, "b": {**TENSOR, "data_offsets": [2, 6]}}
OUTSIDE = {"a": {**TENSOR, "data_offsets": [0, 400]}}


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (pickle.dumps(Boom()), "pickle"),
        (zipped(), "zip archive"),
        (struct.pack("<Q", 2**60) + b"{}" + bytes(90), "header of"),
        (file(OVERLAP, bytes(8)), "overlap"),
        (file(OUTSIDE, bytes(4)), "data_offsets"),
        (
            file(b'{"a": ' + json.dumps(TENSOR).encode() + b', "a": ' + json.dumps(TENSOR).encode() + b"}", bytes(4)),
            "twice",
        ),
        (b"", "too few"),
    ],
    ids=["pickle", "zip", "header bomb", "overlap", "out of range", "duplicate keys", "empty"],
)
@pytest.mark.parametrize("way", ["inline", "blob"])
def test_files_that_are_no_weights(world: World, good: bytes, data: bytes, sentence: str, way: str) -> None:
    source = inline(data) if way == "inline" else {"digest": upload(world, data)}
    error = refused(world, manifest(good, files={WEIGHTS: source}), 422, "invalid_weights", "")
    assert sentence in json.dumps(error)


def test_nan_and_infinity(world: World, good: bytes) -> None:
    tensors = load_tensors(good)
    name = sorted(tensors)[0]
    for value in (float("nan"), float("inf")):
        broken = {**tensors, name: tensors[name].clone().fill_(value)}
        error = refused(
            world, manifest(good, files={WEIGHTS: inline(save_tensors(broken))}), 422, "invalid_weights", ""
        )
        assert name in json.dumps(error)


def test_all_wrong_shapes_at_once(world: World, good: bytes) -> None:
    config = CONFIG.model_copy(update={"bottleneck": 5}).model_dump()
    error = refused(world, manifest(good, config=config), 422, "incompatible", "")
    assert len(error["problems"]) == 6
    assert all("layers." in problem for problem in error["problems"])


def test_tensors_of_another_structure_are_all_named(world: World, good: bytes) -> None:
    config = {**CONFIG.model_dump(), "structure": "houlsby"}
    error = refused(world, manifest(good, config=config), 422, "incompatible", "")
    assert len(error["problems"]) >= 8


# --- the manifest ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "status", "code", "sentence"),
    [
        ({"base_model": "gpt-5"}, 422, "incompatible", "'gpt-5' is not on this server's allowlist (tiny)"),
        ({"base_fingerprint": NOBODY}, 422, "incompatible", "another model under the same name"),
        ({"base_model": None}, 400, "invalid_manifest", "Say which base model"),
        ({"base_model": None, "base_fingerprint": NOBODY}, 422, "incompatible", "0 base models"),
        ({"config": {**CONFIG.model_dump(), "method": "hypernetwork"}}, 400, "unknown_method", "config.method"),
        ({"config": {"structure": "pfeiffer"}}, 400, "invalid_parameter", "Field 'config.method' is missing."),
        ({"config": LORA | {"groups": []}}, 400, "invalid_parameter", "'config.groups': must have at least 1 item"),
        ({"config": LORA}, 400, "invalid_parameter", "'config.groups.0': target 'a.*' needs one '*' for the numbers"),
        ({"config": None}, 400, "invalid_parameter", "either 'config' or 'peft_config'"),
        ({"config": {**CONFIG.model_dump(), "structure": "spiral"}}, 400, "unknown_method", "config.structure"),
        ({"config": {**CONFIG.model_dump(), "bottleneck": 10**9}}, 400, "invalid_parameter", "config.bottleneck"),
        ({"config": {**CONFIG.model_dump(), "size": 1}}, 400, "invalid_parameter", "'config.size' is not known"),
        ({"name": "bad"}, 400, "invalid_name", "has no namespace"),
        ({"name": "../../etc/passwd"}, 400, "invalid_name", "not valid"),
        ({"name": "acme/../other"}, 400, "invalid_name", "not valid"),
        ({"name": "acme/a%2fb"}, 400, "invalid_name", "not valid"),
        ({"name": "acme/Name"}, 400, "invalid_name", "not valid"),
        ({"name": "acme/x@2"}, 400, "invalid_name", "not valid"),
        ({"name": "acme/a\n"}, 400, "invalid_name", "not valid"),
        ({"name": "acme/" + "a" * 65}, 400, "invalid_name", "not valid"),
        ({"name": "acme/" + "a" * 500}, 400, "invalid_parameter", "name"),
        *(
            ({"name": f"{reserved}/x"}, 400, "invalid_name", "reserved")
            for reserved in ("base", "v1", "api", "docs", "static", "ui", "models", "adapters")
        ),
        ({"files": {}}, 400, "invalid_manifest", "it is missing"),
        ({"files": {"../adapter_model.bin": inline(b"x")}}, 400, "invalid_manifest", "exactly"),
        ({"files": {WEIGHTS: {}}}, 400, "invalid_parameter", "either 'digest'"),
        ({"files": {WEIGHTS: {"base64": "%%%"}}}, 400, "invalid_manifest", "not valid base64"),
        ({"files": {WEIGHTS: {"path": "/etc/passwd"}}}, 400, "invalid_parameter", "not known"),
        ({"files": {WEIGHTS: {"digest": "sha256:../../x"}}}, 400, "invalid_parameter", "digest"),
        ({"files": {WEIGHTS: {"digest": NOBODY}}}, 404, "not_found", "upload it first"),
        ({"sample": {"blob": NOBODY}}, 404, "not_found", "upload it first"),
        ({"sample": {"texts": PASSAGES[:19]}}, 422, "invalid_sample", "at least 20 are needed"),
        ({"sample": {"texts": PASSAGES[:1] * 50}}, 422, "invalid_sample", "has 1 different"),
        ({"sample": {"texts": [" ", ""] * 20}}, 422, "invalid_sample", "has 0 different"),
        ({"sample": {}}, 400, "invalid_parameter", "exactly one of"),
        ({"card": {"tags": ["Not a tag"]}}, 400, "invalid_parameter", "card.tags"),
        ({"provenance": {"init_source": "declared"}}, 400, "invalid_parameter", "init_hash"),
        ({"provenance": {"training": {"log": "x" * 65_536}}}, 400, "invalid_parameter", "the most is 65536"),
        ({"card": {"metadata": {"note": "x" * 1025}}}, 400, "invalid_parameter", "'note' has 1025 characters"),
        ({"card": {"metadata": {"k" * 129: 1}}}, 400, "invalid_parameter", "129 characters; the most is 128"),
        ({"extra": 1}, 400, "invalid_parameter", "'extra' is not known"),
    ],
)  # fmt: skip
def test_one_sentence(world: World, good: bytes, fields: Any, status: int, code: str, sentence: str) -> None:
    refused(world, manifest(good, **fields), status, code, sentence)


def test_duplicate_keys_of_the_manifest(world: World, good: bytes) -> None:
    body = json.dumps(manifest(good))
    twice = body[:-1] + ', "name": "acme/other"}'
    refused(world, twice.encode(), 400, "invalid_parameter", "twice")


def test_numbers_that_are_none(world: World, good: bytes) -> None:
    body = json.dumps(manifest(good, config={**CONFIG.model_dump(), "scale": float("inf")}))
    refused(world, body.encode(), 400, "invalid_parameter", "")


def test_sizes_beyond_the_settings(world: World, good: bytes) -> None:
    refused(world, manifest(good, files={WEIGHTS: inline(bytes(70_000))}), 413, "too_large", "upload it as a blob")
    refused(world, manifest(good, card={"description": "x" * 2**20}), 413, "too_large", "SOUP_MAX_JSON_BYTES")
    lines = encode_lines(f"{text} " + "x" * 3000 for text in PASSAGES[:30])
    refused(world, manifest(good, sample={"blob": upload(world, lines)}), 413, "too_large", "the limit is 65536")


def test_an_upload_that_is_not_what_its_digest_says_cannot_be_pushed(world: World, good: bytes) -> None:
    said = sha256_digest(good + b"y")
    for data in (good + b"x", good[:-1], b""):
        answer = world.client.put(f"/v1/blobs/{said}", content=data)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "digest_mismatch")
    refused(world, manifest(good, files={WEIGHTS: {"digest": said}}), 404, "not_found", "not known")


@pytest.mark.parametrize("line", [b"{", b"[]", b'{"txt": 1}', b"\xff\xfe"])
def test_a_sample_blob_with_a_bad_line(world: World, good: bytes, line: bytes) -> None:
    digest = upload(world, encode_lines(PASSAGES[:30]) + line)
    refused(world, manifest(good, sample={"blob": digest}), 422, "invalid_sample", "Line 31 of the sample")


# --- vectors --------------------------------------------------------------------------------------


def encoder(world: World, name: str) -> Any:
    return next(one for one in world.runtime.bases[BASE_ID].encoders().values() if one.name == name)


def vectors(array: np.ndarray, digest: str, unit: str = "passage") -> dict[str, Any]:
    return {"embeddings": [{"encoder": digest, "unit": unit, "file": inline(save_embeddings(array))}]}


@pytest.mark.parametrize(
    ("shape", "unit", "sentence"),
    [
        ((30, 31), "passage", "gives 32 dimensions for each passage; these vectors have 31"),
        ((30, 32), "sentence", "these vectors have 32 for each sentence"),
        ((19, 32), "passage", "19 vectors were sent"),
    ],
)
def test_vectors_that_do_not_fit(world: World, good: bytes, shape: Any, unit: str, sentence: str) -> None:
    sample = vectors(np.ones(shape, np.float32), encoder(world, "base").digest, unit)
    refused(world, manifest(good, sample=sample), 422, "invalid_sample", sentence)


def test_vectors_of_an_unknown_encoder_and_nan(world: World, good: bytes) -> None:
    array = np.ones((30, 32), np.float32)
    refused(world, manifest(good, sample=vectors(array, NOBODY)), 422, "invalid_sample", "No encoder of this base")
    array[0, 0] = np.nan
    sample = vectors(array, encoder(world, "base").digest)
    refused(world, manifest(good, sample=sample), 422, "invalid_sample", "NaN")


# --- what is not the caller's ---------------------------------------------------------------------


def test_a_foreign_namespace_is_forbidden(world: World, good: bytes) -> None:
    headers = world.headers(world.key(["read", "write"], ["ours"]))
    refused(world, manifest(good), 403, "forbidden", "'acme'", headers=headers)
    reader = world.headers(world.key(["read"], ["acme"]))
    refused(world, manifest(good), 403, "forbidden", "'write'", headers=reader)


def test_foreign_blobs_are_as_good_as_unknown(world: World, good: bytes) -> None:
    """Neither an upload of another namespace, nor what its adapters hold, can be pushed by its digest."""
    theirs = world.key(["read", "write"], ["theirs"])
    uploaded = upload(world, adapter_weights(world.runtime, seed=77), theirs)
    pushed = world.push("theirs/law", seed=78, sample={"texts": PASSAGES[:30]})
    headers = world.headers(world.key(["read", "write"], ["ours"]))
    for files in ({"digest": uploaded}, {"digest": pushed["weights_blob"]}):
        body = manifest(good, name="ours/x", files={WEIGHTS: files})
        refused(world, body, 404, "not_found", "is not known", headers=headers)
    body = manifest(good, name="ours/x", sample={"blob": pushed["sample"]["digest"]})
    refused(world, body, 404, "not_found", "is not known", headers=headers)


def test_a_refused_push_grants_no_blob(world: World) -> None:
    """Weights that came with a bad sample are not to be had afterwards."""
    data = adapter_weights(world.runtime, seed=79)
    writer = world.key(["read", "write"], ["ours"])
    body = manifest(data, name="ours/x", sample={"texts": ["one"]})
    refused(world, body, 422, "invalid_sample", "at least 20", headers=world.headers(writer))
    answer = world.client.get(f"/v1/blobs/{sha256_digest(data)}", headers=world.headers(writer))
    assert answer.status_code == 404
    assert not world.registry.blobs.has(sha256_digest(data))


# --- what is taken, and what is said about it -----------------------------------------------------


def push(world: World, name: str, **fields: Any) -> Any:
    return world.client.post("/v1/adapters", json=manifest(fields.pop("weights"), name=name, **fields))


def test_samples_are_cleaned_counted_and_drawn_with_a_seed(world: World, good: bytes) -> None:
    texts = [*PASSAGES[:600], "", *PASSAGES[:5]]
    answer = push(world, "acme/drawn", weights=good, sample={"texts": texts})
    assert answer.status_code == 201
    body = answer.json()
    told = body["sample"]
    assert (told["received"], told["empty"], told["duplicates"], told["kept"], told["seed"]) == (606, 1, 5, 500, 0)
    assert (body["sample_state"], body["job"][:4]) == ("pending", "job-")
    assert answer.headers["location"] == "/v1/adapters/acme/drawn@1"
    few = push(world, "acme/few", weights=good, sample={"texts": PASSAGES[:30]}).json()
    assert few["warnings"] == ["30 sequences: about 100 are better."]


def test_the_same_push_is_known_and_new_bytes_are_a_version(world: World, good: bytes) -> None:
    first = push(world, "acme/twice", weights=good, card={"description": "one"})
    again = push(world, "acme/twice", weights=good, card={"description": "two"}, domain="other")
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json()["ref"] == first.json()["ref"]
    assert again.json()["card"]["description"] == "one"
    assert "its card, domain stayed as stored" in again.json()["warnings"][0]
    other = push(world, "acme/twice", weights=adapter_weights(world.runtime, seed=1))
    assert (other.status_code, other.json()["ref"]) == (201, "acme/twice@2")
    named = push(world, "acme/renamed", weights=good)
    assert (named.status_code, named.json()["digest"]) == (201, first.json()["digest"])


def test_a_later_push_brings_the_sample(world: World, good: bytes) -> None:
    first = push(world, "acme/late", weights=good).json()
    later = push(world, "acme/late", weights=good, sample={"texts": PASSAGES[:40]})
    assert (first["sample_state"], first["job"]) == ("none", None)
    assert (later.status_code, later.json()["sample_state"]) == (200, "pending")
    assert later.json()["job"]
    assert push(world, "acme/late", weights=good, sample={"texts": PASSAGES[:40]}).json()["job"] is None


def test_a_sample_of_more_characters_than_the_setting_allows_is_refused(world: World, good: bytes) -> None:
    """However it comes: nobody's embedding is to keep everybody else's waiting."""
    texts = [f"{number} " + "word " * 300 for number in range(30)]
    said = f"The 30 passages of the sample have {sum(map(len, texts))} characters and the limit is 32768"
    for sample in ({"texts": texts}, {"blob": upload(world, encode_lines(texts))}):
        refused(world, manifest(good, sample=sample), 422, "invalid_sample", said)
