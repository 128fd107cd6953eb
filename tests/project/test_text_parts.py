"""Cooking and scoring use disjoint text in the demo.

Every passage here says which part of which domain it is of; what each step is given is looked at where it arrives.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

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


def test_a_soup_of_the_demo_is_cooked_from_one_part_of_a_novel_domain_and_scored_on_another(data, tmp_path):
    server = Mock()  # it remembers what was cooked from and what was scored
    server.cook.return_value = {"model": "demo/soup", "abstained": False, "digest": "sha256:" + "5" * 64}
    server.sample.side_effect = lambda texts: {"texts": texts}
    score = {"nll": 1.0, "tokens": 10, "bytes": 40}
    server.perplexity.side_effect = lambda _model, texts: {"texts": [score for _ in texts]}
    base = BaseEntry(id="tiny", source=str(tmp_path))
    job = Job(tmp_path, data, base, ("law", "cooking"), ("ships", "cats"), "control", tmp_path / "adapters")
    pushed = {name: {"ref": f"demo/{name}@1", "digest": "sha256:" + "0" * 64} for name in ("law", "cooking", "control")}
    kitchen = demo_run.Kitchen(job, server, Scores(tmp_path / "scores"), "sha256:1", pushed)
    answers, _ = demo_run._cook(kitchen, Talk(2))
    demo_run._score(kitchen, answers, Talk(2))
    samples = [call.args[0] for call in server.sample.call_args_list]
    assert {len(sample) for sample in samples} == {NOVEL_SAMPLE}
    assert [parts(sample) for sample in samples] == [{f"{domain} valid"} for domain in ("ships", "cats") for _ in EVERY]
    assert {part for call in server.perplexity.call_args_list for part in parts(call.args[1])} == {
        "ships test",
        "cats test",
    }
    assert parts(job.training_sample("law")) == {"law train"}
