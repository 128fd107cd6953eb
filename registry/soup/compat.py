"""What stands between adapters and one soup: every reason at once, found before a tensor is read.

Adapters of different base fingerprint, structure, scale or initialisation are never silently averaged (DESIGN,
invariant 3). `cook` calls this with values from the catalogue.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from registry.spec import AdapterConfig, Provenance


@dataclass(frozen=True)
class Part:
    """One ingredient as the catalogue knows it; `weight` is its canonical decimal."""

    adapter_id: int
    ref: str
    digest: str
    weight: str
    base_fingerprint: str
    config: AdapterConfig
    provenance: Provenance
    dtype: str


def differing(parts: Sequence[Part], what: str, key: Callable[[Part], object]) -> list[str]:
    """One sentence if `key` is not the same for all parts, naming an example of each value; else nothing."""
    examples: dict[object, str] = {}
    for part in parts:
        examples.setdefault(key(part), part.ref)
    if len(examples) < 2:
        return []
    shown = "; ".join(f"{ref} has {value}" for value, ref in list(examples.items())[:4])
    return [f"{what} differ: {shown}."]


def structure_reasons(parts: Sequence[Part]) -> list[str]:
    """Reasons of base and structure: what no mixing of tensors can overcome."""
    reasons = differing(parts, "The base models", lambda part: part.base_fingerprint[:19])
    for field in type(parts[0].config).model_fields:
        reasons += differing(parts, f"The values of '{field}'", attrgetter(f"config.{field}"))
    return reasons


def init_reasons(parts: Sequence[Part]) -> list[str]:
    """Reasons of initialisation: unknown matches nothing, not even unknown (AdapterSoup, appendix A.1)."""
    if len(parts) < 2:
        return []
    unknown = [part.ref for part in parts if part.provenance.init_hash is None]
    reasons = []
    if unknown:
        shown = ", ".join(unknown[:4]) + (f" and {len(unknown) - 4} more" if len(unknown) > 4 else "")
        reasons.append(f"The initialisation of {shown} is unknown.")
    known = [part for part in parts if part.provenance.init_hash is not None]
    return reasons + differing(known, "The initialisations", lambda part: (part.provenance.init_hash or "")[:19])
