"""vLLM's plugin: bottlenecks beside LoRAs, and unknown models resolved to adapters of a server.

vLLM finds `register` and `NameFollower` by their entry points (`vllm.general_plugins`, `vllm.endpoint_plugins`). With
`SOUP_VLLM_BOTTLENECKS` models get the layers of `adaptersoup.vllm.models`. With `SOUP_VLLM_BASE`, the server's id of
the base model that vLLM serves, vLLM resolves names that it does not know at `SOUP_URL`.
"""

from __future__ import annotations

import asyncio
from argparse import Namespace
from typing import Any

from vllm.exceptions import VLLMValidationError
from vllm.lora.request import LoRARequest
from vllm.lora.resolver import LoRAResolver, LoRAResolverRegistry
from vllm.model_executor.models import ModelRegistry

from adaptersoup.client.client import SoupClient
from adaptersoup.vllm.lora_cache import LoraCache
from adaptersoup.vllm.lora_files import ARCHITECTURES
from adaptersoup.vllm.moved_names import NamePoller
from adaptersoup.vllm.settings import VllmSettings
from registry.adapters.bottleneck_lora import kinds_named
from registry.errors import Incompatible

NAME = "AdapterSoup"


class SoupResolver(LoRAResolver):  # type: ignore[misc]  # vLLM is installed in its own environments only
    """Resolves names of adapters, `namespace/name[@version or alias]` and `sha256:...`, with a LoraCache."""

    def __init__(self, cache: LoraCache) -> None:
        self._cache = cache

    async def resolve_lora(self, base_model_name: str, lora_name: str) -> LoRARequest | None:
        """The request for an adapter, None if the server has none of that name.

        Its name in vLLM begins with the digest, since vLLM's prefix cache goes by that name. No other request has the
        same name, since requests are equal if their names are. vLLM replaces the request's number, and keeps it under
        the requested name. Raises VLLMValidationError, which vLLM answers with status 400, for an adapter that this
        engine does not load, and the other errors of `LoraCache.lora`.
        """
        try:
            lora = await asyncio.to_thread(self._cache.lora, lora_name)
        except Incompatible as error:
            raise VLLMValidationError(error.message) from error
        if lora is None:
            return None
        return LoRARequest(
            lora_name=lora.name,
            lora_int_id=1,
            lora_path=str(lora.directory),
            base_model_name=base_model_name or None,
        )


class NameFollower:
    """An endpoint plugin without routes: it follows names in the process of the API server."""

    name = "adaptersoup"
    required_tasks = None

    def attach_router(self, app: Any) -> None:
        """Add no route."""

    async def init_state(self, _engine_client: Any, state: Any, _args: Namespace) -> None:
        """Follow the names of vLLM's models while the server runs, if the settings name a base model."""
        cache = cache_of(VllmSettings())
        if cache is not None and hasattr(state, "openai_serving_models"):
            self._following = asyncio.create_task(NamePoller(state.openai_serving_models, cache).follow())


def cache_of(settings: VllmSettings) -> LoraCache | None:
    """The cache of the server's adapters, None if the settings name no base model."""
    if settings.vllm_base is None:
        return None
    return LoraCache(
        SoupClient(settings.url, settings.secret(), timeout=settings.timeout),
        settings.vllm_cache.expanduser().absolute(),
        base_model=settings.vllm_base,
        kinds=settings.vllm_bottlenecks,
    )


def register() -> None:
    """Register models and resolver with vLLM, as far as the settings name bottlenecks and a base model.

    Raises InvalidParameter for unknown kinds of bottlenecks.
    """
    settings = VllmSettings()
    if kinds_named(settings.vllm_bottlenecks):
        for name in ARCHITECTURES.values():
            ModelRegistry.register_model(f"{name}ForCausalLM", f"adaptersoup.vllm.models:{name}WithBottlenecks")
    cache = cache_of(settings)
    if cache is not None:
        LoRAResolverRegistry.register_resolver(NAME, SoupResolver(cache))
