"""Scores of models on domains, one file each, so that an interrupted run resumes.

A score is named by the digests of the model and of the texts, not by names, so that no outdated score is used.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from registry.files import replace_file
from registry.names import digest_of
from registry.uncertainty import Difference, paired_difference

FORMAT = 2
"""Version of the scoring method. 2: a text that begins with the BOS gets no second one."""


@dataclass(frozen=True)
class Score:
    """One model on one domain's test passages: NLL in nats and tokens of each passage, bytes of all."""

    nll: tuple[float, ...]
    tokens: tuple[int, ...]
    bytes: int

    @property
    def mean_nll(self) -> float:
        """Mean NLL in nats per token."""
        return math.fsum(self.nll) / sum(self.tokens)

    @property
    def perplexity(self) -> float:
        """exp(sum NLL / sum tokens)."""
        return math.exp(self.mean_nll)

    @property
    def bits_per_byte(self) -> float:
        """Sum of NLL in bits over the bytes of the text."""
        return math.fsum(self.nll) / math.log(2) / self.bytes

    def against(self, reference: Score) -> Difference:
        """Mean NLL per token of this minus the reference's, with the paired standard error over passages."""
        return paired_difference(self.nll, reference.nll, self.tokens)


def computed_once(path: Path, compute: Callable[[], Any]) -> Any:
    """The JSON value of a file, which is computed and written if there is none."""
    if not path.is_file():
        replace_file(path, json.dumps(compute()).encode(), temporary=path.with_suffix(".new"))
    return json.loads(path.read_bytes())


class Scores:
    """All scores so far, in a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._earlier = {path.name for path in folder.iterdir()}
        self.reused = 0
        """Number of requested scores that an earlier run had stored."""

    def has(self, digest: str, texts: Sequence[str]) -> bool:
        """Return True if the score of a model on texts is stored."""
        return self._path(digest, texts).is_file()

    def get(self, digest: str, texts: Sequence[str], score: Callable[[], dict[str, Any]]) -> Score:
        """The score of a model on texts; if it is not stored, `score` requests it from /v1/perplexity."""
        path = self._path(digest, texts)
        self.reused += path.name in self._earlier
        self._earlier.discard(path.name)

        def compute() -> dict[str, Any]:
            rows = score()["texts"]
            nll, tokens = (tuple(row[name] for row in rows) for name in ("nll", "tokens"))
            return asdict(Score(nll, tokens, sum(row["bytes"] for row in rows)))

        value = computed_once(path, compute)
        return Score(tuple(value["nll"]), tuple(value["tokens"]), value["bytes"])

    def _path(self, digest: str, texts: Sequence[str]) -> Path:
        return self._folder / f"{digest_of([FORMAT, digest, list(texts)]).removeprefix('sha256:')}.json"
