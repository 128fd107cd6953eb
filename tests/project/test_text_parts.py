"""Cooking and scoring use disjoint text in the demo.

Every passage here says which part of which domain it is of; what each step is given is looked at where it arrives.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from demo import run as demo_run
from demo.job import NOVEL_SAMPLE, Job
from demo.scores import Scores
from demo.strategies import EVERY
from demo.talk import Talk
from registry.spec import BaseEntry
from tests.texts_file import write_texts

PASSAGES = 210
"""Of each part: more than any step draws."""


def passages(domain: str, part: str) -> list[str]:
    return [f"{domain} {part} {number}: the court held that contract {number} was void" for number in range(PASSAGES)]


def parts(texts: Any) -> set[str]:
    """`law valid` for each domain and part that some passages are of."""
    return {" ".join(text.split()[:2]) for text in texts}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`train/law` and `train/cooking`, `novel/ships` and `novel/cats`, `mixed/control`: all parts of each."""
    folder = tmp_path_factory.mktemp("data")
    for kind, domains in {"train": ("law", "cooking"), "novel": ("ships", "cats"), "mixed": ("control",)}.items():
        for domain in domains:
            for part in ("train", "valid", "test"):
                write_texts(folder / kind / domain / f"{part}.jsonl.gz", passages(domain, part))
    return folder


# --- the demo ---------------------------------------------------------------------------------------


class Server:
    """What the demo asks of a server, answered at once: it remembers what was cooked from and what was scored."""

    def __init__(self) -> None:
        self.cooked: list[list[str]] = []
        self.scored: list[list[str]] = []

    def sample(self, texts: list[str]) -> dict[str, Any]:
        self.cooked.append(texts)
        return {"texts": texts}

    def cook(self, _request: Any) -> dict[str, Any]:
        return {"model": "demo/soup", "abstained": False, "digest": "sha256:" + "5" * 64}

    def perplexity(self, _model: str, texts: list[str]) -> dict[str, Any]:
        self.scored.append(texts)
        return {"texts": [{"nll": 1.0, "tokens": 10, "bytes": 40} for _ in texts]}


def job(data: Path, home: Path) -> Job:
    base = BaseEntry(id="tiny", source=str(home))
    return Job(home, data, base, ("law", "cooking"), ("ships", "cats"), "control", home / "adapters")


def test_a_soup_of_the_demo_is_cooked_from_one_part_of_a_novel_domain_and_scored_on_another(data, tmp_path):
    server = Server()
    pushed = {name: {"ref": f"demo/{name}@1", "digest": "sha256:" + "0" * 64} for name in ("law", "cooking", "control")}
    kitchen = demo_run.Kitchen(job(data, tmp_path), server, Scores(tmp_path / "scores"), "sha256:1", pushed)
    answers, _ = demo_run._cook(kitchen, Talk(2))
    demo_run._score(kitchen, answers, Talk(2))
    assert {len(sample) for sample in server.cooked} == {NOVEL_SAMPLE}
    assert [parts(sample) for sample in server.cooked] == [
        {f"{domain} valid"} for domain in ("ships", "cats") for _ in EVERY
    ]
    assert {part for texts in server.scored for part in parts(texts)} == {"ships test", "cats test"}
    assert parts(kitchen.job.training_sample("law")) == {"law train"}
