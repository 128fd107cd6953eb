"""The ASGI application of one runtime: routes, layers, error handlers and the documentation page.

`create_app` is called by `soup serve` and by tests, which start and stop the runtime. Two apps can live in one process.
Requests pass Observe and Gate, in this order, before they reach a route; the class of all routes (`bodies`) checks
scopes, size and content of a body.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from anyio import to_thread
from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from registry.errors import Unavailable
from service.http import docs_page, examples, problems
from service.http.metrics import Metrics, ServerMetrics
from service.http.models.metering import MEASURES
from service.http.observe import Observe
from service.http.pages import site
from service.http.readiness import Readiness
from service.http.requests.bodies import Bodies
from service.http.routes import (
    activity,
    adapters,
    blobs,
    collections,
    embeddings,
    evaluations,
    generation,
    health,
    hub,
    jobs,
    keys,
    models,
    namespaces,
    perplexity,
    probes,
    routing,
    selectors,
    soups,
    tokens,
    trainings,
)
from service.http.security.auth import Gate

if TYPE_CHECKING:
    from service.runtime import Runtime


VERSION = "0.9.0"


ROUTES = (
    *(blobs, adapters, probes, collections, selectors, soups, trainings, evaluations),
    *(perplexity, generation, embeddings, models, tokens, routing),
    *(jobs, keys, namespaces, activity, health),
    hub,
)
"""In the order of the reference: stored objects, inference, the server itself. The hub API comes last, since
`/{ns}/{name}/resolve/...` begins with any word."""
DESCRIPTION = (
    "Push adapters of one frozen base model with samples of their domains, ask for a soup for a sample of a new "
    "domain, and call the OpenAI-compatible endpoints with the soup's name. Every call but the health checks needs a "
    "key: press Authorize and paste `sk-soup-...`."
)


def create_app(runtime: Runtime) -> FastAPI:
    """Return the application over `runtime`, which the caller starts and stops."""
    settings = runtime.settings
    app = FastAPI(
        title="AdapterSoup",
        version=VERSION,
        description=DESCRIPTION,
        lifespan=_lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        generate_unique_id_function=lambda route: route.name,
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},  # it would log paths
        responses={"default": {"model": problems.ErrorBody, "description": "An error, in OpenAI's shape."}},
    )
    app.state.runtime = runtime
    app.state.metrics = metrics = Metrics()
    app.state.readiness = Readiness()
    app.state.bodies = Bodies(settings)
    ServerMetrics(lambda: runtime.services, app.state.readiness).add_to(metrics)
    metrics.watch_engine(runtime.engine.counters, runtime.engine.adapter_metrics.totals)
    for routes in ROUTES:
        app.include_router(routes.router)
    speaking = (base_id for base_id, base in runtime.bases.items() if base.entry.kind == "causal")
    docs_page.install(app, base=next(speaking, examples.BASE), manual=settings.manual)
    browser_auth = None if settings.role == "worker" else site.install_pages(app, runtime)
    problems.install(app)
    if browser_auth is not None:
        site.install_not_found_page(app)
    # the last one added is the outermost
    if settings.role == "worker":
        app.add_middleware(WorkerLayer)
    app.add_middleware(
        Gate,
        database=runtime.database,
        settings=settings,
        watch=runtime.key_watch,
        tokens=runtime.identities,
        browser_auth=browser_auth,
    )
    if settings.cors_origins:
        app.add_middleware(CrossOrigin, origins=settings.cors_origins)
    if runtime.tracing is None:
        app.add_middleware(Observe, metrics=metrics)
    else:
        app.add_middleware(Observe, metrics=metrics, traceparent=runtime.tracing.traceparent)
        runtime.tracing.instrument_app(app)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Serve requests with as many threads as there are database connections, so that no thread waits for one."""
    to_thread.current_default_thread_limiter().total_tokens = app.state.runtime.settings.database_pool
    yield


API_PREFIX = "/v1/"
EXPOSED_HEADERS = (
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
    *(f"x-ratelimit-{figure}-{measure}" for figure in ("limit", "remaining", "reset") for measure in MEASURES),
)
"""Headers of an answer that scripts of pages of `SOUP_CORS_ORIGINS` may read, beside the ones of the CORS standard."""
PREFLIGHT_SECONDS = 600
"""Seconds for which a browser may cache the answer to a preflight."""


class CrossOrigin:
    """ASGI layer around Gate that lets pages of `SOUP_CORS_ORIGINS` call the API from a browser, with a key.

    The browser's preflight needs no key. Cookies are never sent: this server's own pages, which use them, stay closed.
    """

    def __init__(self, app: ASGIApp, *, origins: Sequence[str]) -> None:
        self._app = app
        self._open = CORSMiddleware(
            app,
            allow_origins=origins,
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=EXPOSED_HEADERS,
            max_age=PREFLIGHT_SECONDS,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request; add the headers of CORS for calls of the API."""
        is_api = scope["type"] == "http" and scope["path"].startswith(API_PREFIX)
        await (self._open if is_api else self._app)(scope, receive, send)


WORKER_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})


class WorkerLayer:
    """ASGI layer inside Gate for `SOUP_ROLE=worker`: passes health checks and metrics, answers the rest with 503.

    503 and not 404, since another server answers these calls: the errors reveal a proxy that sends them here.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on a request for WORKER_PATHS, refuse any other."""
        if scope["type"] != "http" or scope["path"] in WORKER_PATHS:
            await self._app(scope, receive, send)
            return
        error = Unavailable("This server runs jobs and answers no calls (SOUP_ROLE=worker): ask one that does.")
        await problems.response_of(error)(scope, receive, send)
