"""Configuration of inference replicas, which is sent to Ray with them. It contains no secret."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from registry.base_model import read_allowlist
from registry.errors import InvalidParameter
from registry.spec import BaseEntry, BlobPlace
from registry.spec.frozen import Frozen
from service.settings import Settings


class ReplicaPlan(Frozen):
    """Base models, blobs and engine limits of a replica. Paths are on the nodes it runs on."""

    bases: dict[str, BaseEntry] = Field(min_length=1)
    blobs: BlobPlace
    """Read only. A bucket's credentials come from the node's own variables."""
    cache: Path
    threads: int | None
    rows: int
    queue: int
    queue_tokens: int
    batch_tokens: int
    kv_bytes: int
    share_prompts: Literal["off", "namespace", "all"]
    bank_bytes: int
    memory_bytes: int | None


def plan_of(settings: Settings) -> ReplicaPlan:
    """The configuration of replicas from a server's settings; raises InvalidParameter without base models."""
    if settings.bases is None:
        raise InvalidParameter(
            "Replicas need base models: name the allowlist with --bases or SOUP_BASES.", param="bases"
        )
    cache, place = settings.cache.resolve(), settings.blob_place
    if place.url is None:
        folders = {"folder": place.folder.resolve()}
    else:
        folders = {"folder": cache / "unfinished", "cache": cache / "blobs"}
    return ReplicaPlan(
        bases=read_allowlist(settings.bases),
        blobs=place.model_copy(update=folders),
        cache=cache,
        threads=settings.threads,
        rows=settings.engine_rows,
        queue=settings.engine_queue,
        queue_tokens=settings.engine_queue_tokens,
        batch_tokens=settings.engine_batch_tokens,
        kv_bytes=settings.engine_kv_bytes,
        share_prompts=settings.engine_share_prompts,
        bank_bytes=settings.adapter_bank_bytes,
        memory_bytes=settings.memory_bytes,
    )
