"""`/docs`: the interactive API reference, and `/manual`: the documentation; offline, under a strict policy.

Its scripts are Swagger UI, vendored in `swagger/`, and one static file of ours; nothing is inline and nothing is
fetched from elsewhere. It reads `/openapi.json`, as programs do. `http.examples` puts the examples into that document;
`LINKS` name the calls that may follow a call, which schema-driven tests do follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.requests import Request
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from registry.errors import InvalidParameter
from service.http import examples
from service.http.security.auth import MANUAL

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>AdapterSoup API</title>
<link rel="stylesheet" href="/static/swagger/swagger-ui.css">
<link rel="icon" type="image/png" href="/static/swagger/favicon-32x32.png">
</head>
<body>
<div id="swagger-ui"></div>
<noscript>This page needs JavaScript; the same document is at <a href="/openapi.json">/openapi.json</a>.</noscript>
<script src="/static/swagger/swagger-ui-bundle.js"></script>
<script src="/static/docs.js"></script>
</body>
</html>
"""
SCRIPT = """"use strict";
window.ui = SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  displayRequestDuration: true,
  persistAuthorization: false,
  tryItOutEnabled: true,
  validatorUrl: null,
  presets: [SwaggerUIBundle.presets.apis],
  layout: "BaseLayout",
});
"""
FILES = Path(__file__).with_name("swagger")
"""Swagger UI 5 as published; VENDORED.json has its source and the sha256 of each file."""


class Manual(StaticFiles):
    """The files of the documentation that `make docs` wrote."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """A file, under the policy of `/docs`."""
        response = await super().get_response(path, scope)
        response.headers["content-security-policy"] = CSP
        return response


def install(app: FastAPI, *, base: str, manual: Path | None) -> None:
    """Add /docs, /openapi.json and /static to `app`, with examples for base model `base`; `auth` guards them.

    With a folder `manual` also adds /docs/manual, to which /manual redirects; raises InvalidParameter if the folder has
    no documentation.
    """
    app.openapi = partial(openapi_document, app, base)  # type: ignore[method-assign]

    async def page(_: Request) -> Response:
        return HTMLResponse(PAGE, headers={"content-security-policy": CSP})

    async def script(_: Request) -> Response:
        return Response(SCRIPT, media_type="text/javascript")

    async def to_manual(_: Request) -> Response:
        return RedirectResponse(f"{MANUAL}/")

    async def document(_: Request) -> Response:
        return JSONResponse(app.openapi())

    app.add_route("/docs", page, include_in_schema=False)
    app.add_route("/openapi.json", document, include_in_schema=False)
    app.add_route("/static/docs.js", script, include_in_schema=False)
    app.mount("/static/swagger", StaticFiles(directory=FILES), name="swagger")
    if manual is not None:
        if not (manual / "index.html").is_file():
            raise InvalidParameter(f"{manual} (SOUP_MANUAL) has no index.html: `make docs` writes one.", param="manual")
        app.mount(MANUAL, Manual(directory=manual, html=True), name="manual")
        app.add_route("/manual", to_manual, include_in_schema=False)


def openapi_document(app: FastAPI, base: str) -> dict[str, Any]:
    """Return the OpenAPI document with links and with examples for base model `base`, built on the first call."""
    if app.openapi_schema is None:
        app.openapi_schema = with_links(examples.document(FastAPI.openapi(app), base))
    return app.openapi_schema


Json = dict[str, Any]

_ID = {"id": "$response.body#/id"}
_NAMED = {"ns": "$response.body#/namespace", "name": "$response.body#/name"}
_SOUP = {"ns": "$response.body#/soup/namespace", "name": "$response.body#/soup/name"}
_BLOB = {"digest": "$response.body#/digest"}
_JOB = ("get_job", "cancel_job")

LINKS: Mapping[tuple[str, str], tuple[Mapping[str, str], tuple[str, ...]]] = {
    ("create_key", "201"): (
        _ID,
        ("change_key", "rotate_key", "get_key_limits", "change_key_limits", "revoke_key"),
    ),
    ("open_upload", "202"): (_ID, ("get_upload", "add_part", "finish_upload", "delete_upload")),
    ("add_part", "202"): (_ID, ("get_upload", "add_part", "finish_upload", "delete_upload")),
    ("put_blob", "201"): (_BLOB, ("head_blob", "get_blob", "put_blob")),
    ("finish_upload", "201"): (_BLOB, ("head_blob", "get_blob")),
    ("push_adapter", "201"): (
        _NAMED,
        (
            "get_adapter",
            "change_adapter",
            "retire_adapter",
            "restore_adapter",
            "purge_adapter",
            "get_lineage",
            "list_files",
            "get_file",
            "list_aliases",
            "put_alias",
            "delete_alias",
            "get_model",
            "hub_repository",
            "hub_refs",
            "hub_check",
        ),
    ),
    ("change_adapter", "200"): (_NAMED, ("get_adapter", "change_adapter", "retire_adapter")),
    ("retire_adapter", "200"): (_NAMED, ("get_adapter", "restore_adapter", "purge_adapter")),
    ("restore_adapter", "200"): (_NAMED, ("get_adapter", "retire_adapter")),
    ("fit_selector", "201"): (_ID, ("get_selector",)),
    ("fit_selector", "202"): (_ID, _JOB),
    ("select_adapters", "202"): (_ID, _JOB),
    ("cook_soup", "201"): (_SOUP, ("get_soup", "get_soup_lineage", "get_model", "retire_adapter")),
    ("cook_soup", "202"): (_ID, _JOB),
    ("start_training", "202"): (_ID, _JOB),
}
"""By operation id and status: where the answer has the values of path parameters, and the calls that take them."""


def with_links(schema: Json) -> Json:
    """Add LINKS to an OpenAPI document, in place, and return it."""
    for operations in schema["paths"].values():
        for operation in operations.values():
            for status, answer in operation["responses"].items():
                parameters, calls = LINKS.get((operation["operationId"], status), ({}, ()))
                if calls:
                    answer["links"] = {call: {"operationId": call, "parameters": dict(parameters)} for call in calls}
    return schema
