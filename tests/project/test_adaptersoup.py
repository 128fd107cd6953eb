"""benchmarks.adaptersoup: what is drawn, what is kept between runs, what figures count; over a made-up server."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import adaptersoup
from benchmarks.report import Result
from benchmarks.soups import ALONE, EFFORTS, VARIANTS
from benchmarks.soups.cells import Answers, Cell
from benchmarks.soups.ensemble import ensemble_nll
from benchmarks.soups.ladder import Climbed, Ladder
from benchmarks.soups.ratio import over_control
from benchmarks.soups.run import Plan, Run
from benchmarks.soups.setting import HELD_OUT, HOSTILE, Lengths, Setting, Texts, bank_folders, copy_bank, prepared
from benchmarks.soups.trained import Rung, windows_of
from benchmarks.subjects import drawn_tensors, lora_of
from demo.job import Job
from demo.scores import Scores
from registry.adapters import attached, from_tensors
from registry.adapters.weights import save_tensors
from registry.base_model import LoadedBase
from registry.errors import InvalidParameter
from registry.formats import AdapterContents, read_directory, write_directory
from registry.names import sha256_digest
from registry.spec import BaseEntry, CookRequest, Provenance, SampleSource
from tests.service.servers import CONFIG
from tests.texts_file import write_texts

DOMAINS = ("novel_one", "novel_two")
BANK = ("law", "zoo")
NLL = {"base": 3.0, "control": 2.9, "law": 2.8, "zoo": 3.1}
"""Nats a token of each model on every novel domain; hostile text has 3 under all of them."""
BY_EFFORT = {"instant": 2.7, "quick": 2.6, "thorough": 2.55, "tune": 2.4, None: 2.75}
WORDS = 3
"""Of each passage."""


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
        hostile = request.sample is not None and "novel" not in (request.sample.texts or ("",))[0]
        model = f"soup-{len(self.cooked)}"
        self.models[model] = BY_EFFORT[request.effort]
        return {
            "model": "base/tiny" if hostile else model,
            "digest": sha256_digest(model.encode()),
            "abstained": hostile,
            "recipe": {"ingredients": [{"digest": self.adapter("bank/law")["digest"]}]},
            "report": {"width_out": 4},
        }

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
    return Setting.on(Texts(job, test_passages=20), client, scores, sha256_digest(b"base"))


def best_alone(_setting: Setting, alone: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """A search that joins nothing to the best adapter; tests of `benchmarks.soups.greedy` have the real one."""
    return {
        domain: min(nll_by_adapter.values(), key=lambda nll: float(nll.sum()))
        for domain, nll_by_adapter in alone.items()
    }


class FakeLadder(Ladder):
    """Every way is at once there; PEFT's three passes take 5, 10 and 15 passes of the base, the last is the best."""

    def __init__(self) -> None:
        pass

    def get(self, setting: Setting, cell: Cell) -> Climbed:
        nats = {"peft": (3.0, 2.6, 2.5, 2.3), "full": (3.0, 2.7)}.get(cell.way, (2.95,))
        rungs = (
            Rung(tuple(NOISE + WORDS * nll), 5.0 * number, nll, number, 0.001 * number)
            for number, nll in enumerate(nats)
        )
        return Climbed(1.0, tuple(rungs))


NOISE = 0.01 * (np.arange(20) % 3)
"""What passages differ by under every model."""


def a_run(setting: Setting, home: Path, **plan: Any) -> Run:
    answers, ladder = Answers(home / "answers"), FakeLadder()
    plan = {"bank": "smollm2_lora", **plan}
    return Run(setting, Plan(**plan), answers, ladder, best_alone, lambda setting, cell: NOISE + WORDS * 2.5)


def measured(setting: Setting, home: Path, **plan: Any) -> Result:
    return adaptersoup.measure(a_run(setting, home, **plan))


def test_samples_held_out_and_test_passages_share_nothing_and_small_samples_begin_larger_ones(setting: Setting) -> None:
    fresh_texts = Texts(setting.job, test_passages=20)
    for domain in (*DOMAINS, *HOSTILE):
        large = setting.sample(domain, size=100, seed=3)
        assert len(large) == len(set(large)) == 100
        assert setting.sample(domain, size=5, seed=3) == large[:5]
        assert set(setting.sample(domain, size=100, seed=4)) != set(large)
        assert len(setting.held_out(domain, seed=3)) == HELD_OUT
        assert not set(setting.held_out(domain, seed=3)) & set(large)
        assert not set(setting.test(domain)) & set(large)
        assert len(setting.test(domain)) == 20
        assert setting.test(domain) == fresh_texts.test(domain)


@pytest.mark.slow
def test_the_figures_and_what_is_not_asked_again(setting: Setting, tmp_path: Path) -> None:
    result = measured(setting, tmp_path, draws=2, sizes=(15, 30))
    values = {name: figure.value for name, figure in result.figures.items()}
    nats = {
        "instant": 2.7,
        "tune": 2.4,
        "clustering": 2.75,
        "base": 3.0,
        "control": 2.9,
        "single": 2.8,
        "greedy": 2.8,
        "prompt": 2.95,
        "peft": 2.3,
        "full": 2.7,
    }
    for name, nll in nats.items():
        assert values[f"{name}_over_control"] == pytest.approx(math.exp(nll - 2.9), rel=1e-6), name
    exact = {
        "quick_over_control_15": values["quick_over_control"],
        "worse_than_base": 0,
        "tune_vs_peft_best_15": -2,  # 2.4 against 2.3
        "recommended_within_1se": 0,
    }
    assert {name: values[name] for name in exact} == exact
    assert (result.figures["tune_over_control"].goal, result.figures["tune_vs_peft_15"].goal) == (0.74, 8)
    client: Any = setting.client
    client.cooked.clear()
    second_figures = measured(setting, tmp_path, draws=2, sizes=(15, 30)).figures
    assert {name: figure.value for name, figure in second_figures.items()} == values
    assert not client.cooked


@pytest.mark.slow
def test_tune_is_compared_with_what_peft_makes_in_the_same_time(
    setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = a_run(setting, tmp_path, sizes=(15,))
    for seconds, ahead in ((1.0, 2), (11.0, 2), (15.0, -2)):
        monkeypatch.setattr(run, "about", lambda _cell, seconds=seconds: {"wall_s": seconds, "forward_s": 1.0})
        adaptersoup.beside_peft(run)
        assert run.result.figures["tune_vs_peft_15"].value == ahead


@pytest.mark.slow
def test_a_shorter_run_leaves_out_what_it_is_told_to(setting: Setting, tmp_path: Path) -> None:
    result = measured(setting, tmp_path, sizes=(5, 60), ways=("quick", "tune"), hostile=(), greedy=0)
    assert {row["way"] for row in result.rows} == {"quick", "tune", "base", "control"}
    assert {row["passages"] for row in result.rows if row["way"] == "quick"} == {5, 60}
    assert not any(row["hostile"] for row in result.rows)
    assert not any(name.startswith(("peft", "tune_vs_peft", "greedy")) for name in result.figures)


@pytest.mark.slow
def test_the_clustering_soup_in_other_sizes_with_the_two_best_others_and_as_an_ensemble(
    setting: Setting, tmp_path: Path
) -> None:
    figures = measured(setting, tmp_path, sizes=(5,), hostile=(), greedy=1, ways=("clustering", *VARIANTS)).figures
    assert figures["single_over_control"].value == pytest.approx(math.exp(2.8 - 2.9))
    assert "greedy_over_control" not in figures
    cooked = setting.client.cooked
    assert {request.options.max_ingredients for request in cooked if request.selector} == {None, 3, 10, 15}
    recipes = {tuple(row.ref for row in request.recipe.ingredients) for request in cooked if request.recipe}
    assert recipes == {tuple(sha256_digest(f"bank/{name}".encode()) for name in BANK)}
    assert figures["clustering_ensemble_over_control"].value == pytest.approx(math.exp(2.5 - 2.9))


def test_an_ensemble_takes_the_mean_of_its_members_logits(base: LoadedBase) -> None:
    config = lora_of(base.shape)
    members = [from_tensors(config, base.shape, drawn_tensors(base, config, seed)) for seed in (1, 2)]
    text = "the court heard the case"
    ids = torch.tensor([window.ids for window in windows_of(base, [text])[0]])
    logits = []
    for member in members:
        with torch.no_grad(), attached(base.model, member):
            logits.append(base.model(input_ids=ids).logits[0, :-1])
    expected = torch.nn.functional.cross_entropy((logits[0] + logits[1]) / 2, ids[0, 1:], reduction="sum")
    assert ensemble_nll(base, members, [text]) == pytest.approx([float(expected)], rel=1e-5)  # fp32 sums


@pytest.mark.slow
def test_rows_have_every_cell_and_every_adapter(setting: Setting, tmp_path: Path) -> None:
    rows = measured(setting, tmp_path, sizes=(15,)).rows
    assert {row["adapter"] for row in rows if row["way"] == ALONE} == {*BANK, "control"}
    hostile = [row for row in rows if row["hostile"]]
    assert {(row["domain"], row["way"]) for row in hostile} == {(domain, way) for domain in HOSTILE for way in EFFORTS}
    assert all(row["abstained"] and row["difference"] == 0 for row in hostile)
    [peft, *_] = [row for row in rows if row["way"] == "peft"]
    assert (peft["trained_passes"], peft["rate"], peft["wall_s"]) == (3, 0.003, 15)
    assert peft["over"] == pytest.approx(-0.6)


def test_means_are_geometric_and_errors_are_those_of_the_domains() -> None:
    rows = [
        {"domain": "a", "over": math.log(2), "over_error": 0.3},
        {"domain": "a", "over": math.log(2), "over_error": 0.5},
        {"domain": "b", "over": 0.0, "over_error": 0.3},
        {"domain": "b", "over": 0.0, "over_error": 0.3},
    ]
    assert over_control(rows) == pytest.approx((2**0.5, 2**0.5 * 0.5 / 2))


def write_lora(folder: Path, domain: str, perplexity: float) -> None:
    contents = AdapterContents(
        config=CONFIG,
        domain=domain,
        weights=save_tensors({"x": torch.zeros(1)}),
        texts=[f"{n}" for n in range(30)],
        base_model="tiny",
        provenance=Provenance(training={"valid_perplexity": perplexity}),
    )
    write_directory(folder, contents)


def test_of_a_domains_adapters_the_best_on_validation_text_is_in_the_bank(setting: Setting, tmp_path: Path) -> None:
    bank = tmp_path / "bank"
    for name, domain, perplexity in (("law-1", "law", 9.0), ("law-2", "law", 8.0), ("general", "control", 7.0)):
        write_lora(bank / name, domain, perplexity)
    folders = bank_folders(bank)
    assert {domain: path.name for domain, path in folders.items()} == {"law": "law-2", "control": "general"}
    copy_bank(folders, setting.job)
    assert read_directory(setting.job.adapters / "law").sample is not None
    assert read_directory(setting.job.adapters / "control").sample is None, "so that no selector ranks it"


def test_a_bank_needs_a_control(data: Path, tmp_path: Path) -> None:
    (data / "train" / "law").mkdir(parents=True)
    write_lora(tmp_path / "bank" / "law", "law", 9.0)
    with pytest.raises(InvalidParameter, match="the control: it has none"):
        prepared(data, "no-model", tmp_path / "bank", tmp_path / "home", Lengths())
