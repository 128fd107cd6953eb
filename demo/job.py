"""One main job: its text, base model and adapters, either the shipped ones on SmolLM2 or the user's own.

A data folder holds `train/<domain>/{train,valid,test}` and `novel/<domain>/{valid,test}` as .jsonl or .jsonl.gz. A
novel domain's sample comes from `valid`, all figures from `test`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adaptersoup.cli.verbs.compare.strategies import Strategy
from demo.server import write_bases
from demo.strategies import EVERY, FEW
from registry.base_model import weight_bytes
from registry.errors import InvalidParameter, NotFound
from registry.spec import BaseEntry
from training.data import draw, read_lines
from training.tasks import LANGUAGE_MODELLING

HOME = Path(".demo")
DOMAINS = Path(__file__).parent / "domains"
"""Shipped files: `adapters/<domain>` and the control, trained on SmolLM2, and texts in `novel/<domain>`."""
CONTROL = "control_textbooks"
TRAINING_SAMPLE = 120
"""Passages pushed with an adapter: 100 are drawn for a fit, the others measure the selector's accuracy."""
NOVEL_SAMPLE = 100
SEED = 0
SMALL_BYTES = 100_000_000
LARGE_BASE: Mapping[str, Any] = {"test_passages": 40, "longest": 500}
"""Reduced settings for a user's base model above this size, so that 21 + 10 domains take less than 100 minutes."""


@dataclass(frozen=True)
class Job:
    """A main job: its text (`data`), base model, domains, and the folder `home` for all output."""

    home: Path
    data: Path
    base: BaseEntry
    training: tuple[str, ...]
    novel: tuple[str, ...]
    control: str
    """Name of the adapter that was trained on no domain's text; empty if there is none."""
    adapters: Path
    """Adapter directories to push, including the control."""
    strategies: tuple[Strategy, ...] = EVERY
    oracle: bool = True
    """True to also score every single adapter on the test passages, to find the best one."""
    test_passages: int = 60
    longest: int | None = None
    """Maximum characters of a passage, which is cut to them; None for no limit."""
    wall_goal: float = 6000.0
    """Maximum seconds of the whole job, without installation and download."""

    @property
    def bases(self) -> Path:
        """The allowlist of base models."""
        return self.home / "bases.toml"

    @property
    def pushed(self) -> tuple[str, ...]:
        """Names of everything that is pushed."""
        return (*self.training, *((self.control,) if self.control else ()))

    def texts(self, kind: str, domain: str, split: str) -> list[str]:
        """All passages of `train/<domain>/<split>` or `novel/<domain>/<split>`; raises NotFound."""
        return read_split(self.data / kind / domain, split)

    def sample(self, domain: str) -> list[str]:
        """The passages of a novel domain for which a soup is cooked."""
        return self._drawn("novel", domain, "valid", NOVEL_SAMPLE)

    def test(self, domain: str) -> list[str]:
        """The passages of a novel domain for the figures; the sample has none of them."""
        return self._drawn("novel", domain, "test", self.test_passages)

    def training_sample(self, domain: str) -> list[str]:
        """The passages that represent a training domain."""
        return self._drawn("train", domain, "train", TRAINING_SAMPLE)

    def _drawn(self, kind: str, domain: str, split: str, count: int) -> list[str]:
        texts = draw(self.texts(kind, domain, split), count, seed=SEED)
        return texts if self.longest is None else [shorten(text, self.longest) for text in texts]

    def write_bases(self) -> None:
        """Write the allowlist with the base model."""
        self.home.mkdir(parents=True, exist_ok=True)
        write_bases(self.bases, self.base)


def read_split(folder: Path, split: str) -> list[str]:
    """All passages of a folder's `<split>.jsonl` or `<split>.jsonl.gz`; raises NotFound."""
    for path in (folder / f"{split}.jsonl", folder / f"{split}.jsonl.gz"):
        if path.is_file():
            return LANGUAGE_MODELLING.items(read_lines(path), where=str(path))
    raise NotFound(f"{folder} has no {split}.jsonl and no {split}.jsonl.gz.")


def shorten(text: str, most: int) -> str:
    """The beginning of a passage, to the last end of a sentence within `most` characters, else to the last space."""
    if len(text) <= most:
        return text
    head = text[:most]
    end = max(head.rfind(mark) + 1 for mark in (". ", ".\n", "? ", "! ", "; "))
    return (head[:end] if end > most // 2 else head[: head.rfind(" ")]).rstrip()


def shipped_job(entry: BaseEntry) -> Job:
    """The job with the shipped adapters and text."""
    names = domains_of(DOMAINS / "adapters")
    return Job(
        HOME / "smollm2",
        DOMAINS,
        entry,
        tuple(name for name in names if name != CONTROL),
        domains_of(DOMAINS / "novel"),
        CONTROL,
        DOMAINS / "adapters",
        strategies=FEW,
        oracle=False,
        wall_goal=300.0,
    )


def own_job(data: Path, entry: BaseEntry, adapters: Path, names: Sequence[str]) -> Job:
    """The job with the user's own data, base model and neutral adapters, which have these `names`.

    Every training domain needs an adapter. An adapter without a training domain is the control; raises InvalidParameter
    if there are several.
    """
    training, novel = domains_of(data / "train"), domains_of(data / "novel")
    missing = sorted(set(training) - set(names))
    controls = sorted(set(names) - set(training))
    if missing or len(controls) > 1:
        mismatch = (
            f"no adapter for {', '.join(missing)}" if missing else f"more than one control: {', '.join(controls)}"
        )
        raise InvalidParameter(f"{adapters} does not fit {data / 'train'}: {mismatch}.", param="adapters")
    places = [str(data.resolve()), entry.source, str(adapters.resolve())]
    home = HOME / f"main_job-{hashlib.sha256(chr(10).join(places).encode()).hexdigest()[:8]}"
    large = LARGE_BASE if weight_bytes(entry) > SMALL_BYTES else {}
    return Job(home, data, entry, training, novel, controls[0] if controls else "", home / "adapters", **large)


def domains_of(folder: Path) -> tuple[str, ...]:
    """Names of the domains' folders in `folder`; raises NotFound if there are none."""
    names = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    if not names:
        raise NotFound(
            f"{folder} holds no domains: DATA needs train/<domain>/ and novel/<domain>/ with .jsonl.gz files."
        )
    return tuple(names)
