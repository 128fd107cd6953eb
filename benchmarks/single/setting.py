"""The setting of the single-domain experiment: sizes, texts, and initialisation. Torch-free values.

Called by every part of it. Of a domain's text, `train` is trained on, `valid` chooses (the best state of a training,
triples, the best single) and `test` gives figures: `Choosing` holds no passage of `test`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from demo.job import Job
from registry.names import digest_of
from registry.spec import BaseEntry
from training.data import draw

Init = Literal["near_identity", "linear", "zero_up"]
RATES = (7e-3, 4e-3, 1e-3, 5e-4, 1e-4)
"""AdapterSoup's (section 4.3)."""
ORDERS = (1, 2, 3)
LOW, HIGH = 5e-4, 7e-3
"""The two ends of the paper's Table 3, in-domain and held out."""
INITS: tuple[Init, ...] = ("near_identity", "linear", "zero_up")
INIT_SEED, OTHER_SEED = 0, 1
DRAW_SEED = 0


@dataclass(frozen=True)
class Sizes:
    """How much of everything; passages are drawn with one seed, all of them where there are fewer."""

    held_out: tuple[str, ...]
    domain: str = "amazon_electronics"
    steps: int = 128
    batch: int = 4
    block: int = 512
    evaluations: int = 2
    stopping: int = 40
    """Validation passages that choose the best state of a training."""
    some_in: int = 16
    some_out: int = 4
    """Passages that all triples are ranked on."""
    all_in: int = 400
    all_out: int = 100
    """Passages that finalists are scored on."""
    finalists: int = 6
    test_in: int = 160
    test_out: int = 60
    curve_rate: float = 4e-3
    curve_points: int = 11
    curve_passages: int = 80


SHORT = Sizes(held_out=("hotel_reviews", "openstax_textbooks", "pubmed_abstracts"))
"""One domain of reviews, held out another kind of reviews and two of science, like the paper's Table 3."""
LONG = Sizes(
    held_out=(
        "book_of_mormon", "epicurious_recipes", "fairy_tales", "git_docs", "hotel_reviews", "openstax_textbooks",
        "parliament_committees", "pubmed_abstracts", "reuters_1987", "swift_evolution",
    ),
    steps=640, evaluations=8, some_in=64, some_out=8, all_out=210, finalists=12, test_in=400, test_out=120,
    curve_passages=160,
)  # fmt: skip
"""Five times the steps, every novel domain, more text: some hours."""


@dataclass(frozen=True)
class Texts:
    """Passages of one part of one domain."""

    domain: str
    passages: tuple[str, ...]


@dataclass(frozen=True)
class Choosing:
    """Validation text: what choices may look at. A few passages to rank by, more for finalists."""

    in_some: Texts
    in_all: Texts
    out_some: tuple[Texts, ...]
    out_all: tuple[Texts, ...]


@dataclass(frozen=True)
class Testing:
    """Test text: where figures come from."""

    inside: Texts
    outside: tuple[Texts, ...]
    curve: Texts

    @property
    def domains(self) -> tuple[Texts, ...]:
        """The domain itself first, then those held out."""
        return (self.inside, *self.outside)


@dataclass(frozen=True)
class Setting:
    """The experiment on a base model and a folder of text; `home` is a folder of what is made of just these."""

    sizes: Sizes
    base: BaseEntry
    home: Path
    dtype: Literal["float32", "bfloat16"]
    train: Texts
    stopping: Texts
    choosing: Choosing
    testing: Testing


def setting(sizes: Sizes, *, base: Path, data: Path, home: Path, dtype: Literal["float32", "bfloat16"]) -> Setting:
    """Read the texts; raises NotFound where a domain is missing.

    Results of earlier runs are in a folder whose name covers all inputs except the commit.
    """
    job = Job(home, data, BaseEntry(id=base.name, source=str(base.resolve())), (), (), "", home)
    domain = sizes.domain
    train = Texts(domain, tuple(job.texts("train", domain, "train")))
    stopping = _drawn(job, "train", domain, "valid", sizes.stopping)
    choosing = Choosing(
        in_some=_drawn(job, "train", domain, "valid", sizes.some_in),
        in_all=_drawn(job, "train", domain, "valid", sizes.all_in),
        out_some=tuple(_drawn(job, "novel", name, "valid", sizes.some_out) for name in sizes.held_out),
        out_all=tuple(_drawn(job, "novel", name, "valid", sizes.all_out) for name in sizes.held_out),
    )
    testing = Testing(
        inside=_drawn(job, "train", domain, "test", sizes.test_in),
        outside=tuple(_drawn(job, "novel", name, "test", sizes.test_out) for name in sizes.held_out),
        curve=_drawn(job, "train", domain, "test", sizes.curve_passages),
    )
    trains = {name: getattr(sizes, name) for name in ("domain", "steps", "batch", "block", "evaluations", "curve_rate")}
    key = digest_of([trains, dtype, train.passages, stopping.passages, str(base.resolve())])[7:15]
    return Setting(
        sizes, job.base, home / f"{domain}-{key}", dtype, train, stopping, choosing, testing
    )  # fmt: skip


def _drawn(job: Job, kind: str, domain: str, split: str, most: int) -> Texts:
    return Texts(domain, tuple(draw(job.texts(kind, domain, split), most, seed=DRAW_SEED)))
