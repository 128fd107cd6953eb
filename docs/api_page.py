"""`reference/api.md` and `reference/openapi.json`: the HTTP API as its own schema describes it.

Called by `docs.generate`. The application has its own settings and is never started: no folder is created, and no model
is loaded.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from docs.markdown import table
from service.http.security.auth import PUBLIC

Json = Mapping[str, Any]
METHODS = ("get", "head", "put", "post", "patch", "delete")
TAGS = (
    "blobs",
    "adapters",
    "selectors",
    "soups",
    "trainings",
    "evaluations",
    "inference",
    "jobs",
    "keys",
    "namespaces",
    "health",
    "hub",
)
INTRO = """# HTTP API

Generated from the application's schema by `make openapi`; the same document is
[openapi.json](openapi.json), and a running server shows it under `/docs`.

Every call but the health checks sends `Authorization: Bearer sk-soup-...`. Bodies are JSON (`content-type:
application/json`) except for blobs. `model` and refs are written

    base/<id> | <namespace>/<name>[@<version>|@<alias>] | sha256:<64 hex>

and a bare name is its newest live version. For completions, chats, perplexity and embeddings, `model` can also be a
[mixture](../how-to/choose-by-prompt.md#mix-in-a-request), as in `team/law*0.7+team/style*0.5`; for completions and
chats also `auto`, which [chooses adapters by the prompt](../how-to/choose-by-prompt.md).

Every answer carries `x-request-id`; inference answers carry `x-soup-digest`, the digest of the model that answered.
Errors have one shape, see [errors.md](errors.md). Lists are read page by page: send `next_cursor` back as `cursor`
until it is null.
"""


def application() -> FastAPI:
    """The application with a data folder that is never created."""
    from service.http.app import create_app
    from service.runtime import Runtime
    from service.settings import Settings

    return create_app(Runtime(Settings(data=Path("never-started"), bases=None, database_url=None)))


def openapi_json(app: FastAPI) -> str:
    """The schema as stored under version control."""
    return json.dumps(app.openapi(), indent=1, ensure_ascii=False) + "\n"


def page(app: FastAPI) -> str:
    """The API as Markdown: calls by noun, then every value."""
    document = app.openapi()
    sections = [INTRO, *_calls(document, scopes_of(app)), "## Values\n", *_values(document)]
    return "\n".join(sections).rstrip() + "\n"


# --- who may call what ----------------------------------------------------------------------------


def scopes_of(app: FastAPI) -> dict[tuple[str, str], tuple[str, ...]]:
    """The scopes of each (method, path), of which a key needs one; none for calls without a key."""
    return {
        (method.lower(), route.path_format): tuple(dict.fromkeys(_needed(route.dependant)))
        for route in _routes(app)
        for method in route.methods or ()
    }


def _routes(app: FastAPI) -> Iterator[APIRoute]:
    """All routes, including those of included routers."""
    pending: list[Any] = list(app.routes)
    while pending:
        route = pending.pop(0)
        if isinstance(route, APIRoute):
            yield route
        else:
            router = getattr(route, "original_router", route)
            pending.extend(getattr(router, "routes", None) or ())


def _needed(dependant: Dependant) -> Iterator[str]:
    """The scopes in the signature of a route (`service.http.security.auth.needs`)."""
    for inner in dependant.dependencies:
        if inner.call is not None and getattr(inner.call, "__module__", "") == "service.http.security.auth":
            yield from inspect.getclosurevars(inner.call).nonlocals.get("scopes", ())
        yield from _needed(inner)


def _scope_note(method: str, path: str, scopes: Mapping[tuple[str, str], Sequence[str]]) -> str:
    if path in PUBLIC:
        return "Needs no key."
    needed = scopes.get((method, path), ())
    return f"Needs scope {' or '.join(f'`{scope}`' for scope in needed)}." if needed else ""


# --- calls ----------------------------------------------------------------------------------------


def _calls(document: Json, scopes: Mapping[tuple[str, str], Sequence[str]]) -> Iterator[str]:
    for tag in TAGS:
        yield f"## {'Keys and audit' if tag == 'keys' else tag.capitalize()}\n"
        for path, operations in document["paths"].items():
            for method in METHODS:
                if method in operations and tag in operations[method].get("tags", ()):
                    yield _call(method, path, operations[method], _scope_note(method, path, scopes))


def _call(method: str, path: str, operation: Json, scope_note: str) -> str:
    lines = [f"### `{method.upper()} {path}`\n", _paragraph(operation.get("description", "")), ""]
    if scope_note:
        lines += [scope_note, ""]
    rows = [
        (f"`{p['name']}`", p["in"], _type(p["schema"]), "yes" if p.get("required") else "", p.get("description", ""))
        for p in operation.get("parameters", ())
    ]
    lines += _table(("parameter", "in", "type", "required", "meaning"), rows)
    if body := operation.get("requestBody", {}).get("content", {}):
        lines += [f"Body: {'; '.join(_content(kind, media) for kind, media in body.items())}.", ""]
    answers = [f"{code} {_answer(response)}" for code, response in operation["responses"].items() if code != "default"]
    lines += ["Answers: " + "; ".join(answers) + ".", ""]
    return "\n".join(lines)


def _content(kind: str, media: Json) -> str:
    type_text = _type(media.get("schema", {}))
    return type_text if kind == "application/json" else f"`{kind}` {type_text}"


def _answer(response: Json) -> str:
    kinds = [_content(kind, media) for kind, media in response.get("content", {}).items()]
    return ", ".join(kinds) if kinds else "(bytes or nothing)"


# --- values ---------------------------------------------------------------------------------------


DEFAULT_MEMBERS = ("AutoMixing", "BottleneckRequest")
"""The members of unions that a value without a discriminator is read as."""


def _values(document: Json) -> Iterator[str]:
    discriminators = dict(_discriminators(document))
    for name, schema in sorted(document["components"]["schemas"].items()):
        yield f"### {name}\n"
        yield _paragraph(schema.get("description", "")) + "\n"
        required = {*schema.get("required", ()), discriminators.get(name)}
        rows = [
            (f"`{field}`", _type(value), _default(value, field in required), value.get("description", ""))
            for field, value in schema.get("properties", {}).items()
        ]
        yield "\n".join(_table(("field", "type", "default", "meaning"), rows))


def _discriminators(node: Any) -> Iterator[tuple[str, str]]:
    """The members of unions in a part of the document, and the property that a value of them has to have."""
    if isinstance(node, list):
        for item in node:
            yield from _discriminators(item)
    elif isinstance(node, dict):
        union = node.get("discriminator")
        if isinstance(union, dict):
            members = {ref.rpartition("/")[2] for ref in union.get("mapping", {}).values()}
            yield from ((member, union["propertyName"]) for member in members.difference(DEFAULT_MEMBERS))
        for value in node.values():
            yield from _discriminators(value)


def _default(schema: Json, required: bool) -> str:
    if required:
        return "required"
    value = schema.get("default")
    return "" if value is None else f"`{json.dumps(value, ensure_ascii=False)}`"


def _type(schema: Json) -> str:
    """A schema in a few words, with links to the values it names."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(_type(option) for option in options))
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return " or ".join(f"`{json.dumps(value)}`" for value in schema["enum"])
    return _plain_type(schema)


def _plain_type(schema: Json) -> str:
    kinds = schema.get("type", "any value")
    kind = kinds if isinstance(kinds, str) else " or ".join(kinds)
    if kind == "array":
        return f"list of {_type(schema['items'])}" if "items" in schema else "list"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_type(schema['additionalProperties'])}"
    return f"{kind}{_limits(schema)}"


def _limits(schema: Json) -> str:
    """Bounds as text."""
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    bounds = [f"{sign} {schema[name]:g}" for name, sign in signs.items() if name in schema]
    return f" ({', '.join(bounds)})" if bounds else ""


# --- Markdown -------------------------------------------------------------------------------------


def _paragraph(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table and a blank line; nothing without rows. Empty columns are left out."""
    columns = [i for i in range(len(header)) if any(row[i] for row in rows)]
    if not columns:
        return []
    return [*table([header[i] for i in columns], [[" ".join(row[i].split()) for i in columns] for row in rows]), ""]
