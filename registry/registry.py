"""What every verb is given first: the sizes a registry takes, and on whose behalf it works."""

from __future__ import annotations

from dataclasses import dataclass, field

from registry.progress import Progress

__all__ = ["Caller", "Limits", "Progress", "SampleLimits"]

MIN_SEQUENCES = 20
GOOD_SEQUENCES = 100
MAX_SEQUENCES = 500


@dataclass(frozen=True)
class SampleLimits:
    """Sequences under which a sample is refused or noted, and over which it is drawn; characters of one text."""

    minimum: int = MIN_SEQUENCES
    good: int = GOOD_SEQUENCES
    maximum: int = MAX_SEQUENCES
    max_chars: int = 1_000_000


@dataclass(frozen=True)
class Limits:
    """Sizes beyond which what a client sends is refused; settings of the server."""

    inline_bytes: int = 8 * 2**20
    weights_bytes: int = 2**30
    sample_bytes: int = 64 * 2**20
    embeddings_bytes: int = 64 * 2**20
    sample: SampleLimits = field(default_factory=SampleLimits)


@dataclass(frozen=True)
class Caller:
    """Whose request it is; `scope` is the namespaces the key may read (None: all)."""

    key_id: str
    scope: tuple[str, ...] | None
    request_id: str
