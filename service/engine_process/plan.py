"""Configuration of an engine in another process, or of a replica on Ray, which is sent to it. It has no secret."""

from __future__ import annotations

from pathlib import Path

from registry.base_model import read_allowlist
from registry.spec import BaseEntry, BlobPlace
from registry.spec.frozen import Frozen
from service.engine import EngineLimits
from service.settings import Settings


class EnginePlan(Frozen):
    """Base models, blobs, limits and log level of an engine. Paths are on the machine it runs on."""

    bases: dict[str, BaseEntry]
    blobs: BlobPlace
    """Read only. A bucket's credentials come from the node's own variables."""
    cache: Path
    limits: EngineLimits
    log_level: str


def plan_of(settings: Settings) -> EnginePlan:
    """The configuration of an engine from a server's settings."""
    cache, place = settings.cache.resolve(), settings.blob_place
    if place.url is None:
        folders = {"folder": place.folder.resolve()}
    else:
        folders = {"folder": cache / "unfinished", "cache": cache / "blobs"}
    return EnginePlan(
        bases={} if settings.bases is None else read_allowlist(settings.bases),
        blobs=place.model_copy(update=folders),
        cache=cache,
        limits=EngineLimits.of(settings),
        log_level=settings.log_level,
    )
