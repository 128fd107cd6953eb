"""The page of models and its twin: filters, pages, aliases, use, and that nothing a person wrote is markup."""

from __future__ import annotations

import math
import re
from html import unescape

import pytest

from tests.service.http.pages.page_session import PageSession, read
from tests.service.http.stock import cook_soup
from tests.service.servers import World

HOSTILE = "\"><script>alert(1)</script><img src=x onerror=alert(2)> {{7*7777}} \u202e'&amp;"


@pytest.fixture(scope="module")
def stocked(world: World) -> World:
    """Two versions of a name with aliases, a soup, one of another namespace, and a hostile card."""
    world.push("acme/law", seed=1, domain="law", card={"tags": ["court", "eu"], "description": "of contracts"})
    world.push("acme/law", seed=2, domain="law", card={"tags": ["court"]})
    world.push("acme/food", seed=3, domain="recipes")
    world.push("other/secret", seed=4, domain="hidden-domain")
    world.push("acme/hostile", seed=5, domain=HOSTILE[:200], card={"description": HOSTILE, "license": HOSTILE})
    client = world.client
    gains = [{"verification": {"difference": difference}} for difference in (0.01, -0.05)]
    cook_soup(world, "acme/mix", {"acme/law@1": 1, "acme/food": 1}, *gains)
    client.put("/v1/adapters/acme/law/aliases/prod", json={"version": 1})
    client.put("/v1/adapters/acme/law/aliases/next", json={"version": 2})
    client.patch("/v1/namespaces/acme", json={"protected_aliases": ["prod"]})
    return world


def refs(browser: PageSession, path: str) -> list[str]:
    return [model["adapter"]["ref"] for model in browser.get(path).json()["data"]]


def test_the_page_and_its_twin_show_what_the_api_lists(stocked: World, browser: PageSession) -> None:
    there = [
        adapter["ref"] for adapter in stocked.client.get("/v1/adapters", params={"namespace": "acme"}).json()["data"]
    ]
    assert refs(browser, "/models.json") == there
    page = browser.page("/models")
    assert re.findall(r'href="/models/([^"?]+)"', page) == there
    assert "secret" not in page
    assert "hidden-domain" not in page


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("q=contr", ["acme/law@1"]),
        ("q=law&base_model=&kind=adapter&method=&domain=++", ["acme/law@2", "acme/law@1"]),
        ("domain=recipes", ["acme/food@1"]),
        ("tag=court+eu", ["acme/law@1"]),
        ("tag=court&tag=eu", ["acme/law@1"]),
        ("kind=soup", ["acme/mix@1"]),
        ("name=acme/food", ["acme/food@1"]),
        ("method=lora", []),
        ("base_model=nothing", []),
        ("base_model=base/tiny&name=acme/food", ["acme/food@1"]),
        ("namespace=other", []),
    ],
)
def test_filters_are_the_apis(browser: PageSession, query: str, expected: list[str]) -> None:
    assert refs(browser, f"/models.json?{query}") == expected
    page = browser.page(f"/models?{query}")
    assert re.findall(r'href="/models/([^"?]+)"', page) == expected
    assert ("No model matches" in page) == (not expected)


def test_a_filter_is_kept_in_the_form_and_on_the_next_page(browser: PageSession) -> None:
    page = browser.page("/models?q=law&kind=adapter&tag=court&limit=1")
    assert 'value="law"' in page
    assert "<option selected>adapter</option>" in page
    place = unescape(re.search(r'rel="next" href="([^"]+)"', page)[1])
    assert refs(browser, place.replace("/models", "/models.json", 1)) == ["acme/law@1"]
    last = browser.page(place)
    assert 'rel="next"' not in last
    assert "First page" in last


@pytest.mark.parametrize("query", ["kind=cake", "cursor=x", "limit=0", "limit=9999", "tag=NO", "tag=a+b+c+d+e+f+g+h+i"])
def test_what_cannot_be_asked_for_is_said_on_a_page(browser: PageSession, query: str) -> None:
    answer = browser.get(f"/models?{query}")
    assert answer.status_code == 400
    assert answer.headers["content-type"].startswith("text/html")
    assert "This did not work" in answer.text
    twin = browser.get(f"/models.json?{query}")
    assert (twin.status_code, twin.json()["error"]["type"]) == (400, "invalid_request_error")


def test_aliases_are_beside_the_version_they_point_at_protected_ones_with_a_lock(browser: PageSession) -> None:
    rows = {model["adapter"]["ref"]: model["aliases"] for model in browser.get("/models.json").json()["data"]}
    assert {ref: aliases for ref, aliases in rows.items() if aliases} == {
        "acme/law@1": [{"alias": "prod", "protected": True}],
        "acme/law@2": [{"alias": "next", "protected": False}],
    }
    page = browser.page("/models?q=contr")
    assert page.count('class="lock"') == 1
    assert "prod (protected: only an admin can move it)" in read(page)


def test_it_says_whether_the_key_may_use_a_model(stocked: World, browser: PageSession) -> None:
    assert {model["use"] for model in browser.get("/models.json").json()["data"]} == {"yes"}
    looks = PageSession(stocked, stocked.key(["read"], ["acme"]))
    assert {model["use"] for model in looks.get("/models.json").json()["data"]} == {"scope"}
    assert "Your key lacks the scope infer" in read(looks.page("/models"))


def test_nothing_that_a_person_wrote_is_markup(browser: PageSession) -> None:
    for page in (browser.page("/models"), browser.page("/models?q=" + "%22%3E%3Cscript%3Ealert(1)%3C/script%3E")):
        assert "54439" not in read(page)
        assert "<script>alert(1)</script>" in unescape(page)  # it is there, as text
    for field in ("q", "base_model", "method", "domain", "namespace", "name", "tag", "kind", "cursor", "limit"):
        browser.get("/models", params={field: HOSTILE})


def test_every_page_forbids_what_it_does_not_need(browser: PageSession) -> None:
    for answer in (browser.get("/models"), browser.get("/models?kind=x"), browser.get("/sign-in")):
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; ")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        expected = {"cache-control": "no-store", "referrer-policy": "same-origin", "x-content-type-options": "nosniff"}
        assert {name: answer.headers[name] for name in expected} == expected


def test_the_gains_of_a_soup_are_in_its_row(browser: PageSession) -> None:
    (soup,) = browser.get("/models.json?kind=soup").json()["data"]
    assert soup["gains"] == pytest.approx([1 - math.exp(0.01), 1 - math.exp(-0.05)])
    assert "4.9 % lower perplexity" in read(browser.page("/models?kind=soup"))
    assert browser.get("/models.json?kind=adapter").json()["data"][0]["gains"] == []


def test_a_soup_shows_the_domains_of_its_ingredients_and_not_its_own(browser: PageSession) -> None:
    rows = {model["adapter"]["ref"]: model["ingredients"] for model in browser.get("/models.json").json()["data"]}
    assert sorted(rows["acme/mix@1"]) == ["law", "recipes"]
    assert rows["acme/law@1"] == []
    assert re.search("Made from (law \\+ recipes|recipes \\+ law)", read(browser.page("/models?kind=soup")))


def test_domains_of_a_namespace_that_the_key_does_not_see_are_left_out(stocked: World) -> None:
    cook_soup(stocked, "open/mix", {"other/secret": 1, "acme/food": 1})
    (row,) = (
        PageSession(stocked, stocked.key(["read"], ["acme", "open"])).get("/models.json?namespace=open").json()["data"]
    )
    assert row["ingredients"] == ["recipes"]


def test_the_best_soup_is_shown_first_but_not_in_a_search(browser: PageSession) -> None:
    assert "Best soup acme/mix@1 has 4.9 % lower perplexity" in read(browser.page("/models"))
    assert "Best soup" not in browser.page("/models?q=mix")


def test_a_first_visit_says_what_to_do(stocked: World) -> None:
    text = read(PageSession(stocked, stocked.key(["read", "write", "infer"], ["fresh"])).page("/models"))
    assert "soup push adapters/* --namespace fresh --wait" in text
    assert "Search" not in text
    assert "you need a key with scope write" in read(
        PageSession(stocked, stocked.key(["read"], ["fresh"])).page("/models")
    )
