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

from benchmarks import single_domain
from benchmarks.single import choosing, making, scoring, setting, table
from benchmarks.single.ledger import Ledger
from benchmarks.single.scoring import Model, Scorer, soup
from benchmarks.single.setting import Sizes, Texts
from demo.progress import Talk
from demo.results import commit
from docs import figures, generate, papers
from registry.adapters import attached, create, paper_config
from registry.adapters.weights import init_hash, save_tensors
from registry.errors import Internal
from registry.likelihood import hidden_states, lm_logits
from registry.spec import BaseEntry
from service.cli.app import run as soup_command
from tests.project.test_benchmarks import check_form

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


def write(path: Path, texts: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A domain to train on and two held out; of each, no passage is in two parts."""
    folder = tmp_path_factory.mktemp("corpora")
    for first, (part, count) in enumerate({"train": 30, "valid": 8, "test": 6}.items()):
        write(folder / "train" / "law" / f"{part}.jsonl", passages(LAW, 1000 * first, count))
    for name, words in OTHERS.items():
        for first, part in enumerate(("valid", "test")):
            write(folder / "novel" / name / f"{part}.jsonl", passages(words, 1000 * first, 6))
    return folder


@pytest.fixture(scope="module")
def found(corpora: Path, tiny_base_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> setting.Setting:
    return setting.setting(
        SIZES, base=tiny_base_dir, data=corpora, adapters=corpora, home=tmp_path_factory.mktemp("home"), dtype="float32"
    )


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
        result = single_domain.run(found, processes=1, talk=Talk(6), again=False)
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


def test_curves_end_where_their_adapters_are(runs):
    result, _ = runs
    points = rows_of(result, "curve")
    assert len(points) == 2 * len(setting.INITS) * SIZES.curve_points
    assert all(row["above_line"] == pytest.approx(0, abs=1e-9) for row in points if row["a"] in {0.0, 1.0})
    starts = {(row["init"], row["nll"]) for row in points if row["a"] == 1.0}
    assert len(starts) == len(setting.INITS)  # A is the same, whichever seed B has


def test_a_second_run_trains_and_scores_nothing(runs, found, monkeypatch):
    first, commands = runs
    monkeypatch.setattr(making, "MAIN", GRID)
    monkeypatch.setattr(single_domain, "worker_pool", no_thread)
    monkeypatch.setattr(making, "subprocess", sweeping(commands.remove))
    kept = list(commands)
    again = single_domain.run(found, processes=1, talk=Talk(6), again=False)
    assert commands == []
    commands.extend(kept)
    assert again.rows == first.rows
    assert first.figures["trainings_kept"].value == first.figures["scores_kept"].value == 0
    kept, scores = again.figures["trainings_kept"], again.figures["scores_kept"]
    assert kept.value == 13  # 6 of the grid, 7 for the curves
    assert kept.note.startswith(f"of 13 are of earlier runs: 13 by commit {str(commit())[:12]}")
    assert scores.note.startswith(f"of {scores.value} are of earlier runs: {scores.value} by commit")


# --- choosing ---------------------------------------------------------------------------------------


def test_choices_see_no_test_text(runs, found, tmp_path):
    """Also not as a value: neither `choose` nor what it is given holds a passage of the test split."""
    seen: set[str] = set()

    class Watched(Scorer):
        def cells(self, models, texts, told=lambda *_: None):
            seen.update(texts.passages)
            return super().cells(models, texts, told)

    cells, ledger = found.home.parent / "cells.jsonl", Ledger(tmp_path / "made_by.jsonl")
    scorer = Watched(found.base, cells, ThreadPoolExecutor(1), block=SIZES.block, ledger=ledger)
    grid = [making.cell(found, GRID, rate, order) for rate in GRID.rates for order in GRID.orders]
    chosen = choosing.choose(scorer, grid, found.choosing, finalists=2, told=lambda *_: None)
    test = {passage for texts in found.testing.domains for passage in texts.passages}
    assert seen
    assert not seen & test
    assert len(chosen.finalists) <= 4
    assert {chosen.best_single, chosen.best_single_outside} <= set(grid)


def test_rankings_count_domains_alike_and_keep_order_among_equals():
    class Told:
        def cells(self, models, texts, told):
            nll = {"long": [1.0, 3.0, 2.0], "short": [3.0, 1.0, 2.0]}[texts.domain]
            tokens = 1000 if texts.domain == "long" else 10
            return [scoring.Cell(nll=(value * tokens,), tokens=(tokens,), bytes=1) for value in nll]

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


def test_an_ensemble_refuses_logits_that_are_not_linear(base, monkeypatch):
    monkeypatch.setattr(base.model.config, "final_logit_softcapping", 30.0, raising=False)
    with pytest.raises(Internal, match="linear"):
        scoring.Ensemble(base.model, [])


def test_scores_are_told_apart_by_all_they_depend_on(runs, found):
    one, other = (making.cell(found, GRID, 4e-3, order) for order in (1, 2))
    models = [
        Model(), soup([one]), soup([other]), soup([one, other]), Model((one, other), ensemble=True),
        Model((one, other), (0.25, 0.75)),
    ]  # fmt: skip
    assert len({model.identity("base") for model in models}) == len(models)
    assert soup([one, other]).identity("base") == soup([other, one]).identity("base") != soup([one]).identity("other")


def test_another_way_of_scoring_is_in_every_key_and_the_first_in_none():
    assert scoring.about("sha256:0", 512, version=1) == "sha256:0 512"
    assert scoring.about("sha256:0", 512, version=2) not in {"sha256:0 512", scoring.about("sha256:0", 512, version=3)}


def test_what_a_ledger_does_not_know_is_not_recorded(tmp_path):
    first = Ledger(tmp_path / "made_by.jsonl")
    first.made("scores", "a")
    first.keeps("scores", "a")  # asked for again in the same run
    first.keeps("scores", "old")
    assert first.figures()["scores_kept"].note == "of 2 are of earlier runs: 1 by a commit that was not recorded"
    with (tmp_path / "made_by.jsonl").open("a") as file:
        file.write('\n{"key": "cut')
    again = Ledger(tmp_path / "made_by.jsonl")
    again.keeps("scores", "a")
    assert again.figures()["scores_kept"].note == f"of 1 are of earlier runs: 1 by {commit_said()}"
    assert again.figures()["trainings_kept"].value == 0


def commit_said() -> str:
    head, _, dirty = str(commit()).partition("-")
    return f"commit {head[:12]}" + ("-dirty" if dirty else "")


def test_other_initialisations_are_averaged_on_request_only(runs, found, base):
    one, other = (
        making.cell(found, making.Grid("near_identity", seed, (), ()), SIZES.curve_rate, 2) for seed in (0, 1)
    )
    with pytest.raises(Internal, match="initialisation"):
        scoring.scored(base, soup([one, other]), ["The judge"], block=32)
    assert scoring.scored(base, Model((one, other), any_init=True), ["The judge"], block=32)["texts"]


# --- the shared adapters again ----------------------------------------------------------------------

RECORD = {
    "domain": "law", "structure": "bapna_firat", "bottleneck": 4, "activation": "relu", "init_seed": 9,
    "data_order_seed": 0, "optimizer": "AdamW", "learning_rate": 0.003, "weight_decay": 0.0,
    "schedule": "5 % warm-up, then linear to zero", "clip": 1.0, "precision": "fp32", "steps": 3, "batch": [2, 32],
    "valid_perplexity_base": 300.0, "valid_perplexity": 290.0,
}  # fmt: skip


def test_a_recipe_is_followed_from_the_recorded_start(base, found, tmp_path):
    start = create(paper_config("bapna_firat", bottleneck=4), base.shape, seed=77).state_dict()
    neutral = {name.replace(".ffn.", "."): tensor for name, tensor in start.items()}
    (tmp_path / "shared" / "law").mkdir(parents=True)
    (tmp_path / "shared" / "law" / "adapter.json").write_text(json.dumps(RECORD))
    (tmp_path / "shared" / "initial.safetensors").write_bytes(save_tensors(neutral))
    times = set()
    for _ in range(2):  # the second time it is kept
        making.train_one_again(base.entry, found.data, tmp_path / "shared", "law", tmp_path / "out")
        times.add((tmp_path / "out" / "law" / "adapter_model.safetensors").stat().st_mtime_ns)
    assert len(times) == 1
    provenance = making.read_directory(tmp_path / "out" / "law").provenance
    assert provenance.init_hash == init_hash(start)
    assert provenance.training["steps"] == 3
    assert provenance.training["dtype"] == "float32"


def test_gains_are_told_on_the_passages_of_the_record_and_on_test(runs, found, base, tmp_path):
    theirs, ours = (making.cell(found, GRID, rate, 1) for rate in (5e-4, 7e-3))
    again = [making.Again("law", RECORD, 10, theirs, ours)]
    valid, test = ({"law": texts} for texts in (found.choosing.in_all, found.testing.inside))
    with one_thread(base.entry, block=SIZES.block, processes=1) as pool:
        ledger = Ledger(tmp_path / "made_by.jsonl")
        scorer = Scorer(base.entry, found.home.parent / "cells.jsonl", pool, block=SIZES.block, ledger=ledger)
        (row,) = table.again_rows(scorer, again, valid, test)
    gain = np.log(row["valid_perplexity_base"] / row["valid_perplexity"])
    assert row["gain"] == pytest.approx(gain)
    assert row["gain_ratio"] == pytest.approx(gain / np.log(300 / 290))
    assert row["test_gain_ratio"] == pytest.approx(row["test_gain"] / row["test_gain_recorded"])
    assert table.again_figures([row])["gain_ratio_law"].value == row["gain_ratio"]


@pytest.mark.parametrize("wrong", [{"optimizer": "SGD"}, {"precision": "bf16"}, {"schedule": "constant"}])
def test_a_recipe_our_loop_would_not_follow_is_refused(wrong):
    with pytest.raises(Internal, match=next(iter(wrong))):
        making.recorded_recipe(RECORD | wrong)


# --- its page ---------------------------------------------------------------------------------------


def test_the_page_is_made_of_the_results_file(runs, tmp_path):
    result, _ = runs
    result.rows += [
        {"reproduced": "law", "recorded_gain": 0.2, "gain": 0.19, "gain_ratio": 0.95, "test_gain_ratio": 1.01}
    ]
    result.finish(tmp_path / "single_domain.json")
    del result.rows[-1]
    page = figures.fill((generate.ROOT / "docs/explanation/single-domain.md").read_text(encoding="utf-8"), tmp_path)
    assert "Not measured yet" not in page
    assert "| logit ensemble of all 6 |" in page
    assert "near_identity, other seed" in page
    assert "| law | 0.2000 | 0.1900 | 0.950 | 1.010 |" in page
    assert page.count("*agrees*") + page.count("*disagrees*") + page.count("*undetermined*") == 18
    assert "mean over seeds" not in page
    assert "† Over passages alone" in page
    drawn = papers.pictures(tmp_path)[papers.FOLDER / "single_domain_mixing.svg"]
    assert "linear, same seed" in drawn
