"""vLLM's plugin: a `model` that vLLM does not know is looked for on a server, and its LoRA loaded from there.

vLLM finds `register` by its entry point (`vllm.general_plugins`). It does something where `SOUP_VLLM_BASE` is set: the
id, on the server, of the base model that vLLM serves. The server is that of `SOUP_URL` and `SOUP_KEY`; LoRAs are kept
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


class SoupResolver(LoRAResolver):  # type: ignore[misc]  # vLLM is there in its own environments alone
    """Resolves names of LoRAs, `namespace/name[@version or alias]` and `sha256:...`, over a LoraCache."""

    def __init__(self, cache: LoraCache) -> None:
        self._cache = cache

    async def resolve_lora(self, base_model_name: str, lora_name: str) -> LoRARequest | None:
        """The request for a LoRA, None where the server has none of that name; raises what `LoraCache.directory` does.

        vLLM gives the request a number of its own, and keeps it under its name until it is unloaded.
        """
        place = await asyncio.to_thread(self._cache.directory, lora_name)
        if place is None:
            return None
        return LoRARequest(
            lora_name=lora_name, lora_int_id=1, lora_path=str(place), base_model_name=base_model_name or None
        )


def register() -> None:
    """Have vLLM ask the server of the settings, where these name a base model."""
    settings = VllmSettings()
    if settings.vllm_base is None:
        return
    client = SoupClient(settings.url, settings.secret(), timeout=settings.timeout)
    cache = LoraCache(client, settings.vllm_cache.expanduser().absolute(), base_model=settings.vllm_base)
    LoRAResolverRegistry.register_resolver(NAME, SoupResolver(cache))
