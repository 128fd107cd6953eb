"""An engine without its thread, stepped until nothing is left, and rows that join it while others run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from service.engine import Completion, GenerateRequest, SamplingParams, Ticket
from service.engine.engine import Engine
from service.engine.request import Request


@contextmanager
def started(engine: Engine) -> Iterator[Engine]:
    """An engine whose thread runs."""
    engine.start()
    try:
        yield engine
    finally:
        engine.stop(drain=0)


def run(engine: Engine) -> None:
    """Step an engine without its thread until nothing is left."""
    while engine.step():
        pass


def greedy(tokens: int | None = 8, **more: object) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, temperature=0.0, **more)  # type: ignore[arg-type]


def ended(engine: Engine, *requests: Request) -> list[Ticket]:
    """The tickets of requests that are submitted together to an engine without its thread, all of them done."""
    tickets = engine.submit_all(requests)
    run(engine)
    return tickets


def answered(engine: Engine, *requests: Request) -> list[Any]:
    """The results of requests that are submitted together."""
    return [ticket.result(0) for ticket in ended(engine, *requests)]


def tokens_of(engine: Engine, *requests: GenerateRequest) -> list[tuple[int, ...]]:
    """The tokens of the first choice of each of these requests, submitted together."""
    return [answer.choices[0].token_ids for answer in answered(engine, *requests)]


def answers_of_joining_rows(
    engine: Engine, requests: Iterable[GenerateRequest], draw: np.random.Generator, *, most_steps: int
) -> list[tuple[GenerateRequest, Completion]]:
    """Each request with its first choice; between two of them fewer than `most_steps` steps are made, as drawn."""
    submitted: list[tuple[GenerateRequest, Ticket]] = []
    for request in requests:
        submitted.append((request, engine.submit(request)))
        for _ in range(draw.integers(0, most_steps)):
            engine.step()
    run(engine)
    return [(request, ticket.result(0).choices[0]) for request, ticket in submitted]
