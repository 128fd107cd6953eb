"""The language model experiment, whole and tiny: every variant, the choice of rates, what is kept, and the verdicts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import lm_adapters
from benchmarks.lm import findings, plan, runner, scoring
from benchmarks.lm.cells import Cell
from benchmarks.lm.plan import Given, Size
from benchmarks.lm.runner import Place
from registry.adapters import create
from registry.adapters.experts import BankAdapter
from registry.base_model import load_base, shape_of
from tests.texts_file import write_texts
from tests.tiny_models import build_tiny_base

pytestmark = pytest.mark.slow

TINY = Size(
    domains=("law", "cooking"), others=("music",), seeds=(1,), steps=2, batch=2, block=16, texts=200, valid_texts=6,
    test_texts=8, span_texts=4, draws=2, evaluations=1, curve=2, sizes=(8, 16, 64), scales=(1e-3, 1e-1),
)  # fmt: skip
SENTENCES = {
    "law": "The judge of court {i} held that contract {j} was void for want of consideration.",
    "cooking": "Heat {i} spoons of oil, add {j} onions and stir until they are golden.",
    "music": "In bar {i} the violins enter, and {j} bars later the horns answer them softly.",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Place:
    folder = tmp_path_factory.mktemp("lm")
    for domain, sentence in SENTENCES.items():
        for number, (part, count) in enumerate((("train", 220), ("valid", 10), ("test", 12))):
            texts = [sentence.format(i=i + 1000 * number, j=i * 7) for i in range(count)]
            write_texts(folder / "data" / "train" / domain / f"{part}.jsonl.gz", texts)
    base = build_tiny_base(folder / "base")
    return Place(base, folder / "data" / "train", folder / "kept", TINY)


@pytest.fixture(scope="module")
def shape(place):
    return shape_of(runner.entry(place))


@pytest.fixture(scope="module")
def given(place, shape) -> Given:
    return Given(TINY, shape, runner.all_data(place), "float32")


def run(place: Place, out: Path, size: Size = TINY) -> dict:
    """Run everything, in one process: another takes as long to start as half of the cells."""
    where = ["--base", str(place.base), "--data", str(place.corpora.parent), "--folder", str(place.folder)]
    assert lm_adapters.main([*where, "--dtype", "float32", "--parallel", "1", "--out", str(out)], size=size) == 0
    return json.loads(out.read_text())


@pytest.fixture(scope="module")
def outcome(place, tmp_path_factory) -> dict:
    return run(place, tmp_path_factory.mktemp("out") / "lm_adapters.json")


# --- the plan ---------------------------------------------------------------------------------------


def all_cells(given: Given) -> list[Cell]:
    """Every cell, as if the first candidate of each family were the best."""
    rates = {family: candidates[0] for family, candidates in plan.RATES.items()}
    trained = plan.variant_cells(given, rates)
    members = plan.members_among(trained, given.size)
    fused = [*plan.rate_cells(given, ["fusion"], members), *plan.fusion_cells(given, rates["fusion"], members)]
    plain = plan.rate_cells(given, [family for family in plan.RATES if family != "fusion"])
    return [*plain, *plan.base_cells(given), *trained, *fused]


def test_every_cell_is_another_one_and_each_variant_has_every_domain_and_seed(given):
    seeds = TINY.model_copy(update={"seeds": (1, 2, 3)})
    cells = all_cells(replace(given, size=seeds))
    assert len({cell.key for cell in cells}) == len(cells)
    for cell in plan.rate_cells(given, [family for family in plan.RATES if family != "fusion"]):
        assert (cell.measures, cell.seed in TINY.seeds) == ((), False), "rates are chosen on other text and seeds"
    variants = [*plan.variants(seeds, given.shape), *plan.fusions()]
    assert len({variant.name for variant in variants}) == len(variants) >= 34
    for variant in variants:
        found = {(cell.data.domain, cell.seed) for cell in cells if cell.variant == variant.name and cell.measures}
        assert len(found) == 6, variant.name


def test_two_passes_and_gradients_of_scores_are_counted(given):
    cells = {cell.variant: cell for cell in all_cells(given) if cell.measures}
    batch = TINY.batch * TINY.block
    one = TINY.steps * batch
    assert cells["houlsby_16"].training_tokens == cells["adamix_no_consistency"].training_tokens == one
    assert cells["adamix"].training_tokens == cells["pfeiffer_16_twice"].training_tokens == 2 * one
    assert cells["random_40"].training_tokens == one
    assert cells["snip_40"].training_tokens == one + plan.BATCHES * batch
    assert cells["grasp_40"].training_tokens == one + 3 * plan.BATCHES * batch
    assert cells["base"].training_tokens == 0


# --- the run ----------------------------------------------------------------------------------------


@pytest.mark.long
def test_every_claim_has_a_verdict_and_what_could_have_been_found(outcome):
    claims = [row for row in outcome["rows"] if "claim" in row]
    assert len(claims) >= 34
    assert {row["of"] for row in claims} == {"houlsby", "adamix", "sparse"}
    for row in claims:
        assert row["verdict"] in {"agrees", "disagrees", "undetermined"}
        assert row["paper"]
        assert row["says"]
        if row["difference"] is None:
            assert "diverged" in row["note"]
        elif row["standard_error"] is None:
            assert "one seed" in row["note"] or "never got there" in row["note"]
            assert row["minimum_detectable"] is None
        else:
            assert row["minimum_detectable"] == pytest.approx(2.84 * row["standard_error"])
            beyond = abs(row["difference"]) > 2 * row["standard_error"]
            assert (row["verdict"] != "undetermined") == beyond
    counted = sum(outcome["figures"][f"claims_{one}"]["value"] for one in ("agrees", "disagrees", "undetermined"))
    assert counted == len(claims)


def test_every_row_has_parameters_and_cost(place, tmp_path, monkeypatch):
    for family, candidates in plan.RATES.items():
        monkeypatch.setitem(plan.RATES, family, candidates[:2])
    outcome = run(place, tmp_path / "one_domain.json", TINY.model_copy(update={"domains": ("law",)}))
    rows = [row for row in outcome["rows"] if "method" in row]
    by_name = {(row["method"], row["domain"]): row for row in rows}
    assert {name for name, _ in by_name} >= {
        "base",
        "full",
        "adamix",
        "mam_snip",
        "fusion_snip",
        "grasp_40",
        "init_0p1",
    }
    trained = [row for row in rows if "diverged" not in row and row["method"] != "base"]
    assert all(row["parameters_trained"] > 0 and row["relative_cost"] >= 1.0 for row in trained)
    bank, single = by_name["adamix", "law"], by_name["pfeiffer_16", "law"]
    assert bank["parameters_trained"] > single["parameters_trained"] == bank["parameters_served"]
    assert bank["relative_cost"] == single["relative_cost"] > 1.0 == by_name["full", "law"]["relative_cost"]
    dense, pruned = by_name["houlsby_16", "law"], by_name["snip_40", "law"]
    weights = 2 * 2 * 2 * 32 * 16  # layers, sites, projections
    assert pruned["parameters_trained"] == dense["parameters_trained"] - round(0.4 * weights)
    assert by_name["base", "law"]["difference"] == 0.0
    for row in trained:
        assert len(row["nll_by_seed"]) == len(TINY.seeds)
        assert row["nll"] == pytest.approx(np.mean(row["nll_by_seed"]))
        assert row["perplexity"] == pytest.approx(np.exp(row["nll"]))


@pytest.mark.long
def test_what_is_kept_is_not_run_again_and_what_is_lost_comes_back_the_same(place, outcome, tmp_path, capsys):
    files = {path: path.read_bytes() for path in place.cells.glob("*.json")}
    lost = next(path for path, data in files.items() if json.loads(data)["cell"]["variant"] == "adamix")
    lost.unlink()
    capsys.readouterr()
    again = run(place, tmp_path / "again.json")
    assert "adamix" in capsys.readouterr().err
    assert json.loads(lost.read_bytes())["result"] == json.loads(files[lost])["result"]
    assert all(path.read_bytes() == data for path, data in files.items() if path != lost)
    assert again["rows"] == outcome["rows"]


# --- parts ------------------------------------------------------------------------------------------


def test_every_few_passages_of_every_draw_have_another_route_and_the_seed_says_which(given, shape, place, monkeypatch):
    """Random routing is drawn again and again: neither the draws of a cell nor the parts of a draw share a route."""
    monkeypatch.setattr(scoring, "AT_A_TIME", 2)
    base = load_base(runner.entry(place))
    variant = next(one for one in plan.variants(TINY, shape) if one.name == "adamix")
    bank = create(variant.fields["config"], shape, seed=0)
    assert isinstance(bank, BankAdapter)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in bank.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator))
    taken: list[tuple[int, ...]] = []
    routed = bank.routed
    monkeypatch.setattr(bank, "routed", lambda routes: taken.append(tuple(routes.values())) or routed(routes))
    texts = [SENTENCES["law"].format(i=3, j=4)] * 8

    def measured(seed: int) -> list[list[float]]:
        taken.clear()
        cell = plan.cell(given, variant, "law", rate=1e-3, seed=seed, measures=("routing",))
        cell = cell.model_copy(update={"draws": 3})
        found: list[list[float]] = scoring.measured(cell, base, texts, None, bank)["routing"]
        return found

    draws = measured(1)
    assert len(taken) == 3 * 4
    assert len(set(taken)) > 6  # of 4 ** 2 routes, drawn 12 times
    assert len({tuple(draw) for draw in draws}) == 3
    assert all(len(set(draw)) > 1 for draw in draws)  # one text, four routes
    assert measured(1) == draws != measured(2)


@pytest.mark.parametrize(
    ("losses", "verdict", "missed", "erred"),
    [
        ([3.2, 3.3], "disagrees", 2, False), ([2.0, 3.3], "undetermined", 1, False),
        ([2.95, 3.3], "disagrees", 1, False), ([2.0], "undetermined", 0, False), ([2.0, 2.1], "agrees", 0, True),
    ],
)  # fmt: skip
def test_what_is_not_reached_has_no_error_and_a_verdict_by_counting(losses, verdict, missed, erred):
    """The dense adapter ends at 3.0; a wide one that goes straight to 2.0 is there half way, to 2.95 near the end."""

    class Found:
        size = Size(domains=("law",))

        def of(self, variant, domain):
            ends = [3.0] * len(losses) if variant == "houlsby_16" else losses
            return [(None, {"history": [[0, 4.0], [10, end]]}) for end in ends]

    row = findings._convergence(Found(), 2)
    assert row["verdict"] == verdict
    assert (row["standard_error"] is not None, row["minimum_detectable"] is not None) == (erred, erred)
    if missed:
        assert row["not_reached"] == missed
        assert f"{missed} of 2 trainings never got there" in row["note"]
