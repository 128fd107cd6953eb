"""What a server that only runs jobs answers (`SOUP_ROLE=worker`): health checks and metrics, and 503 for all else.

503 and not 404: the call is one that this API has, another server answers it, and a proxy that sent it here by mistake
is seen by its errors. Its ASGI layer is inside of Gate, so that who has no key is still told that (401).
"""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from registry.errors import Unavailable
from service.http import problems

ANSWERED = frozenset({"/healthz", "/readyz", "/metrics"})


class WorkerLayer:
    """Lets health checks and metrics through."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or say who does."""
        if scope["type"] != "http" or scope["path"] in ANSWERED:
            await self._app(scope, receive, send)
            return
        error = Unavailable("This server runs jobs and answers no calls (SOUP_ROLE=worker): ask one that does.")
        await problems.response_of(error)(scope, receive, send)
