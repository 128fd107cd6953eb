"""The client of the command line and the demo: answers are the JSON objects of the API, errors are `registry.errors`.

Programs have `adaptersoup.Client`, which makes the same calls and gives typed values; both are made of one description
of each call (`service.client.adapter_calls` and its neighbours). No torch. Bodies are values of `registry.spec`;
adapter directories go up and come down with `service.client.transfer`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

import httpx2

from service.client import adapter_calls, admin_calls, inference_calls, job_calls
from service.client.connection import Connection
from service.client.methods import Call, Chunks, Rows, Sync
from service.client.steps import Sizes, Steps

T = TypeVar("T")
SIZES = Sizes()


class SoupClient(Sync):
    """A client of one server. `transport` replaces the network, `pause` the waiting, in tests.

    Texts and files of at most `inline_bytes` travel inside of a request, larger ones as blobs; those of more than
    `part_bytes` are sent in parts of so many.
    """

    def __init__(
        self,
        base_url: str = "http://127.0.0.1:8000",
        api_key: str | None = None,
        *,
        transport: httpx2.BaseTransport | None = None,
        timeout: float = 600.0,
        pause: Callable[[float], object] = time.sleep,
        inline_bytes: int = SIZES.inline,
        part_bytes: int = SIZES.part,
    ) -> None:
        sizes = Sizes(inline_bytes, part_bytes)
        self._http = Connection(base_url, api_key, transport=transport, timeout=timeout, pause=pause, sizes=sizes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection."""
        self._http.close()

    def pause(self, seconds: float) -> None:
        """Wait, as this client does between two requests."""
        self._http.pause(seconds)

    def run(self, steps: Steps[T]) -> T:
        """What the steps of a call come to."""
        return self._http.run(steps)

    @property
    def base_url(self) -> str:
        """The server's address."""
        return self._http.base_url

    upload = Call(adapter_calls.upload)
    has_blob = Call(adapter_calls.has_blob)
    push = Call(adapter_calls.push)
    push_patiently = Call(adapter_calls.push_patiently)
    sample = Call(adapter_calls.sample)
    adapters = Rows(adapter_calls.adapters)
    adapter = Call(adapter_calls.adapter)
    update_adapter = Call(adapter_calls.update_adapter)
    aliases = Call(adapter_calls.aliases)
    put_alias = Call(adapter_calls.put_alias)
    delete_alias = Call(adapter_calls.delete_alias)
    delete_adapter = Call(adapter_calls.delete_adapter)
    restore = Call(adapter_calls.restore)
    purge = Call(adapter_calls.purge)
    collect = Call(adapter_calls.collect)
    lineage = Call(adapter_calls.lineage)
    files = Call(adapter_calls.files)
    download = Call(adapter_calls.download)

    fit = Call(job_calls.fit)
    selector = Call(job_calls.selector)
    selectors = Rows(job_calls.selectors)
    select = Call(job_calls.select)
    nearest = Call(job_calls.nearest)
    cook = Call(job_calls.cook)
    begin_cook = Call(job_calls.begin_cook)
    train = Call(job_calls.train)
    evaluate_pool = Call(job_calls.evaluate_pool)
    evaluations = Rows(job_calls.evaluations)
    result_of = Call(job_calls.result_of)
    jobs = Rows(job_calls.jobs)
    job = Call(job_calls.job)
    cancel_job = Call(job_calls.cancel_job)
    wait_job = Call(job_calls.wait_job)
    wait_embedded = Call(job_calls.wait_embedded)

    models = Call(inference_calls.models)
    base_model = Call(inference_calls.base_model)
    perplexity = Call(inference_calls.perplexity)
    complete = Call(inference_calls.complete)
    stream = Chunks(inference_calls.stream)
    chat = Call(inference_calls.chat)
    stream_chat = Chunks(inference_calls.stream_chat)
    embed = Call(inference_calls.embed)

    create_key = Call(admin_calls.create_key)
    keys = Rows(admin_calls.keys)
    change_key = Call(admin_calls.change_key)
    rotate_key = Call(admin_calls.rotate_key)
    revoke_key = Call(admin_calls.revoke_key)
    audit = Rows(admin_calls.audit)
    audit_csv = Call(admin_calls.audit_csv)
    namespace = Call(admin_calls.namespace)
    change_namespace = Call(admin_calls.change_namespace)
    limits = Call(admin_calls.limits)
    change_limits = Call(admin_calls.change_limits)
    usage = Rows(admin_calls.usage)
    usage_csv = Call(admin_calls.usage_csv)
    ready = Call(admin_calls.ready)
