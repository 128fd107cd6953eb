"""Configuration of inference replicas, which is sent to Ray with them. It contains no secret."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from registry.base_model import read_allowlist
from registry.errors import InvalidParameter
from registry.spec import BaseEntry, BlobPlace
from registry.spec.frozen import Frozen
from service.engine import EngineLimits
from service.settings import Settings


class ReplicaPlan(Frozen):
    """Base models, blobs and engine limits of a replica. Paths are on the nodes it runs on."""

    bases: dict[str, BaseEntry] = Field(min_length=1)
    blobs: BlobPlace
    """Read only. A bucket's credentials come from the node's own variables."""
    cache: Path
    threads: int | None
    limits: EngineLimits


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
        limits=EngineLimits.of(settings),
    )
