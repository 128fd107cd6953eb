"""The base class of selectors, the domains they are fitted on, and the checks they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter

from registry.errors import Internal, InvalidParameter, InvalidSample
from registry.progress import Progress
from registry.selectors.ranking import Member, Ranking
from registry.spec import SelectOptions, SelectorSpec
from registry.spec.selection import SelectorSpecBase

Float64 = npt.NDArray[np.float64]
Floats = npt.NDArray[np.floating[Any]]
Arrays = Mapping[str, npt.NDArray[Any]]
Spec = TypeVar("Spec", bound=SelectorSpecBase)

SPECS: TypeAdapter[Any] = TypeAdapter(SelectorSpec)
STATE_VERSION = 2


class Embeddings(Protocol):
    """Embeddings (n, d) of a sample: an array, or a reader that loads stored rows each time it is sliced.

    A selector slices once in each pass over its domains and keeps no slice, so that a fit needs the memory of one
    domain, however many there are. `shape` is free.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """(n, d)."""

    def __getitem__(self, rows: slice, /) -> npt.NDArray[np.float32]:
        """Load these rows into memory."""


@dataclass(frozen=True)
class Domain(Member):
    """An adapter and the embeddings (n, d) of its sample; n may be 0 for `uniform`, which uses none."""

    vectors: Embeddings

    @property
    def units(self) -> int:
        """The number of embeddings, n."""
        return self.vectors.shape[0]

    @property
    def member(self) -> Member:
        """The domain without its vectors, as a fitted selector stores it."""
        return Member(ref=self.ref, digest=self.digest, domain=self.domain)


class Selector(ABC, Generic[Spec]):
    """Fitted on domains, ranks them for a sample. Learned state is in attributes that end in `_`."""

    kind: ClassVar[str]
    members_: tuple[Member, ...]
    report_: dict[str, Any]

    def __init__(self, spec: Spec) -> None:
        self.spec = spec

    @abstractmethod
    def fit(self, domains: Sequence[Domain], *, progress: Progress | None = None) -> Self:
        """Learn from the domains, whose order does not matter; raises InvalidParameter."""

    @abstractmethod
    def rank(
        self, vectors: Floats, *, options: SelectOptions = SelectOptions(), exclude: Mapping[str, str] = {}
    ) -> Ranking:
        """Rank the domains for a sample's vectors (n, d); `exclude` maps excluded adapter digests to the reason.

        Excluded adapters are dropped before shares, thresholds and the cap. Raises InvalidSample, InvalidParameter.
        """

    def to_state(self) -> tuple[Arrays, dict[str, Any]]:
        """The learned state as arrays and a JSON value; a selector restored from them ranks identically."""
        return self._arrays(), {
            "version": STATE_VERSION,
            "kind": self.kind,
            "spec": self.spec.model_dump(mode="json"),
            "members": [vars(member) for member in self.members_],
            "report": self.report_,
        }

    @classmethod
    def from_state(cls, arrays: Arrays, meta: Mapping[str, Any]) -> Self:
        """Restore a selector from its `to_state`; raises Internal for a state of another kind or version."""
        if (meta.get("kind"), meta.get("version")) != (cls.kind, STATE_VERSION):
            raise Internal(
                f"Stored state is of selector {meta.get('kind')!r} version {meta.get('version')!r}, "
                f"not {cls.kind!r} version {STATE_VERSION}: fit it again."
            )
        selector = cls(SPECS.validate_python({"kind": cls.kind, **meta["spec"]}))
        selector.members_ = tuple(Member(**member) for member in meta["members"])
        selector.report_ = dict(meta["report"])
        selector._restore(arrays)
        return selector

    @abstractmethod
    def _arrays(self) -> Arrays:
        """The learned arrays by name, beside the members and the report."""

    @abstractmethod
    def _restore(self, arrays: Arrays) -> None:
        """Set the learned attributes from `_arrays`; raises Internal for arrays of another form."""

    @classmethod
    def _floats(cls, arrays: Arrays, name: str, *shape: int) -> Float64:
        """A float64 array of a stored state; raises Internal as `_array` does."""
        floats: Float64 = cls._array(arrays, name, np.float64, shape)
        return floats

    @staticmethod
    def _array(arrays: Arrays, name: str, dtype: type, shape: tuple[int, ...]) -> Any:
        """An array of a stored state; raises Internal where it is missing or has another type or shape."""
        array = arrays.get(name)
        if array is None or array.dtype != np.dtype(dtype) or array.shape != shape:
            actual = "missing" if array is None else f"{array.dtype} {array.shape}"
            raise Internal(f"Stored selector array {name!r} is {actual}, not {np.dtype(dtype)} {shape}: fit it again.")
        return np.ascontiguousarray(array)


def ordered_domains(domains: Sequence[Domain], *, min_units: int | None = None) -> list[Domain]:
    """`domains` sorted by label and digest, so that a fit does not depend on the order they come in.

    Raises InvalidParameter where there is none or a label or digest comes twice. With `min_units` also where a domain
    has fewer vectors, or their dimensions differ. That they are finite is checked where they are read
    (`registry.selectors.drawing`).
    """
    if not domains:
        raise InvalidParameter("The pool is empty: push adapters with samples first.", param="pool")
    for field in ("domain", "digest"):
        counts = Counter(getattr(domain, field) for domain in domains)
        duplicates = sorted(value for value, count in counts.items() if count > 1)
        if duplicates:
            raise InvalidParameter(
                f"Each {field} may be in the pool once, and {duplicates[0]!r} is there more often.", param="pool"
            )
    ordered = sorted(domains, key=lambda domain: (domain.domain, domain.digest))
    if min_units is not None:
        _check_vectors(ordered, min_units)
    return ordered


def _check_vectors(domains: Sequence[Domain], minimum: int) -> None:
    first = domains[0].vectors.shape
    dimensions = first[1] if len(first) == 2 else 0
    for domain in domains:
        shape = domain.vectors.shape
        problem = None
        if len(shape) != 2 or shape[1] != dimensions or dimensions == 0:
            problem = f"Embeddings of domain {domain.domain!r} have shape {shape}, others {dimensions} dimensions."
        elif shape[0] < minimum:
            problem = f"Domain {domain.domain!r} has {shape[0]} embeddings; this selector needs at least {minimum}."
        if problem is not None:
            raise InvalidParameter(problem, param="pool")


def check_sample(vectors: Floats, dimensions: int) -> Float64:
    """A sample's vectors (n, d) in float64.

    Raises InvalidSample where there is none, they have other dimensions, or hold NaN or infinity.
    """
    if vectors.ndim != 2 or vectors.shape[0] == 0:
        raise InvalidSample("The sample has no embeddings.", param="sample")
    if vectors.shape[1] != dimensions:
        raise InvalidSample(
            f"The sample's embeddings have {vectors.shape[1]} dimensions and the selector's {dimensions}: "
            "they come from another encoder.",
            param="sample",
        )
    if not np.isfinite(vectors).all():
        raise InvalidSample("The sample's embeddings hold NaN or infinity.", param="sample")
    return np.ascontiguousarray(vectors, dtype=np.float64)
