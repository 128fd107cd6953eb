"""Statistics of ingredients, for mixing methods that need them: read where they are stored, else computed.

They are computed in the process for gradients (`training.statistics`), on the text of the sample that an ingredient was
pushed with. They are stored immediately, and stay even if the cook fails later.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from registry.adapters import expected_tensors
from registry.adapters.moments import measured_weights, packed_entries
from registry.catalogue.database import Catalogue
from registry.catalogue.rows import AdapterRow, StatisticRow
from registry.cook.ingredients import stored_statistic
from registry.cook.job import CookJob
from registry.cook.mix import MixPlan, check_fingerprint
from registry.cook.store import purged_while_cooking
from registry.errors import Incompatible, InvalidRecipe
from registry.mixing import MIXINGS
from registry.mixing.auto import choose_mixing
from registry.mixing.compat import SoupIngredient, Statistic
from registry.quotas import byte_allowance, check_stored
from registry.spec import (
    MOST_PASSAGES,
    AutoMixing,
    BaseShape,
    MeasuredStatistic,
    MixingRequest,
    Passage,
    StatisticKind,
    StatisticRequest,
    StoredAdapter,
)
from registry.spec.passage import decode_lines
from registry.stored.files import delete_unrecorded, record_bytes

MOST_BYTES = 2**29
"""Maximum bytes of the second moments of all ingredients; they grow with the square of the inputs of a projection."""
MOST_SOLVED_INPUTS = 2048
"""Maximum inputs of a projection for which a linear system is solved: the time grows with their cube."""


def statistic_kind(mixing: MixingRequest) -> StatisticKind | None:
    """The kind of statistic that a mixing needs of its ingredients, if any; computing one takes about a minute."""
    return None if isinstance(mixing, AutoMixing) else MIXINGS[mixing.method].statistic_kind(mixing)


def with_statistics(job: CookJob, plan: MixPlan) -> MixPlan:
    """The plan with the statistics of its ingredients that its mixing method needs, if any.

    A statistic that a recipe names is used without computing it again: another statistic would be another recipe.
    Raises Incompatible, with all reasons and before any computation, if the ingredients cannot be mixed. Raises
    InvalidRecipe for a statistic that this mixing does not need, and Retired for an ingredient that is purged
    meanwhile. Also raises the errors of the worker and of `progress`.
    """
    mixing = plan.mixing
    kind = statistic_kind(mixing)
    if kind is None:
        return _without_statistics(plan)
    choose_mixing(plan.ingredients, mixing, max_width=plan.max_width)
    first, result = plan.ingredients[0], MIXINGS[mixing.method].result
    if len(plan.ingredients) == 1 and result(plan.ingredients, mixing) == first.config:
        return _without_statistics(plan)
    check_fingerprint(plan.ingredients, job.base)
    if job.base.shape.kind == "encoder":
        subject = f"Mixing by {mixing.method!r} looks at what adapters predict or read in text"
        raise Incompatible(
            f"{subject}, and base model {job.base.entry.id!r} is an encoder: mix by 'average'.", param="mixing"
        )
    if kind == "inputs":  # the other kind is as large as the adapter
        _check_size(plan.ingredients, job.base.shape, is_solved=mixing.method == "regmean")
    statistics = _Statistics(job, kind)
    return replace(
        plan,
        ingredients=tuple(replace(ingredient, statistic=statistics.of(ingredient)) for ingredient in plan.ingredients),
    )


@dataclass(frozen=True)
class _Statistics:
    """Reads or computes the statistics of one kind."""

    job: CookJob
    kind: StatisticKind

    def of(self, ingredient: SoupIngredient) -> Statistic:
        """The statistic that the recipe names, else that of the ingredient's own sample."""
        registry = self.job.registry
        if ingredient.statistic is not None:
            return self._named_by_recipe(ingredient, ingredient.statistic)
        assert ingredient.sample is not None  # the mixing method's check
        with registry.database.read() as catalogue:
            row = self._find_stored(catalogue, ingredient, ingredient.sample)
        if row is None:
            row = self._compute(ingredient, ingredient.sample)
        return stored_statistic(registry.blobs, row.blob_digest)

    def _named_by_recipe(self, ingredient: SoupIngredient, statistic: Statistic) -> Statistic:
        with self.job.registry.database.read() as catalogue:
            row = catalogue.statistics.find_by_blob(None, ingredient.digest, statistic.blob)
        if row is None:
            raise purged_while_cooking(ingredient)
        if row.kind != self.kind:
            subject = f"{statistic.blob} is a statistic of kind '{row.kind}' of {ingredient.ref}"
            raise InvalidRecipe(f"{subject}, but this mixing method needs '{self.kind}': leave it out.", param="recipe")
        return statistic

    def _find_stored(self, catalogue: Catalogue, ingredient: SoupIngredient, sample: str) -> StatisticRow | None:
        """The stored statistic, if its file exists and is not damaged; otherwise it is computed again."""
        row = catalogue.statistics.find(ingredient.digest, sample, self.kind)
        return row if row is not None and self.job.registry.blobs.is_whole(row.blob_digest) else None

    def _compute(self, ingredient: SoupIngredient, sample: str) -> StatisticRow:
        job, registry = self.job, self.job.registry
        with registry.database.read() as catalogue:
            owner = catalogue.adapters.get_or_none(ingredient.adapter_id)
        if owner is None:
            raise purged_while_cooking(ingredient)
        job.report(2, f"computing the statistics of {ingredient.ref}")
        self._check_quota(ingredient, owner, sample)
        texts = _evenly_spaced(decode_lines(registry.blobs.read(sample)))
        stored = StoredAdapter(config=owner.config, blob=owner.weights_blob)
        request = StatisticRequest(kind=self.kind, adapter=stored, texts=texts)
        measured = job.computations.measure(job.base.entry, request)
        try:
            return self._record(ingredient, owner, sample, measured)
        finally:
            delete_unrecorded(self.job.registry, [measured.blob])

    def _check_quota(self, ingredient: SoupIngredient, owner: AdapterRow, sample: str) -> None:
        """Raises QuotaExceeded before a pass whose result does not fit the quota of the adapter's owner.

        A damaged statistic that is replaced is already in the quota.
        """
        size = _size_of(ingredient, self.job.base.shape, self.kind)
        quotas = self.job.registry.quotas
        with self.job.registry.database.read() as catalogue:
            if catalogue.statistics.find(ingredient.digest, sample, self.kind) is not None:
                return
            allowance = byte_allowance(catalogue, quotas, key_id=owner.created_by, namespaces=[owner.namespace])
        if allowance is not None:
            allowance.check(size)

    def _record(
        self, ingredient: SoupIngredient, owner: AdapterRow, sample: str, measured: MeasuredStatistic
    ) -> StatisticRow:
        """The row of what was computed, or of what another cook has stored since.

        It counts for the key and the namespace of the adapter; raises QuotaExceeded, and Retired where the adapter was
        purged.
        """
        registry = self.job.registry
        data = registry.blobs.read(measured.blob)
        with registry.database.write() as catalogue:
            if not catalogue.adapters.has_sample(ingredient.digest, sample):
                raise purged_while_cooking(ingredient)
            stored = self._find_stored(catalogue, ingredient, sample)
            if stored is not None:
                return stored
            record_bytes(registry, catalogue, measured.blob, data)
            row = StatisticRow(ingredient.digest, sample, self.kind, measured.blob, measured.passages, measured.tokens)
            catalogue.statistics.put(row)
            namespaces = [owner.namespace]
            check_stored(catalogue, registry.quotas, "stored_bytes", key_id=owner.created_by, namespaces=namespaces)
        return row


def _without_statistics(plan: MixPlan) -> MixPlan:
    """The plan as it is; raises InvalidRecipe where the recipe names a statistic."""
    with_statistic = [ingredient.ref for ingredient in plan.ingredients if ingredient.statistic is not None]
    if with_statistic:
        subject = f"The recipe names a statistic of {with_statistic[0]}, and mixing these by '{plan.mixing.method}'"
        raise InvalidRecipe(
            f"{subject} does not use statistics: leave it out, or name the mixing method of the stored recipe.",
            param="recipe",
        )
    return plan


def _evenly_spaced(texts: Sequence[Passage]) -> tuple[Passage, ...]:
    """At most MOST_PASSAGES texts, at even distances."""
    if len(texts) <= MOST_PASSAGES:
        return tuple(texts)
    return tuple(texts[number * len(texts) // MOST_PASSAGES] for number in range(MOST_PASSAGES))


def _input_sizes(ingredient: SoupIngredient, shape: BaseShape) -> list[int]:
    """The number of inputs of each projection of an adapter."""
    expected = expected_tensors(ingredient.config, shape)
    return [expected[name][1] for name in measured_weights(ingredient.config, expected)]


def _size_of(ingredient: SoupIngredient, shape: BaseShape, kind: StatisticKind) -> int:
    """Bytes of the numbers of a statistic: fp32."""
    if kind == "inputs":
        return 4 * sum(map(packed_entries, _input_sizes(ingredient, shape)))
    return 4 * sum(map(math.prod, expected_tensors(ingredient.config, shape).values()))


def _check_size(ingredients: Sequence[SoupIngredient], shape: BaseShape, *, is_solved: bool) -> None:
    """Raises Incompatible if the second moments would take too much memory, or too long to solve for."""
    size = sum(_size_of(ingredient, shape, "inputs") for ingredient in ingredients)
    widest = max(max(_input_sizes(ingredient, shape), default=0) for ingredient in ingredients)
    instead = "leave out ingredients, or mix by 'average' or 'concat'."
    if size > MOST_BYTES:
        raise Incompatible(
            f"The second moments of the inputs of these {len(ingredients)} adapters have {size} bytes; the "
            f"maximum is {MOST_BYTES}: {instead}",
            param="mixing",
        )
    if is_solved and widest > MOST_SOLVED_INPUTS:
        raise Incompatible(
            f"An adapter has a projection with {widest} inputs; RegMean supports at most "
            f"{MOST_SOLVED_INPUTS}: {instead}",
            param="mixing",
        )
