"""One main job: where its text, its base model and its adapters are, and what is drawn from them.

A data folder holds `train/<domain>/{train,valid,test}` and `novel/<domain>/{valid,test}` as .jsonl or .jsonl.gz. A
novel domain's sample comes from `valid`, every figure from `test`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from demo.passages import shorten
from demo.strategies import STRATEGIES
from registry.errors import NotFound
from registry.spec import BaseEntry
from service.cli.verbs.compare.strategies import Strategy
from training.data import draw, read_texts

HOME = Path(".demo")
TRAINING_SAMPLE = 120
"""Passages pushed with an adapter: 100 are drawn for a fit, the others tell how well domains are told apart."""
NOVEL_SAMPLE = 100
TEST_PASSAGES = 60
SEED = 0


@dataclass(frozen=True)
class Job:
    """A main job: its text (`data`), base model, domains, and the folder `home` that everything made goes into.

    `name` is that of its results file.
    """

    name: str
    home: Path
    data: Path
    base: BaseEntry
    training: tuple[str, ...]
    novel: tuple[str, ...]
    control: str
    """Name of the adapter trained on text of no domain; the empty string where there is none."""
    adapters: Path
    """Adapter directories, ready to be pushed; the control adapter's is among them."""
    strategies: tuple[Strategy, ...] = STRATEGIES
    oracle: bool = True
    """Whether every single adapter is scored on the test passages too, for the best of them."""
    test_passages: int = TEST_PASSAGES
    longest: int | None = None
    """Characters that passages are cut to; None leaves them whole."""
    wall_goal: float = 6000.0
    """Seconds the whole job may take, without installation and download."""

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
        folder = self.data / kind / domain
        for name in (f"{split}.jsonl", f"{split}.jsonl.gz"):
            if (folder / name).is_file():
                return read_texts(folder / name)
        raise NotFound(f"{folder} has no {split}.jsonl and no {split}.jsonl.gz.")

    def sample(self, domain: str) -> list[str]:
        """The passages of a novel domain that a soup is cooked from."""
        return self._drawn("novel", domain, "valid", NOVEL_SAMPLE)

    def test(self, domain: str) -> list[str]:
        """The passages of a novel domain that figures come from; nothing of them is in the sample."""
        return self._drawn("novel", domain, "test", self.test_passages)

    def training_sample(self, domain: str) -> list[str]:
        """The passages that stand for a training domain."""
        return self._drawn("train", domain, "train", TRAINING_SAMPLE)

    def _drawn(self, kind: str, domain: str, split: str, count: int) -> list[str]:
        texts = draw(self.texts(kind, domain, split), count, seed=SEED)
        return texts if self.longest is None else [shorten(text, self.longest) for text in texts]

    def write_bases(self) -> None:
        """Write the allowlist, with the one base model."""
        self.home.mkdir(parents=True, exist_ok=True)
        source = json.dumps(self.base.source)  # a JSON string is a TOML string
        self.bases.write_text(f'[bases.{json.dumps(self.base.id)}]\nsource = {source}\ndtype = "{self.base.dtype}"\n')
