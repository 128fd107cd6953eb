"""Whatever the schema allows, and what it does not, never makes the server fail or answer in another shape."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode

from benchmarks.faults.schemas import Caller, Sent, run_schema
from service.http.problems import ErrorBody
from tests.service.pushes import manifest
from tests.service.servers import World, adapter_weights

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "3"))
FOLLOWED = int(os.environ.get("FUZZ_FOLLOWED", "60"))
"""Requests of journeys along the document's links; `python -m benchmarks.trust --only schemathesis` sends 10,000."""

SETTINGS = {"wait_seconds": 0, "max_wait_seconds": 0, "job_workers": 0}  # waits for no job


def operations(world: World) -> list[Any]:
    """Calls whose path has something to draw; `test_fuzz_api.py` draws bodies and queries."""
    schema = schemathesis.openapi.from_asgi("/openapi.json", world.app)
    every_operation = [result.ok() for result in schema.get_all_operations()]
    # an event stream ends with its job, and no job here does
    return [
        operation
        for operation in every_operation
        if operation.path_parameters and not operation.path.endswith("/events")
    ]


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_no_path_breaks_the_server(world: World, mode: GenerationMode) -> None:
    world.push("team/adapter", seed=1)
    headers = world.headers(world.admin)
    targets = operations(world)
    assert len(targets) > 20
    for operation in targets:

        @settings(max_examples=EXAMPLES, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy(generation_mode=mode))
        def attack(case: Case) -> None:
            answer = case.call(headers=headers)
            assert answer.status_code < 500, (case.method, case.path, case.body, answer.text)
            if answer.status_code >= 400 and case.method != "HEAD":
                error = ErrorBody.model_validate(answer.json()).error
                assert error.message.endswith((".", ".)")), error.message

        with suppress(Unsatisfiable):  # nothing can be wrong about a request without parameters
            attack()


def test_nothing_breaks_it_along_the_links(world: World) -> None:
    """The calls that an answer's links name read, change and remove what was created."""
    weights = adapter_weights(world.runtime, seed=2)
    schema = schemathesis.openapi.from_asgi("/openapi.json", world.app)
    caller = Caller(world.admin, next(key["id"] for key in world.client.get("/v1/keys").json()["data"]))
    sent = Sent()
    run_schema(schema, caller, lambda name, _: manifest(name, weights), cases=FOLLOWED, sent=sent)
    assert sent.failures == []
    assert sent.cases >= FOLLOWED
    assert sent.linked > sent.cases // 10
    assert sent.statuses[401] == 0, "the key that asks has ended"
