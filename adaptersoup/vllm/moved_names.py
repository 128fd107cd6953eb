"""Poll the server for names that now mean another adapter, and load that adapter into vLLM.

vLLM asks a resolver for each name once, and keeps the answer. Run by the plugin in the process of vLLM's API server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from adaptersoup.vllm.lora_cache import LoraCache
from registry.errors import SoupError
from registry.names import NameRef, parse_ref

log = logging.getLogger("soup.client")

PAUSE_SECONDS = 1.0
"""Seconds between two polls."""


class ServedModels(Protocol):
    """The interface of vLLM's `OpenAIServingModels` that this uses."""

    lora_requests: dict[str, Any]
    """The adapter of each requested name; its `lora_name` is the name of a CachedLora if it is from the server."""

    async def resolve_lora(self, lora_name: str) -> Any:
        """Ask the resolvers for a name, load the adapter, and add it to `lora_requests`; else return an error."""


class NamePoller:
    """Polls the server for every name that can move.

    A name that means another adapter gets it when vLLM has loaded it, with all requests after. A name that means none
    any more, or one that vLLM cannot load, is forgotten: the next request for it says why. A name whose question fails
    stays as it is, and is asked for again.
    """

    def __init__(self, models: ServedModels, cache: LoraCache) -> None:
        self._models = models
        self._cache = cache
        self._failing: set[str] = set()

    async def follow(self, pause: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Poll until cancelled."""
        while True:
            await pause(PAUSE_SECONDS)
            await self.follow_once()

    async def follow_once(self) -> None:
        """Poll each name once; the first error of a name is logged."""
        for name, request in dict(self._models.lora_requests).items():
            try:
                await self._follow(name, request)
                self._failing.discard(name)
            except Exception as error:  # of one name: the others are followed
                if name not in self._failing:
                    reason = error.message if isinstance(error, SoupError) else repr(error)
                    cause = None if isinstance(error, SoupError) else error
                    log.warning("vLLM's name %s is not followed: %s", name, reason, exc_info=cause)
                self._failing.add(name)

    async def _follow(self, name: str, request: Any) -> None:
        requests = self._models.lora_requests
        if not request.lora_name.startswith("sha256:") or not can_move(name):
            return
        digest = await asyncio.to_thread(self._cache.digest, name)
        if digest == _digest_of(request) or requests.get(name) is not request:
            return
        moved = None if digest is None else await self._loaded(digest)
        if requests.get(name) is not request:  # unloaded meanwhile
            return
        if moved is None:
            del requests[name]
        else:
            requests[name] = moved

    async def _loaded(self, digest: str) -> Any | None:
        """vLLM's request for the adapter of a digest, None where vLLM does not load it."""
        requests = self._models.lora_requests
        loaded = next((request for request in requests.values() if _digest_of(request) == digest), None)
        if loaded is not None:
            return loaded
        try:
            await self._models.resolve_lora(digest)
        except SoupError:
            raise
        except Exception as error:  # vLLM's, for an adapter that it does not load
            log.warning("%s", error)
        return requests.pop(digest, None)  # it gets the name that has moved


def _digest_of(request: Any) -> str:
    """The digest in the name of vLLM's request for an adapter of the server."""
    digest: str = request.lora_name.partition("#")[0]
    return digest


def can_move(name: str) -> bool:
    """Return True for a name without a version: with an alias, or of the newest version."""
    ref = parse_ref(name)
    return isinstance(ref, NameRef) and ref.version is None
