"""The playground's sliders: the recipe that they write, what is cooked of it, and that it is asked beside its parts."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

import pytest

from registry.names import TEMPORARY
from service.http.pages.slider_recipe import MAX_INGREDIENTS
from tests.browser import Browser
from tests.service.http.pages.looked_at import findings, look_at, signed_in
from tests.service.http.pages.signed import Signed, active, elements, read
from tests.service.servers import Live, World

HOSTILE = '"><script>alert(1)</script> {{7*7777}}'


@pytest.fixture(scope="module")
def stocked(world: World) -> World:
    for seed, name in enumerate(("law", "food", "code"), 1):
        world.push(f"acme/{name}", seed=seed, domain=name)
    world.push("other/secret", seed=9, domain="hidden")
    return world


@pytest.fixture
def browser(stocked: World) -> Signed:
    return Signed(stocked, stocked.key(["read", "write", "infer"], ["acme"]))


def weights(world: World, ref: str) -> dict[str, float]:
    """The weights of a soup by the names of its parts."""
    found = world.client.get(f"/v1/adapters/{ref}/lineage").json()["parents"]
    return {one["ref"]: float(one["weight"]) for one in found}


def test_a_recipe_is_cooked_under_a_temporary_name_and_asked_beside_its_parts(stocked: World, browser: Signed) -> None:
    fields = {"mix-1": "acme/law@1", "weight-1": "3", "mix-2": " acme/food@1 ", "weight-2": "1", "mix-3": ""}
    answer = browser.send("/playground/mix", "/playground", **fields, **{"weight-3": "0.5"})
    assert answer.status_code == 303
    place = urlsplit(answer.headers["location"])
    asked = parse_qs(place.query)
    soup, *beside = asked["model"]
    assert (place.path, beside) == ("/playground", ["acme/law@1", "acme/food@1"])
    assert asked["mix"] == ["acme/law@1*3", "acme/food@1*1"]
    assert soup.startswith(f"acme/{TEMPORARY}")
    assert weights(stocked, soup) == {"acme/law@1": 0.75, "acme/food@1": 0.25}
    page = browser.page(answer.headers["location"])
    assert not active(page)
    values = {at.get("id", ""): at.get("value", "") for tag, at in elements(page) if tag == "input"}
    assert (values["model-1"], values["mix-1"], values["weight-1"], values["slider-2"]) == (
        soup,
        "acme/law@1",
        "3",
        "1.0",
    )
    twin = browser.get(answer.headers["location"].replace("?", ".json?", 1)).json()
    assert twin["mix"] == [{"ref": "acme/law@1", "weight": 3.0}, {"ref": "acme/food@1", "weight": 1.0}]


def test_one_adapter_alone_is_that_adapter(browser: Signed) -> None:
    fields = {"mix-1": "acme/law@1", "weight-1": "0.2", "mix-2": "acme/food", "weight-2": "0"}
    answer = browser.send("/playground/mix", "/playground", **fields)
    asked = parse_qs(urlsplit(answer.headers["location"]).query)
    assert asked["model"] == ["acme/law@1", "acme/food"]


@pytest.mark.parametrize(
    ("fields", "status", "said"),
    [
        ({}, 400, "Name an adapter"),
        ({"mix-1": "acme/law", "weight-1": "0"}, 400, "a weight above zero"),
        ({"mix-1": "a" * 201, "weight-1": "1"}, 400, "at most 200"),
        ({"mix-1": "acme/law", "weight-1": "-1"}, 400, "zero or more"),
        ({"mix-1": "acme/law", "weight-1": "nan"}, 400, "zero or more"),
        ({"mix-1": "acme/law", "weight-1": HOSTILE}, 400, "zero or more"),
        ({"mix-1": HOSTILE, "weight-1": "1"}, 400, "This was not done"),
        ({"mix-1": "acme/nothing", "weight-1": "1"}, 404, "acme/nothing"),
        ({"mix-1": "other/secret", "weight-1": "1"}, 404, "other/secret"),
    ],
)
def test_what_cannot_be_cooked_is_said(browser: Signed, fields: dict[str, str], status: int, said: str) -> None:
    answer = browser.send("/playground/mix", "/playground", **fields)
    assert (answer.status_code, said in read(answer.text)) == (status, True), read(answer.text)
    assert not active(answer.text)


def test_an_address_with_a_recipe_that_is_none_is_refused(browser: Signed) -> None:
    for query in ("mix=acme/law", "mix=*1", "mix=acme/law*x", "&".join(["mix=acme/law*1"] * (MAX_INGREDIENTS + 1))):
        assert browser.get(f"/playground?{query}").status_code == 400, query
        assert browser.get(f"/playground.json?{query}").status_code == 400, query


def test_keys_that_do_not_write_have_no_sliders(stocked: World) -> None:
    uses = Signed(stocked, stocked.key(["infer"], ["acme"]))
    page = uses.page("/playground")
    assert "data-mix" not in page
    sent = {"form": uses.token("/playground"), "mix-1": "acme/law", "weight-1": "1"}
    assert uses.client.post("/playground/mix", data=sent).status_code == 403


def test_a_form_of_another_page_cooks_nothing(stocked: World, browser: Signed) -> None:
    sent = {"form": "0" * 64, "mix-1": "acme/law", "weight-1": "1"}
    assert browser.client.post("/playground/mix", data=sent).status_code == 403


def test_sliders_write_a_recipe_and_the_soup_answers_beside_its_parts(
    chrome: Browser, live: Live, stocked: World
) -> None:
    with signed_in(chrome, live.url, stocked.key(["read", "write", "infer"], ["acme"])) as page:
        look_at(page, "/playground?model=acme/law@1")
        page.open("/playground?model=acme/law@1")
        page.fill("#prompt", "The court ")
        page.evaluate("document.querySelector('#max_tokens').value = '4'")
        page.fill("#mix-1", "acme/code@1")
        page.fill("#mix-2", "acme/food@1")
        page.evaluate("document.querySelector('#slider-1').focus()")
        page.press("ArrowRight", 10)
        assert page.evaluate("document.querySelector('#weight-1').value") == "0.6"
        page.evaluate("document.querySelector('#weight-2').value = ''")
        page.fill("#weight-2", "0.2")
        assert page.evaluate("document.querySelector('#slider-2').value") == "0.2"
        page.evaluate("document.querySelector('[data-cook]').focus()")
        page.press("Enter")
        page.until("document.querySelectorAll('.answers [data-table]:not([hidden])').length === 3")
        soup = page.evaluate("document.querySelector('#model-1').value")
        assert weights(stocked, soup) == {"acme/code@1": 0.75, "acme/food@1": 0.25}
        assert page.text(".answers .reply:nth-child(1) h2") == soup
        assert page.evaluate("document.querySelector('#prompt').value") == "The court "
        for width, dark in ((1280, True), (320, False)):
            page.look(width=width, dark=dark)
            assert findings(page) == []
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.look()
        page.evaluate("document.querySelector('#mix-1').value = ''")
        page.fill("#mix-1", "acme/nothing")
        page.evaluate("document.querySelector('[data-cook]').click()")
        page.until("!document.querySelector('[data-mix] [data-problem]').hidden")
        assert "acme/nothing" in page.text("[data-mix] [data-problem]")
        assert all("404" in one for one in page.said)  # the browser says so of the request
        page.said.clear()
