"""The map of domains: of what it is made, what it says of a text, and whose adapters are on it."""

from __future__ import annotations

import csv
from typing import Any

import numpy as np
import pytest

from registry.select.domain_map import DomainMap, domain_map, fit_plane
from tests.service.http.pages.page_session import HOSTILE, PageSession, check_says, read
from tests.service.http.stock import fit_selector, push_embedded
from tests.service.servers import World

SAMPLES = {
    "law": [f"The court held that contract number {number} was void." for number in range(25)],
    "food": [f"Heat the oil, add {number} onions and stir until golden." for number in range(25)],
    "code": [f"def f{number}(x): return x + {number} if x else None" for number in range(25)],
}


@pytest.fixture(scope="module")
def stocked(world: World) -> World:
    for seed, (name, texts) in enumerate(SAMPLES.items()):
        push_embedded(world, f"acme/{name}", texts, seed=seed, domain=name)
    return world


def test_nothing_is_drawn_before_something_was_fitted(stocked: World) -> None:
    browser = PageSession(stocked, stocked.key(["read"], ["acme"]))
    page = browser.page("/map")
    assert "No posterior selector that this key sees is fitted yet" in read(page)
    assert "plot.svg" not in page
    assert browser.get("/map.json").status_code == 404


@pytest.fixture(scope="module")
def fitted(stocked: World) -> World:
    fit_selector(stocked)
    return stocked


@pytest.fixture(scope="module")
def browser(fitted: World) -> PageSession:
    return PageSession(fitted, fitted.key(["read"], ["acme"]))


def test_every_domain_has_its_place(browser: PageSession) -> None:
    domain_map = browser.get("/map.json").json()
    assert [place["domain"] for place in domain_map["places"]] == ["code", "food", "law"]
    assert domain_map["text"] is None
    assert 0 < domain_map["explained"] <= 1 + 1e-9
    assert browser.plots(browser.page("/map")) == [{"code", "food", "law"}]
    rows = list(csv.DictReader(browser.get("/map/places.csv").text.splitlines()))
    assert [row["Adapter"] for row in rows] == ["acme/code@1", "acme/food@1", "acme/law@1"]


def test_a_text_lies_among_them_as_the_selector_says(fitted: World, browser: PageSession) -> None:
    texts = SAMPLES["food"][:12]
    answer = browser.send("/map", "/map", text="\n\n".join(texts), **{"as": "csv"})
    rows = list(csv.DictReader(answer.text.splitlines()))
    writer = fitted.headers(fitted.key(["read", "write"], ["acme"]))
    body = {"sample": {"texts": texts}, "options": {"min_share": 0.0001}, "list_all": True}
    selection = fitted.client.post("/v1/select", json=body, headers=writer).json()["selection"]
    scores = {adapter["ref"]: adapter["score"] for adapter in [*selection["selected"], *selection["left_out"]]}
    assert rows[0]["Adapter"] == "acme/food@1"
    assert {row["Adapter"]: float(row["Posterior"]) for row in rows} == pytest.approx(scores)
    page = browser.send("/map", "/map", text="\n\n".join(texts)).text
    assert "It is most similar to" in read(page)
    assert browser.plots(page) == [{"code", "food", "law", "your text"}]


@pytest.mark.parametrize("plot", ["map/plot.svg?x=1e308&y=0", "compare/plot.svg?model=m&value=0&low=-1e308&high=1e308"])
def test_numbers_that_no_axis_shows_are_refused(browser: PageSession, plot: str) -> None:
    assert browser.get(f"/{plot}").status_code == 400
    assert browser.get(f"/{plot.replace('1e308', '1e9')}").status_code == 200


def test_a_text_takes_one_map(browser: PageSession, monkeypatch: pytest.MonkeyPatch) -> None:
    maps: list[DomainMap] = []

    def recorded_map(*args: Any) -> DomainMap:
        maps.append(domain_map(*args))
        return maps[-1]

    monkeypatch.setattr("service.http.pages.domain_map.domain_map", recorded_map)
    browser.send("/map", "/map", text="\n\n".join(SAMPLES["food"][:12]))
    assert [map.sample is None for map in maps] == [True, False]  # of the page with the form, and of the text


@pytest.mark.parametrize(
    ("text", "status", "message"), [(" ", 422, "Paste some text"), ('{"text": 5}', 422, "The text")]
)
def test_what_cannot_be_placed_is_said(browser: PageSession, text: str, status: int, message: str) -> None:
    answer = browser.send("/map", "/map", text=text)
    check_says(answer, status, message)
    assert browser.plots(answer.text) == [{"code", "food", "law"}]


def test_hostile_text_is_text(browser: PageSession) -> None:
    answer = browser.send("/map", "/map", text=f"{HOSTILE} is a passage of some length, or so one would think.")
    assert answer.status_code == 200


def test_selectors_of_other_kinds_do_not_hide_the_one_that_has_a_map(fitted: World, browser: PageSession) -> None:
    selector = browser.get("/map.json").json()["selector"]["id"]
    cosine = fit_selector(fitted, "cosine")
    assert browser.get("/map.json").json()["selector"]["id"] == selector
    answer = browser.get(f"/map?selector={cosine}")
    check_says(answer, 400, "only posterior selectors have a map")
    assert selector in answer.text  # another can be chosen


def test_a_retired_adapter_leaves_the_map(fitted: World, browser: PageSession) -> None:
    fitted.client.delete("/v1/adapters/acme/code@1")
    assert "code" not in [place["domain"] for place in browser.get("/map.json").json()["places"]]


def test_the_plane_is_that_of_the_principal_components() -> None:
    """Against scikit-learn, but for signs, which are ours."""
    from sklearn.decomposition import PCA

    places = np.random.default_rng(0).normal(size=(9, 5)) * [5, 3, 1, 1, 1]
    fitted = fit_plane(places)
    plane = fitted.projection
    reference = PCA(n_components=2, svd_solver="full").fit(places)
    np.testing.assert_allclose(np.abs(plane(places)), np.abs(reference.transform(places)), atol=1e-10)
    assert fitted.explained == pytest.approx(reference.explained_variance_ratio_.sum())
    for axis in plane.components:
        assert axis[np.abs(axis).argmax()] > 0


@pytest.mark.parametrize("count", [1, 2])
def test_few_places_have_a_plane_as_well(count: int) -> None:
    places = np.random.default_rng(0).normal(size=(count, 5))
    fitted = fit_plane(places)
    plane = fitted.projection
    assert plane(places).shape == (count, 2)
    assert (plane(places + 1)[:, 1] == 0).all()  # there is no second direction
    assert np.isfinite(plane(places)).all()
    assert fitted.explained == pytest.approx(1.0)
