"""The limits of an engine, which a server takes from its settings; its replicas on Ray have the same."""

from __future__ import annotations

import math
from dataclasses import dataclass

from registry.spec import BaseShape
from service.engine.prefix_cache import PrefixSharing
from service.settings import Settings


@dataclass(frozen=True, kw_only=True)
class EngineLimits:
    """Limits of what an engine holds and computes at once."""

    max_requests: int = 256
    """Requests that are admitted at once (`AdmissionControl`)."""
    max_tokens: float = math.inf
    """Tokens of these requests together."""
    max_step_tokens: int = 2048
    """Prefill tokens of one step."""
    max_running: int = 16
    """Sequences that generate together."""
    adapter_cache_bytes: int = 512 * 2**20
    kv_bytes: int | None = None
    """For keys and values of running sequences and of cached prefixes; None: no limit, and no prefix is cached."""
    share_prompts: PrefixSharing = "namespace"
    """Between which keys cached prefixes are shared."""
    memory_bytes: int | None = None
    """For the weights of base models and adapters together; None: no limit."""
    threads: int | None = None
    """Processor cores that the thread of an engine uses; None: all of the process."""

    @classmethod
    def of(cls, settings: Settings) -> EngineLimits:
        """The limits in a server's settings."""
        return cls(
            max_requests=settings.engine_queue,
            max_tokens=settings.engine_queue_tokens,
            max_step_tokens=settings.engine_batch_tokens,
            max_running=settings.engine_rows,
            adapter_cache_bytes=settings.adapter_bank_bytes,
            kv_bytes=settings.engine_kv_bytes,
            share_prompts=settings.engine_share_prompts,
            memory_bytes=settings.memory_bytes,
            threads=settings.threads,
        )


def smallest_adapter_bytes(shape: BaseShape) -> int:
    """Bytes of the smallest adapter of a base model, in fp32: a LoRA of rank 1, or a prefix of one position."""
    values = [inputs + outputs for inputs, outputs in shape.linears.values()]
    if shape.kv is not None:
        heads, size = shape.kv
        values.append(2 * 2 * shape.num_layers * heads * size)  # its tensor, and the keys and values made of it
    return 4 * min(values, default=0)
