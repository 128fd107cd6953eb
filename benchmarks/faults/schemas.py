"""Requests that schemathesis generates from the OpenAPI document and its links: a server must answer none with 5xx.

Objects that a call creates are read, changed and removed, in any order, by the calls that its answer's links name. Some
generated bodies are replaced by valid ones that are hardly ever generated: a push with weights, or a recipe of existing
adapters. Used by `benchmarks.trust`, and by the tests with a small share of the cases.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Flaky, Unsatisfiable
from hypothesis.stateful import run_state_machine_as_test
from schemathesis import Case, GenerationMode
from schemathesis.core.transport import Response
from schemathesis.generation.stateful.state_machine import APIStateMachine

from benchmarks.faults import content
from benchmarks.faults.server import Killable

STEPS, ROUND = 30, 20
"""Requests of one journey at most, and journeys from one seed."""
EACH = 600
"""One in this many requests is a single call, in each mode; the rest are journeys."""
WHOLE = 0.5
"""Share of the requests for some calls whose body is one that succeeds."""
GENERATED = settings(deadline=None, phases=[Phase.generate], database=None, suppress_health_check=list(HealthCheck))
ENDLESS = "/events"
"""An event stream ends with its job, and no job here does."""
QUIET = {
    "SOUP_JOB_WORKERS": "0",
    "SOUP_TRAINING_WORKERS": "0",
    "SOUP_WAIT_SECONDS": "0",
    "SOUP_MAX_WAIT_SECONDS": "0",
    "SOUP_JOB_QUEUE_PER_KEY": "100000",
    "SOUP_JOB_QUEUE": "100000",
    "SOUP_LOG_LEVEL": "error",
}
"""Settings of a server whose jobs stay in the queue, so that no request waits for one."""


@dataclass
class Sent:
    """Counts of requests, calls, followed links and answers, and the failures."""

    linked: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    @property
    def cases(self) -> int:
        """The number of requests."""
        return self.calls.total()

    def note(self, case: Case[Any], response: Response) -> None:
        """Count a request and its answer."""
        self.calls[case.operation.label] += 1
        self.statuses[response.status_code] += 1
        if response.status_code >= 500:
            request_line = f"{case.method} {case.formatted_path} {case.query} {str(case.body)[:500]}"
            self.failures.append(f"{response.status_code}: {request_line}: {response.text[:300]}")


Push = Callable[[str, int], dict[str, Any]]
"""The body of a push that succeeds, from a name and a seed."""


def whole(push: Push, draw: random.Random) -> dict[str, Callable[[], Any]]:
    """By call, a body that succeeds, or would if the objects it names existed."""

    def ref() -> str:
        return f"acme/a{draw.randrange(4)}"

    return {
        "POST /v1/adapters": lambda: push(ref(), draw.randrange(4)),
        "POST /v1/keys": lambda: {"name": "k", "namespaces": ["acme"], "scopes": [draw.choice(("read", "write"))]},
        "POST /v1/blobs/uploads": dict,
        "POST /v1/soups": lambda: {"recipe": {"ingredients": [{"ref": ref()}, {"ref": ref()}]}, "wait": 0},
        "POST /v1/selectors": lambda: {"selector": {"kind": "gmm", "seed": draw.randrange(100)}, "wait": 0},
        "POST /v1/select": lambda: {"sample": {"texts": [f"text {n}" for n in range(20)]}, "wait": 0},
        "POST /v1/completions": lambda: {"model": ref(), "prompt": "a", "max_tokens": 1},
        "POST /v1/perplexity": lambda: {"model": ref(), "texts": ["a b c"]},
        "PATCH /v1/adapters/{ns}/{name}": lambda: {"card": {"description": str(draw.random())}},
        "PUT /v1/adapters/{ns}/{name}/aliases/{alias}": lambda: {"version": draw.randint(1, 3)},
    }


@dataclass(frozen=True)
class Caller:
    """The key that asks, and its id, which no request may name: it would end the run."""

    secret: str
    id: str


def prepare(case: Case[Any], caller: Caller, bodies: dict[str, Callable[[], Any]], draw: random.Random) -> None:
    """Give some cases a whole body, and none the id of the key that asks."""
    make_body = bodies.get(case.operation.label)
    if make_body is not None and draw.random() < WHOLE:
        case.body, case.media_type = make_body(), "application/json"
    if caller.id in (case.path_parameters or {}).values():
        case.path_parameters["id"] = "key-0123456789abcdef"


def run_each(schema: Any, caller: Caller, push: Push, *, cases: int) -> Sent:
    """Send single requests of every call, valid and invalid ones, including calls that no link leads to."""
    sent, draw = Sent(), random.Random(0)
    bodies = whole(push, draw)
    for operation in (result.ok() for result in without_keys(schema).get_all_operations()):
        for mode in GenerationMode:

            @seed(0)
            @settings(GENERATED, max_examples=cases)
            @given(case=operation.as_strategy(generation_mode=mode))
            def ask(case: Case[Any]) -> None:
                prepare(case, caller, bodies, draw)
                sent.note(case, case.call(headers={"authorization": f"Bearer {caller.secret}"}))

            with suppress(Unsatisfiable):  # nothing can be wrong about a request without parameters
                ask()
    return sent


def without_keys(schema: Any) -> Any:
    """The schema as if no call needed a key, else half of the requests end at 401; without calls that do not end."""
    for operations in schema.raw_schema["paths"].values():
        for operation in operations.values():
            operation.pop("security", None)
    return schema.exclude(path_regex=f"{ENDLESS}$")


def machine(schema: Any, caller: Caller, bodies: dict[str, Callable[[], Any]], draw: random.Random, sent: Sent) -> Any:
    """A state machine over the schema's links that counts in `sent`."""

    class Journeys(schema.as_state_machine()):  # type: ignore[misc]
        def before_call(self, case: Case[Any]) -> None:
            prepare(case, caller, bodies, draw)

        def get_call_kwargs(self, _: Case[Any]) -> dict[str, Any]:
            return {"headers": {"authorization": f"Bearer {caller.secret}"}}

        def step(self, input: Any) -> Any:
            sent.linked += input.transition is not None
            return super().step(input)

        def validate_response(self, response: Response, case: Case[Any], **_: Any) -> None:
            sent.note(case, response)

    assert issubclass(Journeys, APIStateMachine)
    return Journeys


def run_schema(schema: Any, caller: Caller, push: Push, *, cases: int, sent: Sent) -> None:
    """Send requests in journeys of STEPS until `sent` has at least this many, each round with the next seed.

    Hypothesis aborts a round if equal requests have different answers, as is normal for a server with state.
    """
    draw, rounds = random.Random(0), count()
    journeys = machine(without_keys(schema), caller, whole(push, draw), draw, sent)
    while sent.cases < cases:
        examples = max(1, min(ROUND, (cases - sent.cases) // STEPS))
        seed(next(rounds))(journeys)
        with suppress(Flaky):
            run_state_machine_as_test(
                journeys, settings=settings(GENERATED, max_examples=examples, stateful_step_count=STEPS)
            )


def measured(server: Killable, *, cases: int) -> Sent:
    """Send requests to a running server with the settings QUIET."""
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    with server.client() as client:
        caller = Caller(server.key(), next(client.keys(limit=1))["id"])
    sent = run_each(schema, caller, pushed, cases=math.ceil(cases / EACH))
    run_schema(schema, caller, pushed, cases=cases, sent=sent)
    return sent


def pushed(name: str, number: int) -> dict[str, Any]:
    """A push of an adapter, every second one with a sample."""
    return content.adapter(name, number, sample=number % 2 == 0).model_dump(mode="json")
