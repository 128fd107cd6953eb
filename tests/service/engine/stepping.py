"""An engine without its thread, stepped until nothing is left, and rows that join it while others run."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from service.engine import Engine, GenerateRequest, SamplingParams, Ticket


def run(engine: Engine) -> None:
    """Step an engine without its thread until nothing is left."""
    while engine.step():
        pass


def greedy(tokens: int | None = 8, **more: object) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, temperature=0.0, **more)  # type: ignore[arg-type]


def answers_of_joining_rows(
    engine: Engine, requests: Iterable[GenerateRequest], draw: np.random.Generator, *, most_steps: int
) -> list[tuple[GenerateRequest, tuple[int, ...]]]:
    """Each request with its tokens; between two of them fewer than `most_steps` steps are made, as drawn."""
    wanted: list[tuple[GenerateRequest, Ticket]] = []
    for request in requests:
        wanted.append((request, engine.submit(request)))
        for _ in range(draw.integers(0, most_steps)):
            engine.step()
    run(engine)
    return [(request, ticket.result(0).choices[0].token_ids) for request, ticket in wanted]
