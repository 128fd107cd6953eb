"""Statistics of ingredients, for mixing methods that go by them: found where they were computed before, else made.

Called by `cook` before it mixes. They are computed where gradients may run (`training.statistics`), on the text of the
sample that an ingredient was pushed with, and stored at once: what was computed stays where the cook ends before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from registry.adapters import expected_tensors
from registry.adapters.moments import measured_weights, packed_entries
from registry.adapters.weights import load_tensors
from registry.blobs import BlobStore
from registry.catalogue.database import Catalogue
from registry.catalogue.rows import AdapterRow, StatisticRow
from registry.context import BaseModel, Registry
from registry.cook.mix import check_base
from registry.cook.publish import purged_meanwhile
from registry.errors import Incompatible, InvalidRecipe
from registry.files import decode_lines
from registry.mixing import MIXINGS
from registry.mixing.auto import choose_mixing
from registry.mixing.compat import SoupIngredient, Statistic
from registry.progress import Progress
from registry.quotas import check_stored, room_for_bytes
from registry.spec import (
    MOST_PASSAGES,
    AutoMixing,
    BaseShape,
    CookRequest,
    MeasuredStatistic,
    MixingRequest,
    StatisticKind,
    StatisticRequest,
    StoredAdapter,
)
from registry.stored_files import record_bytes

MOST_BYTES = 2**29
"""Of the second moments of all ingredients: they are as large as the square of what is read."""
MOST_READ = 2048
"""Values that a projection may read, where a system as large as that is solved: time grows with its cube."""

Measure = Callable[[str, StatisticRequest], MeasuredStatistic]
"""(id of the base model, request) -> what was computed and stored: runs where gradients may run."""


def may_measure(mixing: MixingRequest) -> bool:
    """Whether a mixing goes by statistics, some of which may have to be computed first: that takes a minute."""
    return not isinstance(mixing, AutoMixing) and MIXINGS[mixing.method].statistic(mixing) is not None


def with_statistics(
    registry: Registry, base: BaseModel, parts: tuple[SoupIngredient, ...], request: CookRequest, *, measure: Measure,
    progress: Progress,
) -> tuple[SoupIngredient, ...]:  # fmt: skip
    """The parts with what the request's mixing has to know of each; as they are where that is nothing.

    One that a recipe names is taken as it is, and never computed anew: that would be another recipe.
    Whatever stands against the mixing surfaces before anything is computed: Incompatible, with all reasons. Raises
    InvalidRecipe for a statistic that this mixing does not go by, Retired for an ingredient that is purged meanwhile,
    and what `measure` and `progress` raise.
    """
    mixing = request.mixing
    if isinstance(mixing, AutoMixing) or not may_measure(mixing):
        return _without(parts, mixing)
    method = MIXINGS[mixing.method]
    choose_mixing(parts, mixing, max_width=request.max_width)
    kind = method.statistic(mixing)
    alone = len(parts) == 1 and method.result(parts, mixing) == parts[0].config
    if kind is None or alone:  # one that stays as wide as it is is itself
        return _without(parts, mixing)
    check_base(parts, base)
    if base.shape.kind == "encoder":
        what = f"Mixing by {mixing.method!r} looks at what adapters predict or read in text"
        raise Incompatible(f"{what}, and base model {base.entry.id!r} is an encoder: mix by 'average'.", param="mixing")
    if kind == "inputs":  # else as large as the adapter
        _check_size(parts, base.shape, solved=mixing.method == "regmean")
    work = _Work(registry, base, kind, measure, progress)
    return tuple(replace(part, statistic=work.statistic(part)) for part in parts)


@dataclass(frozen=True)
class _Work:
    """What finds or computes a statistic of one kind."""

    registry: Registry
    base: BaseModel
    kind: StatisticKind
    measure: Measure
    progress: Progress

    def statistic(self, part: SoupIngredient) -> Statistic:
        """The one that its recipe names, else that of an ingredient on its sample; raises as `with_statistics`."""
        if part.statistic is not None:
            return self._named(part, part.statistic)
        assert part.sample is not None  # the method's check
        with self.registry.database.read() as catalogue:
            known = self._whole(catalogue, part, part.sample)
        if known is None:
            known = self._computed(part, part.sample)
        return stored_statistic(self.registry.blobs, known.blob_digest)

    def _named(self, part: SoupIngredient, named: Statistic) -> Statistic:
        with self.registry.database.read() as catalogue:
            row = catalogue.statistics.named(None, part.digest, named.blob)
        if row is None:
            raise purged_meanwhile(part)
        if row.kind != self.kind:
            what = f"{named.blob} is a statistic of kind '{row.kind}' of {part.ref}"
            raise InvalidRecipe(f"{what}, and this mixing goes by '{self.kind}': leave it out.", param="recipe")
        return named

    def _whole(self, catalogue: Catalogue, part: SoupIngredient, sample: str) -> StatisticRow | None:
        """What is known, if its file is there and sound: what is damaged is computed anew."""
        known = catalogue.statistics.find(part.digest, sample, self.kind)
        return known if known is not None and self.registry.blobs.is_whole(known.blob_digest) else None

    def _computed(self, part: SoupIngredient, sample: str) -> StatisticRow:
        registry = self.registry
        with registry.database.read() as catalogue:
            row = catalogue.adapters.get_or_none(part.adapter_id)
        if row is None:
            raise purged_meanwhile(part)
        self.progress(0, 1, f"computing what mixing needs to know of {part.ref}")
        self._check_room(part, row, sample)
        texts = decode_lines(registry.blobs.read(sample))
        stored = StoredAdapter(config=row.config, blob=row.weights_blob)
        asked = StatisticRequest(kind=self.kind, adapter=stored, texts=_some(texts))
        found = self.measure(self.base.entry.id, asked)
        try:
            return self._recorded(part, row, sample, found)
        finally:
            self._forget_unnamed(found.blob)

    def _check_room(self, part: SoupIngredient, owner: AdapterRow, sample: str) -> None:
        """Raises QuotaExceeded before a pass whose result whoever owns the adapter has no room for.

        Not where it takes the place of one that is damaged, which counts already.
        """
        size = _size_of(part, self.base.shape, self.kind)
        with self.registry.database.read() as catalogue:
            if catalogue.statistics.find(part.digest, sample, self.kind) is not None:
                return
            left = room_for_bytes(
                catalogue, self.registry.quotas, key_id=owner.created_by, namespaces=[owner.namespace]
            )
        if left is not None and size > left[0]:
            raise left[1]

    def _recorded(self, part: SoupIngredient, owner: AdapterRow, sample: str, found: MeasuredStatistic) -> StatisticRow:
        """The row of what was computed, or of what another cook has stored since.

        It counts for the key and the namespace of the adapter; raises QuotaExceeded, and Retired as `statistic`.
        """
        registry, data = self.registry, self.registry.blobs.read(found.blob)
        with registry.database.write() as catalogue:
            if not catalogue.adapters.has_sample(part.digest, sample):
                raise purged_meanwhile(part)
            known = self._whole(catalogue, part, sample)
            if known is not None:
                return known
            record_bytes(registry, catalogue, found.blob, data)
            row = StatisticRow(part.digest, sample, self.kind, found.blob, found.passages, found.tokens)
            catalogue.statistics.put(row)
            check_stored(
                catalogue, registry.quotas, "stored_bytes", key_id=owner.created_by, namespaces=[owner.namespace]
            )
        return row

    def _forget_unnamed(self, blob: str) -> None:
        """Delete what was computed for nothing: nothing names it, nor can while this looks."""
        with self.registry.database.write() as catalogue:
            if catalogue.blobs.seen_at(blob) is None:
                self.registry.blobs.delete_all([blob])  # others wait meanwhile


def stored_statistic(blobs: BlobStore, blob: str) -> Statistic:
    """The statistic in a blob; reading it raises DamagedBlob."""
    return Statistic(blob, lambda: load_tensors(blobs.read(blob)))


def _without(parts: tuple[SoupIngredient, ...], mixing: MixingRequest) -> tuple[SoupIngredient, ...]:
    """The parts as they are, where nothing has to be known of them; raises InvalidRecipe where a statistic is named."""
    named = [part.ref for part in parts if part.statistic is not None]
    if named:
        what = f"The recipe names a statistic of {named[0]}, and mixing these by '{mixing.method}' goes by none"
        raise InvalidRecipe(f"{what}: leave it out, or name the method that it was cooked by.", param="recipe")
    return parts


def _some(texts: Sequence[str]) -> tuple[str, ...]:
    """MOST_PASSAGES of them at most, from all over."""
    if len(texts) <= MOST_PASSAGES:
        return tuple(texts)
    return tuple(texts[number * len(texts) // MOST_PASSAGES] for number in range(MOST_PASSAGES))


def _read(part: SoupIngredient, shape: BaseShape) -> list[int]:
    """How many values each of its projections reads."""
    expected = expected_tensors(part.config, shape)
    return [expected[name][1] for name in measured_weights(part.config, expected)]


def _size_of(part: SoupIngredient, shape: BaseShape, kind: StatisticKind) -> int:
    """Bytes of the numbers of a statistic: fp32."""
    if kind == "inputs":
        return 4 * sum(map(packed_entries, _read(part, shape)))
    return 4 * sum(map(math.prod, expected_tensors(part.config, shape).values()))


def _check_size(parts: Sequence[SoupIngredient], shape: BaseShape, *, solved: bool) -> None:
    """Raises Incompatible where second moments would be too large to hold, or a system of them to solve."""
    size = sum(_size_of(part, shape, "inputs") for part in parts)
    most = max(max(_read(part, shape), default=0) for part in parts)
    instead = "leave out ingredients, or mix by 'average' or 'concat'."
    if size > MOST_BYTES:
        raise Incompatible(
            f"Second moments of what the projections of these {len(parts)} read have {size} bytes together, and "
            f"{MOST_BYTES} at most are taken: {instead}",
            param="mixing",
        )
    if solved and most > MOST_READ:
        raise Incompatible(
            f"One of these has a projection that reads {most} values, and RegMean takes {MOST_READ} at most: {instead}",
            param="mixing",
        )
