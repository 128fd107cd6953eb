"""Charts of more marks than the server draws: a map of many domains and a long training curve, in Chromium."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from registry.embeddings_file import save_embeddings
from registry.fit import fit
from registry.progress import silent
from registry.spec import PoolSpec, PosteriorSpec
from service.http.pages import domain_map
from tests.browser import Browser, Page
from tests.service.http.pages.looked_at import look_at, signed_in
from tests.service.http.pages.signed import Signed, active, read
from tests.service.servers import BASE_ID, Live, World

DOMAINS = 52
SETTINGS = {"job_workers": 0}  # no refit beside what is looked at
HOSTILE = '"><script>console.error("ran")</script> {a|b} {{7*7777}}'
LONG = "/models/acme/long@1"
HISTORY = {
    "best_step": 200, "train_history": [[step, 3 + 100 / (step + 40)] for step in range(1, 301)],
    "valid_history": [[step, 3.2 + 90 / (step + 40) + (step / 600) ** 2] for step in range(0, 301, 20)],
}  # fmt: skip
MIDDLES = (
    "[...document.querySelectorAll('.drawn svg path')].map(one => [one, document.querySelector('.drawn')])"
    ".map(both => both.map(one => one.getBoundingClientRect()))"
    ".map(([one, chart]) => `${Math.round(one.x - chart.x)},${Math.round(one.y - chart.y)}`).sort().join()"
)
"""Where the marks are that ECharts has drawn, in the chart."""
DRAWN = "document.querySelector('.drawn svg path')"


@pytest.fixture(scope="module")
def stocked(world: World) -> World:
    """A map of DOMAINS domains, whose samples came as vectors, and an adapter with a long record."""
    encoder = next(one for one in world.runtime.bases[BASE_ID].encoders().values() if one.name == "base")
    draw = np.random.default_rng(1)
    for number in range(DOMAINS):
        centre = draw.normal(size=32)
        vectors = (centre + 0.1 * draw.normal(size=(8, 32))).astype(np.float32)
        file = {"base64": base64.b64encode(save_embeddings(np.tile(vectors, (3, 1)))).decode()}
        sample = {"embeddings": [{"encoder": encoder.digest, "unit": "passage", "file": file}]}
        domain = HOSTILE if number == 0 else f"domain {number:02d}"
        world.push(f"acme/d{number:02d}", seed=number, domain=domain, sample=sample)
    world.push("acme/long", seed=DOMAINS, provenance={"training": HISTORY})
    world.push("acme/short", seed=DOMAINS + 1, provenance={"training": {"valid_history": [[0, 4.0], [9, 3.0]]}})
    pool = PoolSpec(base_fingerprint=world.registry.bases[BASE_ID].shape.fingerprint, namespaces=("acme",))
    fit(world.registry, pool, PosteriorSpec(), encoder_digest=encoder.digest, progress=silent)
    return world


@pytest.fixture(scope="module")
def page(chrome: Browser, stocked: World, live: Live) -> Iterator[Page]:
    with signed_in(chrome, live.url, stocked.key(["read", "write"], ["acme"])) as page:
        yield page


def test_without_a_script_there_are_the_drawing_and_the_table(stocked: World) -> None:
    browser = Signed(stocked, stocked.key(["read"], ["acme"]))
    shown = browser.page("/map")
    assert shown.count("<circle") == 2 * 49  # for wide screens and for narrow ones
    assert "Drawn are the 49 first of 52." in read(shown)
    assert not active(shown)
    twin = re.search(r'data-chart="map" data-twin="([^"]+)"', shown)
    assert twin is not None
    assert len(browser.get(twin[1].replace("&amp;", "&")).json()["places"]) == DOMAINS
    shown = browser.page(LONG)
    assert 'class="line line-0" d="M' in shown
    assert f'data-chart="losses" data-twin="{LONG}.json"' in shown
    assert len(browser.get(f"{LONG}.json").json()["losses"]["training"]) == 300


@pytest.mark.parametrize("path", ["/models/acme/short@1", "/models", "/models/acme/d01@1"])
def test_pages_without_such_a_chart_do_not_load_what_draws_it(stocked: World, path: str) -> None:
    shown = Signed(stocked, stocked.key(["read"], ["acme"])).page(path)
    assert "echarts" not in shown
    assert "charts.js" not in shown


def test_both_are_looked_at(page: Page) -> None:
    for path in ("/map", LONG):
        look_at(page, path, until=DRAWN)


def test_all_domains_are_on_the_map_and_have_their_names_beneath_the_pointer(page: Page) -> None:
    page.open("/map")
    page.until(DRAWN)
    assert "Drawn are all 52" in page.text("figcaption")
    assert "Drawn are the 49" not in page.text("figcaption")
    assert not page.evaluate("[...document.querySelectorAll('svg.map')].some(one => one.checkVisibility())")
    marks = page.evaluate("document.querySelectorAll('.drawn svg path[transform]').length")
    assert marks >= DOMAINS
    box = "document.querySelector('.drawn svg path[transform]').getBoundingClientRect()"
    page.evaluate("document.querySelector('.drawn').scrollIntoView({block: 'center'})")
    x, y = page.evaluate(f"(() => {{ const box = {box}; return [box.x + box.width / 2, box.y + box.height / 2] }})()")
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    page.until("/acme\\/d\\d\\d@1/.test(document.querySelector('.drawn').textContent)")
    assert page.evaluate("document.querySelectorAll('.drawn script').length") == 0


def test_the_keyboard_comes_nearer_and_goes_back(page: Page) -> None:
    page.open("/map")
    page.until(DRAWN)
    before = page.evaluate(MIDDLES)
    page.evaluate("document.querySelector('.steer button').focus()")
    for tabs, name in ((0, "Nearer"), (2, "Left"), (2, "Up")):
        shown = page.evaluate(MIDDLES)
        page.press("Tab", tabs)
        assert page.evaluate("document.activeElement.textContent") == name
        page.press("Enter")
        page.until(f"{MIDDLES} !== {shown!r}")  # it is drawn with the next frame
    page.press("Tab", 2)
    assert page.evaluate("document.activeElement.textContent") == "All of it"
    page.press("Enter")
    page.until(f"{MIDDLES} === {before!r}")


def test_it_is_drawn_anew_in_the_colours_that_a_reader_prefers(page: Page) -> None:
    page.open(LONG)
    page.until(DRAWN)
    colours = "[...document.querySelectorAll('.drawn svg path')].map(one => one.getAttribute('stroke')).join()"
    light = page.evaluate(colours)
    page.look(dark=True)
    page.until(f"{colours} !== {light!r}")
    page.look()
    page.until(f"{colours} === {light!r}")


@contextmanager
def first(page: Page, script: str) -> Iterator[None]:
    """While open, each page runs the script before its own."""
    id = page.call("Page.addScriptToEvaluateOnNewDocument", source=script)["identifier"]
    try:
        yield
    finally:
        page.call("Page.removeScriptToEvaluateOnNewDocument", identifier=id)


def test_where_there_are_more_than_are_drawn_the_most_alike_are_among_them(
    page: Page, stocked: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(domain_map, "MOST_DRAWN", 50)
    keeping = "set: (it) => { real = { init: (...how) => (window.chart = it.init(...how)) }; }"
    with first(page, f"let real; Object.defineProperty(window, 'echarts', {{ get: () => real, {keeping} }});"):
        page.open("/map")
        page.until(DRAWN)
        page.fill("#text", "The court held that the contract was void.")
        page.evaluate("document.querySelector('form.cook').requestSubmit()")
        page.until(f"document.querySelector('#answer') && {DRAWN}")
    alike = page.evaluate("document.querySelector('figure').dataset.alike").split()
    assert len(alike) == 49
    drawn = page.evaluate("chart.getOption().series[0].data.map(one => one.ref)")
    assert len(drawn) == 50
    assert {*drawn} > {*alike}
    assert "Drawn are 50 of 52, among them the 49 most alike" in page.text("figcaption")


@pytest.mark.parametrize("at", ["init", "setOption"])
def test_where_it_cannot_be_drawn_the_drawing_stays_and_no_empty_box(page: Page, at: str) -> None:
    broken = "const fail = () => { window.tried = true; throw new Error('no room'); };"
    broken += "init = fail;" if at == "init" else "init = () => ({ setOption: fail });"
    whole = "Object.defineProperty(window, 'echarts', { get: () => ({ init }), set: () => {} });"
    with first(page, f"let init; {broken} {whole}"):
        page.open("/map")
        page.until("window.tried")
        assert page.evaluate("document.querySelector('.drawn')") is None
        assert page.evaluate("[...document.querySelectorAll('svg.map')].some(one => one.checkVisibility())")
        assert "Drawn are the 49 first of 52." in page.text("figcaption")


def test_where_the_numbers_do_not_come_the_drawing_stays(page: Page, stocked: World) -> None:
    page.open(LONG)
    page.until(DRAWN)
    refuse = "window.fetch = () => { window.asked = true; return Promise.reject(new Error('away')) };"
    with first(page, refuse):
        page.open(LONG)
        page.until("window.asked")
        assert page.evaluate("[...document.querySelectorAll('svg.chart')].some(one => one.checkVisibility())")
        assert page.evaluate("document.querySelector('.drawn')") is None
