"""`Client` and `AsyncClient`: the HTTP API of a server with typed values, without torch.

    with Client("http://127.0.0.1:8000", "sk-soup-...") as soup:
        cooked = soup.cook(texts)
        with soup.stream(cooked, "This agreement") as pieces:
            for piece in pieces:
                print(piece.choices[0].text, end="")

    async with AsyncClient("http://127.0.0.1:8000", "sk-soup-...") as soup:
        cooked = await soup.cook(texts)
        async with soup.stream(cooked, "This agreement") as pieces:
            async for piece in pieces:
                print(piece.choices[0].text, end="")

Both have the same calls, which are `Calls`; errors are those of `registry.errors`. What is left early without `with` is
generated to its end, or until Python collects it. A client that was closed raises Unavailable.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

import httpx2

from adaptersoup import calls
from adaptersoup.calls import each, one, pieces, rows
from adaptersoup.values import Adapter, Listed, Selector
from service.client import adapter_calls, admin_calls, inference_calls, job_calls
from service.client.async_connection import AsyncConnection
from service.client.connection import Connection
from service.client.methods import Async, Call, Chunks, Rows, Sync
from service.http.schemas.adapters import Alias, Lineage, Purged, StoredFile
from service.http.schemas.audit import AuditEntry
from service.http.schemas.chat import ChatAnswer, ChatChunk
from service.http.schemas.collections import Collection
from service.http.schemas.embeddings import EmbeddingAnswer
from service.http.schemas.evaluations import Evaluation
from service.http.schemas.health import Ready
from service.http.schemas.jobs import Job
from service.http.schemas.keys import CreatedKey, Key
from service.http.schemas.limits import Limits
from service.http.schemas.models import ModelCard
from service.http.schemas.namespaces import Namespace
from service.http.schemas.usage import UsageEntry

ADDRESS = "http://127.0.0.1:8000"


class Calls:
    """The calls of both clients. Of an `AsyncClient` those with one answer are awaited, lists and streams are gone
    through with `async for`."""

    upload = Call(adapter_calls.upload)
    has_blob = Call(adapter_calls.has_blob)
    push = Call(calls.push)
    pull = Call(calls.pull)
    adapter = Call(calls.adapter)
    adapters = Call(calls.adapters)
    update_adapter = Call(one(adapter_calls.update_adapter, Adapter))
    aliases = Call(each(adapter_calls.aliases, Alias))
    put_alias = Call(one(adapter_calls.put_alias, Alias))
    delete_alias = Call(adapter_calls.delete_alias)
    delete_adapter = Call(each(adapter_calls.delete_adapter, Listed))
    restore = Call(one(adapter_calls.restore, Adapter))
    purge = Call(one(adapter_calls.purge, Purged))
    collect = Call(one(adapter_calls.collect, Collection))
    lineage = Call(one(adapter_calls.lineage, Lineage))
    files = Call(each(adapter_calls.files, StoredFile))

    fit = Call(calls.fit)
    selector = Call(one(job_calls.selector, Selector))
    selectors = Rows(rows(job_calls.selectors, Selector))
    select = Call(calls.select)
    nearest = Call(calls.nearest)
    cook = Call(calls.cook)
    begin_cook = Call(calls.begin_cook)
    train = Call(calls.train)
    begin_train = Call(calls.begin_train)
    evaluate_pool = Call(calls.evaluate_pool)
    begin_evaluate_pool = Call(calls.begin_evaluate_pool)
    evaluations = Rows(rows(job_calls.evaluations, Evaluation))
    jobs = Rows(rows(job_calls.jobs, Job))
    job = Call(one(job_calls.job, Job))
    watch = Chunks(calls.watch)
    wait_job = Call(calls.wait_job)
    soup_of = Call(calls.soup_of)
    cancel_job = Call(calls.cancel_job)

    models = Call(each(inference_calls.models, ModelCard))
    base_model = Call(one(inference_calls.base_model, ModelCard))
    evaluate = Call(calls.evaluate)
    generate = Call(calls.generate)
    complete = Call(calls.complete)
    stream = Chunks(calls.stream)
    chat = Call(one(inference_calls.chat, ChatAnswer))
    stream_chat = Chunks(pieces(inference_calls.stream_chat, ChatChunk))
    embed = Call(one(inference_calls.embed, EmbeddingAnswer))

    create_key = Call(one(admin_calls.create_key, CreatedKey))
    keys = Rows(rows(admin_calls.keys, Key))
    change_key = Call(one(admin_calls.change_key, Key))
    rotate_key = Call(one(admin_calls.rotate_key, CreatedKey))
    revoke_key = Call(one(admin_calls.revoke_key, Key))
    audit = Rows(rows(admin_calls.audit, AuditEntry))
    audit_csv = Call(admin_calls.audit_csv)
    namespace = Call(one(admin_calls.namespace, Namespace))
    change_namespace = Call(one(admin_calls.change_namespace, Namespace))
    limits = Call(one(admin_calls.limits, Limits))
    change_limits = Call(one(admin_calls.change_limits, Limits))
    usage = Rows(rows(admin_calls.usage, UsageEntry))
    usage_csv = Call(admin_calls.usage_csv)
    ready = Call(one(admin_calls.ready, Ready))


class Client(Calls, Sync):
    """A client of one server that waits for its answers; several threads may use it.

    `transport` replaces the network, `pause` the waiting between two requests.
    """

    def __init__(
        self,
        url: str = ADDRESS,
        key: str | None = None,
        *,
        timeout: float = 600.0,
        transport: httpx2.BaseTransport | None = None,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._http = Connection(url, key, transport=transport, timeout=timeout, pause=pause)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection."""
        self._http.close()


class AsyncClient(Calls, Async):
    """A client of one server whose answers are awaited, on one event loop; a call that is cancelled ends there.

    `transport` replaces the network, `pause` the waiting between two requests.
    """

    def __init__(
        self,
        url: str = ADDRESS,
        key: str | None = None,
        *,
        timeout: float = 600.0,
        transport: httpx2.AsyncBaseTransport | None = None,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._http = AsyncConnection(url, key, transport=transport, timeout=timeout, pause=pause)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close every connection."""
        await self._http.aclose()
