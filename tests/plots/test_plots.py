"""Plots of results: what a reader finds in them, and that names other people wrote are shown as they are."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plots.charts import (
    MAX_ROWS,
    Bar,
    CategoryAxis,
    Interval,
    Panel,
    Series,
    domain_map,
    heat_map,
    interval_series,
    lineage,
    lines,
    panels,
    points,
    stacked_bars,
)
from plots.results import (
    base_differences,
    evaluation_plot,
    fit_plot,
    perplexity_plot,
    selection_plot,
    soup_plot,
    training_plot,
)
from plots.style import DARK, LIGHT, Plot, Theme, to_svg
from registry.spec import (
    BaselineReport,
    PassageScore,
    PerplexityReport,
    Recipe,
    Search,
    Selection,
    Verification,
    WeighedCandidate,
)
from registry.spec.search import Trial

LAW, NEWS = f"sha256:{1:064x}", f"sha256:{2:064x}"
SEARCH = Search(
    effort="quick",
    candidates=(
        WeighedCandidate(
            ref="team/law@1", digest=LAW, domain="law", score=0.2, standard_error=0.01, coefficient=0.6, alone=-0.1
        ),
        WeighedCandidate(ref="team/zoo@1", digest=NEWS, domain="zoo", score=-0.1, standard_error=None),
    ),
    trials=(
        Trial(way="weighed", members=1, width=8, difference=-0.2, standard_error=0.05),
        Trial(way="selected", members=1, width=8, difference=-0.1, standard_error=0.04),
    ),
    decided_on=20,
    held_out=11,
    tokens=1000,
    seconds=2.0,
)
CHECK = Verification(
    base_nll=3.0,
    soup_nll=2.8,
    difference=-0.2,
    standard_error=0.05,
    interval=(-0.29, -0.11),
    passages=11,
    tokens=100,
    helps=True,
    held_out=True,
)
RECIPE = Recipe.model_validate(
    {"base_fingerprint": NEWS, "ingredients": [{"digest": LAW, "weight": "0.75"}, {"digest": NEWS, "weight": "0.25"}]}
)
SCORES = PerplexityReport(
    perplexity=7.4,
    mean_nll=2.0,
    standard_error=0.1,
    bits_per_byte=1.0,
    tokens=40,
    texts=tuple(PassageScore(nll=nll, tokens=10, bytes=40) for nll in (10.0, 20.0, 20.5, 30.0)),
    baseline=BaselineReport(perplexity=9.0, mean_nll=2.2, difference=-0.2, standard_error=0.1, interval=(-0.4, 0.0)),
)
KINDS: dict[str, Callable[[str, Theme], Plot]] = {
    "panels": lambda name, theme: panels(
        name, [name], [Panel(name, [Bar(name, 1.0, name), Interval.around(name, 1.0, 0.5)])], theme=theme
    ),
    "lines": lambda name, theme: lines(
        name, [Series(name, [(0, 4.0), (5, 3.0)], 5)], x_label=name, y_label=name, theme=theme
    ),
    "interval series": lambda name, theme: interval_series(
        name, rows=[name], series={name: {name: (1, 0, 2)}}, x_label=name, theme=theme
    ),
    "heat map": lambda name, theme: heat_map(
        name,
        {(name, name): 0.5},
        rows=CategoryAxis(name, [name]),
        columns=CategoryAxis(name, [name]),
        theme=theme,
    ),
    "stacked bars": lambda name, theme: stacked_bars([name], {name: [1.0]}, theme=theme),
    "lineage": lambda name, theme: lineage(name, [(name, 0.5)], [name], theme=theme),
    "domain map": lambda name, theme: domain_map({name: (0.0, 0.0)}, (1.0, 1.0), theme=theme),
}


def texts_in(svg: str) -> list[str]:
    """Every text of an SVG, in its order."""
    root = ElementTree.fromstring(svg)
    return ["".join(element.itertext()) for element in root.iter() if element.tag.endswith("}text")]


def texts(plot: Plot) -> list[str]:
    return texts_in(to_svg(plot))


def soup(*, abstained: bool = False) -> Plot:
    return soup_plot(
        "team/mixed@1",
        "The best of two.",
        abstained=abstained,
        recipe=None if abstained else RECIPE,
        selection=None,
        search=SEARCH,
        verification=CHECK,
    )


def test_a_soup_shows_weights_held_out_differences_and_candidates() -> None:
    drawn = texts(soup())
    for text in ("team/mixed@1", "The best of two.", "0.750", "The weighed soup", "-0.2000 ± 0.0900", "team/zoo@1"):
        assert text in drawn
    assert any("on 11 held-out passages" in text for text in drawn)
    assert "-0.1000 ± 0.0720" in drawn, "as many standard errors as the verification's interval"
    abstained = texts(soup(abstained=True))
    assert "Abstained: team/mixed@1" in abstained
    assert "Ingredients by weight" not in abstained


def test_the_verification_is_shown_by_itself_where_no_trial_was_held_out() -> None:
    rows = base_differences(None, CHECK, abstained=True)
    assert rows == [Interval("The best candidate", -0.2, -0.29, -0.11, chosen=True)]
    assert [row.chosen for row in base_differences(SEARCH, CHECK, abstained=False)] == [True, False]


def test_a_selection_shows_the_chosen_first_and_counts_all_candidates() -> None:
    selection = Selection.model_validate(
        {
            "selected": [{"ref": "a/x@1", "digest": LAW, "domain": "x", "weight": "1", "score": 0.9}],
            "left_out": [
                {"ref": "a/y@1", "digest": NEWS, "domain": "y", "reason": "below", "score": 0.1},
                {"ref": "a/z@1", "digest": NEWS, "domain": "z", "reason": "retired"},
            ],
            "abstained": False,
            "reason": "One is far ahead.",
            "units": 9,
            "thresholds": {"min_share": 0.25},
            "more_left_out": {"below": 7},
        }
    )
    drawn = texts(selection_plot(selection))
    assert {"1 chosen of 10", "Score; filled: chosen (share of at least 0.25)", "0.900, weight 1.00"} <= set(drawn)
    assert [text for text in drawn if text.startswith("a/")] == ["a/x@1", "a/y@1"], "no bar without a score"


def test_perplexity_shows_both_models_their_difference_and_every_text_once() -> None:
    drawn = texts(perplexity_plot("a/x@1", SCORES, against="base/small"))
    assert {"a/x@1 on 4 texts, 40 tokens", "-0.2000 ± 0.2000", "base/small", "9.00"} <= set(drawn)
    assert {"1.00 to 2.00", "2.00 to 3.00"} <= set(drawn)
    alone = texts(perplexity_plot("m", SCORES.model_copy(update={"baseline": None}), against=None))
    assert not any("against" in text for text in alone)


@settings(max_examples=5)
@given(st.lists(st.floats(0.001, 1e4), min_size=2, max_size=40))
def test_the_histogram_counts_every_text_once(losses: list[float]) -> None:
    scores = tuple(PassageScore(nll=nll, tokens=1, bytes=1) for nll in losses)
    report = SCORES.model_copy(update={"texts": scores, "baseline": None, "tokens": 0})
    counts = [text for text in texts(perplexity_plot("m", report, against=None)) if re.fullmatch(r"\d+", text)]
    assert len(set(losses)) == 1 or sum(map(int, counts)) >= len(losses)  # ticks are integers too


def test_fits_evaluations_and_trainings_show_their_figures() -> None:
    fit = {
        "held_out_accuracy": 0.95,
        "own_scores": {"law": 0.8},
        "threshold": 0.5,
        "clusters": [{"cluster": 0, "domains": [], "units": 12}],
        "warnings": ["Few units."],
    }
    drawn = set(texts(fit_plot("cosine", 3, fit)))
    assert {"cosine over 3 domains", "Few units.", "95.0%", "0: no domain", "12"} <= drawn
    assert "Mean score of a domain's own text (threshold 0.500)" in drawn
    assert texts(fit_plot("uniform", 3, {"held_out_accuracy": None, "warnings": []})) == ["uniform over 3 domains"]
    figures = {
        "perplexity": 5.0,
        "base_perplexity": 6.0,
        "difference": -0.18,
        "difference_low": -0.2,
        "difference_high": -0.16,
        "texts": 30,
    }
    assert {"-0.1800 ± 0.0200", "30 texts", "5.00", "6.00"} <= set(texts(evaluation_plot("law", figures)))
    rates = set(texts(evaluation_plot("reviews", {"accuracy": 0.5, "texts": 4})))
    assert "accuracy" in rates
    assert "texts" not in rates, "counts are no rates"
    record = {"valid_history": [[0, 4.0], [10, 3.0]], "train_history": [[5, 3.5], [10, 3.1]]}
    assert {"held out", "in training"} <= set(texts(training_plot("t", record)))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_takes_names_literally_in_both_themes_and_is_deterministic(kind: str) -> None:
    name = "<b>&$x^2$ ]]> 法\x07"
    light, repeat, dark = (to_svg(KINDS[kind](name, theme)) for theme in (LIGHT, LIGHT, DARK))
    assert light == repeat
    for svg, theme in ((light, LIGHT), (dark, DARK)):
        assert any("<b>&$x^2$ ]]> 法?" in text for text in texts_in(svg)), texts_in(svg)
        assert theme.ground in svg
        assert "<script" not in svg


@settings(max_examples=8)
@given(st.text(max_size=60), st.floats(-1e12, 1e12), st.floats(0, 1e12))
def test_any_text_and_any_size_gives_one_whole_file(name: str, value: float, half: float) -> None:
    svg = to_svg(panels(name, [name], [Panel(name, [Interval.around(name, value, half)])]))
    assert ElementTree.fromstring(svg).tag.endswith("svg")


def test_rows_beyond_the_most_are_counted_and_long_names_keep_both_ends() -> None:
    rows = [Bar(f"team/{'long' * 30}@{n}", n, "") for n in range(MAX_ROWS + 3)]
    drawn = texts(panels("", [], [Panel("c", rows)]))
    assert "c (3 more rows are not shown)" in drawn
    labels = [text for text in drawn if text.startswith("team/long")]
    assert len(labels) == MAX_ROWS
    assert all(label.endswith(f"@{n}") and len(label) < 40 for n, label in enumerate(labels))


def test_a_map_has_one_scale_and_names_what_has_room() -> None:
    places = {f"domain-{n}": (9 * math.sin(n), 2 * math.cos(3 * n)) for n in range(40)}
    plot = domain_map(places, (0.0, 0.0))
    drawn = texts(plot)
    assert "your text" in drawn
    assert 5 < len(drawn) <= 41
    (axes,) = plot.axes
    origin, right, up = axes.transData.transform([(0, 0), (1, 0), (0, 1)])
    assert right[0] - origin[0] == pytest.approx(up[1] - origin[1])
    assert 5 < len(texts(domain_map({f"domain-{n}": (math.sin(n), math.cos(3 * n)) for n in range(2000)}))) < 500


def test_every_point_over_a_logarithmic_axis_has_its_name_also_in_a_crowd() -> None:
    places = {f"way {n}": (1.0 + n / 1000, -30.0) for n in range(20)}
    assert set(places) <= set(texts(points("t", places, x_label="x", y_label="y", ticks=(1, 10))))


def test_plots_are_drawn_in_several_threads_at_once() -> None:
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda _: to_svg(soup()), range(4))) == {to_svg(soup())}


def test_a_heat_map_has_a_number_in_every_cell_that_has_a_value() -> None:
    values = {("0", "b"): 0.5, ("1", "b"): -0.25}
    rows, columns = CategoryAxis("y", ["0", "1"]), CategoryAxis("x", ["a", "b"])
    drawn = texts(heat_map("t", values, rows=rows, columns=columns))
    assert [text for text in drawn if "." in text] == ["+0.500", "-0.250"]
