"""Which pages of other origins may call the API from a browser: those of `SOUP_CORS_ORIGINS`, with a key of their own.

Only the API is opened so, and never with cookies: the pages of this server, which go by them, stay closed to others.
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from service.http.metering import MEASURES

API = "/v1/"
EXPOSED = (
    *(
        "x-request-id",
        "retry-after",
        "etag",
        "location",
        "content-range",
        "content-disposition",
        "range",
        "upload-offset",
        "upload-uuid",
    ),
    *("x-soup-digest", "x-soup-model", "x-soup-tuned"),
    *(f"x-ratelimit-{what}-{of}" for what in ("limit", "remaining", "reset") for of in MEASURES),
)
"""Headers of an answer that a script of such a page may read, beside those that every script may."""
SECONDS = 600
"""For so long a browser need not ask again whether it may."""


class CrossOrigin:
    """ASGI layer around Gate: a browser asks for leave without a key, and then calls with one."""

    def __init__(self, app: ASGIApp, *, origins: Sequence[str]) -> None:
        self._app = app
        self._open = CORSMiddleware(
            app, allow_origins=origins, allow_methods=["*"], allow_headers=["*"], expose_headers=EXPOSED,
            max_age=SECONDS,
        )  # fmt: skip

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on; what is of the API with the headers of CORS."""
        is_api = scope["type"] == "http" and scope["path"].startswith(API)
        await (self._open if is_api else self._app)(scope, receive, send)
