"""`/docs`: the interactive API reference, offline and under a strict Content-Security-Policy.

Its scripts come from an installed wheel (swagger-ui-bundle) and from one static file of ours; nothing is inline and
nothing is fetched from elsewhere. The bundled page understands OpenAPI 3.0, the framework writes 3.1, so `/docs` reads
`/docs/openapi.json`, the same document in the older dialect; programs read `/openapi.json`.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.requests import Request
from starlette.staticfiles import StaticFiles
from swagger_ui_bundle import swagger_ui_path

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
  url: "/docs/openapi.json",
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
NULL = {"type": "string", "nullable": True, "enum": [None]}
"""What OpenAPI 3.0 has for `{"type": "null"}`."""


def install(app: FastAPI) -> None:
    """Add /docs, /openapi.json and /static to `app`; `auth` decides who reaches them."""

    async def page(_: Request) -> Response:
        return HTMLResponse(PAGE, headers={"content-security-policy": CSP})

    async def script(_: Request) -> Response:
        return Response(SCRIPT, media_type="text/javascript")

    async def document(_: Request) -> Response:
        return JSONResponse(app.openapi())

    async def older(_: Request) -> Response:
        return JSONResponse(as_openapi_30(app.openapi()))

    app.add_route("/docs", page, include_in_schema=False)
    app.add_route("/docs/openapi.json", older, include_in_schema=False)
    app.add_route("/openapi.json", document, include_in_schema=False)
    app.add_route("/static/docs.js", script, include_in_schema=False)
    app.mount("/static/swagger", StaticFiles(directory=swagger_ui_path), name="swagger")


def as_openapi_30(document: dict[str, Any]) -> dict[str, Any]:
    """An OpenAPI 3.1 document in the dialect of 3.0: null types, const, tuples, numeric exclusive limits."""
    older: dict[str, Any] = _older(document)
    older["openapi"] = "3.0.3"
    return older


def _older(value: Any) -> Any:
    if isinstance(value, list):
        return [_older(item) for item in value]
    if not isinstance(value, dict):
        return value
    found = {key: _older(item) for key, item in value.items()}
    return _older_schema(found)


def _older_schema(schema: dict[str, Any]) -> dict[str, Any]:
    options = schema.get("anyOf")
    if isinstance(options, list) and NULL in options:
        rest = [option for option in options if option != NULL]
        del schema["anyOf"]
        schema |= {"nullable": True} | (rest[0] if len(rest) == 1 and "$ref" not in rest[0] else {"anyOf": rest})
    if schema.get("type") == "null":
        return dict(NULL)
    if "const" in schema and not isinstance(schema["const"], dict):
        schema["enum"] = [schema.pop("const")]
    if isinstance(schema.get("prefixItems"), list):
        schema["items"] = {"anyOf": schema.pop("prefixItems")}
    for name, limit in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(schema.get(name), int | float) and not isinstance(schema[name], bool):
            schema[limit] = schema[name]
            schema[name] = True
    return schema
