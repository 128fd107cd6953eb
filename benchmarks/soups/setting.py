"""The setting of `benchmarks.adaptersoup`: a bank of adapters on a running server, and the texts of every domain.

Beside the bank a fresh adapter is pushed, near the identity, which training can start from as it does from a soup.
Hostile sets are text that no adapter of the bank can help with more than by chance: nothing should be claimed there.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path

from adaptersoup.client.client import SoupClient
from demo.base_models import base_entry
from demo.job import Job, own_job, shorten
from demo.prepare import convert_all, neutral_domains
from demo.results import ROOT, commit
from demo.scores import Scores
from demo.server import running
from demo.talk import Talk
from registry.adapters import create
from registry.adapters.weights import save_tensors
from registry.base_model import shape_of
from registry.errors import InvalidParameter, NotFound
from registry.formats import AdapterContents, read_directory, write_directory
from training.data import draw, read_texts

NAMESPACE = "bank"
FRESH = "fresh"
GENERAL = "general"
LARGEST = 100
"""Passages of a sample."""
TEST = 40
"""Passages that every figure of a domain comes from."""
WORDS = 60
"""Of a passage that is made here."""
SENTENCE = "The ferry leaves the harbour at noon. "
HOSTILE = ("source_code", "shuffled_words", "digits", "one_sentence", GENERAL)


@dataclass(frozen=True)
class Lengths:
    """Test passages of a domain, passages of its largest sample, and characters that all are cut to.

    Where `longest` is None they are cut as in the demo.
    """

    passages: int = TEST
    largest: int = LARGEST
    longest: int | None = None


@dataclass
class Texts:
    """The job, and the passages of its domains that are cooked from and scored."""

    job: Job
    test_passages: int = TEST
    largest: int = LARGEST
    _read: dict[tuple[str, str], list[str]] = field(default_factory=dict, init=False, repr=False)

    def sample(self, domain: str, *, size: int, seed: int) -> list[str]:
        """Passages of a domain that a soup is cooked from; smaller ones are of the largest of their draw."""
        return self._short(draw(draw(self._texts(domain, "valid"), self.largest, seed=seed), size, seed=seed + 1000))

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
        general = _general(self.job.data)
        words = [word for text in general for word in text.split()]
        random.Random(1).shuffle(words)
        digits = random.Random(2)
        made = {
            "source_code": _source_code(),
            "shuffled_words": _passages(words),
            "digits": _passages([str(digits.randrange(10**6)) for _ in range(300 * WORDS)]),
            "one_sentence": [(SENTENCE * 16)[number % 20 : 40 + number] for number in range(400)],
            GENERAL: general,
        }
        return {name: (texts[0::2], texts[1::2]) for name, texts in made.items()}


@dataclass
class Setting(Texts):
    """A server with the bank pushed, its client, scores kept on disk, and the texts."""

    client: SoupClient = field(kw_only=True)
    scores: Scores = field(kw_only=True)
    base_digest: str = field(kw_only=True)

    @classmethod
    def on(cls, texts: Texts, client: SoupClient, scores: Scores, base_digest: str) -> Setting:
        """These texts, with a server."""
        return cls(
            texts.job, texts.test_passages, texts.largest, client=client, scores=scores, base_digest=base_digest
        )  # fmt: skip

    @property
    def base(self) -> str:
        """The base model, as a ref."""
        return f"base/{self.job.base.id}"

    @cached_property
    def commit(self) -> str | None:
        """The commit that the server was started from."""
        return commit()


def _general(data: Path) -> list[str]:
    folder = data / "general"
    for name in ("valid.jsonl", "valid.jsonl.gz"):
        if (folder / name).is_file():
            return read_texts(folder / name)[:600]
    raise NotFound(f"{folder} has no valid.jsonl and no valid.jsonl.gz.")


def _passages(words: list[str]) -> list[str]:
    return [" ".join(words[start : start + WORDS]) for start in range(0, min(len(words), 300 * WORDS), WORDS)]


def _source_code() -> list[str]:
    """This project's own, in pieces of some lines."""
    lines = [line for path in sorted((ROOT / "registry").rglob("*.py")) for line in path.read_text().splitlines()]
    return ["\n".join(lines[start : start + 12]) for start in range(0, 300 * 12, 12)]


@contextmanager
def opened(
    data: Path, base: str, adapters: Path, home: Path, lengths: Lengths, *, domains: Sequence[str] | None = None
) -> Iterator[Setting]:
    """The setting while open: `prepared`, the bank pushed once, a server over `home`; raises as the demo does."""
    texts = prepared(data, base, adapters, home, lengths, domains=domains)
    job = texts.job
    job.write_bases()
    fingerprint = shape_of(job.base, job.home / "cache").fingerprint
    _write_fresh(job, fingerprint)
    with running(job.bases, job.home / "server") as server, server.client() as client:
        there = {one["name"] for one in client.adapters(kind="adapter")}
        for name in (*job.pushed, FRESH):
            if name not in there:
                pushed = client.push_directory(job.adapters / name, name=f"{NAMESPACE}/{name}")
                if pushed.get("job"):
                    client.wait_job(pushed["job"])
        scores = Scores(job.home / "scores")
        yield Setting.on(texts, client, scores, fingerprint)


def prepared(
    data: Path, base: str, adapters: Path, home: Path, lengths: Lengths, *, domains: Sequence[str] | None = None
) -> Texts:
    """The job with its bank converted; raises as the demo does.

    What `home` keeps is of its `lengths`: InvalidParameter for others. `domains` are the novel ones, all by default.
    """
    talk = Talk(1)
    names = neutral_domains(adapters)
    found = own_job(data, base_entry(base, talk), adapters, names)
    if unknown := sorted(set(domains or ()) - set(found.novel)):
        raise InvalidParameter(f"{data} has no novel {', '.join(unknown)}: it has {', '.join(found.novel)}.")
    changed = {"home": home, "adapters": home / "adapters", "longest": lengths.longest or found.longest}
    job = Job(**{**vars(found), **changed, "novel": tuple(domains or found.novel)})
    if not all((job.adapters / name / "adapter_config.json").is_file() for name in job.pushed):
        convert_all(job, adapters, names, talk)
    same_lengths(home, lengths)
    return Texts(job, lengths.passages, lengths.largest)


def same_lengths(home: Path, lengths: Lengths) -> None:
    """Raises InvalidParameter where a folder keeps answers of other lengths, or does not say of which."""
    path = home / "lengths.json"
    if not path.is_file() and not (home / "answers").is_dir():
        home.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(lengths)))
    kept = json.loads(path.read_text()) if path.is_file() else "lengths it does not name"
    if kept != asdict(lengths):
        raise InvalidParameter(f"{home} keeps answers of {kept}, not of {asdict(lengths)}: choose another --home.")


def _write_fresh(job: Job, fingerprint: str) -> None:
    """An adapter of the bank's structure that nothing was trained into."""
    like = read_directory(job.adapters / job.training[0])
    shape = shape_of(job.base, job.home / "cache")
    contents = AdapterContents(
        config=like.config, domain=FRESH, weights=save_tensors(create(like.config, shape, seed=0).state_dict()),
        base_model=job.base.id, base_fingerprint=fingerprint,
    )  # fmt: skip
    write_directory(job.adapters / FRESH, contents, replace=True)
