"""Names of vLLM follow the server: where one means another adapter now, vLLM gets that adapter for it.

vLLM asks a resolver for each name once, and keeps the answer. Run by the plugin in the process of vLLM's API server.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Protocol

from adaptersoup.vllm.lora_cache import LoraCache
from registry.errors import SoupError
from registry.names import NameRef, parse_ref

log = logging.getLogger("soup.client")

PAUSE_SECONDS = 1.0
"""Between two rounds of questions."""


class ServedModels(Protocol):
    """The interface of vLLM's `OpenAIServingModels` that this uses."""

    lora_requests: dict[str, Any]
    """The adapter of each name that was requested; its `lora_name` is the digest where it is from the server."""

    async def resolve_lora(self, lora_name: str) -> Any:
        """Ask the resolvers for a name, load the adapter, and add it to `lora_requests`; else return an error."""


async def follow(models: ServedModels, cache: LoraCache) -> None:
    """Follow the names until cancelled; an unreachable server is asked again, and names stay as they are."""
    while True:
        await asyncio.sleep(PAUSE_SECONDS)
        try:
            await follow_once(models, cache)
        except SoupError as error:
            log.warning("Names of adapters are not followed: %s", error.message)


async def follow_once(models: ServedModels, cache: LoraCache) -> None:
    """Ask the server for every name that can move; raises the errors of `LoraCache.digest`.

    A name that means another adapter gets it when vLLM has loaded it, with all requests after. A name that means none
    any more, or one that vLLM cannot load, is forgotten: the next request for it says why.
    """
    for name, request in list(models.lora_requests.items()):
        if not request.lora_name.startswith("sha256:") or not can_move(name):
            continue
        digest = await asyncio.to_thread(cache.digest, name)
        if digest == request.lora_name or models.lora_requests.get(name) is not request:
            continue
        moved = None if digest is None else await _loaded(models, digest)
        if moved is None:
            models.lora_requests.pop(name, None)
        else:
            models.lora_requests[name] = moved


async def _loaded(models: ServedModels, digest: str) -> Any | None:
    """vLLM's request for the adapter of a digest, None where vLLM does not load it."""
    try:
        await models.resolve_lora(digest)
    except SoupError:
        raise
    except Exception as error:  # vLLM's, for an adapter that it does not load
        log.warning("%s", error)
    return models.lora_requests.get(digest)


def can_move(name: str) -> bool:
    """Return True for a name without a version: with an alias, or of the newest version."""
    ref = parse_ref(name)
    return isinstance(ref, NameRef) and ref.version is None
