"""The demo's figures: cells that survive an interruption, and a table whose averages are what they say."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import pytest

from demo import picture, results, strategies, table
from demo.cells import Cell, Cells
from demo.table import Entry, Row, Table
from registry.spec import SampleSource


def answer(*nll: float, tokens: int = 10) -> dict:
    return {"texts": [{"nll": value, "tokens": tokens, "bytes": 40, "windows": 1} for value in nll]}


def cell(*nll: float) -> Cell:
    return Cell(nll=nll, tokens=(10,) * len(nll), bytes=40 * len(nll))


# --- cells -----------------------------------------------------------------------------------------------


def test_a_cell_is_asked_for_once_even_by_the_next_run(tmp_path):
    asked = []

    def score():
        asked.append(1)
        return answer(20.0, 30.0)

    for _ in range(2):
        cells = Cells(tmp_path / "cells.jsonl")
        for _ in range(2):
            assert cells.get("sha256:a", ["x", "y"], score) == cell(20.0, 30.0)
    assert len(asked) == 1


def test_another_model_or_other_texts_are_another_cell(tmp_path):
    cells = Cells(tmp_path / "cells.jsonl")
    first = cells.get("sha256:a", ["x"], lambda: answer(1.0))
    assert cells.get("sha256:b", ["x"], lambda: answer(2.0)) != first
    assert cells.get("sha256:a", ["y"], lambda: answer(3.0)) != first
    assert cells.get("sha256:a", ["x"], lambda: pytest.fail("asked again")) == first


@pytest.mark.parametrize("torn", ['{"key": "sha256:zz", "nll": [1.', "null\n", '{"key": "k"}\n', "\n"])
def test_a_line_cut_off_by_a_kill_is_forgotten(tmp_path, torn):
    path = tmp_path / "cells.jsonl"
    Cells(path).get("sha256:a", ["x"], lambda: answer(1.0))
    with path.open("a") as file:
        file.write(torn)
    cells = Cells(path)
    cells.get("sha256:b", ["x"], lambda: answer(2.0))
    again = Cells(path)
    assert again.get("sha256:a", ["x"], lambda: pytest.fail("lost")) == cell(1.0)
    assert again.get("sha256:b", ["x"], lambda: pytest.fail("lost")) == cell(2.0)


def test_nothing_is_kept_of_a_score_that_failed(tmp_path):
    cells = Cells(tmp_path / "cells.jsonl")

    def fails():
        raise ConnectionError

    with pytest.raises(ConnectionError):
        cells.get("sha256:a", ["x"], fails)
    assert cells.get("sha256:a", ["x"], lambda: answer(1.0)) == cell(1.0)


def test_a_cell_knows_its_figures():
    one = Cell(nll=(20.0, 40.0), tokens=(10, 20), bytes=120)
    assert one.mean_nll == pytest.approx(2.0)
    assert one.perplexity == pytest.approx(math.e**2)
    assert one.bits_per_byte == pytest.approx(0.5 / math.log(2))
    against = one.against(Cell(nll=(21.0, 42.0), tokens=(10, 20), bytes=120))
    assert against.difference == pytest.approx(-0.1)
    assert against.standard_error == pytest.approx(0.0, abs=1e-12)


# --- table -----------------------------------------------------------------------------------------------


@pytest.fixture
def small() -> Table:
    base = Row("base model", {"a": Entry(cell(20, 20, 20), "base/x"), "b": Entry(cell(30, 30, 30), "base/x")})
    singles = {
        "a": {"one": cell(19, 19, 19), "two": cell(18, 22, 21)},
        "b": {"one": cell(31, 31, 31), "two": cell(28, 29, 32)},
    }
    service = Row(
        "the service, verified",
        {
            "a": Entry(cell(19, 19, 19), "demo/one@1", said="one"),
            "b": Entry(cell(30, 30, 30), "base/x", said="it does not help", abstained=True),
        },
    )
    return Table([base, table.oracle(singles, {"one": "demo/one@1", "two": "demo/two@1"}), service], singles)


def test_averages_are_what_they_are_called(small):
    a, b = math.exp(2.0), math.exp(3.0)
    assert small.base.arithmetic() == pytest.approx((a + b) / 2)
    assert small.base.geometric() == pytest.approx(math.sqrt(a * b))


def test_the_oracle_takes_the_best_adapter_of_each_domain(small):
    row = small.rows[1]
    assert {domain: entry.said for domain, entry in row.entries.items()} == {"a": "one", "b": "two"}
    assert row.entries["b"].model == "demo/two@1"


def test_who_beats_the_base_and_who_beats_it_surely(small):
    assert small.winners("a") == (1, 1)  # `one` always by the same amount, `two` is worse
    assert small.winners("b") == (1, 0)  # `two`, but with a large spread


def test_the_text_holds_every_row_and_says_what_abstained(small):
    for width in (60, 200):
        text = table.text(small, width=width)
        assert all(len(line) <= width for line in text.splitlines()[:6])
        assert " -9.5± 0.0 %" in text
        assert "= the base" in text
        assert "arithmetic  geometric  bits/byte  to the base" in text
        assert "a: 1 of 2 (1)" in text
        assert "the base model (it does not help)" in text


def test_figures_and_rows_are_json_and_agree(small):
    figures = json.loads(json.dumps(table.figures(small), allow_nan=False))
    assert figures["perplexity_geometric_base_model"]["value"] == pytest.approx(small.base.geometric(), rel=1e-5)
    assert figures["adapters_beating_base"]["value"] == 2
    assert all(set(figure) >= {"value", "goal", "unit", "repeats"} for figure in figures.values())
    rows = json.loads(json.dumps(table.rows(small), allow_nan=False))
    assert len(rows) == 3 * 2 + 2 * 2
    oracle = next(row for row in rows if row["method"] == "oracle_best_single_adapter" and row["domain"] == "a")
    assert oracle["perplexity"] == pytest.approx(math.exp(1.9))
    assert oracle["difference"] == pytest.approx(-0.1)


@pytest.mark.slow
def test_a_results_file_says_where_it_comes_from(tmp_path, small):
    path = tmp_path / "results" / "demo.json"
    results.write(path, name="demo", command="python -m demo", figures=table.figures(small), rows=table.rows(small))
    value = json.loads(path.read_text())
    assert {"name", "command", "date", "commit", "machine", "figures", "rows"} <= set(value)
    assert value["machine"]["cores"] >= 1
    assert set(value["machine"]["flags"]) <= set(results.FLAGS)
    assert [p.name for p in path.parent.iterdir()] == ["demo.json"]


# --- beside a control ------------------------------------------------------------------------------------


def row(name: str, *nll: float) -> Row:
    """One method on domain `a` and `b`, of so many nats a token in each."""
    return Row(name, {d: Entry(cell(*[10 * x] * 3), f"m/{name}", said="x, y") for d, x in zip("ab", nll, strict=True)})


@pytest.fixture
def controlled() -> Table:
    rows = [row("base model", 3.0, 3.0), row(table.CONTROL, 2.9, 2.9), row("again", 2.8, 2.95),
            row("soup, similarity", 2.8, 2.95), row("the service, verified", 2.8, 2.8)]  # fmt: skip
    return Table(rows, {})


def test_the_sentence_says_base_control_soup_and_where_it_beats_both(controlled):
    said = table.sentence(controlled, answer=controlled.rows[2], seconds=41.2)
    assert said == (
        f"2 novel domains: base {math.exp(3.0):.1f}, control {math.exp(2.9):.1f}, the soup {math.exp(2.875):.1f} "
        "(perplexity, geometric mean), better than both on 1 of 2; 41 s of choosing."
    )
    assert "on 2 of 2" in table.sentence(controlled, answer=controlled.rows[4], seconds=1)
    alone = Table([controlled.rows[0], controlled.rows[2]], {})
    assert "better than the base on 2 of 2" in table.sentence(alone, answer=alone.rows[1], seconds=1)


def test_the_sentence_has_the_soups_that_were_trained_on_their_samples(controlled):
    rows = [*controlled.rows, Row("effort tune", controlled.rows[4].entries)]
    said = table.sentence(Table(rows, {}), answer=rows[2], seconds=1)
    assert f"on 1 of 2, trained on the sample {rows[-1].geometric():.1f}; " in said


def test_the_sentence_calls_no_base_model_a_soup(small):
    said = table.sentence(small, answer=small.rows[2], seconds=1)
    assert ", the answer (one adapter for 1, the base model for 1) " in said
    assert "soup" not in said


def test_the_services_row_stays_where_it_repeats_another_and_the_other_goes(controlled):
    rows = [*controlled.rows[:4], Row("the service, verified", controlled.rows[2].entries)]
    kept, same = Table(rows, {}).distinct()
    assert [row.name for row in kept] == ["base model", "control", "the service, verified"]
    assert same == {"again": "the service, verified", "soup, similarity": "the service, verified"}


def test_gains_are_over_the_control_and_repeated_rows_stand_once(controlled):
    text = table.text(controlled)
    assert "again: in every domain the same as soup, similarity" in text
    assert text.count("again") == 1
    (line,) = [line for line in text.splitlines() if line.startswith("the service, verified") and "-9.5 %" in line]
    assert line.split()[-4:] == ["-18.1", "%", "-9.5", "%"]
    assert "adapters that beat the base" not in text
    assert max(map(len, text.splitlines())) <= 100
    figures = table.figures(controlled)
    assert figures["change_to_control_the_service_verified"]["value"] == pytest.approx(100 * math.expm1(-0.1), rel=1e-5)
    assert "change_to_control_control" not in figures


def test_the_picture_holds_every_domain_and_row_once_and_is_the_same_again(controlled, tmp_path):
    for name in ("one.svg", "two.svg"):
        picture.draw(controlled, tmp_path / name)
    drawn = (tmp_path / "one.svg").read_text()
    for label in ("a", "b", "control", "soup, similarity", "the service, verified"):
        assert f">{label}</text>" in drawn
    assert ">again</text>" not in drawn
    assert ">base model</text>" not in drawn
    assert drawn == (tmp_path / "two.svg").read_text()


@pytest.mark.parametrize(
    ("search", "taken"),
    [
        (None, ("law", "zoo")),
        ({"candidates": []}, ("law", "zoo")),  # effort tune trains what the selector took
        ({"candidates": [{"digest": "a", "domain": "news"}, {"digest": "b", "domain": "law"}]}, ("news",)),
    ],
)
def test_an_answer_names_what_went_into_it(search, taken):
    cooked = {
        "model": "demo/soup@1", "digest": "d", "abstained": False, "search": search,
        "selection": {"selected": [{"domain": "law"}, {"domain": "zoo"}]}, "recipe": {"ingredients": [{"digest": "a"}]},
    }  # fmt: skip
    client: Any = SimpleNamespace(cook=lambda _request: cooked, sample=lambda texts: SampleSource(texts=tuple(texts)))
    assert strategies.cook(client, strategies.SERVICE, ["some text"]).ingredients == taken
