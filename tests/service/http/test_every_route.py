"""Deny by default: every route, without a key, without its scope, and from another namespace."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest
from fastapi.routing import APIRoute

from registry.names import sha256_digest
from service.http.app import ROUTES
from service.http.security.auth import scopes_of
from tests.service.http.stock import cook_soup, fit_selector, push_embedded
from tests.service.servers import BASE_ID, World

PUBLIC = {("GET", "/healthz"), ("GET", "/readyz")}
OPEN_TO_KEYS = {("GET", "/v1/usage")}
"""Every key may ask, and hears of itself."""
DIGEST = "sha256:" + "0" * 64
VALUES = {
    "digest": DIGEST,
    "id": "sel-0000000000000000",
    "ns": "foreign",
    "name": "secret-one",
    "alias": "best",
    "file": "README.md",
    "revision": "best",
    "path": "README.md",
}


def operations(world: World) -> list[tuple[str, str]]:
    """Every (method, path template) of the schema, and the routes that are not in it."""
    pairs = [(method.upper(), path) for path, methods in world.app.openapi()["paths"].items() for method in methods]
    assert len(pairs) > 30
    return pairs


def filled(path: str) -> str:
    return re.sub(r"\{(\w+)\}", lambda match: VALUES[match.group(1)], path)


def call(world: World, method: str, path: str, headers: dict[str, str]) -> Any:
    return world.client.request(method, filled(path), headers={"authorization": "", **headers})


def test_without_a_key_everything_but_health_is_401(world: World) -> None:
    for method, path in operations(world):
        answer = call(world, method, path, {})
        if (method, path) in PUBLIC:
            assert answer.status_code != 401, path
            continue
        assert answer.status_code == 401, (method, path, answer.status_code)
        assert answer.headers["www-authenticate"] == "Bearer"
        if method != "HEAD":
            assert answer.json()["error"]["code"] == "unauthenticated"


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/docs", "/openapi.json", "/static/docs.js"])
def test_public_paths_are_public_to_read_only(world: World, path: str) -> None:
    """A body sent there without a key is refused before it is gathered."""
    assert world.client.post(path, headers={"authorization": ""}, content=b"x").status_code == 401
    assert world.client.post(path, content=b"x").status_code == 405


NEEDED: dict[str, set[str]] = {
    "/v1/keys": {"admin"},
    "/v1/audit": {"admin"},
    "/metrics": {"admin"},
    "/v1/models": {"infer", "read"},
    "PUT /v1/blobs/{digest}": {"write"},
    "GET /v1/blobs/{digest}": {"read"},
    "HEAD /v1/blobs/{digest}": {"read", "write"},
    "/v1/perplexity": {"infer"},
    "/v1/completions": {"infer"},
    "/v1/chat": {"infer"},
    "/v1/embeddings": {"infer"},
    "/v1/route": {"infer"},
    "/tokenize": {"infer"},
    "/detokenize": {"infer"},
    "/tokenizer_info": {"infer"},
}


def test_a_key_without_any_needed_scope_is_403(world: World) -> None:
    """Whatever a route needs, some single scope must be refused on it, and the ones listed here exactly."""
    keys = {scope: world.headers(world.key([scope])) for scope in ("read", "write", "infer")}
    matched = set()
    for method, path in operations(world):
        if (method, path) in PUBLIC | OPEN_TO_KEYS:
            continue
        refused = {scope for scope, headers in keys.items() if call(world, method, path, headers).status_code == 403}
        assert refused, (method, path, "no scope is refused")
        for start, needed in NEEDED.items():
            if start in (path, f"{method} {path}") or path.startswith(start + "/"):
                matched.add(start)
                assert refused == set(keys) - needed, (method, path, refused)
    assert matched == set(NEEDED)


UNKNOWN = {
    "digest": DIGEST,
    "id": "sel-0000000000000000",
    "ns": "nobody",
    "name": "nothing",
    "alias": "best",
    "file": "README.md",
    "revision": "best",
    "path": "README.md",
}
BLOB = b"a blob of the namespace foreign"


@dataclass
class Stocked:
    """A server with one of everything in the namespace `foreign`, and keys of those who may not have it."""

    world: World
    keys: dict[str, str]
    """Kind -> the whole Authorization header."""
    there: dict[str, dict[str, str]]
    """Values of the placeholders of a path, by the beginning of its template; the longest counts."""

    def values(self, path: str) -> dict[str, str]:
        return {**VALUES, **self.there[max((start for start in self.there if path.startswith(start)), key=len)]}


@pytest.fixture(scope="module")
def stocked(world: World) -> Stocked:
    client = world.client
    pushed = push_embedded(world, "foreign/secret-one", [f"passage number {number}" for number in range(25)], seed=11)
    assert client.put("/v1/adapters/foreign/secret-one/aliases/best", json={"version": 1}).status_code == 200
    world.push("foreign/other", seed=12)
    cook_soup(world, "foreign/soup", {"foreign/secret-one": 1, "foreign/other": 1})
    selector = fit_selector(world, "uniform", namespace="foreign")
    assert client.put(f"/v1/blobs/{sha256_digest(BLOB)}", content=BLOB).status_code == 201
    theirs = client.post("/v1/keys", json={"name": "k", "scopes": ["admin"], "namespaces": ["foreign"]}).json()
    secrets = {
        "of another namespace": world.key(["read", "write", "infer"], ["ours"]),
        "too small a scope": world.key(["read"], ["foreign"]),
        "admin of another namespace": world.key(["admin"], ["ours"]),
    }
    keys = {kind: f"Bearer {secret}" for kind, secret in secrets.items()}
    there = {
        "": {"digest": pushed["digest"]},
        "/v1/blobs": {"digest": sha256_digest(BLOB)},
        "/v1/blobs/uploads": {"id": client.post("/v1/blobs/uploads").json()["id"]},
        "/v1/jobs": {"id": pushed["job"]},
        "/v1/keys": {"id": theirs["id"]},
        "/v1/selectors": {"id": selector},
        "/v1/soups": {"name": "soup"},
        "/v1/models/{id}": {"id": pushed["digest"]},
    }
    return Stocked(world, keys, there)


def named(path: str, values: dict[str, str]) -> dict[str, Any]:
    """The body of a request for `path`, which names an object of the namespace."""
    ref, digest, wait = f"{values['ns']}/{values['name']}", values["digest"], {"wait": 20}
    bodies: dict[str, dict[str, Any]] = {
        "/v1/completions": {"model": ref, "prompt": "a", "max_tokens": 1},
        "/v1/chat/completions": {"model": ref, "messages": [{"role": "user", "content": "a"}], "max_tokens": 1},
        "/v1/perplexity": {"model": ref, "texts": ["a b c"]},
        "/v1/embeddings": {"model": ref, "input": "a"},
        "/tokenize": {"model": ref, "prompt": "a"},
        "/detokenize": {"model": ref, "tokens": [5]},
        "/v1/soups": {"recipe": {"ingredients": [{"ref": ref}]}, "verify": False, **wait},
        "/v1/select": {"sample": {"blob": digest}, "selector": {"kind": "uniform"}, **wait},
        "/v1/selectors": {"pool": {"namespaces": [values["ns"]]}, "selector": {"kind": "uniform"}, **wait},
        "/v1/evaluations": {"pool": {"namespaces": [values["ns"]]}},
        "/v1/trainings": {"name": "ours/x", "domain": "x", "base_model": BASE_ID, "texts": digest},
    }
    return bodies.get(path, {})


def sent(stocked: Stocked, kind: str, method: str, path: str, values: dict[str, str]) -> Any:
    """The answer to a request whose path, body and query name what `values` do."""
    body = named(path, values) if method == "POST" else {}
    small = {"/aliases/{alias}": {"version": 1}, "/limits": {"jobs": 5}, "/v1/namespaces/{ns}": {"tuning": "forbid"}}
    if method in {"PUT", "PATCH"}:
        body = next((change for end, change in small.items() if path.endswith(end)), {"card": {}, "name": "x"})
        body = body if "keys" not in path or path.endswith("limits") else {"name": "x"}
        body = {"card": {}} if path == "/v1/adapters/{ns}/{name}" else body
    query = {"model": f"{values['ns']}/{values['name']}"} if path == "/tokenizer_info" else {}
    query |= {"digest": values["digest"]} if path.startswith("/v1/blobs/uploads") and method in {"GET", "PUT"} else {}
    request: dict[str, Any] = {"json": body} if body and not path.startswith("/v1/blobs/") else {}
    url = re.sub(r"\{(\w+)\}", lambda match: values[match.group(1)], path)
    headers = {"authorization": stocked.keys[kind]}
    return stocked.world.client.request(method, url, params=query, headers=headers, **request)


def plain(answer: Any, *named: dict[str, str]) -> tuple[int, str, set[str]]:
    """An answer without the names that were asked for, and without what differs in every answer."""
    text = answer.text
    placeholders = {value: placeholder for values in named for placeholder, value in values.items()}
    for value in sorted(placeholders, key=lambda value: -len(value)):
        text = text.replace(value, f"<{placeholders[value]}>")
    text = re.sub(r"(job|upload)-[0-9a-f]+|\d{4}-\d\d-\d\dT[\d:.]+Z", "<new>", text)
    return answer.status_code, text, {name for name in answer.headers if name != "content-length"}


def scopes(world: World) -> dict[tuple[str, str], tuple[str, ...]]:
    """The scopes that each route needs."""
    routes = [route for module in ROUTES for route in module.router.routes if isinstance(route, APIRoute)]
    return {(method, route.path_format): scopes_of(route.dependant) for route in routes for method in route.methods}


def test_every_route_with_every_kind_of_key_leaks_nothing(stocked: Stocked) -> None:
    """A key without permission gets the same status, body and headers whether or not the object exists."""
    leaks, needed = [], scopes(stocked.world)
    walked = [operation for operation in operations(stocked.world) if operation not in PUBLIC]
    for kind in stocked.keys:
        for method, path in walked:
            there, unknown = stocked.values(path), {**UNKNOWN, **({"id": DIGEST} if "models" in path else {})}
            here, nowhere = (sent(stocked, kind, method, path, values) for values in (there, unknown))
            statuses = {answer.status_code for answer in (here, nowhere)}
            if kind == "too small a scope":
                wrong = "read" not in needed[method, path] and (method, path) not in OPEN_TO_KEYS and statuses != {403}
            else:
                wrong = plain(here, there, unknown) != plain(nowhere, there, unknown)
                wrong = wrong or ("{" in path and min(statuses) < 400)  # whoever asks for it by its name is refused
            wrong = wrong or max(statuses) >= 500
            leaks += [
                (kind, method, path, here.status_code, nowhere.status_code, here.text[:300], nowhere.text[:300])
            ] * wrong
    assert not leaks, "\n".join(map(str, leaks))
    versions = stocked.world.client.get("/v1/adapters/foreign/secret-one").json()
    assert (versions["version"], versions["card"]["description"]) == (1, "")
    assert stocked.world.client.get(f"/v1/blobs/{sha256_digest(BLOB)}").content == BLOB


def test_lists_hold_nothing_of_another_namespace(stocked: Stocked) -> None:
    world = stocked.world
    outsider, admin = (world.headers(world.key(scopes, ["elsewhere"])) for scopes in (["read", "write"], ["admin"]))
    for path in ("/v1/adapters", "/v1/soups", "/v1/selectors", "/v1/jobs", "/v1/blobs/uploads"):
        assert world.client.get(path, headers=outsider).json()["data"] == [], path
    assert [model["id"] for model in world.client.get("/v1/models", headers=outsider).json()["data"]] == [world.base_id]
    for path in ("/v1/audit", "/v1/usage", "/v1/keys"):
        text = world.client.get(path, headers=admin).text
        assert "secret-one" not in text, path
        assert '"foreign"' not in text, path


def test_a_query_parameter_that_a_route_of_ours_does_not_know_is_refused(world: World) -> None:
    """A filter with a typo would list everything; what clients of OpenAI's interface send beyond it is let pass."""
    schema, refused = world.app.openapi()["paths"], 0
    for method, path in operations(world):
        operation = schema[path][method.lower()]
        answer = world.client.request(method, filled(path), params={"tga": "x"})
        if path == "/api/models":  # says itself which of a hub's filters it has
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tga")
            continue
        if not path.startswith("/v1/") or "inference" in operation["tags"]:
            assert "tga" not in answer.text, path
            continue
        if method == "HEAD":
            assert answer.status_code == 400, path
            continue
        names = [parameter["name"] for parameter in operation.get("parameters", ()) if parameter["in"] == "query"]
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (400, "invalid_parameter", "tga"), path
        assert error["message"].endswith(f"known are {', '.join(names)}." if names else "it takes none."), path
        refused += 1
    assert refused > 30
    assert world.client.get("/v1/adapters", params={"tag": ["a", "b"], "limit": 5}).status_code == 200
