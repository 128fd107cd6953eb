"""Deny by default: every route, without a key, with a revoked key, without its scope, and from another namespace."""

from __future__ import annotations

import importlib
import pkgutil
import re
from typing import Any

import pytest
from fastapi import APIRouter

import service.http
from service.http.app import ROUTES
from tests.service.servers import World

PUBLIC = {("GET", "/healthz"), ("GET", "/readyz")}
OPEN_TO_KEYS = {("GET", "/v1/usage")}
"""Every key may ask, and hears of itself."""
PUBLIC_PAGES = ["/docs", "/openapi.json", "/static/docs.js", "/static/swagger/swagger-ui.css"]
DIGEST = "sha256:" + "0" * 64
VALUES = {
    "digest": DIGEST,
    "id": "sel-0000000000000000",
    "ns": "foreign",
    "name": "secret-one",
    "alias": "best",
    "file": "README.md",
}


def operations(world: World) -> list[tuple[str, str]]:
    """Every (method, path template) of the schema, and the routes that are not in it."""
    found = [(method.upper(), path) for path, methods in world.app.openapi()["paths"].items() for method in methods]
    assert len(found) > 30
    return found


def filled(path: str) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: VALUES[match.group(1)], path)


def call(world: World, method: str, path: str, headers: dict[str, str]) -> Any:
    return world.client.request(method, filled(path), headers={"authorization": "", **headers})


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer sk-soup-" + "0" * 43,
        "Bearer null",
        "Basic YWRtaW46YWRtaW4=",
    ],
)
def test_without_a_key_everything_but_health_is_401(world: World, header: str) -> None:
    for method, path in operations(world):
        answer = call(world, method, path, {"authorization": header})
        if (method, path) in PUBLIC:
            assert answer.status_code != 401, path
            continue
        assert answer.status_code == 401, (method, path, answer.status_code)
        assert answer.headers["www-authenticate"] == "Bearer"
        if method != "HEAD":
            assert answer.json()["error"]["code"] == "unauthenticated"


def test_with_a_revoked_key_everything_is_401(world: World) -> None:
    made = world.client.post("/v1/keys", json={"name": "k", "namespaces": None, "scopes": ["admin"]}).json()
    world.client.delete(f"/v1/keys/{made['id']}")
    for method, path in operations(world):
        if (method, path) not in PUBLIC:
            answer = call(world, method, path, world.headers(made["secret"]))
            assert answer.status_code == 401, (method, path)


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/docs", "/openapi.json", "/static/docs.js"])
def test_public_paths_are_public_to_read_only(world: World, path: str) -> None:
    """A body sent there without a key is refused before it is gathered."""
    assert world.client.post(path, headers={"authorization": ""}, content=b"x").status_code == 401
    assert world.client.post(path, content=b"x").status_code == 405


def test_paths_that_do_not_exist_are_401_too(world: World) -> None:
    for path in ("/v1/nothing", "/admin", "/v1/adapters/", "//healthz", "/healthz/", "/static/../v1/keys", "/docs/x"):
        answer = world.client.get(path, headers={"authorization": ""}, follow_redirects=False)
        assert answer.status_code in {401, 404}, (path, answer.status_code)
        assert "adapters" not in answer.text


NEEDED: dict[str, set[str]] = {
    "/v1/keys": {"admin"},
    "/v1/audit": {"admin"},
    "/metrics": {"admin"},
    "/v1/models": {"infer", "read"},
    "/v1/perplexity": {"infer"},
    "/v1/completions": {"infer"},
    "/v1/chat": {"infer"},
    "/v1/embeddings": {"infer"},
    "/tokenize": {"infer"},
    "/detokenize": {"infer"},
    "/tokenizer_info": {"infer"},
}


def test_a_key_without_any_needed_scope_is_403(world: World) -> None:
    """Whatever a route needs, some single scope must be refused on it, and the ones listed here exactly."""
    keys = {scope: world.headers(world.key([scope])) for scope in ("read", "write", "infer")}
    for method, path in operations(world):
        if (method, path) in PUBLIC | OPEN_TO_KEYS:
            continue
        refused = {scope for scope, headers in keys.items() if call(world, method, path, headers).status_code == 403}
        assert refused, (method, path, "no scope is refused")
        for start, needed in NEEDED.items():
            if path == start or path.startswith(start + "/"):
                assert refused == set(keys) - needed, (method, path, refused)


def test_another_namespaces_objects_are_as_good_as_unknown(world: World) -> None:
    """Every route with a name in it answers the same for a foreign object and for one that is not there."""
    pushed = world.push("foreign/secret-one")
    outsider = world.headers(world.key(["read", "write", "infer"], ["ours"]))
    named = [(method, path) for method, path in operations(world) if "{ns}" in path]
    assert len(named) > 5
    for method, path in named:
        body = {"card": {}} if method == "PATCH" else {"version": 1} if method == "PUT" else None
        here = world.client.request(method, filled(path), headers=outsider, json=body)
        nowhere = world.client.request(
            method, filled(path).replace("secret-one", "unknown-1"), headers=outsider, json=body
        )
        assert here.status_code in {403, 404}, (method, path, here.status_code)
        assert here.status_code == nowhere.status_code, (method, path)
        assert here.text.replace("secret-one", "unknown-1") == nowhere.text.replace("secret-one", "unknown-1"), (
            method,
            path,
        )
    for path in (f"/v1/adapters/{pushed['digest']}", f"/v1/models/{pushed['digest']}"):
        assert world.client.get(path, headers=outsider).status_code == 404
    assert world.client.get(f"/v1/blobs/{pushed['weights_blob']}", headers=outsider).status_code == 404
    assert world.client.get("/v1/adapters", headers=outsider).json()["data"] == []
    models = world.client.get("/v1/models", headers=outsider).json()["data"]
    assert [model["id"] for model in models] == [world.base_id]


@pytest.mark.parametrize("ref", ["foreign/adapter2", "foreign/adapter2@1"])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/perplexity", {"texts": ["a b c"]}),
        ("/v1/embeddings", {"input": "a"}),
        ("/tokenize", {"prompt": "a"}),
    ],
)
def test_inference_with_a_foreign_model_is_404(world: World, ref: str, path: str, body: dict[str, Any]) -> None:
    world.push("foreign/adapter2", seed=2)
    outsider = world.headers(world.key(["infer"], ["ours"]))
    answer = world.client.post(path, json={"model": ref, **body}, headers=outsider)
    unknown = world.client.post(path, json={"model": "foreign/never@1", **body}, headers=outsider)
    assert answer.status_code == unknown.status_code == 404


def test_public_pages_need_no_key_and_hold_no_data(world: World) -> None:
    world.push("confidential/adapter", seed=3)
    for path in PUBLIC_PAGES:
        answer = world.client.get(path, headers={"authorization": ""})
        assert answer.status_code == 200, path
        assert "confidential" not in answer.text


def test_a_file_in_routes_is_a_route_and_no_other_file_is() -> None:
    names = [one.name for one in pkgutil.walk_packages(service.http.__path__, "service.http.")]
    routers = {name: vars(importlib.import_module(name)).get("router") for name in names}
    routes = {name for name in names if name.startswith("service.http.routes.")}
    assert {name for name, router in routers.items() if isinstance(router, APIRouter)} == routes
    assert {id(routers[name]) for name in routes} == {id(module.router) for module in ROUTES}
