"""An engine that computes the requests of other processes: of a server whose child it is, or as a replica on Ray.

It has no database and knows no keys or names: each request says which blob has the weights of its digest, and bytes of
another digest are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from registry.adapters.loadable import Tensors
from registry.blobs import open_blobs
from registry.errors import Incompatible, SoupError, Unavailable
from registry.stored.adapters import from_store
from service.engine import Delta, GenerateRequest
from service.engine.bases import AllowedBases
from service.engine.engine import Engine
from service.engine.request import Request
from service.engine_process.plan import EnginePlan
from service.engine_process.wire import SentRequest


class EngineHost:
    """The engine of a plan, with the tokenizers of its base models; raises Unavailable without the folder of blobs."""

    def __init__(self, plan: EnginePlan) -> None:
        if plan.blobs.url is None and not plan.blobs.folder.is_dir():
            raise Unavailable(
                f"There is no folder of blobs {plan.blobs.folder} on this node: mount it, or keep blobs in a bucket "
                "(SOUP_BLOBS_URL)."
            )
        self._blobs = open_blobs(plan.blobs, make=plan.blobs.url is not None)
        self._bases = AllowedBases(plan.bases, plan.cache)
        self.engine = Engine(self._bases, plan.limits)
        for base_id in plan.bases:  # later they would wait until other weights are loaded, and requests with them
            with suppress(SoupError):  # a request for it gets the error
                _ = self._bases.text(base_id), self._bases.size(base_id)

    def receive(
        self,
        sent: SentRequest,
        *,
        load: Callable[[str], Tensors] | None = None,
        on_token: Callable[[Delta], None] | None = None,
        **callbacks: Any,
    ) -> Request:
        """A request that was sent, with `callbacks`; `load` loads the adapter of a digest that is not stored.

        Raises Incompatible for another fingerprint of the base model.
        """
        request = sent.request
        fingerprint = self._bases.text(request.base_id).shape.fingerprint
        if fingerprint != sent.fingerprint:
            raise Incompatible(
                f"The engine has another state of base model '{request.base_id}' ({fingerprint[:19]} and not "
                f"{sent.fingerprint[:19]}): restart the server, or deploy the replicas on Ray again."
            )
        adapter = request.adapter
        if adapter is not None and adapter.stored is not None:
            adapter = from_store(adapter.digest, adapter.config, adapter.stored, self._blobs, named=adapter.digest)
        elif adapter is not None and load is not None:
            adapter = replace(adapter, load=partial(load, adapter.digest))
        if isinstance(request, GenerateRequest):
            request = replace(request, on_token=on_token)
        return replace(request, adapter=adapter, **callbacks)
