"""The heat map of adapters by domains: what it shows of what was evaluated, to whom, and how more is evaluated."""

from __future__ import annotations

import csv

import pytest

from service.http.pages import matrix
from service.http.pages.matrix import LEVELS, colour_level
from tests.browser import Browser
from tests.service.http.pages.page_checks import findings, look_at, press_on, signed_in
from tests.service.http.pages.page_session import HOSTILE, PageSession, check_says, elements, read
from tests.service.http.stock import push_embedded
from tests.service.servers import Live, World

TEXTS = {
    HOSTILE: [f"The court held that contract number {number} was void." for number in range(25)],
    "food": [f"Heat the oil, add {number} onions and stir until golden." for number in range(25)],
}


@pytest.fixture(scope="module")
def stocked(world: World) -> World:
    for seed, (domain, texts) in enumerate(TEXTS.items(), 1):
        push_embedded(world, f"acme/a{seed}", texts, seed=seed, domain=domain)
    return world


def evaluated(world: World, browser: PageSession) -> None:
    answer = browser.send("/matrix", "/matrix", base_model="tiny", namespace="")
    if answer.status_code == 303:
        assert answer.headers["location"].startswith("/jobs/job-")
        world.client.get(f"/v1{answer.headers['location']}/events")


def test_what_is_missing_is_counted_and_evaluated_by_a_button(stocked: World, browser: PageSession) -> None:
    summary_before = browser.get("/matrix.json").json()
    assert (summary_before["pairs"], summary_before["missing"]) == (4, 4)
    page = read(browser.page("/matrix"))
    assert "No evaluations yet." in page
    assert "4 of 4 pairs" in page
    evaluated(stocked, browser)
    summary = browser.get("/matrix.json").json()
    there = stocked.client.get("/v1/evaluations?namespace=acme").json()["data"]
    expected = {"missing": 0, "adapters": ["acme/a1@1", "acme/a2@1"], "evaluations": there}
    assert {name: summary[name] for name in expected} == expected
    assert [domain["domain"] for domain in summary["domains"]] == [HOSTILE, "food"]
    page = browser.page("/matrix")
    assert "all 4 pairs are evaluated" in read(page)
    cells = [at for tag, at in elements(page) if tag == "td"]
    assert len(cells) == 4
    assert [number for number, at in enumerate(cells) if at["class"].endswith(" own")] == [0, 3]
    assert all("passages" in at["title"] for at in cells)
    rows = list(csv.DictReader(browser.get("/matrix/evaluations.csv").text.splitlines()))
    assert sorted(float(row["Difference"]) for row in rows) == pytest.approx(
        sorted(evaluation["difference"] for evaluation in there)
    )


def test_other_keys_see_none_of_it(stocked: World, browser: PageSession) -> None:
    evaluated(stocked, browser)
    outsider = PageSession(stocked, stocked.key(["read", "write"], ["other"]))
    for query in ("", "?namespace=acme"):
        assert outsider.get(f"/matrix.json{query}").json()["evaluations"] == []
        assert "a1@1" not in outsider.page(f"/matrix{query}")
        assert "a1@1" not in outsider.get(f"/matrix/evaluations.csv{query}").text
    fields = {"namespace": "acme", "base_model": "tiny"}
    check_says(outsider.send("/matrix", "/matrix", **fields), 403, "may not read namespace")
    reader = PageSession(stocked, stocked.key(["read"], ["acme"]))
    assert '<form method="post" action="/matrix"' not in reader.page("/matrix")


@pytest.mark.parametrize("query", [f"namespace={HOSTILE}", "namespace=nobody", "base_model=", "base_model=base/tiny"])
def test_a_query_that_finds_nothing_is_a_page(browser: PageSession, query: str) -> None:
    browser.page(f"/matrix?{query}")


def test_a_base_model_that_is_not_here_is_told(browser: PageSession) -> None:
    assert {browser.get(f"{path}?base_model=none").status_code for path in ("/matrix", "/matrix.json")} == {400}


def test_what_is_too_large_to_be_drawn_looked_at_or_counted_is_said_and_the_csv_has_all(
    stocked: World, browser: PageSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated(stocked, browser)
    assert "Based on the newest" not in read(browser.page("/matrix"))
    monkeypatch.setattr(matrix, "MAX_DRAWN", 1)
    page = browser.page("/matrix")
    assert "The table shows the first 1 of 2 adapters and 2 domains" in read(page)
    assert len([tag for tag, _ in elements(page) if tag == "td"]) == 1
    monkeypatch.setattr(matrix, "MAX_EVALUATIONS", 3)
    assert "Based on the newest 3 evaluations" in read(browser.page("/matrix"))
    assert len(browser.get("/matrix/evaluations.csv").text.splitlines()) == 5
    assert browser.get("/matrix.json").json()["pairs"] == 4
    monkeypatch.setattr(matrix, "LARGEST_POOL", 1)
    summary = browser.get("/matrix.json").json()
    assert (summary["pairs"], summary["missing"]) == (None, None)
    assert "Missing evaluations" not in read(browser.page("/matrix"))


def test_an_adapter_is_outlined_on_its_own_sample_where_another_has_the_same(stocked: World) -> None:
    for seed, name in enumerate(("a", "b"), 71):
        push_embedded(stocked, f"twins/{name}", TEXTS["food"], seed=seed, domain=name)
    browser = PageSession(stocked, stocked.key(["read", "write"], ["twins"]))
    evaluated(stocked, browser)
    cells = [at for tag, at in elements(browser.page("/matrix")) if tag == "td"]
    assert [at["class"].endswith(" own") for at in cells] == [True, True]


def test_names_that_share_weights_or_a_sample_are_counted(stocked: World) -> None:
    """Each is named by its newest version, and those that another key alone sees are not counted for this one."""
    for space in ("shared", "hidden"):
        for seed, name in ((81, "a"), (81, "b"), (82, "c"), (82, "c")):
            push_embedded(stocked, f"{space}/{name}", TEXTS["food"], seed=seed, domain=name)
    key = stocked.key(["read", "write"], ["shared"])
    browser = PageSession(stocked, key)
    evaluated(stocked, browser)
    summary = browser.get("/matrix.json").json()
    assert summary["names"] == {"shared/b@1": 2}
    assert [domain["names"] for domain in summary["domains"]] == [3]
    page = browser.page("/matrix")
    assert "shared/b@1 and 1 more" in read(page)
    assert " and 2 more" in page
    listed = stocked.client.get("/v1/evaluations", headers=stocked.headers(key)).json()["data"]
    name_counts = {
        evaluation["adapter"]: (evaluation["adapter_names"], evaluation["sample_names"]) for evaluation in listed
    }
    assert name_counts == {"shared/b@1": (2, 3), "shared/c@1": (1, 3)}


def test_a_difference_has_a_colour_where_it_is_told_apart_from_none() -> None:
    assert [colour_level(value, 0.01, 0.4) for value in (-0.4, -0.1, -0.015, 0.0, 0.015, 0.11, 0.4)] == [
        -LEVELS,
        -1,
        0,
        0,
        0,
        2,
        LEVELS,
    ]
    assert colour_level(0.0, 0.0, 0.0) == 0
    assert colour_level(-0.1, 0.0, 0.1) == -LEVELS


def test_it_is_looked_at_and_evaluated_by_keyboard(chrome: Browser, live: Live, stocked: World) -> None:
    texts = [f"Goals of player {number} in the match." for number in range(25)]
    push_embedded(stocked, "acme/late", texts, seed=7, domain="sport")
    with signed_in(chrome, live.url, stocked.key(["read", "write"], ["acme"])) as page:
        page.open("/matrix")
        press_on(page, "#missing ~ form button")
        page.until("location.pathname.startsWith('/jobs/job-') && document.readyState === 'complete'")
        page.until("document.querySelector('.state.succeeded, .state.failed') !== null")
        assert page.text(".state") == "✓ succeeded"
        look_at(page, "/matrix")
        page.look(width=320)
        page.evaluate("document.querySelector('[aria-label=\"Heat map\"]').focus()")
        assert page.evaluate("document.activeElement.scrollWidth > document.activeElement.clientWidth")
        assert findings(page) == []
    stocked.client.delete("/v1/adapters/acme/late")
