"""Answers are what /openapi.json says they are: for every operation, on objects that exist, by example and by fuzzing.

`test_schema_fuzz.py` sends anything at all to a server without objects; here requests reach the inside, so that
successes are compared with the schema too. Each operation has an example that succeeds: a route without one fails.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from registry.names import sha256_digest
from registry.spec import Provenance
from tests.service.http.stock import TEMPLATE, push_embedded
from tests.service.passages import WORDS, passages
from tests.service.pushes import manifest
from tests.service.servers import BASE_ID, World, adapter_weights

FUZZED = int(os.environ.get("FUZZ_EXAMPLES", "4"))
CHECKS: list[Any] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
TEMPLATES = {BASE_ID: TEMPLATE}
INIT = Provenance(init_hash="sha256:" + "1" * 64, init_source="declared").model_dump()
BLOB = b"a blob of these tests"
KEY = {"name": "made here", "namespaces": ["acme"], "scopes": ["read"]}
SAMPLE = {"texts": passages("kitchen", 25, seed=3)}
UNIFORM = {"kind": "uniform"}


def stock(world: World) -> dict[str, str]:
    """Put one of everything in; returns what identifies it."""
    client = world.client
    for seed, domain in enumerate(WORDS):
        pushed = push_embedded(world, f"acme/{domain}", passages(domain, 25), seed=seed, domain=domain, provenance=INIT)
    world.push("acme/going", seed=7)
    assert client.put(f"/v1/blobs/{sha256_digest(BLOB)}", content=BLOB).status_code == 201
    assert client.post("/v1/selectors", json={"selector": {"kind": "posterior"}, "wait": 60}).status_code == 201
    soup = client.post("/v1/soups", json={"sample": SAMPLE, "selector": UNIFORM, "verify": False, "wait": 60}).json()
    return {
        "job": pushed["job"],
        "digest": pushed["digest"],
        "soup": soup["model"],
        "selector": soup["selector"],
        "key": client.post("/v1/keys", json=KEY).json()["id"],
        "upload": client.post("/v1/blobs/uploads").json()["id"],
        "upload to delete": client.post("/v1/blobs/uploads").json()["id"],
    }


def examples(world: World, ids: dict[str, str]) -> dict[str, dict[str, Any]]:
    """A request for every operation, in an order in which each succeeds."""
    blob = {"path_parameters": {"digest": sha256_digest(BLOB)}}
    upload = {"path_parameters": {"id": ids["upload"]}}
    adapter = {"path_parameters": {"ns": "acme", "name": "code"}}
    alias = {"path_parameters": {"ns": "acme", "name": "code", "alias": "best"}}
    soup_ns, soup_name = ids["soup"].split("/")
    soup = {"path_parameters": {"ns": soup_ns, "name": soup_name}}
    job, selector = {"path_parameters": {"id": ids["job"]}}, {"path_parameters": {"id": ids["selector"]}}
    model = {"model": "acme/code"}
    return {
        "GET /healthz": {},
        "GET /readyz": {},
        "GET /metrics": {},
        "POST /v1/blobs/uploads": {"body": {"digest": sha256_digest(BLOB), "size": len(BLOB)}},
        "GET /v1/blobs/uploads": {"query": {"digest": sha256_digest(BLOB)}},
        "GET /v1/blobs/uploads/{id}": upload,
        "PATCH /v1/blobs/uploads/{id}": {**upload, "body": BLOB, "headers": {"content-range": f"0-{len(BLOB) - 1}"}},
        "PUT /v1/blobs/uploads/{id}": {**upload, "query": {"digest": sha256_digest(BLOB)}, "body": b""},
        "DELETE /v1/blobs/uploads/{id}": {"path_parameters": {"id": ids["upload to delete"]}},
        "PUT /v1/blobs/{digest}": {**blob, "body": BLOB},
        "HEAD /v1/blobs/{digest}": blob,
        "GET /v1/blobs/{digest}": blob,
        "POST /v1/adapters": {"body": manifest("acme/new", adapter_weights(world.runtime, seed=11))},
        "GET /v1/adapters": {"query": {"limit": 2, "kind": "adapter"}},
        "GET /v1/adapters/{digest}": {"path_parameters": {"digest": ids["digest"]}},
        "GET /v1/adapters/{ns}/{name}": adapter,
        "PATCH /v1/adapters/{ns}/{name}": {**adapter, "body": {"card": {"description": "Changed."}}},
        "GET /v1/adapters/{ns}/{name}/lineage": adapter,
        "GET /v1/adapters/{ns}/{name}/probe": adapter,
        "POST /v1/adapters/{ns}/{name}/probe": {**adapter, "body": {"model": [{"a": -1.0}] * 32}},
        "GET /v1/adapters/{ns}/{name}/files": adapter,
        "GET /v1/adapters/{ns}/{name}/files/{file}": {
            "path_parameters": {**adapter["path_parameters"], "file": "README.md"}
        },
        "PUT /v1/adapters/{ns}/{name}/aliases/{alias}": {**alias, "body": {"version": 1}},
        "GET /v1/adapters/{ns}/{name}/aliases": adapter,
        "DELETE /v1/adapters/{ns}/{name}/aliases/{alias}": alias,
        "POST /v1/selectors": {"body": {"selector": UNIFORM, "wait": 60}},
        "GET /v1/selectors": {},
        "POST /v1/evaluations": {"body": {"passages": 2}},
        "GET /v1/evaluations": {},
        "GET /v1/selectors/{id}": selector,
        "POST /v1/select": {"body": {"sample": SAMPLE, "selector": UNIFORM, "wait": 60}},
        "POST /v1/adapters/search": {"body": {"texts": ["flour and water"], "wait": 60}},
        "POST /v1/collect": {"body": {}},
        "POST /v1/soups": {
            "body": {"recipe": {"ingredients": [{"ref": "acme/code"}, {"ref": "acme/court"}]}, "wait": 60}
        },
        "POST /v1/trainings": {
            "body": {"name": "acme/trained", "domain": "code", "base_model": BASE_ID, "texts": sha256_digest(BLOB)}
        },
        "GET /v1/soups": {},
        "GET /v1/soups/{ns}/{name}": soup,
        "GET /v1/soups/{ns}/{name}/lineage": soup,
        "POST /v1/perplexity": {"body": {**model, "texts": ["heat the oil"], "baseline": BASE_ID}},
        "POST /v1/completions": {"body": {**model, "prompt": "heat", "max_tokens": 2, "logprobs": 2, "seed": 1}},
        "POST /v1/chat/completions": {
            "body": {**model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "logprobs": True}
        },
        "POST /v1/embeddings": {"body": {"model": BASE_ID, "input": ["heat", "the oil"]}},
        "POST /v1/route": {"body": {"texts": ["heat the oil"]}},
        "GET /v1/models": {},
        "GET /v1/models/{id}": {"path_parameters": {"id": BASE_ID}},
        "GET /v1/models/{ns}/{name}": soup,
        "POST /tokenize": {"body": {**model, "prompt": "heat the oil"}},
        "POST /detokenize": {"body": {**model, "tokens": [5, 6]}},
        "GET /tokenizer_info": {"query": model},
        "GET /v1/jobs": {"query": {"limit": 2}},
        "GET /v1/jobs/{id}": job,
        "GET /v1/jobs/{id}/events": job,
        "POST /v1/jobs/{id}/cancel": job,
        "GET /v1/keys": {},
        "POST /v1/keys": {"body": KEY},
        "GET /v1/namespaces/{ns}": {"path_parameters": {"ns": "acme"}},
        "PATCH /v1/namespaces/{ns}": {"path_parameters": {"ns": "acme"}, "body": {"tuning": "allow"}},
        "GET /v1/namespaces/{ns}/limits": {"path_parameters": {"ns": "acme"}},
        "PATCH /v1/namespaces/{ns}/limits": {"path_parameters": {"ns": "limited"}, "body": {"jobs": None}},
        "GET /v1/keys/{id}/limits": {"path_parameters": {"id": ids["key"]}},
        "PATCH /v1/keys/{id}/limits": {"path_parameters": {"id": ids["key"]}, "body": {"requests_per_minute": 60}},
        "GET /v1/usage": {"query": {"limit": 5, "by": ["day", "model"]}},
        "GET /v1/audit": {"query": {"limit": 5}},
        "PATCH /v1/keys/{id}": {"path_parameters": {"id": ids["key"]}, "body": {"name": "changed"}},
        "POST /v1/keys/{id}/rotate": {"path_parameters": {"id": ids["key"]}, "body": {"grace_seconds": 60}},
        "DELETE /v1/keys/{id}": {"path_parameters": {"id": ids["key"]}},
        "DELETE /v1/adapters/{ns}/{name}": {"path_parameters": {"ns": "acme", "name": "going"}},
        "POST /v1/adapters/{ns}/{name}/restore": {"path_parameters": {"ns": "acme", "name": "going@1"}},
        "POST /v1/adapters/{ns}/{name}/purge": {"path_parameters": {"ns": "acme", "name": "going@1"}},
    }


SETTINGS = {"training_workers": 0}  # trainings are asked for, not done


@pytest.fixture(scope="module")
def operations(world: World) -> dict[str, Any]:
    """`METHOD path` -> operation, without the hub's, which its own clients and `test_hub_api` try."""
    parsed = (
        outcome.ok() for outcome in schemathesis.openapi.from_asgi("/openapi.json", world.app).get_all_operations()
    )
    return {operation.label: operation for operation in parsed if not operation.path.startswith(("/api/", "/{ns}/"))}


@pytest.fixture(scope="module")
def requests(world: World) -> dict[str, dict[str, Any]]:
    """A request of each operation that succeeds on a server with one of everything."""
    return examples(world, stock(world))


def call(world: World, case: Case) -> Any:
    """Send a case and compare its answer with the schema.

    The content of event streams is not: OpenAPI 3.1 has no words for single events, and schemathesis takes the
    schema of the whole text for that of each.
    """
    headers = world.headers(world.admin)
    answer = case.call(headers=headers)
    streams = answer.headers.get("content-type", [""])[0].startswith("text/event-stream")
    checks = [check for check in CHECKS if not (streams and check is response_schema_conformance)]
    case.validate_response(answer, checks=checks, headers=headers)
    return answer


def case_of(operation: Any, request: dict[str, Any]) -> Case:
    kinds = [body.media_type for body in operation.body]
    return operation.Case(**request, **({"media_type": kinds[0]} if "body" in request else {}))


def test_every_operation_has_an_example(operations: Any, requests: Any) -> None:
    assert set(operations) == set(requests)


def test_examples_succeed_and_answer_as_the_schema_says(world: World, operations: Any, requests: Any) -> None:
    wrong = []
    for label, request in requests.items():
        try:
            answer = call(world, case_of(operations[label], request))
        except FailureGroup as failures:
            wrong.append(f"{label}: {[failure.message for failure in failures.exceptions]}")
        else:
            if answer.status_code not in {200, 201, 202, 204}:
                wrong.append(f"{label}: {answer.status_code} {answer.text}")
    assert not wrong, "\n".join(wrong)


def test_streams_are_declared(world: World, operations: Any, requests: Any) -> None:
    for label in ("POST /v1/completions", "POST /v1/chat/completions"):
        answer = call(world, case_of(operations[label], {"body": {**requests[label]["body"], "stream": True}}))
        assert answer.headers["content-type"][0].startswith("text/event-stream")
        assert answer.text.endswith("data: [DONE]\n\n")


def attacked(world: World, operation: Any, request: dict[str, Any], mode: GenerationMode) -> int:
    """Send drawn requests with the example's path and model; the number sent."""
    sent = 0

    @settings(max_examples=FUZZED, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def attack(case: Case) -> None:
        nonlocal sent
        if "path_parameters" in request:
            case.path_parameters = dict(request["path_parameters"])
        if isinstance(case.body, dict) and isinstance(request.get("body"), dict):
            fixed_fields = {name: request["body"][name] for name in ("model", "wait") if name in request["body"]}
            case.body = {**case.body, **fixed_fields}
        call(world, case)
        sent += 1

    attack()
    return sent


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_whatever_comes_on_objects_that_exist(
    world: World, operations: Any, requests: Any, mode: GenerationMode
) -> None:
    drawable = {
        label: operation
        for label, operation in operations.items()
        if (operation.body or operation.query) and not label.startswith("DELETE")
    }
    sent = [attacked(world, operation, requests[label], mode) for label, operation in drawable.items()]
    assert len(sent) > 15
    assert sum(sent) >= len(sent) * FUZZED // 2
