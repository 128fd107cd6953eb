"""Cooking and scoring: every strategy for every novel domain, every adapter on every test text.

Each score is a cell, kept in a file as soon as it is there: an interrupted run goes on where it was, and no model is
scored twice on the same text. Strategies see the sample only; test text gives figures and the oracle's choice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo.server import Server
from demo.work import Novel, Work
from registry.names import digest_of
from registry.spec import PoolRequest
from service.client import SoupClient
from service.commands.compare import STRATEGIES, Strategy

Progress = Callable[[int, int, str], None]


class Cells:
    """Scores by model digest and text, in a file of JSON lines that only grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, dict[str, list[float]]] = {}
        if path.is_file():
            for line in path.read_text().splitlines():
                cell = json.loads(line)
                self._known[cell["key"]] = cell["score"]

    def score(self, client: SoupClient, model: str, digest: str, texts: Sequence[str]) -> dict[str, list[float]]:
        """`nll`, `tokens` and `bytes` of each text under a model, asked once."""
        key = digest_of([digest, list(texts)])
        if key not in self._known:
            scored = client.perplexity(model, texts)["texts"]
            columns = {name: [one[name] for one in scored] for name in ("nll", "tokens", "bytes")}
            self._known[key] = columns
            with self._path.open("a") as file:
                file.write(json.dumps({"key": key, "model": model, "score": columns}) + "\n")
        return self._known[key]


@dataclass(frozen=True)
class Answer:
    """What a strategy came to for one novel domain."""

    strategy: str
    model: str
    digest: str
    abstained: bool
    reason: str
    ingredients: tuple[str, ...]


@dataclass(frozen=True)
class DomainResult:
    """One novel domain: the scores of the base, the control, every adapter, and of what each strategy answered."""

    name: str
    base: dict[str, list[float]]
    control: dict[str, list[float]]
    adapters: dict[str, dict[str, list[float]]]
    answers: tuple[tuple[Answer, dict[str, list[float]]], ...]


def measure(work: Work, server: Server, folder: Path, progress: Progress) -> list[DomainResult]:
    """Cook and score everything."""
    cells = Cells(folder / "cells.jsonl")
    with server.client() as client:
        refs = {domain: client.adapter(f"demo/{path.name}") for domain, path in work.adapters.items()}
        control = client.adapter(f"demo/{work.control.name}")
        steps = len(work.novel) * (len(refs) + len(STRATEGIES) + 2)
        done = 0

        def tell(message: str) -> None:
            nonlocal done
            progress(done, steps, message)
            done += 1

        results = []
        for name, novel in work.novel.items():
            answers = [_cook(client, work, strategy, novel, tell) for strategy in STRATEGIES]
            tell(f"{name}: scoring the base")
            base = cells.score(client, f"base/{work.base_id}", f"base/{work.base_id}", novel.test)
            tell(f"{name}: scoring the control")
            controlled = cells.score(client, control["ref"], control["digest"], novel.test)
            scores = {}
            for domain, row in refs.items():
                tell(f"{name}: scoring adapter {domain}")
                scores[domain] = cells.score(client, row["ref"], row["digest"], novel.test)
            scored = tuple((one, cells.score(client, one.model, one.digest, novel.test)) for one in answers)
            results.append(DomainResult(name, base, controlled, scores, scored))
    return results


def _cook(client: SoupClient, work: Work, strategy: Strategy, novel: Novel, tell: Callable[[str], None]) -> Answer:
    tell(f"cooking: {strategy.name}")
    pool = PoolRequest(base_model=work.base_id, namespaces=("demo",))
    cooked: dict[str, Any] = client.cook(strategy.request(client.sample(novel.sample), pool))
    selected = (cooked.get("selection") or {}).get("selected") or []
    return Answer(
        strategy=strategy.name,
        model=cooked["model"],
        digest=cooked["digest"] or cooked["model"],
        abstained=cooked["abstained"],
        reason=cooked["reason"],
        ingredients=tuple(one["domain"] for one in selected),
    )
