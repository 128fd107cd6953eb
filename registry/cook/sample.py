"""The sample of a cook, read once and split into passages to fit on and passages that are held out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from registry.context import BaseModel, Caller, Registry
from registry.errors import InvalidSample
from registry.samples.sample import CheckedSample, check_sample
from registry.spec import CookRequest, Passage

HELD_OUT_EVERY = 5
"""Every fifth passage of a sample is held out, or every fourth or third to reach LEAST_HELD_OUT."""
LEAST_HELD_OUT = 6
FEW = 20
"""Samples with fewer passages are cross-validated in FOLDS folds, and the answer is fitted on all passages."""
FOLDS = 3


@dataclass(frozen=True)
class Split:
    """The split of `count` passages: `folds` are the numbers of passages that are held out together.

    There is one fold, and the answer is fitted on the other passages. With `fits_all` (cross-validation) the answer is
    fitted on all passages, and each fold is scored by a soup that was fitted in the same way without it. Effort `tune`
    trains its answer on all passages in both cases.
    """

    count: int
    folds: tuple[tuple[int, ...], ...]
    fits_all: bool

    @classmethod
    def of(cls, count: int) -> Split:
        """The split of this number of passages."""
        if count >= FEW:
            stride = min(HELD_OUT_EVERY, count // LEAST_HELD_OUT)
            return cls(count, (tuple(range(stride - 1, count, stride)),), False)
        return cls(count, tuple(tuple(range(first, count, FOLDS)) for first in range(FOLDS)), True)

    @property
    def held_out(self) -> list[int]:
        """The numbers of all passages that are held out, fold by fold."""
        return [number for fold in self.folds for number in fold]

    @property
    def fit(self) -> list[int]:
        """The numbers of the passages that the answer is fitted on."""
        return list(range(self.count)) if self.fits_all else self.without(self.folds[0])

    def without(self, fold: Sequence[int]) -> list[int]:
        """The numbers of the passages that are not in a fold."""
        return [number for number in range(self.count) if number not in fold]


class Sample(CheckedSample):
    """The sample of a request, and how its texts are split."""

    @cached_property
    def split(self) -> Split:
        """The split of its passages."""
        return Split.of(len(self.texts))

    def texts_of(self, numbers: Sequence[int]) -> tuple[Passage, ...]:
        """The passages of these numbers."""
        return tuple(self.texts[number] for number in numbers)

    @property
    def fit_texts(self) -> tuple[Passage, ...]:
        """The passages that the answer is fitted on."""
        return self.texts_of(self.split.fit)

    @property
    def held_out_texts(self) -> tuple[Passage, ...]:
        """The passages that candidates are scored on, fold by fold."""
        return self.texts_of(self.split.held_out)


def read_sample(registry: Registry, caller: Caller, request: CookRequest, base: BaseModel) -> Sample | None:
    """The sample of a request, or None; raises InvalidSample for vectors if the soup must be verified on text."""
    if request.sample is None:
        return None
    checked = check_sample(registry, caller, request.sample, encoders=base.encoders(), bos=base.bos, novel=True)
    if request.verify and not checked.texts:
        raise InvalidSample(
            "Verification needs the texts of the sample, and the request has only vectors: send texts, or "
            "set 'verify' to false.",
            param="verify",
        )
    return Sample(checked.report, checked.texts, checked.data, checked.vectors)
