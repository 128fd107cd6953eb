"""The pages of usage, keys, audit and engine: what they show is what the API answers, and forms do what it does."""

from __future__ import annotations

import csv
import re
from unittest.mock import Mock

import pytest

from registry.errors import Busy
from tests.service.http.pages.page_session import HOSTILE, PageSession, check_says, read
from tests.service.servers import World


@pytest.fixture(scope="module")
def stocked(world: World) -> World:
    world.push("acme/law", seed=1, domain="law")
    world.push("other/secret", seed=2, domain="hidden-domain")
    for model in ("acme/law@1", "base/tiny", "other/secret"):
        body = {"model": model, "prompt": "The court", "max_tokens": 3}
        assert world.client.post("/v1/completions", json=body).status_code == 200
    return world


@pytest.fixture
def admin(stocked: World) -> PageSession:
    return PageSession(stocked, stocked.admin)


@pytest.fixture
def of_acme(stocked: World) -> PageSession:
    """An admin of one namespace."""
    return PageSession(stocked, stocked.key(["admin"], ["acme"]))


# --- usage -----------------------------------------------------------------------------------------------


def test_usage_is_what_the_api_counts(stocked: World, admin: PageSession) -> None:
    there = stocked.client.get("/v1/usage", params={"by": "model"}).json()
    assert admin.get("/usage.json?by=model").json()["data"] == there["data"]
    page = admin.page("/usage?by=model")
    assert "acme/law@1" in page
    (texts,) = admin.plots(page)
    assert {"tokens read", "tokens written", "acme/law@1"} <= texts
    assert f"{there['total']['tokens_out']} written" in read(page)
    rows = list(csv.DictReader(admin.get("/usage.csv?by=model").text.splitlines()))
    assert sum(int(row["tokens_out"]) for row in rows) == there["total"]["tokens_out"]


def test_what_a_form_leaves_empty_is_not_asked_for(admin: PageSession) -> None:
    assert "By" in read(admin.page("/usage?by=&since=&until="))
    assert "When" in read(admin.page("/audit?action=&subject=&namespace=&key_id=&since=&until="))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/usage?by=week", "'by': input should be 'day'"),
        ("/usage?since=yesterday", "'since': must be a day as YYYY-MM-DD"),
        ("/audit?until=x", "'until'"),
    ],
)
def test_what_cannot_be_asked_is_said(admin: PageSession, path: str, message: str) -> None:
    check_says(admin.get(path), 400, message)


# --- audit -----------------------------------------------------------------------------------------------


def test_the_audit_is_filtered_as_the_api_filters_it(stocked: World, admin: PageSession) -> None:
    there = stocked.client.get("/v1/audit", params={"action": "adapter."}).json()["data"]
    assert there
    assert admin.get("/audit.json?action=adapter.").json()["data"] == there
    page = admin.page("/audit?action=adapter.&since=2020-01-01")
    assert "acme/law@1" in page
    assert 'value="2020-01-01"' in page
    assert "No matching entries" in admin.page("/audit?until=2020-01-01")
    assert "No matching entries" in admin.page("/audit?action=" + 100 * "k")  # longer than any
    assert admin.get("/audit.csv?action=adapter.").text.startswith("at,action,subject")


# --- keys ------------------------------------------------------------------------------------------------


def secret_of(page: str) -> str:
    return re.findall(r"<code>(sk-soup-[\w-]+)</code>", page)[0]


def test_a_key_is_made_changed_and_revoked(stocked: World, admin: PageSession) -> None:
    fields = {"name": HOSTILE, "scope-read": "yes", "scope-infer": "yes", "namespaces": "acme, team"}
    secret = secret_of(admin.send("/keys", "/keys", **fields, expires="2030-01-31").text)
    (key,) = [key for key in stocked.client.get("/v1/keys").json()["data"] if key["name"] == HOSTILE]
    assert (key["scopes"], key["namespaces"]) == (["infer", "read"], ["acme", "team"])
    assert key["expires_at"].startswith("2030-01-31T00:00:00")
    assert PageSession(stocked, secret).get("/models").status_code == 200
    assert secret not in admin.page("/keys")
    assert secret not in admin.get("/keys.json").text
    new_secret = secret_of(admin.send(f"/keys/{key['id']}/rotate", "/keys", grace="yes").text)
    for valid_secret in (secret, new_secret):  # the old one goes on for a day
        assert stocked.client.get("/v1/adapters", headers=stocked.headers(valid_secret)).status_code == 200
    last = secret_of(admin.send(f"/keys/{key['id']}/rotate", "/keys").text)
    assert stocked.client.get("/v1/adapters", headers=stocked.headers(secret)).status_code == 401
    check_says(admin.send(f"/keys/{key['id']}/revoke", "/keys", name="something"), 400, "not that of the key")
    assert stocked.client.get("/v1/adapters", headers=stocked.headers(last)).status_code == 200
    assert admin.send(f"/keys/{key['id']}/revoke", "/keys", name=HOSTILE).status_code == 303
    assert stocked.client.get("/v1/adapters", headers=stocked.headers(last)).status_code == 401
    assert "✕ revoked" in admin.page("/keys")


def test_many_keys_are_several_pages(stocked: World, admin: PageSession) -> None:
    names = [f"paged {number}" for number in range(3)]
    for name in names:
        stocked.client.post("/v1/keys", json={"name": name, "scopes": ["read"], "namespaces": ["acme"]})
    path, html = "/keys?limit=1", ""
    while path:
        page = admin.page(path)
        html += page
        following = re.search(r'<a rel="next" href="([^"]+)">Newer</a>', page)
        path = "" if following is None else following[1].replace("&amp;", "&")
    assert all(html.count(f"<strong>{name}</strong>") == 1 for name in names)
    (last,) = [key for key in stocked.client.get("/v1/keys").json()["data"] if key["name"] == names[-1]]
    assert admin.send(f"/keys/{last['id']}/revoke", "/keys?limit=1", name=names[-1]).status_code == 303


def test_a_secret_is_shown_also_where_the_list_cannot_be_read(
    stocked: World, admin: PageSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = admin.token("/keys")
    monkeypatch.setattr("service.http.pages.keys.list_keys", Mock(side_effect=Busy("Later.", retry_after=1)))
    fields = {"form": token, "name": "made", "scope-read": "yes", "namespaces": "acme"}
    answer = admin.client.post("/keys", data=fields)
    assert stocked.client.get("/v1/adapters", headers=stocked.headers(secret_of(answer.text))).status_code == 200
    assert admin.get("/keys").status_code == 429


def test_a_key_may_see_a_thousand_namespaces_and_be_called_with_blanks(stocked: World, admin: PageSession) -> None:
    names = " ".join(f"team-{number}" for number in range(1000))
    assert admin.send("/keys", "/keys", **{"name": "wide", "scope-read": "yes", "namespaces": names}).status_code == 200
    key = stocked.client.post("/v1/keys", json={"name": " x ", "namespaces": ["acme"], "scopes": ["read"]}).json()
    assert admin.send(f"/keys/{key['id']}/revoke", "/keys", name=" x ").status_code == 303


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "x", "scope-read": "yes"}, "Name the namespaces"),
        ({"name": "x", "scope-read": "yes", "namespaces": "acme", "all": "yes"}, "not both"),
        ({"name": "x", "namespaces": "acme"}, "scopes"),
        ({"name": "", "scope-read": "yes", "all": "yes"}, "name"),
        ({"name": "x", "scope-read": "yes", "all": "yes", "expires": "2020-01-01"}, "must be in the future"),
        ({"name": "x", "scope-read": "yes", "namespaces": "UP PER"}, "namespaces"),
    ],
)
def test_what_cannot_be_made_is_said_above_the_form(admin: PageSession, fields: dict[str, str], message: str) -> None:
    count_before = len(admin.get("/keys.json").json()["data"])
    answer = admin.send("/keys", "/keys", **fields)
    check_says(answer, 400, message)
    assert "sk-soup-" not in re.sub(r"sk-soup-[\w-]+…", "", answer.text)
    assert len(admin.get("/keys.json").json()["data"]) == count_before


# --- the engine ------------------------------------------------------------------------------------------


def test_the_engine_shows_what_it_did_to_those_who_see_the_whole_server(
    admin: PageSession, of_acme: PageSession
) -> None:
    by_model = {adapter["model"]: adapter for adapter in admin.get("/engine.json").json()["adapters"]}
    assert by_model["acme/law@1"]["generated_tokens"] == 3
    assert by_model["acme/law@1"]["answer_seconds"] > 0
    assert by_model["base models alone"]["answers"] >= 1
    page = admin.page("/engine")
    assert "acme/law@1" in page
    assert "Adapters in memory" in page
    assert admin.get("/engine/adapters.csv").text.count("\n") == len(by_model) + 1
    for path in ("/engine", "/engine.json", "/engine/adapters.csv"):
        assert of_acme.get(path).status_code == 403, path


def test_the_menu_has_the_pages_that_a_key_may_see(stocked: World, admin: PageSession, of_acme: PageSession) -> None:
    reader = PageSession(stocked, stocked.key(["read"], ["acme"]))
    for page, places in {
        "/models": ("/push", "/cook", "/playground"),
        "/usage": ("/keys", "/audit", "/engine"),
    }.items():
        text, of_reader = admin.page(page), reader.page(page)
        for place in places:
            assert f'href="{place}"' in text
            assert f'href="{place}"' not in of_reader
    assert 'href="/compare"' in reader.page("/models")
    assert 'href="/compare"' not in reader.page("/usage")
    assert 'href="/keys"' in of_acme.page("/usage")
    assert 'href="/engine"' not in of_acme.page("/usage")
