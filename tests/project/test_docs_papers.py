"""Claims, models and pictures on the pages about the papers: what a results file holds is what a reader sees."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

from docs import figures, papers

CLAIM = {
    "claim": "a_over_b", "paper": "Paper, table 1: 90 | 80", "says": "a is better than b", "difference": -0.0123,
    "standard_error": 0.004, "minimum_detectable": 0.01136, "unit": "nats a token", "verdict": "agrees",
}  # fmt: skip
MODEL = {
    "label": "Houlsby, m = 64", "parameters_trained": 268800, "relative_cost": 1.062, "learning_rate": 0.005,
    "nll": 3.4, "perplexity": 30.0, "difference": -0.1, "standard_error": 0.01,
}  # fmt: skip
ROWS = [
    {**MODEL, "method": "base", "label": "base model", "domain": "law", "parameters_trained": 0, "difference": 0.0},
    {**MODEL, "method": "houlsby_64", "domain": "law"},
    {**MODEL, "method": "triple", "domain": "law", "label": "best triple", "learning_rates": [0.007, 0.0001, 0.0001]},
    {**MODEL, "method": "init_0p1", "domain": "law", "label": "start 0.1", "init_std": 0.1, "nll": 3.6},
    {"method": "init_1", "domain": "law", "label": "start 1", "init_std": 1.0, "learning_rate": 0.005,
     "diverged": "Training diverged at step 3"},
    CLAIM,
    {**CLAIM, "claim": "c", "difference": None, "standard_error": None, "minimum_detectable": None, "unit": "",
     "verdict": "undetermined", "note": "init_1 diverged"},
    {**CLAIM, "claim": "d", "standard_error_seeds": None},
    {**CLAIM, "claim": "e", "difference": 0.25, "standard_error": None, "minimum_detectable": None,
     "verdict": "disagrees", "note": "at least"},
    {"rate_of": "lora", "learning_rate": 0.002, "valid_nll": 3.1, "chosen": True},
    {"rate_of": "lora", "learning_rate": 0.2, "valid_nll": None, "chosen": False},
    *({"rate_of": family, "learning_rate": rate, "valid_nll": loss, "chosen": chosen}
      for family, rate, loss, chosen in (
          ("norms", 0.01, 3.4, False), ("norms", 0.03, 3.2, True),
          ("top", 0.002, 3.4, False), ("top", 0.004, 3.3, True), ("top", 0.008, 3.4, False))),
    *({"span": span, "domain": "law", "difference": value, "standard_error": 0.001}
      for span, value in (("0-0", 0.01), ("0-1", 0.09), ("1-1", -0.002))),
    *({"curve": name, "label": f"{name}, m = 1", "step": step, "valid_nll": loss}
      for name in ("dense", "wide & <sparse>") for step, loss in ((0, 4.0), (30, 3.6), (60, 3.5))),
]  # fmt: skip


@pytest.fixture
def results(tmp_path):
    result = {
        "name": "lm_adapters", "date": "2026-11-21T10:00:00+00:00", "commit": "0123456789abcdef",
        "machine": {"processor": "Some CPU", "cores": 2}, "rows": ROWS,
        "figures": {"claims_agrees": {"value": 1, "goal": None, "unit": "claims", "note": "of 2"}},
    }  # fmt: skip
    (tmp_path / "lm_adapters.json").write_text(json.dumps(result))
    return tmp_path


def test_a_claim_stands_beside_the_papers_figure(results):
    block = figures.block(results, "lm_adapters", "claims")
    line = "| Paper, table 1: 90 \\| 80 | a is better than b | -0.0123 ± 0.0040 | 0.0114 | *agrees* |"
    assert line in block.splitlines()
    assert "| init_1 diverged |  | *undetermined* |" in block
    assert "commit 0123456789ab" in block
    assert "| -0.0123 ± 0.0040 † | 0.0114 † | *agrees* |" in block
    assert "† Over passages alone: one training on each side" in block
    assert "| +0.2500 (at least) |  | *disagrees* |" in block


def test_every_model_has_parameters_and_cost(results):
    lines = figures.block(results, "lm_adapters", "models").splitlines()
    assert "| Houlsby, m = 64 | 268,800 | 1.062 | 0.005 | 30.00 (-0.1000 ± 0.0100) |" in lines
    assert "| start 1 |  |  | 0.005 | diverged |" in lines
    assert any(line.startswith("| best triple | 268,800 | 1.062 | 1 x 0.007, 2 x 0.0001 |") for line in lines)
    assert any(line.startswith("| base model | 0 | 1.062 | 0.005 | 30.00 |") for line in lines)


def test_means_over_seeds_are_said_of_seeds_alone():
    def note(**fields):
        return papers.models({"rows": [{**MODEL, "method": "houlsby_64", "domain": "law", **fields}]})[-1]

    assert note(seeds=3).startswith("Perplexity on test passages, mean over seeds;")
    for fields in ({}, {"seeds": 1}):
        assert "seeds" not in note(**fields)
        assert note(**fields).endswith("its standard error over passages.")


def test_rates_and_figures_are_listed(results):
    lines = figures.block(results, "lm_adapters", "rates")
    assert "| lora | 0.002 | 3.1000 | chosen, the lowest of its list |" in lines
    assert "| norms | 0.03 | 3.2000 | chosen, the highest of its list |" in lines
    assert "| top | 0.004 | 3.3000 | chosen |" in lines
    assert "| lora | 0.2 | diverged |  |" in figures.block(results, "lm_adapters", "rates")
    assert "| claims agrees | 1 | claims |  | of 2 |" in figures.block(results, "lm_adapters", "run")


@pytest.mark.parametrize("view", ["spans", "scales", "convergence"])
def test_a_picture_has_its_table_and_its_file(results, view):
    block = figures.block(results, "lm_adapters", view)
    assert f"(pictures/lm_adapters_{view}.svg)" in block
    assert "| " in block
    drawn = papers.pictures(results)
    svg = drawn[papers.FOLDER / f"lm_adapters_{view}.svg"]
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    assert svg == papers.pictures(results)[papers.FOLDER / f"lm_adapters_{view}.svg"]


def test_without_a_result_nothing_is_drawn(tmp_path):
    assert papers.pictures(tmp_path) == {}
    assert "Not measured yet" in figures.block(tmp_path, "lm_adapters", "spans")
