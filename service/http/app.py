"""The ASGI application of one runtime: routes, layers, error handlers and the documentation page.

`create_app` is called by `soup serve` and by tests; whoever built the runtime starts and stops it. Two apps can live
in one process. Requests pass Observe and Gate (in this order) before they reach a route, all of which are of the class
that checks scope, size and content of a body (`bodies`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from anyio import to_thread
from fastapi import FastAPI

from service.http import docs_page, examples, problems
from service.http.auth import Gate
from service.http.bodies import Bodies
from service.http.cross_origin import CrossOrigin
from service.http.observe import Metrics, Observe
from service.http.pages import site
from service.http.readiness import Readiness
from service.http.routes import (
    adapters,
    audit,
    blobs,
    chat,
    collections,
    completions,
    embeddings,
    evaluations,
    health,
    hub,
    jobs,
    keys,
    limits,
    models,
    namespaces,
    perplexity,
    purges,
    selectors,
    soups,
    tokens,
    trainings,
    uploads,
    usage,
)
from service.http.server_metrics import ServerMetrics
from service.http.worker_layer import WorkerLayer
from service.version import VERSION

if TYPE_CHECKING:
    from service.runtime import Runtime

ROUTES = (
    *(uploads, blobs, adapters, purges, collections, selectors, soups, trainings, evaluations),
    *(perplexity, completions, chat, embeddings, models, tokens),
    *(jobs, keys, namespaces, limits, usage, audit, health),
    hub,
)
"""In the order of the reference: what is stored, inference, the server itself. Uploads before blobs, whose paths would
take theirs; the hub API last, for `/{ns}/{name}/resolve/...` begins with any word."""
DESCRIPTION = (
    "Push adapters of one frozen base model with samples of their domains, ask for a soup for a sample of a new "
    "domain, and call the OpenAI-compatible endpoints with the soup's name. Every call but the health checks needs a "
    "key: press Authorize and paste `sk-soup-...`."
)


def create_app(runtime: Runtime) -> FastAPI:
    """The application over `runtime`, which its caller has started and will stop."""
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
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},  # it tells paths
        responses={"default": {"model": problems.ErrorBody, "description": "An error, in OpenAI's shape."}},
    )
    app.state.runtime = runtime
    app.state.metrics = metrics = Metrics()
    app.state.readiness = Readiness()
    app.state.bodies = Bodies(settings)
    ServerMetrics(lambda: runtime.parts, app.state.readiness).add_to(metrics)
    metrics.watch_engine(runtime.engine.counters, runtime.engine.by_adapter)
    for routes in ROUTES:
        app.include_router(routes.router)
    speaking = (base_id for base_id, base in runtime.bases.items() if base.entry.kind == "causal")
    docs_page.install(app, base=next(speaking, examples.BASE))
    door = None if settings.role == "worker" else site.install(app, runtime)
    problems.install(app)
    if door is not None:
        site.tell_browsers_of_nothing(app)
    # the last one added is the outermost
    if settings.role == "worker":
        app.add_middleware(WorkerLayer)
    app.add_middleware(
        Gate, database=runtime.database, settings=settings, watch=runtime.key_watch, tokens=runtime.identities,
        door=door,
    )  # fmt: skip
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
    """As many threads serve requests as there are database connections, so that none waits for one holding one."""
    to_thread.current_default_thread_limiter().total_tokens = app.state.runtime.settings.database_pool
    yield
