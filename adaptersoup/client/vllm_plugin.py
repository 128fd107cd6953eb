"""A plugin for vLLM that resolves unknown models to LoRAs of a server.

vLLM finds `register` by its entry point (`vllm.general_plugins`). The plugin is active if `SOUP_VLLM_BASE` is set: the
id, on the server, of the base model that vLLM serves. The server is that of `SOUP_URL` and `SOUP_KEY`; LoRAs are cached
in `SOUP_VLLM_CACHE`.
"""

from __future__ import annotations

import asyncio

from vllm.lora.request import LoRARequest
from vllm.lora.resolver import LoRAResolver, LoRAResolverRegistry

from adaptersoup.client.client import SoupClient
from adaptersoup.client.lora_cache import LoraCache
from adaptersoup.client.vllm_settings import VllmSettings

NAME = "AdapterSoup"


class SoupResolver(LoRAResolver):  # type: ignore[misc]  # vLLM is installed in its own environments only
    """Resolves names of LoRAs, `namespace/name[@version or alias]` and `sha256:...`, with a LoraCache."""

    def __init__(self, cache: LoraCache) -> None:
        self._cache = cache

    async def resolve_lora(self, base_model_name: str, lora_name: str) -> LoRARequest | None:
        """The request for a LoRA, None if the server has none of that name; raises the errors of `LoraCache.directory`.

        vLLM replaces the request's number, and keeps it under its name until it is unloaded.
        """
        directory = await asyncio.to_thread(self._cache.directory, lora_name)
        if directory is None:
            return None
        return LoRARequest(
            lora_name=lora_name, lora_int_id=1, lora_path=str(directory), base_model_name=base_model_name or None
        )


def register() -> None:
    """Register the resolver with vLLM, if the settings name a base model."""
    settings = VllmSettings()
    if settings.vllm_base is None:
        return
    client = SoupClient(settings.url, settings.secret(), timeout=settings.timeout)
    cache = LoraCache(client, settings.vllm_cache.expanduser().absolute(), base_model=settings.vllm_base)
    LoRAResolverRegistry.register_resolver(NAME, SoupResolver(cache))
