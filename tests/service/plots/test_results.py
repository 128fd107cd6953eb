"""Pictures of results: what a reader finds in them, and that whatever people wrote is shown as text."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.errors import InvalidParameter
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
from service.plots import Picture
from service.plots.measured import Measured
from service.plots.panels import MOST_ROWS, Bar, Bars, Intervals, Panel, paneled
from service.plots.results import (
    evaluation_picture,
    fit_picture,
    perplexity_picture,
    selection_picture,
    soup_picture,
    training_picture,
)

SVG = "{http://www.w3.org/2000/svg}"
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
    decided_on=20, held_out=11, tokens=1000, seconds=2.0,
)  # fmt: skip
CHECK = Verification(
    base_nll=3.0, soup_nll=2.8, difference=-0.2, standard_error=0.05, interval=(-0.29, -0.11), passages=11, tokens=100,
    helps=True, held_out=True,
)  # fmt: skip
RECIPE = Recipe.model_validate(
    {"base_fingerprint": NEWS, "ingredients": [{"digest": LAW, "weight": "0.75"}, {"digest": NEWS, "weight": "0.25"}]}
)


def drawn(picture: Picture) -> ElementTree.Element:
    return ElementTree.fromstring(picture.svg)


def panels_of(title: str, sentences: list[str], panels: list[Panel]) -> Picture:
    return Picture(title, paneled(title, sentences, panels))


def texts(picture: Picture) -> list[str]:
    return ["".join(one.itertext()) for one in drawn(picture).iter(f"{SVG}text")]


def soup(*, abstained: bool = False, reason: str = "The best of two.") -> Picture:
    return soup_picture(
        "team/mixed@1", reason, abstained=abstained, recipe=None if abstained else RECIPE, selection=None,
        search=SEARCH, verification=CHECK,
    )  # fmt: skip


class TestSoup:
    def test_it_shows_weights_held_out_differences_and_candidates(self) -> None:
        said = texts(soup())
        assert said[:2] == ["team/mixed@1", "The best of two."]
        assert said[said.index("team/law@1") + 1] == "0.750"
        assert "Mean NLL a token against the base on 11 held-out passages, 90% interval; left is better" in said
        assert said[said.index("The weighed soup") + 1] == "-0.2000 ± 0.0900"
        assert said[said.index("The soup as selected") + 1] == "-0.1000 ± 0.0720", (
            "as many standard errors as the check"
        )
        assert said[said.index("team/zoo@1", said.index("The soup as selected")) + 1] == "-0.1000"

    def test_what_was_chosen_is_filled_and_the_rest_is_not(self) -> None:
        kinds = [one.get("class") for one in drawn(soup()).iter(f"{SVG}circle")]
        assert kinds == ["s0", "s0 other", "s0", "s0 other"]

    def test_an_abstention_says_so_and_has_no_weights(self) -> None:
        said = texts(soup(abstained=True, reason="Nothing helps."))
        assert said[:2] == ["Abstained: team/mixed@1", "Nothing helps."]
        assert "What is in it, by weight" not in said

    def test_better_is_left_of_worse(self) -> None:
        places = [float(one.get("cx", "nan")) for one in drawn(soup()).iter(f"{SVG}circle")]
        assert places[0] < places[1]


class TestSelection:
    def test_the_ranking_has_the_chosen_first_and_counts_all_that_were_looked_at(self) -> None:
        selection = Selection.model_validate({
            "selected": [{"ref": "a/x@1", "digest": LAW, "domain": "x", "weight": "1", "score": 0.9}],
            "left_out": [
                {"ref": "a/y@1", "digest": NEWS, "domain": "y", "reason": "below", "score": 0.1},
                {"ref": "a/z@1", "digest": NEWS, "domain": "z", "reason": "retired"},
            ],
            "abstained": False, "reason": "One is far ahead.", "units": 9, "thresholds": {"min_share": 0.25},
            "more_left_out": {"below": 7},
        })  # fmt: skip
        said = texts(selection_picture(selection))
        assert said[0] == "1 chosen of 10"
        assert "Score; filled: it was chosen (share of at least 0.25)" in said
        assert [one for one in said if one.startswith("a/")] == ["a/x@1", "a/y@1"], "one without a score has no bar"
        assert "0.900, weight 1.00" in said


class TestPerplexity:
    REPORT = PerplexityReport(
        perplexity=7.4, mean_nll=2.0, standard_error=0.1, bits_per_byte=1.0, tokens=40,
        texts=tuple(PassageScore(nll=nll, tokens=10, bytes=40) for nll in (10.0, 20.0, 20.5, 30.0)),
        baseline=BaselineReport(
            perplexity=9.0, mean_nll=2.2, difference=-0.2, standard_error=0.1, interval=(-0.4, 0.0)
        ),
    )  # fmt: skip

    def test_it_shows_both_models_the_difference_and_every_text_once(self) -> None:
        said = texts(perplexity_picture("a/x@1", self.REPORT, against="base/small"))
        assert said[0] == "a/x@1 on 4 texts, 40 tokens"
        assert "-0.2000 ± 0.2000" in said
        assert said[said.index("base/small") + 1] == "9.00"
        bins = said[said.index("Texts by their mean NLL a token") + 1 :]
        assert bins == ["1.00 to 2.00", "1", "2.00 to 3.00", "3"]

    @given(st.lists(st.floats(0.001, 1e4), min_size=2, max_size=40))
    def test_no_text_is_lost_or_counted_twice(self, losses: list[float]) -> None:
        scores = tuple(PassageScore(nll=nll, tokens=1, bytes=1) for nll in losses)
        said = texts(perplexity_picture("m", self.REPORT.model_copy(update={"texts": scores}), against=None))
        if "Texts by their mean NLL a token" in said:
            bins = said[said.index("Texts by their mean NLL a token") + 1 :]
            assert sum(int(one) for one in bins[1::2]) == len(losses)
        else:
            assert len(set(losses)) == 1

    def test_without_a_baseline_there_is_no_difference(self) -> None:
        alone = self.REPORT.model_copy(update={"baseline": None})
        assert not list(drawn(perplexity_picture("m", alone, against=None)).iter(f"{SVG}circle"))


class TestOthers:
    def test_a_fit_shows_its_shares_its_domains_and_its_clusters(self) -> None:
        report = {
            "held_out_accuracy": 0.95, "own_scores": {"law": 0.8}, "threshold": 0.5,
            "clusters": [{"cluster": 0, "domains": [], "units": 12}], "warnings": ["Few units."],
        }  # fmt: skip
        said = texts(fit_picture("cosine", 3, report))
        assert said[:2] == ["cosine over 3 domains", "Few units."]
        assert said[said.index("held-out text told apart") + 1] == "95.0%"
        assert "Mean score of a domain's own text (threshold 0.500)" in said
        assert said[said.index("0: nobody") + 1] == "12"

    def test_one_that_has_no_accuracy_has_no_bar_of_it(self) -> None:
        assert texts(fit_picture("uniform", 3, {"held_out_accuracy": None, "warnings": []})) == [
            "uniform over 3 domains"
        ]

    def test_an_evaluation_has_the_base_beside_the_adapter_or_the_rates_of_its_task(self) -> None:
        figures = {
            "perplexity": 5.0, "base_perplexity": 6.0, "difference": -0.18, "difference_low": -0.2,
            "difference_high": -0.16, "texts": 30,
        }  # fmt: skip
        assert "-0.1800 ± 0.0200" in texts(evaluation_picture("law", figures))
        said = texts(evaluation_picture("reviews", {"accuracy": 0.5, "texts": 4}))
        assert said[said.index("accuracy") + 1] == "0.5"
        assert "texts" not in said, "counts are no bars"

    def test_a_training_has_both_losses(self) -> None:
        record = {"valid_history": [[0, 4.0], [10, 3.0]], "train_history": [[5, 3.5], [10, 3.1]]}
        assert {"validation", "training"} <= set(texts(training_picture("t", record)))


class TestPanels:
    @given(st.text(max_size=200))
    def test_whatever_people_wrote_is_text_of_one_file(self, written: str) -> None:
        found = panels_of(written, [written], [Bars(written, [Bar(written, 1.0, written)])])
        assert {one.tag for one in drawn(found).iter()} <= {
            f"{SVG}{tag}" for tag in ("svg", "title", "style", "rect", "text", "path")
        }

    @given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(0, 1e6)), min_size=1, max_size=8))
    def test_every_mark_is_within_its_interval_and_the_picture(self, rows: list[tuple[float, float]]) -> None:
        found = panels_of("t", [], [Intervals("c", [Measured.within("x", *row) for row in rows])])
        root = drawn(found)
        for mark, line in zip(root.iter(f"{SVG}circle"), _lines(root), strict=True):
            assert 0 < line[0] <= float(mark.get("cx", "nan")) <= line[1] < float(root.get("width", "0"))

    def test_what_is_beyond_the_most_rows_is_counted(self) -> None:
        found = panels_of("t", [], [Bars("c", [Bar(str(n), n, "") for n in range(MOST_ROWS + 3)])])
        assert texts(found)[-1] == "3 more"
        assert len(list(drawn(found).iter(f"{SVG}rect"))) == MOST_ROWS + 1  # and the ground

    def test_a_long_name_keeps_both_its_ends(self) -> None:
        name = f"team/{'long' * 30}@17"
        shown = texts(panels_of("t", [], [Bars("c", [Bar(name, 1.0, "1")])]))[2]
        assert shown.startswith("team/long")
        assert shown.endswith("@17")
        assert len(shown) < 40


def _lines(root: ElementTree.Element) -> list[tuple[float, float]]:
    found = (re.match(r"M([\d.-]+) [\d.]+H([\d.-]+)", one.get("d", "")) for one in root.iter(f"{SVG}path"))
    return [(float(one[1]) - 0.1, float(one[2]) + 0.1) for one in found if one]


class TestPicture:
    def test_a_notebook_gets_an_image_with_all_of_it(self) -> None:
        html = soup()._repr_html_()
        data = re.fullmatch(r'<img alt="team/mixed@1" src="data:image/svg\+xml;base64,([A-Za-z0-9+/=]+)">', html)
        assert data is not None
        assert base64.b64decode(data[1]).decode() == soup().svg == soup()._repr_svg_()

    def test_it_is_saved_as_it_is_and_says_where_it_cannot_be(self, tmp_path: Path) -> None:
        soup().save(tmp_path / "soup.svg")
        assert (tmp_path / "soup.svg").read_text(encoding="utf-8") == soup().svg
        with pytest.raises(InvalidParameter, match="Is a directory"):
            soup().save(tmp_path)
