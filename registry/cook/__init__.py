"""The cook verb: a sample, or a recipe by hand, becomes a soup that is stored with its recipe and its evidence.

Called by the cook job. Plan first (every incompatibility surfaces before a tensor is read), then mix, then verify
against the base, then publish. Models run behind a callable: the server's engine, or a test's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from registry.adapters.weights import adapter_digest, load_tensors, save_tensors
from registry.blobs import BlobStore
from registry.catalogue.database import Database
from registry.cook.choose import by_hand, by_selection
from registry.cook.mix import Mixed
from registry.cook.publish import publish
from registry.encoders.contract import Encoder
from registry.errors import Incompatible, Internal, InvalidParameter, InvalidSample
from registry.registry import Caller, Limits
from registry.samples import CheckedSample, Vectors, check_sample
from registry.select import Chosen, Fit
from registry.soup import MIXINGS
from registry.soup.auto import settle
from registry.soup.compat import Load, Part, Tensors, by_digest
from registry.soup.finite import dtype_of
from registry.soup.report import report_of
from registry.soup.residual import ExactMixture
from registry.spec import (
    AdapterConfig,
    BaseShape,
    Cooked,
    CookRequest,
    Evidence,
    MixReport,
    PassageScore,
    Recipe,
    RecipeIngredient,
    SampleReport,
    Verification,
)
from registry.uncertainty import paired_difference
from registry.uploads import BlobReader

Progress = Callable[[int, int, str], None]
STEPS = 4


@dataclass(frozen=True)
class Candidate:
    """Adapter tensors to be scored, whether or not anything is stored under their digest yet."""

    digest: str
    config: AdapterConfig
    load: Load
    size_bytes: int


@dataclass(frozen=True)
class Kitchen:
    """What cooking needs of its surroundings, for one base model."""

    database: Database
    blobs: BlobStore
    base_id: str
    shape: BaseShape
    encoders: Mapping[str, Encoder]
    score: Callable[[Sequence[str], Candidate | None], Sequence[PassageScore]]
    fit: Fit
    limits: Limits
    refit_delay: float = 0.0


def cook(request: CookRequest, *, kitchen: Kitchen, caller: Caller, namespace: str, progress: Progress) -> Cooked:
    """Cook a request; `namespace` takes an unnamed soup. `progress` may raise Cancelled between two steps.

    Raises Incompatible with all reasons at once, InvalidSample, InvalidRecipe, InvalidParameter, NotFound, Retired.
    """
    progress(0, STEPS, "reading the sample")
    reader = BlobReader(kitchen.database, kitchen.blobs, caller.scope, kitchen.limits)
    sample = None if request.sample is None else check_sample(request.sample, reader, kitchen.encoders)
    if request.verify and sample is not None and not sample.texts:
        raise InvalidSample(
            "Verifying a soup needs the sample's text, and only vectors came: send texts, or set 'verify' to false.",
            param="verify",
        )
    progress(1, STEPS, "choosing adapters")
    chosen, parts = _choose(request, sample, kitchen, caller)
    evidence = _evidence(sample, chosen)
    if chosen is not None and not parts:
        return _abstain(chosen.selection.reason, kitchen, evidence)
    if request.verify and sample is not None:
        _check_verifiable(parts, kitchen)
    progress(2, STEPS, f"mixing {len(parts)} adapters")
    mixed, why = _mix(parts, request, kitchen)
    vectors = None if chosen is None else chosen.vectors
    if request.verify and sample is not None:
        progress(3, STEPS, "verifying on the sample")
        verification = _verify(mixed, sample, vectors, kitchen)
        evidence = evidence.model_copy(update={"verification": verification})
        if not verification.helps:
            return _abstain(_does_not_help(verification), kitchen, evidence)
    return _serve(request, mixed, why, evidence, vectors, kitchen, caller, namespace)


def _check_verifiable(parts: Sequence[Part], kitchen: Kitchen) -> None:
    """Raises InvalidParameter where a soup of these parts has no likelihood of a text, before anything is mixed."""
    named = f"base model {kitchen.base_id!r} is an encoder" if kitchen.shape.kind == "encoder" else None
    headed = next((part for part in parts if part.config.head is not None), None)
    if named is None and headed is not None:
        named = f"{headed.ref} answers with a head"
    if named is not None:
        raise InvalidParameter(
            f"Verifying scores the sample as text, and {named}: set 'verify' to false.", param="verify"
        )


def _choose(
    request: CookRequest, sample: CheckedSample | None, kitchen: Kitchen, caller: Caller
) -> tuple[Chosen | None, tuple[Part, ...]]:
    if request.recipe is not None or sample is None:
        assert request.recipe is not None  # CookRequest has one of the two
        _, parts = by_hand(request.recipe, scope=caller.scope, database=kitchen.database, blobs=kitchen.blobs)
        return None, parts
    return by_selection(
        request,
        sample,
        scope=caller.scope,
        shape=kitchen.shape,
        encoders=kitchen.encoders,
        database=kitchen.database,
        blobs=kitchen.blobs,
        fit=kitchen.fit,
    )


def _mix(parts: tuple[Part, ...], request: CookRequest, kitchen: Kitchen) -> tuple[Mixed, str]:
    """Check, then mix, or take the bytes of the same recipe cooked before; and why this mixing, where that was open."""
    choice = settle(parts, request.mixing, max_width=request.max_width)
    if parts[0].base_fingerprint != kitchen.shape.fingerprint:
        raise Incompatible(
            f"{parts[0].ref} was made for another state of base model {kitchen.base_id!r} "
            f"({parts[0].base_fingerprint[:19]} and not {kitchen.shape.fingerprint[:19]}).",
            param="recipe",
        )
    ordered = tuple(by_digest(parts))
    recipe = Recipe(
        base_fingerprint=kitchen.shape.fingerprint,
        ingredients=tuple(RecipeIngredient(digest=part.digest, weight=part.weight) for part in ordered),
        mixing=choice.mixing,
    )
    config = MIXINGS[recipe.mixing.method].result(ordered, recipe.mixing)
    with kitchen.database.read() as catalogue:
        known = catalogue.soups.recipe(recipe.digest)
    cached = known is not None and kitchen.blobs.has(known.weights_blob)
    if known is not None and cached:
        data = kitchen.blobs.read(known.weights_blob)
        tensors: Tensors = load_tensors(data)
        report = known.report
    else:
        tensors, report = _make(ordered, recipe, config, kitchen.shape)
        data = save_tensors(tensors)
    digest = adapter_digest(kitchen.shape.fingerprint, config, tensors)
    if known is not None and digest != known.adapter_digest:
        raise Internal(f"recipe {recipe.digest} gave {known.adapter_digest} before and {digest} now")
    mixed = Mixed(
        parts=ordered, recipe=recipe, config=config, tensors=tensors, data=data, digest=digest, report=report,
        dtype=dtype_of(tensors), cached=cached,
    )  # fmt: skip
    return mixed, choice.why


def _make(parts: Sequence[Part], recipe: Recipe, config: AdapterConfig, shape: BaseShape) -> tuple[Tensors, MixReport]:
    """The soup's tensors and the report on them; every ingredient is read once."""
    exact = ExactMixture(config, shape, recipe.mixing)
    tensors = MIXINGS[recipe.mixing.method].mix([exact.watched(part) for part in parts], recipe.mixing)
    residual = exact.residual(config, tensors)
    return tensors, report_of(parts, recipe, config, tensors, shape=shape, residual=residual)


def _verify(mixed: Mixed, sample: CheckedSample, vectors: Vectors | None, kitchen: Kitchen) -> Verification:
    """The soup's NLL on the sample against the base's, which the embedding pass may have yielded already."""
    candidate = Candidate(mixed.digest, mixed.config, lambda: mixed.tensors, mixed.report.size_bytes)
    scores = kitchen.score(sample.texts, candidate)
    soup = np.array([score.nll for score in scores])
    tokens = np.array([score.tokens for score in scores])
    if vectors is not None and vectors.base_nll is not None:
        base = vectors.base_nll
    else:
        base = np.array([score.nll for score in kitchen.score(sample.texts, None)])
    if tokens.sum() == 0:
        raise InvalidSample("The sample holds no token that the base model can score.", param="sample")
    paired = paired_difference(soup, base, tokens)
    return Verification(
        base_nll=float(base.sum() / tokens.sum()),
        soup_nll=float(soup.sum() / tokens.sum()),
        difference=paired.difference,
        standard_error=paired.standard_error,
        passages=len(scores),
        tokens=int(tokens.sum()),
        helps=paired.difference < -paired.standard_error,
    )


def _does_not_help(verification: Verification) -> str:
    return (
        f"On the sample it does not beat the base model by one standard error: mean NLL "
        f"{verification.soup_nll:.4f} against {verification.base_nll:.4f}, difference "
        f"{verification.difference:+.4f} ± {verification.standard_error:.4f}."
    )


def _evidence(sample: CheckedSample | None, chosen: Chosen | None) -> Evidence:
    return Evidence(
        selector=None if chosen is None else chosen.selector.id,
        fitted_at=None if chosen is None else chosen.selector.fitted_at,
        not_yet_included=() if chosen is None else chosen.not_yet_included,
        sample=_report_of(sample, chosen),
        selection=None if chosen is None else chosen.selection,
    )


def _report_of(sample: CheckedSample | None, chosen: Chosen | None) -> SampleReport | None:
    if sample is None or chosen is None:
        return None if sample is None else sample.report
    return chosen.report_of(sample)


def _reason(mixed: Mixed, why: str) -> str:
    """How many by what, and why by that where the request left it open."""
    count = len(mixed.parts)
    some = f"{count} adapters" if count > 1 else "One adapter"
    return f"{some} by {mixed.recipe.mixing.method}" + (f": {why}." if why else ".")


def _abstain(reason: str, kitchen: Kitchen, evidence: Evidence) -> Cooked:
    return Cooked(
        abstained=True,
        reason=reason,
        model=f"base/{kitchen.base_id}",
        digest=None,
        soup_id=None,
        evidence=evidence,
    )


def _serve(
    request: CookRequest,
    mixed: Mixed,
    why: str,
    evidence: Evidence,
    vectors: Vectors | None,
    kitchen: Kitchen,
    caller: Caller,
    namespace: str,
) -> Cooked:
    """Publish the soup; a single adapter at weight 1 needs no row of its own."""
    if mixed.is_single:
        part = mixed.parts[0]
        with kitchen.database.read() as catalogue:
            row = catalogue.adapters.get(part.adapter_id)
        unused = f" The name {request.name} was not needed." if request.name else ""
        reason, created = f"{part.ref} alone: one ingredient at weight 1 is that adapter.{unused}", False
        model = part.ref
    else:
        row, created = publish(
            mixed,
            evidence,
            vectors,
            name=request.name,
            namespace=namespace,
            base_id=kitchen.base_id,
            encoders=kitchen.encoders,
            database=kitchen.database,
            blobs=kitchen.blobs,
            caller=caller,
            refit_delay=kitchen.refit_delay,
        )
        reason, model = _reason(mixed, why), row.ref
    return Cooked(
        abstained=False,
        reason=reason,
        model=model,
        digest=row.digest,
        soup_id=row.id,
        cached=mixed.cached,
        created=created,
        recipe=mixed.recipe,
        recipe_digest=mixed.recipe.digest,
        report=mixed.report,
        evidence=evidence,
    )
