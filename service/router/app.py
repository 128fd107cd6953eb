"""The ASGI application of a router. It answers /healthz, /readyz and /metrics itself; all else goes to a replica."""

from __future__ import annotations

import logging
import re
import time
import uuid

import anyio
from anyio import to_thread
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from registry.catalogue import Database
from registry.errors import Cancelled, Forbidden, SoupError, Unauthenticated
from service.http import problems
from service.http.places import Places, most_connections
from service.http.schemas.health import Alive, Ready
from service.logs import request_id_now
from service.router.call import Call
from service.router.choice import Choice
from service.router.directory import Asker
from service.router.fleet import Fleet
from service.router.metrics import RouterMetrics
from service.settings import Settings

log = logging.getLogger("soup.router")
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)


class Router:
    """A router over one database of replicas."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self.fleet = Fleet(database)
        self._settings = settings
        self._metrics = RouterMetrics(lambda: len(self.fleet.members))
        self._choice = Choice(database, settings, self.fleet, self._metrics)
        self._places = Places(most_connections(settings))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or look for replicas for as long as the server runs."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": ""})
        else:
            await self._handle(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        to_thread.current_default_thread_limiter().total_tokens = self._settings.database_pool
        async with anyio.create_task_group() as tasks:
            await tasks.start(self.fleet.watch)
            await send({"type": "lifespan.startup.complete"})
            await receive()
            tasks.cancel_scope.cancel()
        await self._choice.close()
        await send({"type": "lifespan.shutdown.complete"})

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, count it, and log it without anything that was sent."""
        call = Call(scope, receive, send, settings=self._settings, request_id=_request_id(scope))
        token = request_id_now.set(call.request_id)
        began = time.perf_counter()
        with self._metrics.in_flight.track_inprogress():
            try:
                await self._answer(call)
            finally:
                self._record(call, time.perf_counter() - began)
                request_id_now.reset(token)

    async def _answer(self, call: Call) -> None:
        """Answer, or say why not, for as long as the client is there."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_cancel_when_gone, call, tasks.cancel_scope)
                await self._answer_or_say(call)
                tasks.cancel_scope.cancel()
        except* Cancelled:  # the client went away in the midst of its body: nobody hears what is said
            pass

    async def _answer_or_say(self, call: Call) -> None:
        try:
            asker = await self._choice.asker(call)
            own = self._own(call, asker)
            if own is not None:
                await call.say(own)
                return
            with self._places.taken(await self._choice.place(call, asker)):
                await self._choice.route(call, asker)
        except Cancelled:
            raise
        except SoupError as error:
            await call.fail(problems.body_of(error), problems.response_of(error))
        except Exception as error:
            body = problems.unexpected(error)
            await call.fail(body, problems.response_of_unexpected(body))

    def _own(self, call: Call, asker: Asker | None) -> Response | None:
        """The router's own answer to a path of its own; raises Unauthenticated or Forbidden."""
        path = call.scope["path"]
        if path == "/healthz":
            return JSONResponse(Alive().model_dump())
        if path == "/readyz":
            there = len(self.fleet.members)
            ready = Ready(status="ready" if there else "not_ready", checks={"replicas": "ok" if there else "none"})
            return JSONResponse(ready.model_dump(), status_code=200 if there else 503)
        if path != "/metrics":
            return None
        if not self._settings.metrics_public:
            if asker is None:
                raise Unauthenticated("This needs a key: send 'Authorization: Bearer sk-soup-...'.")
            if not asker.is_operator:
                raise Forbidden("The router's figures need a key with scope 'admin' and all namespaces.")
        return Response(self._metrics.render(), media_type=CONTENT_TYPE_LATEST)

    def _record(self, call: Call, seconds: float) -> None:
        kind = "inference" if call.is_inference else "other"
        status = "none" if call.status is None else str(call.status)
        self._metrics.requests.labels(kind, status).inc()
        self._metrics.seconds.labels(kind).observe(seconds)
        fields = {"kind": kind, "status": call.status, "ms": round(seconds * 1000, 1), "replicas": call.replicas}
        log.info("request", extra={"fields": fields})


async def _cancel_when_gone(call: Call, scope: anyio.CancelScope) -> None:
    await call.gone()
    scope.cancel()


def _request_id(scope: Scope) -> str:
    """The client's `x-request-id` where it is one that servers take, else a fresh one."""
    offered = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"").decode("latin-1")
    return offered if REQUEST_ID.fullmatch(offered) else uuid.uuid4().hex
