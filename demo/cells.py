"""Scores of models on domains, one cell each, kept on disk as they come: an interrupted run goes on where it was.

A cell is named by digests (of the model and of the texts), never by names, so nothing stale is ever taken.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from registry.names import digest_of
from registry.uncertainty import Difference, paired_difference

FORMAT = 2
"""Counts up with any change of how texts are scored: 2, since a text that begins with the BOS gets no other."""


@dataclass(frozen=True)
class Cell:
    """One model on one domain's test passages: NLL in nats and tokens of each passage, bytes of all."""

    nll: tuple[float, ...]
    tokens: tuple[int, ...]
    bytes: int

    @property
    def mean_nll(self) -> float:
        """Nats per token."""
        return math.fsum(self.nll) / sum(self.tokens)

    @property
    def perplexity(self) -> float:
        """exp(sum NLL / sum tokens)."""
        return math.exp(self.mean_nll)

    @property
    def bits_per_byte(self) -> float:
        """Sum of NLL in bits over the bytes of the text."""
        return math.fsum(self.nll) / math.log(2) / self.bytes

    def against(self, other: Cell) -> Difference:
        """Mean NLL per token of this minus the other's, with the paired standard error over passages."""
        return paired_difference(self.nll, other.nll, self.tokens)


class Cells:
    """Every cell so far, in a file of JSON lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = _read(path)
        self.kept = 0
        """How many of the scores asked for were there from an earlier run."""
        self._earlier = set(self._known)

    def has(self, digest: str, texts: Sequence[str]) -> bool:
        """Whether a model was scored on texts before."""
        return _key(digest, texts) in self._known

    def get(self, digest: str, texts: Sequence[str], score: Callable[[], dict[str, Any]]) -> Cell:
        """The cell of a model on texts; `score` asks the server for it (an answer of /v1/perplexity) if need be."""
        key = _key(digest, texts)
        if key not in self._known:
            scored = score()["texts"]
            cell = {
                "nll": [row["nll"] for row in scored],
                "tokens": [row["tokens"] for row in scored],
                "bytes": sum(row["bytes"] for row in scored),
            }
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": key, **cell}) + "\n")
            self._known[key] = _cell(cell)
        self.kept += key in self._earlier
        self._earlier.discard(key)
        return self._known[key]


def _key(digest: str, texts: Sequence[str]) -> str:
    return digest_of([FORMAT, digest, list(texts)])


def _cell(value: dict[str, Any]) -> Cell:
    return Cell(nll=tuple(value["nll"]), tokens=tuple(value["tokens"]), bytes=int(value["bytes"]))


def _read(path: Path) -> dict[str, Cell]:
    """What an earlier run left; a line that was cut off is forgotten, and taken out of the file."""
    found: dict[str, Cell] = {}
    if not path.is_file():
        return found
    whole = []
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        try:
            value = json.loads(line)
            found[value["key"]] = _cell(value)
        except (ValueError, KeyError, TypeError):
            continue
        whole.append(line)
    path.write_text("".join(line if line.endswith("\n") else line + "\n" for line in whole), encoding="utf-8")
    return found
