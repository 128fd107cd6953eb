"""One main job: where its text, its base model and its adapters are, and what is drawn from them.

A data folder holds `train/<domain>/{train,valid,test}` and `novel/<domain>/{valid,test}` as .jsonl or .jsonl.gz. A
novel domain's sample comes from `valid`, every figure from `test`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from registry.errors import InvalidParameter, NotFound
from registry.spec import BaseEntry
from training.data import draw, read_texts

HOME = Path(".demo")
NAMESPACE = "demo"
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
    """Name of the adapter trained on mixed text; the empty string where there is none."""

    @property
    def adapters(self) -> Path:
        """Adapter directories, ready to be pushed; the control adapter's is among them."""
        return self.home / "adapters"

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
        return draw(self.texts("novel", domain, "valid"), NOVEL_SAMPLE, seed=SEED)

    def test(self, domain: str) -> list[str]:
        """The passages of a novel domain that figures come from; nothing of them is in the sample."""
        return draw(self.texts("novel", domain, "test"), TEST_PASSAGES, seed=SEED)

    def training_sample(self, domain: str) -> list[str]:
        """The passages that stand for a training domain."""
        return draw(self.texts("train", domain, "train"), TRAINING_SAMPLE, seed=SEED)

    def write_bases(self) -> None:
        """Write the allowlist, with the one base model."""
        self.home.mkdir(parents=True, exist_ok=True)
        source = json.dumps(self.base.source)  # a JSON string is a TOML string
        self.bases.write_text(f'[bases.{self.base.id}]\nsource = {source}\ndtype = "{self.base.dtype}"\n')


def domains_of(folder: Path) -> tuple[str, ...]:
    """Domains of a data folder's `train` or `novel`; raises NotFound where there is none."""
    found = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    if not found:
        raise NotFound(
            f"{folder} holds no domains: DATA needs train/<domain>/ and novel/<domain>/ with .jsonl.gz files."
        )
    return tuple(found)


def external_job(data: Path, base: Path, adapters: Path, names: Sequence[str]) -> Job:
    """The job over people's own data, base model and neutral adapters, of which `names` are there.

    Every training domain needs an adapter. The one adapter that is no training domain is the control; raises
    InvalidParameter where there are several.
    """
    training, novel = domains_of(data / "train"), domains_of(data / "novel")
    missing = sorted(set(training) - set(names))
    others = sorted(set(names) - set(training))
    if missing or len(others) > 1:
        what = f"no adapter for {', '.join(missing)}" if missing else f"more than one control: {', '.join(others)}"
        raise InvalidParameter(f"{adapters} does not fit {data / 'train'}: {what}.", param="adapters")
    if not base.is_dir():
        raise NotFound(f"{base} is not a directory: BASE names the folder of a base model.")
    key = hashlib.sha256("\n".join(str(p.resolve()) for p in (data, base, adapters)).encode()).hexdigest()[:8]
    entry = BaseEntry(id=_part(base.resolve().name), source=str(base.resolve()))
    return Job("main_job", HOME / f"main_job-{key}", data, entry, training, novel, others[0] if others else "")


def _part(name: str) -> str:
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in name.lower()).lstrip("._-")
    return kept[:64] or "base"
