"""The limits of an engine, which a server takes from its settings; its replicas on Ray have the same."""

from __future__ import annotations

import math
from dataclasses import dataclass

from service.engine.prefix_cache import PrefixSharing
from service.settings import Settings


@dataclass(frozen=True, kw_only=True)
class EngineLimits:
    """Limits of what an engine holds and computes at once.

    `max_queue` requests of `max_queue_tokens` tokens are admitted at once (`AdmissionControl`); `memory_bytes` is for
    the weights of base models and adapters together, `kv_bytes` for keys and values of running sequences and of cached
    prefixes (None: no limit, and no prefix is cached); the others are the scheduler's and the adapter cache's.
    `share_prompts` says between which keys cached prefixes are shared.
    """

    max_queue: int = 256
    max_queue_tokens: float = math.inf
    max_step_tokens: int = 2048
    max_rows: int = 16
    bank_bytes: int = 512 * 2**20
    kv_bytes: int | None = None
    share_prompts: PrefixSharing = "namespace"
    memory_bytes: int | None = None

    @classmethod
    def of(cls, settings: Settings) -> EngineLimits:
        """Return the limits that a server's settings give."""
        return cls(
            max_queue=settings.engine_queue,
            max_queue_tokens=settings.engine_queue_tokens,
            max_step_tokens=settings.engine_batch_tokens,
            max_rows=settings.engine_rows,
            bank_bytes=settings.adapter_bank_bytes,
            kv_bytes=settings.engine_kv_bytes,
            share_prompts=settings.engine_share_prompts,
            memory_bytes=settings.memory_bytes,
        )
