"""The single-domain experiment on a tiny base: all of it runs, resumes, and chooses without test text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from adaptersoup.cli.app import run as soup_command
from benchmarks import single_domain
from benchmarks.single import choosing, making, scoring, setting, table
from benchmarks.single.scoring import Model, soup
from benchmarks.single.setting import Sizes, Texts
from demo.scores import Score
from demo.talk import Talk
from registry.adapters import attached, create, paper_config
from registry.base_model.likelihood import hidden_states, lm_logits
from registry.spec import BaseEntry
from tests.project.test_benchmarks import check_form
from tests.texts_file import write_texts

pytestmark = pytest.mark.slow

SIZES = Sizes(
    held_out=("ships", "cats"), domain="law", steps=3, batch=2, block=32, evaluations=1, stopping=6, some_in=2,
    some_out=1, all_in=5, all_out=3, finalists=2, test_in=5, test_out=4, curve_points=3, curve_passages=4,
)  # fmt: skip
GRID = making.Grid("near_identity", 0, (7e-3, 4e-3, 5e-4), (1, 2))
LAW = "The judge of court {} held that contract {} was void and the parties had to pay."
OTHERS = {
    "ships": "The ship {} left the harbour of island {} in a storm.",
    "cats": "Cat {} sleeps on the mat {} all day.",
}


def passages(words: str, first: int, count: int) -> list[str]:
    return [words.format(number, 7 * number) for number in range(first, first + count)]


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A domain to train on and two held out; of each, no passage is in two parts."""
    folder = tmp_path_factory.mktemp("corpora")
    for first, (part, count) in enumerate({"train": 30, "valid": 8, "test": 6}.items()):
        write_texts(folder / "train" / "law" / f"{part}.jsonl", passages(LAW, 1000 * first, count))
    for name, words in OTHERS.items():
        for first, part in enumerate(("valid", "test")):
            write_texts(folder / "novel" / name / f"{part}.jsonl", passages(words, 1000 * first, 6))
    return folder


@pytest.fixture(scope="module")
def found(corpora: Path, tiny_base_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> setting.Setting:
    home = tmp_path_factory.mktemp("home")
    return setting.setting(SIZES, base=tiny_base_dir, data=corpora, home=home, dtype="float32")


@contextmanager
def one_thread(base: BaseEntry, *, block: int, processes: int) -> Iterator[Executor]:
    scoring.begin(base, block)
    with ThreadPoolExecutor(1) as pool:
        yield pool


@contextmanager
def no_thread(*_: object, **__: object) -> Iterator[Executor]:
    """A pool that may not be asked: everything was scored before."""

    class Refuses(Executor):
        def submit(self, *_: object, **__: object):
            raise AssertionError("something is scored again")

    yield Refuses()


@pytest.fixture(scope="module")
def runs(found: setting.Setting) -> tuple[single_domain.Result, list[list[str]]]:
    """The result of a first run, and the commands it gave."""
    commands: list[list[str]] = []
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(making, "MAIN", GRID)
        patch.setattr(single_domain, "worker_pool", one_thread)
        patch.setattr(making, "subprocess", sweeping(lambda command: commands.append(in_process(command))))
        result = single_domain.run(found, processes=1, talk=Talk(4))
    torch.set_num_threads(threads)
    return result, commands


def sweeping(call: Callable[[list[str]], object]) -> SimpleNamespace:
    """What `making` calls in place of `subprocess`; the module itself is left to others."""
    return SimpleNamespace(run=lambda command, **_: call(command), DEVNULL=None)


def in_process(command: list[str]) -> list[str]:
    """The sweep without a process of its own."""
    assert soup_command(command[3:]) == 0
    return command


def rows_of(result: single_domain.Result, key: str) -> list[dict]:
    return [row for row in result.rows if key in row]


def test_it_runs_from_texts_to_a_results_file(runs, tmp_path):
    result, commands = runs
    assert [command[3:5] for command in commands] == [["train", "sweep"]] * 6
    result.finish(tmp_path / "single_domain.json")
    check_form(json.loads((tmp_path / "single_domain.json").read_text()), "single_domain")
    assert result.figures["adapters"].value == 6
    assert result.figures["triples_ranked"].value == 20


def test_the_table_has_every_method_on_every_domain(runs):
    result, _ = runs
    table_rows = rows_of(result, "method")
    methods = {row["method"] for row in table_rows}
    assert methods == {
        "base", "best_single", "best_single_outside", "soup_0.007", "soup_0.004", "soup_0.0005", "soup_uniform",
        "soup_inside", "soup_outside", "ensemble_inside", "ensemble_outside", "ensemble_all", "adapter",
        "oracle_inside", "oracle_outside",
    }  # fmt: skip
    for method in methods - {"adapter"}:
        assert [row["domain"] for row in table_rows if row["method"] == method] == ["law", "ships", "cats"]
    by = {(row["method"], row["domain"]): row for row in table_rows}
    assert by["ensemble_all", "law"]["relative_cost"] == pytest.approx(6 * by["soup_uniform", "law"]["relative_cost"])
    assert by["base", "law"]["parameters_trained"] == 0 < by["best_single", "law"]["parameters_trained"]
    adapters = [row for row in table_rows if row["method"] == "adapter" and row["domain"] == "law"]
    assert len(adapters) == 6
    assert by["soup_0.0005", "law"]["learning_rates"] == [0.0005, 0.0005]
    assert by["soup_uniform", "law"]["learning_rates"] == sorted(
        (r["learning_rates"][0] for r in adapters), reverse=True
    )
    oracle = by["oracle_inside", "law"]["perplexity"]
    assert oracle <= min(row["perplexity"] for row in [*adapters, by["soup_inside", "law"], by["soup_uniform", "law"]])


def test_claims_have_verdicts_over_seeds_and_domains(runs):
    result, _ = runs
    claims = {row["claim"]: row for row in rows_of(result, "claim")}
    assert claims["low_singles_in_domain"]["standard_error_seeds"] > 0
    assert claims["soup_over_outside_single"]["standard_error_seeds"] is None
    assert claims["soup_over_outside_single"]["paper"] != claims["soup_over_inside_single"]["paper"] == table.PAPER
    assert len(claims) == len(table.COMPARISONS) + 2 * len(setting.INITS)
    assert {row["verdict"] for row in claims.values()} <= {"agrees", "disagrees", "undetermined"}
    assert claims["high_singles_held_out"]["domains"] == ["ships", "cats"]
    by = {(row["method"], row["domain"]): row for row in rows_of(result, "method")}
    inside = claims["soup_in_domain"]
    ratio = by["soup_inside", "law"]["perplexity"] / by["best_single", "law"]["perplexity"]
    assert inside["difference"] == pytest.approx(np.log(ratio), abs=1e-6)


def test_a_second_run_trains_and_scores_nothing(runs, found, monkeypatch):
    first, commands = runs
    monkeypatch.setattr(making, "MAIN", GRID)
    monkeypatch.setattr(single_domain, "worker_pool", no_thread)
    monkeypatch.setattr(making, "subprocess", sweeping(commands.remove))
    kept = list(commands)
    again = single_domain.run(found, processes=1, talk=Talk(4))
    assert commands == []
    commands.extend(kept)
    assert again.rows == first.rows


# --- choosing ---------------------------------------------------------------------------------------


def test_rankings_count_domains_alike_and_keep_order_among_equals():
    class Told:
        def scores(self, models, texts, told):
            nll = {"long": [1.0, 3.0, 2.0], "short": [3.0, 1.0, 2.0]}[texts.domain]
            tokens = 1000 if texts.domain == "long" else 10
            return [Score(nll=(value * tokens,), tokens=(tokens,), bytes=1) for value in nll]

    one = scoring.Ingredient("a", Path("a"), "sha256:" + "0" * 64)
    models = [Model((one,), (float(number),)) for number in (1, 2, 3)]
    ranked = choosing.ranking(Told(), models, [Texts("long", ()), Texts("short", ())], lambda *_: None)
    assert [models.index(found.model) for found in ranked] == [0, 1, 2]
    assert [found.nll for found in ranked] == [2.0, 2.0, 2.0]


# --- scoring ----------------------------------------------------------------------------------------


def test_an_ensemble_has_the_mean_of_the_logits(base):
    config = paper_config("bapna_firat", bottleneck=4)
    adapters = [create(config, base.shape, seed=seed, init="linear") for seed in (1, 2, 3)]
    ids = torch.tensor([[0, 5, 17, 250, 3]])
    mask = torch.ones_like(ids)
    want = torch.zeros(1, 5, 300)
    for adapter in adapters:
        with attached(base.model, adapter), torch.no_grad():
            want += base.model(ids).logits / 3
    ensemble = scoring.Ensemble(base.model, adapters)
    with torch.no_grad():
        hidden = hidden_states(ensemble, ids, mask)
        torch.testing.assert_close(lm_logits(ensemble, hidden), want, rtol=1e-5, atol=1e-5)


def test_scores_are_told_apart_by_all_they_depend_on(runs, found):
    one, other = (making.cell(found, GRID, 4e-3, order) for order in (1, 2))
    models = [
        Model(), soup([one]), soup([other]), soup([one, other]), Model((one, other), ensemble=True),
        Model((one, other), (0.25, 0.75)),
    ]  # fmt: skip
    keys = {model.identity(about) for model in models for about in ("sha256:0 512", "sha256:0 256", "sha256:1 512")}
    assert len(keys) == 3 * len(models)
    assert soup([one, other]).identity("x") == soup([other, one]).identity("x")
