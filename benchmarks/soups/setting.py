"""The setting of `benchmarks.adaptersoup`: a bank of adapters on a running server, and the texts of every domain.

A bank is a folder of adapters in the neutral form (`demo.prepare`), or of directories that can be pushed, PEFT's too.
Hostile sets are text that no adapter of the bank can help with more than by chance: nothing should be claimed there.
"""

from __future__ import annotations

import argparse
import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from adaptersoup.client.additions import Additions
from adaptersoup.client.client import SoupClient
from benchmarks.report import options
from demo.base_models import base_entry
from demo.job import Job, domains_of, read_split, shorten
from demo.prepare import convert_all, neutral_domains
from demo.results import ROOT, commit
from demo.scores import Scores
from demo.server import running
from demo.talk import Talk
from registry.base_model import shape_of
from registry.errors import InvalidParameter
from registry.formats import CONFIG_FILE, SAMPLES_FILE, read_directory
from training.data import draw

NAMESPACE = "bank"
GENERAL = "general"
LARGEST = 100
"""Passages of a sample."""
TEST = 40
"""Passages that every figure of a domain comes from."""
HELD_OUT = 20
"""Passages that settings of the ladder are chosen on; they are in no sample."""
LONGEST = 1200
"""Characters that passages are cut to."""
WORDS = 60
"""Of a passage that is made here."""
SENTENCE = "The ferry leaves the harbour at noon. "
HOSTILE = ("source_code", "shuffled_words", "digits", "one_sentence", GENERAL)


@dataclass(frozen=True)
class Lengths:
    """Test passages of a domain, passages of its largest sample, and characters that all are cut to."""

    passages: int = TEST
    largest: int = LARGEST
    longest: int = LONGEST


@dataclass
class Texts:
    """The job, and the passages of its domains that are cooked from and scored."""

    job: Job
    test_passages: int = TEST
    largest: int = LARGEST
    _read: dict[tuple[str, str], list[str]] = field(default_factory=dict, init=False, repr=False)

    def sample(self, domain: str, *, size: int, seed: int) -> list[str]:
        """Passages of a domain that a soup is cooked from; smaller samples are the first passages of larger ones."""
        return self._drawn(domain, seed)[: min(size, self.largest)]

    def held_out(self, domain: str, *, seed: int) -> list[str]:
        """Passages that are in no sample of this draw."""
        return self._drawn(domain, seed)[self.largest :][-HELD_OUT:]

    def _drawn(self, domain: str, seed: int) -> list[str]:
        texts = self._texts(domain, "valid")
        return self._short([texts[number] for number in np.random.default_rng(seed).permutation(len(texts))])

    def test(self, domain: str) -> list[str]:
        """Passages that figures come from; none of them is in a sample."""
        return self._short(draw(self._texts(domain, "test"), self.test_passages, seed=0))

    def _short(self, texts: list[str]) -> list[str]:
        return texts if self.job.longest is None else [shorten(text, self.job.longest) for text in texts]

    def _texts(self, domain: str, split: str) -> list[str]:
        if domain not in HOSTILE:
            if (domain, split) not in self._read:  # figures ask for the same ones thousands of times
                self._read[domain, split] = self.job.texts("novel", domain, split)
            return self._read[domain, split]
        return self._hostile[domain][0 if split == "valid" else 1]

    @cached_property
    def _hostile(self) -> dict[str, tuple[list[str], list[str]]]:
        """(sample, test) of each hostile set."""
        general = read_split(self.job.data / GENERAL, "valid")[:600]
        words = [word for text in general for word in text.split()]
        random.Random(1).shuffle(words)
        digits = random.Random(2)
        sets = {
            "source_code": _source_code(),
            "shuffled_words": _passages(words),
            "digits": _passages([str(digits.randrange(10**6)) for _ in range(300 * WORDS)]),
            "one_sentence": [(SENTENCE * 16)[number % 20 : 40 + number] for number in range(400)],
            GENERAL: general,
        }
        return {name: (texts[0::2], texts[1::2]) for name, texts in sets.items()}


@dataclass
class Setting(Texts):
    """A server with the bank pushed, its client, scores kept on disk, and the texts."""

    client: SoupClient = field(kw_only=True)
    scores: Scores = field(kw_only=True)
    base_digest: str = field(kw_only=True)

    @classmethod
    def on(cls, texts: Texts, client: SoupClient, scores: Scores, base_digest: str) -> Setting:
        """These texts, with a server."""
        return cls(texts.job, texts.test_passages, texts.largest, client=client, scores=scores, base_digest=base_digest)

    @property
    def base(self) -> str:
        """The base model, as a ref."""
        return f"base/{self.job.base.id}"

    @cached_property
    def commit(self) -> str | None:
        """The commit that the server was started from."""
        return commit()


def _passages(words: list[str]) -> list[str]:
    return [" ".join(words[start : start + WORDS]) for start in range(0, min(len(words), 300 * WORDS), WORDS)]


def _source_code() -> list[str]:
    """This project's own, in pieces of some lines."""
    lines = [line for path in sorted((ROOT / "registry").rglob("*.py")) for line in path.read_text().splitlines()]
    return ["\n".join(lines[start : start + 12]) for start in range(0, 300 * 12, 12)]


def bank_options(description: str | None, *, home: Path) -> argparse.ArgumentParser:
    """A parser with what every benchmark on a bank takes; its server and all that is kept is in `home` by default."""
    parser = options(description)
    parser.add_argument("--data", type=Path, required=True, help="train/, novel/ and general/ of domains' text")
    parser.add_argument("--base", required=True, help="the base model's folder")
    parser.add_argument("--adapters", type=Path, required=True, help="the bank: PEFT's folders, or the neutral form")
    parser.add_argument("--home", type=Path, default=home, help="what is kept between runs")
    return parser


@contextmanager
def opened(
    data: Path, base: str, adapters: Path, home: Path, lengths: Lengths, *, domains: Sequence[str] | None = None
) -> Iterator[Setting]:
    """The setting while open: `prepared`, the bank pushed once, a server over `home`; raises as the demo does."""
    texts = prepared(data, base, adapters, home, lengths, domains=domains)
    job = texts.job
    job.write_bases()
    fingerprint = shape_of(job.base, job.home / "cache").fingerprint
    with running(job.bases, job.home / "server") as server, server.client() as client:
        names = {adapter["name"] for adapter in client.adapters(kind="adapter")}
        more = Additions(base=job.base.id)
        for name in sorted(set(job.pushed) - names):
            client.push_directory(job.adapters / name, name=f"{NAMESPACE}/{name}", more=more)
        for adapter in client.adapters(kind="adapter"):
            client.wait_embedded(adapter)
        yield Setting.on(texts, client, Scores(home.parent / "scores"), fingerprint)


def prepared(
    data: Path, base: str, adapters: Path, home: Path, lengths: Lengths, *, domains: Sequence[str] | None = None
) -> Texts:
    """The texts, and the bank converted or copied into `home`; raises InvalidParameter, and as the demo does.

    `domains` are the novel ones, all by default.
    """
    talk = Talk(1)
    novel = domains_of(data / "novel")
    if unknown := sorted(set(domains or ()) - set(novel)):
        raise InvalidParameter(f"{data} has no novel {', '.join(unknown)}: it has {', '.join(novel)}.")
    folders = bank_folders(adapters)
    names = sorted(folders or neutral_domains(adapters))
    controls = sorted(set(names) - set(domains_of(data / "train")))
    if len(controls) != 1:
        raise InvalidParameter(
            f"{adapters} needs one adapter of no domain in {data / 'train'}, the control: it has "
            f"{', '.join(controls) or 'none'}."
        )
    training = tuple(name for name in names if name not in controls)
    job = Job(
        home,
        data,
        base_entry(base, talk),
        training,
        tuple(domains or novel),
        controls[0],
        home / "adapters",
        longest=lengths.longest,
    )
    if not all((job.adapters / name / CONFIG_FILE).is_file() for name in job.pushed):
        if folders:
            copy_bank(folders, job)
        else:
            convert_all(job, adapters, names, talk)
    return Texts(job, lengths.passages, lengths.largest)


def bank_folders(adapters: Path) -> dict[str, Path]:
    """The adapter directories in a folder by their domain, of several for one the best on its validation text."""
    best: dict[str, tuple[float, Path]] = {}
    for path in sorted(adapters.glob(f"*/{CONFIG_FILE}")):
        directory = read_directory(path.parent)
        perplexity = float((directory.provenance.training or {}).get("valid_perplexity", float("inf")))
        domain = directory.domain or path.parent.name
        best[domain] = min(best.get(domain, (perplexity, path.parent)), (perplexity, path.parent))
    return {domain: path for domain, (_, path) in best.items()}


def copy_bank(folders: Mapping[str, Path], job: Job) -> None:
    """Copy adapter directories, the control's without its sample, so that no selector ranks it."""
    shutil.rmtree(job.adapters, ignore_errors=True)
    for name, folder in folders.items():
        without = shutil.ignore_patterns(SAMPLES_FILE) if name == job.control else None
        shutil.copytree(folder, job.adapters / name, ignore=without)
