"""benchmarks.adaptersoup: what is drawn, what is kept between runs, what figures count; over a made-up server."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import adaptersoup
from benchmarks.report import Result
from benchmarks.soups import ALONE
from benchmarks.soups.cells import Answers
from benchmarks.soups.setting import HOSTILE, Setting, Texts
from demo.job import Job
from demo.scores import Scores
from registry.names import sha256_digest
from registry.spec import HOLDS_OUT, BaseEntry, CookRequest, SampleSource
from tests.texts_file import write_texts

DOMAINS = ("novel_one", "novel_two")
BANK = ("law", "zoo")
NLL = {"base": 3.0, "control": 2.9, "law": 2.8, "zoo": 3.1, "fresh": 3.0}
"""Nats a token of each model on every novel domain; hostile text has 3 under all of them."""
BY_EFFORT = {"instant": 2.7, "quick": 2.6, "thorough": 2.55, "tune": 2.4, None: 2.75}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for domain in DOMAINS:
        for split in ("valid", "test"):
            write_texts(tmp_path / "novel" / domain / f"{split}.jsonl", [f"{domain} {split} {n}" for n in range(130)])
    write_texts(tmp_path / "general" / "valid.jsonl", [f"general words number {n} of many " * 10 for n in range(300)])
    return tmp_path


class FakeClient:
    """Answers as a server would, by the tables above; a token is a word."""

    def __init__(self) -> None:
        self.cooked: list[CookRequest] = []
        self.models: dict[str, float] = {}

    def sample(self, texts: list[str]) -> SampleSource:
        return SampleSource(texts=tuple(texts))

    def adapter(self, ref: str) -> dict[str, str]:
        return {"ref": ref, "digest": sha256_digest(ref.encode())}

    def cook(self, request: CookRequest) -> dict[str, Any]:
        self.cooked.append(request)
        if request.recipe is None:
            hostile = request.sample is not None and "novel" not in (request.sample.texts or ("",))[0]
            nll = 3.0 if hostile else BY_EFFORT[request.effort]
        else:
            refs = [one.ref.removeprefix("bank/") for one in request.recipe.ingredients]
            own = min(NLL.get(ref, 2.65) for ref in refs)
            hostile, nll = False, own - (0.3 if request.effort == "tune" else 0.0)
            if getattr(request.mixing, "method", "") == "recompress":
                nll += 0.04
        model = f"soup-{len(self.cooked)}"
        self.models[model] = nll
        layers = {"layers.0.ffn": "1"} if request.effort == "quick" else None
        return {
            "model": "base/tiny" if hostile else model, "digest": sha256_digest(model.encode()), "abstained": hostile,
            "verification": {"difference": nll - 3.0, "held_out": request.effort in HOLDS_OUT},
            "report": {"width_out": 4}, "selection": {"selected": [{"ref": "bank/zoo"}]},
            "recipe": {"ingredients": [{"digest": sha256_digest(b"x"), "weight": "1", "layers": layers}]},
        }  # fmt: skip

    def perplexity(self, model: str, texts: list[str]) -> dict[str, Any]:
        nll = self.models.get(model, NLL.get(model.rpartition("/")[2], 3.0))
        if "novel" not in texts[0]:
            nll = 3.0
        words = [len(text.split()) for text in texts]
        rows = [{"nll": nll * n + 0.01 * (at % 3), "tokens": n, "bytes": 5 * n} for at, n in enumerate(words)]
        return {"texts": rows}


@pytest.fixture
def setting(data: Path) -> Setting:
    job = Job(data / "home", data, BaseEntry(id="tiny", source="x"), BANK, DOMAINS, "control", data / "a")
    client: Any = FakeClient()
    (data / "home").mkdir()
    scores = Scores(data / "home" / "scores")
    texts = Texts(job, test_passages=20)
    texts.test(DOMAINS[0])  # what was read of them is no part of what the setting is made of
    return Setting.on(texts, client, scores, sha256_digest(b"base"))


def best_alone(_setting: Setting, alone: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """A search that joins nothing to the best adapter; tests of `benchmarks.soups.greedy` have the real one."""
    return {domain: min(own.values(), key=lambda one: float(one.sum())) for domain, own in alone.items()}


def test_samples_and_test_passages_share_nothing_and_smaller_samples_are_of_the_larger(setting: Setting) -> None:
    again = Texts(setting.job, test_passages=20)
    for domain in (*DOMAINS, *HOSTILE):
        large = setting.sample(domain, size=100, seed=3)
        assert len(large) == len(set(large)) == 100
        assert set(setting.sample(domain, size=5, seed=3)) < set(large)
        assert set(setting.sample(domain, size=100, seed=4)) != set(large)
        assert not set(setting.test(domain)) & set(large)
        assert len(setting.test(domain)) == 20
        assert setting.test(domain) == again.test(domain)


def run(setting: Setting, home: Path, **options: Any) -> Result:
    given = {"over": "base", "draws": 1, "sizes": [15], "name": "adaptersoup", **options}
    return adaptersoup.run(setting, home, search=best_alone, **given)


def test_the_figures_and_what_is_not_asked_again(setting: Setting, tmp_path: Path) -> None:
    result = run(setting, tmp_path, draws=2, sizes=[15, 30])
    found = {name: figure.value for name, figure in result.figures.items()}
    ratios = {"instant": -0.3, "thorough": -0.45, "tune_pass": -0.6, "oracle_single": -0.2, "clustering": -0.25}
    for name, change in ratios.items():
        assert found[f"{name}_ratio"] == pytest.approx(math.exp(change), rel=1e-6), name
    assert found["quick_beats_oracle_single"] == 2
    assert found["recompressed_kept"] == pytest.approx(0.31 / 0.35, rel=1e-6)
    assert found["worse_than_base"] == 0
    assert found["tune_vs_fresh_100"] == 2  # 2.4 against 2.7
    client: Any = setting.client
    assert [one for one in client.cooked if one.effort]
    client.cooked.clear()
    over = run(setting, tmp_path, draws=2, sizes=[15, 30], over="control").figures
    assert not [one for one in client.cooked if one.effort]
    assert over["instant_over_control"].value == pytest.approx(math.exp(-0.2), rel=1e-6)


def test_a_shorter_run_leaves_out_what_it_is_told_to_and_other_domains(setting: Setting, tmp_path: Path) -> None:
    setting.largest = 60
    shorter = {"sizes": [], "greedy": 1, "without": adaptersoup.PARTS}
    found = run(setting, tmp_path, **shorter)
    assert {row["passages"] for row in found.rows if row["way"] != ALONE} == {60}
    assert not any(row["hostile"] or row["way"] == "thorough" for row in found.rows)
    assert found.figures["oracle_greedy_ratio"].value == found.figures["oracle_single_ratio"].value
    with_goal = {name for name, figure in found.figures.items() if figure.goal is not None}
    assert with_goal == {"quick_beats_oracle_single", "worse_than_base"}
    setting.job = replace(setting.job, novel=DOMAINS[:1])
    assert {row["domain"] for row in run(setting, tmp_path, **shorter).rows} == {DOMAINS[0]}


def test_means_are_geometric_and_arithmetic_and_rows_have_bits(setting: Setting, tmp_path: Path) -> None:
    work = adaptersoup.Run(setting, Answers(tmp_path / "a"), "base", 1, [], Result("x"), search=best_alone)
    one, two = (work.base(domain) for domain in DOMAINS)
    doubled = {DOMAINS[0]: [one + math.log(2) * work.tokens(DOMAINS[0])], DOMAINS[1]: [two]}
    assert work.ratio(doubled) == pytest.approx(2**0.5)
    first, second = (math.exp(work.base(name).sum() / work.tokens(name).sum()) for name in DOMAINS)
    assert work.arithmetic(doubled) == pytest.approx((2 * first + second) / (first + second))
    size = sum(len(text) for text in setting.test(DOMAINS[0]))  # every letter is a byte
    assert work.bits_per_byte(one, DOMAINS[0]) == pytest.approx(one.sum() / math.log(2) / size)
