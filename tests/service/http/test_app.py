"""The application as a whole: documentation offline, headers, metrics, bodies on every route, serving without keys."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from starlette.datastructures import Headers

from registry.errors import InvalidParameter
from service.http import docs_page
from service.http.security.auth import check_local
from tests.service.answers import refusal_with_code
from tests.service.http.pages.page_session import PageSession
from tests.service.servers import BASE_ID, World, open_world, write_bases


@pytest.fixture(scope="module")
def open_house(tiny_base_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("open")
    bases = write_bases(folder / "bases.toml", {BASE_ID: tiny_base_dir})
    yield from open_world(
        folder / "data",
        bases,
        no_auth=True,
        allowed_hosts=("testserver",),
        docs_public=False,
        max_json_bytes=4096,
        auto_model=False,
    )


# --- documentation --------------------------------------------------------------------------------


def test_the_page_loads_everything_from_here_and_runs_nothing_inline(world: World) -> None:
    page = world.client.get("/docs", headers={"authorization": ""})
    assert page.headers["content-type"].startswith("text/html")
    policy = page.headers["content-security-policy"]
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    links = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(links) >= 4
    for link in (*links, "/openapi.json"):
        assert link.startswith("/"), link
        assert world.client.get(link, headers={"authorization": ""}).status_code == 200, link
    assert re.findall(r"<script(?![^>]*\bsrc=)|\son\w+=|\bstyle=|javascript:", page.text) == []


def test_the_documentation_is_served_without_a_key_if_a_setting_names_its_folder(
    tiny_base_dir: Path, tmp_path: Path, open_house: World
) -> None:
    assert 'href="/docs"' not in open_house.client.get("/models").text
    bases = write_bases(tmp_path / "bases.toml", {BASE_ID: tiny_base_dir})
    (tmp_path / "site" / "docs").mkdir(parents=True)
    (tmp_path / "site" / "index.html").write_text("<h1>AdapterSoup</h1>")
    (tmp_path / "site" / "docs" / "a.html").write_text("<p>A page.</p>")
    for world in open_world(tmp_path / "data", bases, manual=tmp_path / "site", preload=False):
        pages = [
            world.client.get(path, headers={"authorization": ""})
            for path in ("/manual", "/docs/manual", "/docs/manual/docs/a.html")
        ]
        assert [page.text for page in pages] == ["<h1>AdapterSoup</h1>", "<h1>AdapterSoup</h1>", "<p>A page.</p>"]
        assert all("default-src 'none'" in page.headers["content-security-policy"] for page in pages)
        links = re.findall(r'<a href="(/docs[^"]*)">', world.client.get("/sign-in").text)
        assert links == ["/docs/manual/docs/index.html", "/docs"]
        assert world.client.get("/docs/manual/%2e%2e/data/admin.key").status_code == 404
        assert world.client.get("/docs/manual/missing.html").status_code == 404
        assert world.client.get("/manual/law/resolve/main/a", headers={"authorization": ""}).status_code == 401


def test_a_folder_without_documentation_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match=r"\(SOUP_MANUAL\) has no index.html: `make docs` writes one."):
        docs_page.install(FastAPI(), base="tiny", manual=tmp_path)


def test_the_pages_script_reads_our_document(world: World) -> None:
    script = world.client.get("/static/docs.js")
    assert script.headers["content-type"].startswith("text/javascript")
    assert '"/openapi.json"' in script.text
    assert "http" not in script.text


def test_the_page_has_an_authorize_button_for_the_key(world: World) -> None:
    document = world.client.get("/openapi.json").json()
    (scheme,) = document["components"]["securitySchemes"].values()
    assert (scheme["type"], scheme["scheme"]) == ("http", "bearer")
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if path not in {"/healthz", "/readyz", "/metrics"}:
                assert operation.get("security"), (method, path)


def test_every_schema_and_every_operation_is_described(world: World) -> None:
    document = world.client.get("/openapi.json").json()
    for name, schema in document["components"]["schemas"].items():
        assert schema.get("description"), f"{name} has no description"
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation.get("description"), (method, path)


# --- every answer ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [("/healthz", {}, 200), ("/v1/nothing", {}, 404), ("/v1/keys", {"authorization": ""}, 401)],
)
def test_errors_and_answers_carry_an_id_and_the_basic_headers(
    world: World, path: str, headers: dict[str, str], status: int
) -> None:
    answer = world.client.get(path, headers={"x-request-id": "mine-1", **headers})
    assert (answer.status_code, answer.headers["x-request-id"]) == (status, "mine-1")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_metrics_name_no_namespace_and_no_adapter(world: World) -> None:
    world.push("hidden-team/hidden-name")
    world.client.get("/v1/adapters/hidden-team/hidden-name")
    text = world.client.get("/metrics").text
    assert 'route="/v1/adapters/{ns}/{name}"' in text
    assert "hidden" not in text


def test_metrics_need_an_admin_of_all_namespaces(world: World) -> None:
    """They count what all others do."""
    answer = world.client.get("/metrics", headers=world.headers(world.key(["admin"], ["team"])))
    assert "all namespaces" in refusal_with_code(answer, 403, "forbidden")


def test_metrics_documentation_and_pages_are_open_as_settings_say(tiny_base_dir: Path, tmp_path: Path) -> None:
    bases = write_bases(tmp_path / "bases.toml", {BASE_ID: tiny_base_dir})
    settings = {"metrics_public": True, "docs_public": False, "pages": False, "preload": False}
    for world in open_world(tmp_path / "data", bases, **settings):
        assert world.client.get("/metrics", headers={"authorization": ""}).status_code == 200
        with_key = dict.fromkeys(("/docs", "/openapi.json", "/static/docs.js"), 200)
        with_key |= dict.fromkeys(("/", "/models", "/sign-in", "/assets/soup.css"), 404)
        for path, status in with_key.items():
            assert world.client.get(path, headers={"authorization": ""}).status_code == 401
            assert world.client.get(path).status_code == status


def test_a_redirect_leads_to_tls_where_the_request_came_by_it(world: World) -> None:
    answer = world.client.get("/v1/keys/", headers={"x-forwarded-proto": "https"}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (307, "https://testserver/v1/keys")


# --- without keys ---------------------------------------------------------------------------------


def test_without_keys_local_requests_may_do_everything(open_house: World) -> None:
    client = open_house.client
    for answer in (
        client.get("/v1/keys"),
        client.get("/docs"),
        client.post("/v1/completions", json={"model": "tiny", "prompt": "a", "max_tokens": 1}),
        client.get("/v1/models", headers={"origin": "http://testserver"}),
    ):
        assert answer.status_code == 200, answer.text


def test_without_keys_there_is_nothing_to_sign_in_to(open_house: World) -> None:
    browser = PageSession(open_house)
    assert browser.get("/sign-in").headers["location"] == "/"
    assert "Sign out" not in browser.page("/models")
    assert browser.get("/models", headers={"host": "evil.test"}).status_code == 403


@pytest.mark.parametrize("path", ["/v1/keys", "/healthz", "/docs", "/metrics"])
@pytest.mark.parametrize("headers", [{"host": "evil.example"}, {"origin": "null"}, {"x-forwarded-for": "10.1.1.1"}])
def test_without_keys_everything_else_is_refused(open_house: World, headers: dict[str, str], path: str) -> None:
    refusal_with_code(open_house.client.get(path, headers=headers), 403, "forbidden")


def test_pages_of_other_origins_are_let_in_nowhere_unless_a_setting_says_so(world: World) -> None:
    headers = {"origin": "https://app.example.com", "access-control-request-method": "GET"}
    for method in ("GET", "OPTIONS"):
        assert "access-control-allow-origin" not in world.client.request(method, "/v1/models", headers=headers).headers


def test_no_model_is_chosen_for_a_prompt_if_a_setting_says_so(open_house: World) -> None:
    body = {"model": "auto", "prompt": "The court", "max_tokens": 1}
    refusal_with_code(open_house.client.post("/v1/completions", json=body), 404, "not_found")


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "localhost"},
        {"host": "localhost:8000"},
        {"host": "127.0.0.1:8000", "origin": "http://127.0.0.1:8000"},
        {"host": "[::1]:8000"},
        {"host": "LOCALHOST:1"},
        {"host": "127.0.0.1:8000", "connection": "close", "user-agent": "from elsewhere, by a proxy that says nothing"},
    ],
)
def test_local_requests_pass(headers: dict[str, str]) -> None:
    """And what looks like one: SECURITY.md says that no proxy may stand before a server without keys."""
    check_local(Headers(headers), allowed=("localhost", "127.0.0.1", "::1"))
