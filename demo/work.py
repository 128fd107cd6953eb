"""What the demo works on, whoever prepared it: a base model, adapter folders, novel domains with sample and test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Novel:
    """A domain nobody trained on: `sample` chooses (from `valid`), `test` gives the figures."""

    sample: tuple[str, ...]
    test: tuple[str, ...]


@dataclass(frozen=True)
class Work:
    """One demo: `adapters` and `control` are adapter directories; the control has no sample."""

    title: str
    base_id: str
    base: Path
    adapters: Mapping[str, Path]
    control: Path
    novel: Mapping[str, Novel]
    note: str
    """What a reader must know of the text, said above the table."""
