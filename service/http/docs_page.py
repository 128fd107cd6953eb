"""`/docs`: the interactive API reference, offline and under a strict Content-Security-Policy.

Its scripts are Swagger UI's, kept in this repository (`swagger/`), and one static file of ours; nothing is inline and
nothing is fetched from elsewhere. It reads `/openapi.json`, as programs do: `http.examples` puts the examples into it,
`http.links` what may be done next.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.requests import Request
from starlette.staticfiles import StaticFiles

from service.http import examples, links

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
"""Swagger UI 5 as it was published, unchanged; VENDORED.json says from where, and each file's sha256."""


def install(app: FastAPI, *, base: str) -> None:
    """Add /docs, /openapi.json and /static to `app`, whose examples name `base`; `auth` decides who reaches them."""
    app.openapi = partial(described, app, base)  # type: ignore[method-assign]

    async def page(_: Request) -> Response:
        return HTMLResponse(PAGE, headers={"content-security-policy": CSP})

    async def script(_: Request) -> Response:
        return Response(SCRIPT, media_type="text/javascript")

    async def document(_: Request) -> Response:
        return JSONResponse(app.openapi())

    app.add_route("/docs", page, include_in_schema=False)
    app.add_route("/openapi.json", document, include_in_schema=False)
    app.add_route("/static/docs.js", script, include_in_schema=False)
    app.mount("/static/swagger", StaticFiles(directory=FILES), name="swagger")


def described(app: FastAPI, base: str) -> dict[str, Any]:
    """The OpenAPI document with links, and examples for a server that has this base model; it is made once."""
    if app.openapi_schema is None:
        app.openapi_schema = links.document(examples.document(FastAPI.openapi(app), base))
    return app.openapi_schema
