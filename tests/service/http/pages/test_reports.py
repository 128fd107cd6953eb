"""Reports of soups: what is said of an answer and of none, the charts beside their tables, and who sees which names."""

from __future__ import annotations

import csv
import io
import math
import re
from html import unescape

import pytest

from plots.results import perplexity_changes
from plots.style import LIGHT, to_svg
from registry.spec import Recipe, RecipeIngredient
from service.http.pages.downloads import csv_response
from service.http.pages.report import (
    MAX_CELLS,
    CookReport,
    measured_differences,
    names_by_digest,
    report_context,
    report_drawings,
    report_tables,
)
from service.http.pages.templates import environment
from tests.service.answers import refusal_with_code
from tests.service.http.pages.cook_evidence import DIGESTS, evidence
from tests.service.http.pages.page_session import PageSession, active, check_says, read
from tests.service.http.stock import cook_soup
from tests.service.servers import World

HOSTILE = '=cmd|"><script>alert(1)</script>'


def report(
    *, difference: float = -0.03, abstained: bool = False, hostile: str = "too far", sites: int = 2
) -> CookReport:
    cook_evidence = evidence(difference=difference, hostile=hostile)
    layers = [{f"layers.{n}.ffn": factor for n in range(sites)} for factor in ("1", "0.5")]
    ingredients = [
        RecipeIngredient(digest=DIGESTS[name], weight=weight, layers=at)
        for (name, weight), at in zip((("law", "0.4"), ("food", "0.1")), layers, strict=True)
    ]
    recipe = None if abstained else Recipe(base_fingerprint=DIGESTS["law"], ingredients=tuple(ingredients))
    return CookReport(
        model="base/tiny" if abstained else "acme/mix@1",
        abstained=abstained,
        reason="Because.",
        cooked_at=None,
        recipe=recipe,
        mixing=None,
        evidence=cook_evidence,
        names=names_by_digest(cook_evidence),
    )


def drawn(cook_report: CookReport) -> str:
    template = environment().get_template("report.html")
    return template.render(
        report=cook_report, page_path="/soups/acme/mix@1", page_query="", **report_context(cook_report)
    )


def test_an_answer_is_said_in_words_and_numbers() -> None:
    text = read(drawn(report()))
    lower, least, most = (f"{100 * (1 - math.exp(-difference)):.1f} %" for difference in (0.03, 0.02, 0.04))
    for sentence in (
        f"acme/mix@1 , a soup of 2 adapters, has {lower} lower perplexity than the base model",
        f"(90 % interval: −{most} to −{least})",
        "Measured on 6 held-out passages of the sample, which had no part in choosing.",
        "The best of 2 soups is accepted if its loss is at least 2.20 standard errors below that of the base",
        "The loss of this soup is 6.00 standard errors below.",
    ):
        assert sentence in text


@pytest.mark.parametrize("name", ["team/law@1*0.7+team/style@2*0.3", f"{DIGESTS['law']}*0.7+{DIGESTS['food']}*0.3"])
def test_a_mixture_in_a_table_is_its_name_without_a_link(name: str) -> None:
    cell = environment().from_string('{% import "tables.html" as tables %}{{ tables.cell(name, "model") }}')
    assert cell.render(name=name).strip() == name
    assert "<a" in cell.render(name="team/law@1")


def test_an_abstention_is_as_readable() -> None:
    text = read(drawn(report(difference=0.004, abstained=True)))
    assert "Use the base model , base/tiny : no candidate is known to do better on text like the sample." in text
    assert "The best candidate has 0.4 % higher perplexity than the base model" in text
    assert "Adapters that were weighed" in text
    assert "Ingredients" not in text


def test_a_candidate_that_breaks_the_model_has_a_report() -> None:
    broken = report(difference=800.0, abstained=True)
    assert f"{100 * math.expm1(20):.1f} % higher perplexity" in read(drawn(broken))
    to_svg(report_drawings(broken, theme=LIGHT)["gains"]())  # Matplotlib warns if labels leave no room


def test_what_was_taken_is_not_said_to_be_left_out() -> None:
    tables = {table.name: table for table in report_tables(report())}
    assert [row[0] for row in tables["weights"].rows] == ["acme/law@1", "acme/food@1"]
    assert [row[0] for row in tables["candidates"].rows] == ["acme/law@1", "acme/food@1", "acme/news@1"]
    assert [row[0] for row in tables["left-out"].rows] == ["acme/poems@1", "7 more"]


def test_weights_by_layer_are_what_is_added_there() -> None:
    (table,) = [table for table in report_tables(report()) if table.name == "layers"]
    assert [column.name for column in table.columns] == ["Site", "acme/law@1", "acme/food@1"]
    assert table.rows[0] == ("layers.0.ffn", 0.4, 0.05)
    assert report_context(report())["plots"] == ["gains", "layers"]
    assert report_context(report(sites=MAX_CELLS))["plots"] == ["gains"]  # the table has them


def test_layers_are_in_their_order_and_not_in_that_of_their_text() -> None:
    (table,) = [table for table in report_tables(report(sites=12)) if table.name == "layers"]
    assert [row[0] for row in table.rows] == [f"layers.{number}.ffn" for number in range(12)]


def test_the_first_picture_has_the_model_the_best_adapter_the_control_and_the_base() -> None:
    cook_evidence = evidence()
    rows = perplexity_changes(cook_evidence.search, cook_evidence.verification, abstained=False)
    labels = ["This model", "Best adapter: acme/law@1", "Random adapters (control)", "Base model"]
    assert [row.label for row in rows] == labels
    assert rows[0].value == pytest.approx(100 * (math.exp(-0.03) - 1))
    assert rows[0].text == "-3.0% (-3.9 to -2.0)"


def test_intervals_reach_as_far_as_a_verification_of_as_many_passages() -> None:
    """The verification's interval of ±.01 is two of its standard errors wide, and so are the others."""
    rows = {row.label: row for row in measured_differences(report())}
    assert rows["The soup as selected"].high - rows["The soup as selected"].value == pytest.approx(2 * 0.005)
    assert [row.label for row in rows.values() if row.chosen] == ["The weighed soup"]
    assert "Random adapters (control)" in rows
    assert rows["Best adapter: acme/law@1"].value == -0.02


def test_nothing_in_a_report_is_markup_or_a_formula() -> None:
    page = drawn(report(hostile=HOSTILE))
    assert active(page) == []
    assert HOSTILE in unescape(page)
    (table,) = [table for table in report_tables(report(hostile=HOSTILE)) if table.name == "left-out"]
    text = bytes(csv_response([table], "left-out").body).decode()
    assert list(csv.reader(io.StringIO(text)))[1][3] == f"'{HOSTILE}"


# --- over HTTP ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stocked(world: World) -> World:
    """A soup by hand, an adapter, and a soup in `acme` whose evidence names an adapter of `other`."""
    for number, name in enumerate(("acme/law", "acme/food", "other/news")):
        world.push(name, seed=number + 1, domain=name[5:])
    evidence_bodies = [evidence(hostile=hostile).model_dump(mode="json") for hostile in ("too far", "too far")]
    evidence_bodies[-1]["selection"]["left_out"][0]["ref"] = "other/news@1"
    for step in ("selection", "search"):  # the selector is not stored: nobody sees a pool of which more is only counted
        evidence_bodies[0][step]["more_left_out"] = {}
    cook_soup(world, "acme/mix", {"acme/law": 1, "acme/food": 1}, *evidence_bodies)
    return world


def test_a_stored_soup_has_a_report_for_each_time_it_was_the_answer(browser: PageSession) -> None:
    newest = browser.get("/soups/acme/mix@1.json").json()
    assert newest["object"] == "soup_report"
    count = int(re.search(r"on cook \d of (\d)", read(browser.page("/soups/acme/mix@1")))[1])  # type: ignore[index]
    assert browser.get(f"/soups/acme/mix@1.json?evidence={count}").json() == newest
    second = browser.get("/soups/acme/mix@1.json?evidence=2").json()
    assert second["evidence"]["verification"]["passages"] == 6
    assert second["names"][DIGESTS["law"]] == ["acme/law@1", "law"]
    assert browser.get(f"/soups/acme/mix@1?evidence={count + 1}").status_code == 404
    assert browser.get("/soups/acme/mix@1?evidence=0").status_code == 400


def test_names_of_namespaces_that_the_key_does_not_see_are_left_out(stocked: World, browser: PageSession) -> None:
    assert "other/news" not in browser.page("/soups/acme/mix@1")
    assert "other" not in browser.get("/soups/acme/mix@1.json").text
    assert "other/news" in PageSession(stocked, stocked.admin).page("/soups/acme/mix@1")


def test_every_table_is_a_csv_and_the_plot_has_a_mark_for_each_row(browser: PageSession) -> None:
    page = browser.page("/soups/acme/mix@1?evidence=2")
    names = set(re.findall(r'href="/soups/acme/mix@1/([a-z-]+)\.csv\?evidence=2"', page))
    assert {"weights", "differences", "candidates", "left-out"} <= names
    for name in names:
        answer = browser.get(f"/soups/acme/mix@1/{name}.csv?evidence=2")
        assert answer.headers["content-type"].startswith("text/csv")
        rows = list(csv.reader(io.StringIO(answer.text)))
        assert len(rows) > 1
        assert len({len(row) for row in rows}) == 1
    (gains,) = browser.plots(page)
    assert {"This model", "Base model"} <= gains
    rows = list(csv.DictReader(io.StringIO(browser.get("/soups/acme/mix@1/differences.csv?evidence=2").text)))
    assert "The weighed soup" in {row["Candidate"] for row in rows}
    refusal_with_code(browser.get("/soups/acme/mix@1/nothing.csv"), 404, "not_found")


def test_an_adapter_has_no_report(browser: PageSession) -> None:
    check_says(browser.get("/soups/acme/law"), 404, "acme/law@1 is an adapter and not a soup")
