"""Deny by default, page by page: without a session, and with one of another namespace or of too small a scope."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote_plus

import pytest
from starlette.routing import Route

from registry.names import RESERVED_NAMESPACES
from service.http.app import ROUTES
from service.http.pages.cookies import STALE_FORM
from service.http.pages.site import PAGES
from tests.service.http.pages.page_session import PageSession
from tests.service.http.stock import cook_soup, fit_selector, push_embedded
from tests.service.servers import World

UNKNOWN = {
    "ns": "nobody",
    "name": "unknown-name",
    "id": "job-0000000000000000",
    "file": "README.md",
    "table": "weights",
    "plot": "lineage",
}
OPEN = {("GET", "/sign-in"), ("POST", "/sign-in"), ("GET", "/assets/{name}")}
ANYBODY = {("POST", "/sign-in/out")}
"""Every key may sign out."""
OWN = {("POST", "/push/uploads")}
"""Operations that give whoever may write something new of their own, and name nothing that is there."""
ASKING = {
    "/",
    *("/playground", "/playground.json", "/playground/events", "/playground/mix"),
    *("/usage", "/usage.json", "/usage.csv", "/usage/plot.svg"),
}
"""For keys with the scope `infer`, too; all others take another."""


def operations() -> list[tuple[str, str]]:
    """Every (method, path template) of the pages."""
    routes = [route for router in PAGES for route in router.routes if isinstance(route, Route)]
    return sorted((method, route.path) for route in routes for method in route.methods or () if method != "HEAD")


def filled(path: str, values: dict[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: values[match.group(1)], path)


@pytest.fixture(scope="module")
def there(world: World) -> dict[str, str]:
    """Values for the parameters of a path: a soup, and a job, of the namespace `foreign`."""
    for number, name in enumerate(("one", "two")):
        world.push(f"foreign/{name}", seed=number, domain="confidential")
    for name, text in (("three", "The court held number {}."), ("four", "Heat the oil, add {} onions.")):
        texts = [text.format(number) for number in range(25)]
        push_embedded(world, f"foreign/{name}", texts, seed=len(name), domain=f"confidential {name}")
    fit_selector(world, namespace="foreign")
    cook_soup(world, "foreign/mix", {"foreign/one": 1, "foreign/two": 1})
    return {**UNKNOWN, "ns": "foreign", "name": "mix@1", "id": world.client.get("/v1/jobs").json()["data"][0]["id"]}


def answer_to(browser: PageSession, method: str, path: str, fields: dict[str, str] | None = None) -> Any:
    sent: dict[str, Any] = {}
    if method == "POST":
        data = {"form": browser.form_token, "sample": "x", **(fields or {})}
        sent = {"json": {}} if path == "/push/uploads" else {"data": data}
    if method != "GET":
        sent["headers"] = {"soup-form": browser.form_token}
    jar = browser.client.cookies.jar
    cookies = list(jar)
    answer = browser.client.request(method, path, **sent)
    for cookie in cookies:  # a refusal may have the browser give its session up
        jar.set_cookie(cookie)
    return answer


def test_pages_take_no_path_of_the_api() -> None:
    pages = [route for router in PAGES for route in router.routes if isinstance(route, Route)]
    assert len(pages) >= 20
    for path in {route.path for module in ROUTES for route in module.router.routes if isinstance(route, Route)}:
        assert not [page.path for page in pages if page.path_regex.match(re.sub(r"\{\w+\}", "x", path))]
    assert "models" in RESERVED_NAMESPACES


def test_whoever_is_not_signed_in_sees_nothing(world: World, there: dict[str, str]) -> None:
    browser = PageSession(world)
    for method, path in operations():
        if (method, path) in OPEN:
            continue
        for_programs = path.endswith((".json", ".csv", ".svg", "/events")) or path.startswith("/push/")
        for values in (there, UNKNOWN):
            answer = answer_to(browser, method, filled(path, values))
            assert answer.status_code == (401 if for_programs else 303), (method, path)
            assert for_programs or answer.headers["location"].startswith("/sign-in")
            assert "confidential" not in answer.text


def test_no_form_is_taken_without_the_token_of_this_browser_or_from_another_site(world: World) -> None:
    browser = PageSession(world, world.admin)
    foreign = {"sec-fetch-site": "cross-site"}
    for method, path in operations():
        if method == "GET" or (method, path) in OPEN:
            continue
        for token, headers in (("0" * 64, {}), (browser.form_token, foreign)):
            sent = {"soup-form": token, "content-type": "application/x-www-form-urlencoded", **headers}
            answer = browser.client.request(method, filled(path, UNKNOWN), content=f"form={token}", headers=sent)
            text = answer.text.replace("&#39;", "'")
            assert (answer.status_code, STALE_FORM in text or "of another site" in text) == (403, True), (method, path)


KEYS: dict[str, tuple[list[str], list[str]]] = {
    "of another namespace": (["read", "write", "infer"], ["ours"]),
    "an admin of another namespace": (["admin"], ["ours"]),
    "too small a scope": (["infer"], ["foreign"]),
}


@pytest.mark.parametrize("kind", ["of another namespace", "an admin of another namespace"])
def test_what_a_query_or_a_form_names_leaks_nothing_either(world: World, there: dict[str, str], kind: str) -> None:
    """Models and selectors that are another's, as those that are not."""
    browser = PageSession(world, world.key([*KEYS[kind][0], "read", "infer"], KEYS[kind][1]))
    with world.registry.database.read() as catalogue:
        fitted = [row.id for row in catalogue.selectors.list(None, limit=10).rows]
    assert fitted, "there is no selector to ask for"
    for path in ("/compare", "/compare.json", "/compare/facts.csv"):
        for query in ("model={}", "model=base/tiny&model={}"):
            texts = [
                _plain(browser.get(f"{path}?{query.format(model)}").text, {"model": model, "quoted": quote_plus(model)})
                for model in ("foreign/mix@1", "nobody/unknown-name")
            ]
            assert texts[0] == texts[1], (path, query)
    by_selector = [f"{path}?selector={{id}}" for path in ("/map", "/map.json", "/map/places.csv")]
    for path in (*by_selector, "/selectors/{id}", "/selectors/{id}.json", "/selectors/{id}/members.csv"):
        texts = [
            _plain(browser.get(path.replace("{id}", selector)).text, {"selector": selector})
            for selector in (*fitted, "sel-" + "0" * 16)
        ]
        assert len(set(texts)) == 1, path
    for path in ("/playground", "/playground/events", "/compare"):
        answers = []
        for model in ("foreign/mix@1", "nobody/unknown-name"):
            first = model if path == "/playground/events" else "base/tiny"
            fields = {"model-1": first, "model-2": model, "prompt": "x", "text": "x", "max_tokens": "1", "seed": "1"}
            answer = answer_to(browser, "POST", path, fields)
            answers.append((answer.status_code, _plain(answer.text, {"model": model, "quoted": quote_plus(model)})))
        assert answers[0] == answers[1], path


@pytest.mark.parametrize("kind", KEYS)
def test_every_page_with_every_kind_of_key_leaks_nothing(world: World, there: dict[str, str], kind: str) -> None:
    """Pages answer alike for what is another's and for what does not exist, in status and in text."""
    browser, leaks = PageSession(world, world.key(*KEYS[kind])), []
    for method, path in operations():
        if (method, path) in OPEN | ANYBODY:
            continue
        here, nowhere = (answer_to(browser, method, filled(path, values)) for values in (there, UNKNOWN))
        texts = [_plain(answer.text, there, UNKNOWN) for answer in (here, nowhere)]
        wrong = here.status_code != nowhere.status_code or "confidential" in here.text
        wrong |= texts[0] != texts[1] and (method, path) not in OWN
        wrong |= "{" in path and here.status_code < 400
        wrong |= STALE_FORM in here.text or STALE_FORM in nowhere.text  # the key was refused, and not the form
        wrong |= kind == "too small a scope" and (here.status_code == 403) == (path in ASKING)
        leaks += [(method, path, here.status_code, nowhere.status_code)] * wrong
    assert not leaks


def _plain(text: str, *named: dict[str, str]) -> str:
    """A page without what was asked for, and without what differs in every answer."""
    for name, value in (pair for values in named for pair in values.items()):
        text = text.replace(value, f"<{name}>")
    text = re.sub(r'<td class="last-used">.*?</td>', "<last used>", text)  # written meanwhile
    return re.sub(r"\b[0-9a-f]{32}\b|\b[0-9a-f]{64}\b|job-[0-9a-f]+", "<new>", text)
