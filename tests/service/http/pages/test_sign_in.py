"""Signing in and out: what the browser holds, which forms are taken, and what ends a session."""

from __future__ import annotations

import re
from typing import Any

import pytest

from service.http.pages.sign_in import path_after_sign_in
from tests.service.answers import refusal_with_code
from tests.service.http.pages.page_session import TOKEN, PageSession, read
from tests.service.servers import World

WRONG = "sk-soup-" + "0" * 43


@pytest.fixture(scope="module")
def reader(world: World) -> str:
    return world.key(["read"], ["acme"])


def test_whoever_has_not_signed_in_goes_to_where_one_does(world: World) -> None:
    browser = PageSession(world)
    for path, place in {
        "/": "/sign-in",
        "/models": "/sign-in?next=%2Fmodels",
        "/models?q=law&tag=a": "/sign-in?next=%2Fmodels%3Fq%3Dlaw%26tag%3Da",
    }.items():
        answer = browser.get(path)
        assert (answer.status_code, answer.headers["location"]) == (303, place)
        assert answer.headers["cache-control"] == "no-store"
    assert browser.get("/models.json").status_code == 401
    scripted = browser.get("/models?q=law", headers={"hx-request": "true"})
    assert (scripted.status_code, scripted.headers["hx-redirect"]) == (401, "/sign-in?next=%2Fmodels%3Fq%3Dlaw")


LOOKING = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
"""The types that a browser says it takes."""


@pytest.mark.parametrize("path", ["/nothing", "/models/law", "/v1/nothing", "/acme/law/resolve", "/nothing.json"])
def test_a_browser_is_told_in_a_page_that_there_is_nothing(world: World, reader: str, path: str) -> None:
    stranger, signed = PageSession(world), PageSession(world, reader)
    for browser, on, place in ((stranger, "Sign in", "/sign-in"), (signed, "Go to the first page", "/")):
        answer = browser.get(path, headers=LOOKING)
        assert (answer.status_code, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        assert "There is nothing at this path." in read(answer.text)
        assert f'<a href="{place}">{on}</a>' in answer.text
        assert (">Models</a>" in answer.text) == (browser is signed)
        assert browser.client.head(path, headers=LOOKING).status_code == 404


def test_programs_are_told_as_before_that_there_is_nothing(world: World, reader: str) -> None:
    browser, key = PageSession(world, reader), {"authorization": f"Bearer {reader}"}
    for path, headers, status, code in (
        ("/nothing", {}, 401, "unauthenticated"),
        ("/nothing", key, 404, "not_found"),
        ("/nothing", key | LOOKING, 404, "not_found"),
        ("/v1/adapters", LOOKING, 401, "unauthenticated"),  # no session's
        ("/v1/adapters/acme/law", key | LOOKING, 404, "not_found"),
    ):
        refusal_with_code(browser.get(path, headers=headers), status, code)
    assert browser.client.post("/nothing", headers=LOOKING).json()["error"]["code"] == "unauthenticated"


def test_signing_in_goes_on_to_where_one_was_going(world: World, reader: str) -> None:
    browser = PageSession(world)
    answer = browser.sign_in(reader, next="/models?q=law")
    assert (answer.status_code, answer.headers["location"]) == (303, "/models?q=law")
    assert "acme" in read(browser.page("/models"))
    assert browser.get("/").headers["location"] == "/models"
    for scope, place in (("infer", "/playground"), ("write", "/usage"), ("admin", "/models")):
        scoped = PageSession(world, world.key([scope], ["acme"]))
        assert scoped.get("/").headers["location"] == place
        assert scoped.get(place).status_code == 200


def test_the_cookie_is_not_the_key_and_no_script_or_other_site_gets_it(world: World, reader: str) -> None:
    cookie = PageSession(world).sign_in(reader).headers["set-cookie"]
    assert re.fullmatch(r"soup-session=([\w-]{43}); HttpOnly; Path=/; SameSite=strict", cookie) is not None, cookie
    assert reader not in cookie
    assert reader[8:20] not in cookie


FOREIGN = [
    'prefs={"a": 1}',
    'prefs="a, b"',
    "a b=c",
    "=; ;;",
    "soup-session=; soup-session=short; soup-form=short",
    f"soup-session-other={'x' * 43}; xsoup-session={'x' * 43}",
    'a="' + "\\\\" * 15_000 + '"',
]


@pytest.mark.parametrize("foreign", FOREIGN, ids=lambda text: text[:12])
def test_cookies_of_others_on_the_host_change_nothing_and_are_not_unquoted(
    world: World, reader: str, foreign: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unquoting takes time quadratic in its input, and one cookie that it cannot read ends it."""

    def unquoted(text: str) -> str:
        assert re.fullmatch(r"[\w-]{43}", text), f"{len(text)} bytes of another's cookie were unquoted"
        return text

    monkeypatch.setattr("http.cookies._unquote", unquoted)
    page = PageSession(world).get("/sign-in")
    form_cookie, token = page.headers["set-cookie"].partition(";")[0], TOKEN.search(page.text)
    fields, cookies = {"form": token[1], "key": reader}, {"cookie": f"{foreign}; {form_cookie}"}
    answer = PageSession(world).client.post("/sign-in", data=fields, headers=cookies)
    assert answer.status_code == 303, read(answer.text)
    session = answer.headers["set-cookie"].partition(";")[0]
    for cookies in (f"{foreign}; {session}", f"{session}; {foreign}"):
        assert PageSession(world).get("/models", headers={"cookie": cookies}).status_code == 200
    for path in ("/healthz", "/v1/jobs"):  # the framework looks at the cookies of every route
        assert world.client.get(path, headers={"cookie": foreign}).status_code == 200


@pytest.mark.parametrize("headers", [{"x-forwarded-proto": "https"}, {"x-forwarded-proto": "HTTPS, http"}, {}])
def test_behind_tls_cookies_go_by_tls_and_are_this_hosts_alone(world: World, reader: str, headers: Any) -> None:
    secure = PageSession(world, base_url="https://soup.test" if not headers else "http://soup.test", headers=headers)
    page = secure.get("/sign-in")
    assert page.headers["set-cookie"].startswith("__Host-soup-form=")
    assert "; Secure" in page.headers["set-cookie"]
    token = re.search(r'name="form" value="(\w+)"', page.text)
    form_cookie = page.headers["set-cookie"].partition(";")[0]
    answer = secure.client.post("/sign-in", data={"form": token[1], "key": reader}, headers={"cookie": form_cookie})
    assert answer.headers["set-cookie"].startswith("__Host-soup-session=")
    assert "; Secure" in answer.headers["set-cookie"]


def test_a_key_that_is_none_is_told_so_and_never_shown_again(world: World) -> None:
    browser = PageSession(world)
    for secret in (WRONG, "", "hunter2", '"><script>alert(1)</script>', "sk-soup-" + "é" * 43):
        answer = browser.sign_in(secret)
        assert answer.status_code == 401
        assert "set-cookie" not in answer.headers
        assert 'role="alert"' in answer.text
        assert not secret or secret not in answer.text
    world.runtime.key_watch.write()
    refused = world.client.get("/v1/audit", params={"action": "key.refuse", "limit": 1}).json()["data"][0]
    assert refused["detail"]["reason"] == "unknown"


def test_signing_out_ends_the_session_everywhere(world: World, reader: str) -> None:
    browser = PageSession(world, reader)
    session = browser.client.cookies["soup-session"]
    answer = browser.send("/sign-in/out", "/models")
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in")
    assert 'soup-session=""; HttpOnly; Max-Age=0' in answer.headers["set-cookie"]
    assert PageSession(world).get("/models", headers={"cookie": f"soup-session={session}"}).status_code == 303


def test_a_revoked_key_ends_its_session_with_the_next_request(world: World) -> None:
    key = world.client.post("/v1/keys", json={"name": "k", "scopes": ["read"], "namespaces": ["acme"]}).json()
    browser = PageSession(world, key["secret"])
    browser.page("/models")
    world.client.delete(f"/v1/keys/{key['id']}")
    assert browser.get("/models").headers["location"] == "/sign-in?next=%2Fmodels"
    assert "soup-session" not in browser.client.cookies  # it has given up what is worth nothing
    assert browser.get("/models.json").status_code == 401


def test_a_new_secret_ends_the_sessions_although_the_old_one_still_signs_in(world: World) -> None:
    key = world.client.post("/v1/keys", json={"name": "k", "scopes": ["read"], "namespaces": ["acme"]}).json()
    browser = PageSession(world, key["secret"])
    assert world.client.post(f"/v1/keys/{key['id']}/rotate", json={"grace_seconds": 3600}).status_code == 200
    assert browser.get("/models").headers["location"] == "/sign-in?next=%2Fmodels"
    PageSession(world, key["secret"]).page("/models")


def test_forms_of_other_sites_are_refused(world: World, reader: str) -> None:
    browser = PageSession(world, reader)
    token, foreign_token = browser.token("/models"), PageSession(world, reader).token("/models")
    wrong = {
        "no token": ({}, {}),
        "an empty one": ({"form": ""}, {}),
        "another session's": ({"form": foreign_token}, {}),
        "from another site": ({"form": token}, {"sec-fetch-site": "cross-site"}),
        "from a neighbour": ({"form": token}, {"sec-fetch-site": "same-site"}),
        "from another origin": ({"form": token}, {"origin": "https://evil.test"}),
        "from nowhere": ({"form": token}, {"origin": "null"}),
    }
    for kind, (fields, headers) in wrong.items():
        headers = {"content-type": "application/x-www-form-urlencoded", **headers}
        answer = browser.client.post("/sign-in/out", data=fields, headers=headers)
        assert answer.status_code == 403, kind
        assert "This did not work" in answer.text
    ours = {"sec-fetch-site": "same-origin", "origin": "http://testserver"}
    assert browser.client.post("/sign-in/out", data={"form": token}, headers=ours).status_code == 303


def test_a_page_of_another_site_cannot_sign_a_browser_in(world: World, reader: str) -> None:
    """Who looks at the pages of an attacker's key may tell it what is not the attacker's."""
    elsewhere = PageSession(world).token("/sign-in")
    answer = PageSession(world).client.post("/sign-in", data={"form": elsewhere, "key": reader})
    assert answer.status_code == 403
    assert "soup-session" not in answer.headers.get("set-cookie", "")


PLACES = ("/models", "/models?q=a%20b&tag=x", "/models/acme/law@2")


@pytest.mark.parametrize(
    "text",
    [
        *("https://evil.test/", "//evil.test/models", "/\\evil.test", "////evil.test", "javascript:alert(1)", "models"),
        *("/sign-in", "/sign-in/out", "/models\r\nx: y", "/models#x\x00", "/mod\u00e9", "/" + "a" * 3000),
        *("", "http:///models", *PLACES),
    ],
)
def test_signing_in_leads_to_this_server_alone(text: str) -> None:
    assert path_after_sign_in(text) == (text if text in PLACES else "/")
