"""The cook verb: a sample, or a recipe by hand, becomes a soup that is stored with its recipe and its evidence.

Called by the cook job. Straight down: choose (every incompatibility surfaces before a tensor is mixed), mix, verify
against the base, publish; one module each. With efforts `quick` and `thorough` what is mixed is searched for, with
`tune` what was mixed is trained. Models run behind `registry.bases` (the server's engine, or a test's), gradients
behind `Gradients`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from registry.catalogue.rows import AdapterRow
from registry.context import BaseModel, Caller, Registry
from registry.cook.choose import by_hand, by_selection, looked_at
from registry.cook.mix import Mixed, mix_ingredients
from registry.cook.plan import beyond
from registry.cook.publish import publish_soup, purged_meanwhile
from registry.cook.search import Weigh, search
from registry.cook.setting import by_setting, may_tune
from registry.cook.statistics import Measure, with_statistics
from registry.cook.timed import TimedBase
from registry.cook.tune import Tune, tune_soup
from registry.cook.verify import check_verifiable, verify_soup, why_not
from registry.errors import DamagedBlob, InvalidSample, Retired, Unavailable
from registry.mixing.auto import choose_mixing
from registry.mixing.compat import SoupIngredient
from registry.names import TEMPORARY, split_name
from registry.progress import Progress
from registry.samples.sample import CheckedSample, Vectors, check_sample, embed_texts
from registry.select.pools import pool_base
from registry.select.select import Chosen, Fit
from registry.spec import (
    WEIGHING,
    AutoMixing,
    ConcatMixing,
    Cooked,
    CookRequest,
    Effort,
    Evidence,
    MixingRequest,
    Price,
    RecompressMixing,
)

STEPS = 4


@dataclass(frozen=True)
class Gradients:
    """What a cook has done where gradients may run."""

    weigh: Weigh
    tune: Tune
    measure: Measure


def cook(
    registry: Registry,
    caller: Caller,
    request: CookRequest,
    *,
    namespace: str,
    fit: Fit,
    gradients: Gradients,
    progress: Progress,
    settled: Effort | None = None,
) -> Cooked:
    """Cook a request; `namespace` takes an unnamed soup. `progress` may raise Cancelled between two steps.

    `settled` is the effort that `by_setting` gave a request that left it open, when it was made: settings may have
    changed since.
    An adapter that is purged meanwhile is left out with its reason, as one that was before; where it was named in the
    request, Retired names it. Raises Incompatible with all reasons at once, InvalidSample, InvalidRecipe,
    InvalidParameter, NotFound, Retired, and Forbidden for effort `tune` where the namespace that the soup is written to
    forbids it.
    """
    target = split_name(request.name)[0] if request.name else namespace
    asked = request
    if settled is not None:
        request = request.model_copy(update={"effort": settled})
    request = by_setting(registry, request, target)
    progress(0, STEPS, "reading the sample")
    base, parts = _base(registry, caller, request)
    sample = _sample(registry, caller, request, base)
    cooked = _cook(
        registry, caller, base, request, sample, parts, namespace=namespace, fit=fit, gradients=gradients,
        progress=progress,
    )  # fmt: skip
    texts = () if sample is None else sample.texts
    spent = base.spent(texts)
    more: tuple[Price, ...] = ()
    if texts:
        tuning, candidates = may_tune(registry.database, target), _ranked(cooked.evidence)
        more = beyond(request, spent, len(texts), candidates=candidates, tuning=tuning)
    cooked = cooked.model_copy(update={"spent": spent, "beyond": more})
    if request.effort != "tune" or asked.effort == "tune":
        return cooked
    reason = f"{cooked.reason} Effort 'tune' is the default of namespace {target!r}."
    return cooked.model_copy(update={"reason": reason})


def _ranked(evidence: Evidence) -> int:
    """How many adapters were ranked."""
    found = evidence.selection
    return 0 if found is None else len(found.selected) + len(found.left_out) + sum(found.more_left_out.values())


def _base(
    registry: Registry, caller: Caller, request: CookRequest
) -> tuple[TimedBase, tuple[SoupIngredient, ...] | None]:
    """The base model that a soup is cooked for, and its parts where they are given by hand."""
    parts = None
    if request.recipe is not None:
        base_id, parts = by_hand(registry, caller, request.recipe)
    else:
        base_id = pool_base(request.pool, registry.bases)
    if base_id not in registry.bases:
        raise Unavailable(f"The adapters need base model {base_id!r}, which this server no longer serves.")
    return TimedBase(registry.bases[base_id]), parts


def _cook(
    registry: Registry, caller: Caller, base: TimedBase, request: CookRequest, sample: CheckedSample | None,
    parts: tuple[SoupIngredient, ...] | None, *, namespace: str, fit: Fit, gradients: Gradients, progress: Progress,
) -> Cooked:  # fmt: skip
    """As `_once`, and again where an adapter was purged meanwhile that the selector knew."""
    purged = _count_purged(registry)
    while True:
        try:
            return _once(
                registry, caller, base, request, sample, parts, namespace=namespace, fit=fit, gradients=gradients,
                progress=progress,
            )  # fmt: skip
        except (Retired, DamagedBlob):  # one of these is what whoever needs it hears
            _check_there(registry, parts or ())
            before, purged = purged, _count_purged(registry)
            if purged == before:
                raise
            progress(1, STEPS, "beginning again without what was purged meanwhile")


def _count_purged(registry: Registry) -> int:
    with registry.database.read() as catalogue:
        return catalogue.removals.count_purged()


def _check_there(registry: Registry, parts: Sequence[SoupIngredient]) -> None:
    """Raises Retired where one of the parts that were given by hand was purged."""
    with registry.database.read() as catalogue:
        gone = catalogue.removals.gone([part.adapter_id for part in parts])
    for part in parts:
        if part.adapter_id in gone:
            raise purged_meanwhile(part)


def _once(
    registry: Registry, caller: Caller, base: TimedBase, request: CookRequest, sample: CheckedSample | None,
    parts: tuple[SoupIngredient, ...] | None, *, namespace: str, fit: Fit, gradients: Gradients, progress: Progress,
) -> Cooked:  # fmt: skip
    """What comes of a request that says all that it asks for; `parts` are those given by hand."""
    chosen = None
    progress(1, STEPS, "choosing adapters")
    if parts is None:
        assert sample is not None  # a CookRequest has a sample where it has no recipe
        passages = looked_at(request.effort, len(sample.texts))
        chosen, parts = by_selection(
            registry, caller, request, sample=sample, fit=fit, passages=passages,
            progress=lambda _done, _total, message: progress(1, STEPS, message),
        )  # fmt: skip
    evidence, mixed = _evidence(sample, chosen), None
    if request.effort in WEIGHING:
        assert sample is not None
        assert chosen is not None
        found = search(
            registry, caller, base, request, chosen, parts, sample.texts, weigh=gradients.weigh, progress=progress
        )
        evidence = evidence.model_copy(update={"search": found.search})
        if found.best is not None:
            mixed = found.best.mixed
            evidence = evidence.model_copy(update={"verification": found.best.verification})
    elif parts:
        mixed, evidence = _mixed(registry, base, parts, request, sample, chosen, evidence, gradients, progress)
        if request.effort == "tune":
            assert sample is not None
            tuned = tune_soup(
                registry, caller, base, request, mixed, sample, evidence, tune=gradients.tune, progress=progress
            )  # fmt: skip
            mixed, evidence = tuned.mixed, tuned.evidence
    if mixed is None:
        return _abstain(base, "" if chosen is None else chosen.selection.reason, evidence)
    if evidence.verification is not None and not evidence.verification.helps:
        return _abstain(base, why_not(evidence.verification), evidence)
    if mixed.is_single:
        return _alone(registry, mixed, request, evidence)
    unnamed = (namespace, "soup-" + mixed.digest.removeprefix("sha256:")[:12])
    target = split_name(request.name) if request.name else unnamed
    vectors: tuple[Vectors, ...] = () if chosen is None or chosen.vectors is None else (chosen.vectors,)
    if request.keep is not None:  # other pools than the one that was chosen from will have it too
        assert sample is not None
        vectors = tuple(embed_texts(sample.texts, encoder, progress) for encoder in base.encoders().values())
    row, created = publish_soup(
        registry, caller, mixed, evidence=evidence, vectors=vectors, target=target, keep=request.keep,
        owner=request.owner,
    )  # fmt: skip
    return _cooked(mixed, row, evidence, reason=_reason(mixed, request), created=created)


def _mixed(
    registry: Registry, base: BaseModel, parts: tuple[SoupIngredient, ...], request: CookRequest,
    sample: CheckedSample | None, chosen: Chosen | None, evidence: Evidence, gradients: Gradients, progress: Progress,
) -> tuple[Mixed, Evidence]:  # fmt: skip
    """The soup of these parts, and where it is to be verified what that found."""
    checked = sample if request.verify else None
    if checked is not None:
        check_verifiable(base, parts, effort=request.effort)
    if request.effort == "tune":
        checked = None  # on passages that are held out, once it is trained
        request = request.model_copy(update={"mixing": _to_tune(parts, request)})
    parts = with_statistics(
        registry, base, parts, request, measure=gradients.measure,
        progress=lambda _done, _total, message: progress(2, STEPS, message),
    )  # fmt: skip
    progress(2, STEPS, f"mixing {len(parts)} adapters")
    mixed = mix_ingredients(registry, base, parts, request=request)
    if checked is None:
        return mixed, evidence
    progress(3, STEPS, "verifying on the sample")
    known = None if chosen is None or chosen.vectors is None else chosen.vectors.base_nll
    verification = verify_soup(mixed, checked.texts, base_nll=known, progress=progress)
    return mixed, evidence.model_copy(update={"verification": verification})


def _to_tune(parts: tuple[SoupIngredient, ...], request: CookRequest) -> MixingRequest:
    """How the start of a training is mixed: as wide as one adapter, where the request leaves that open."""
    found = choose_mixing(parts, request.mixing, max_width=request.max_width).mixing
    wide = isinstance(request.mixing, AutoMixing) and isinstance(found, ConcatMixing) and len(parts) > 1
    return RecompressMixing(scale=request.mixing.scale) if wide else request.mixing


def _sample(registry: Registry, caller: Caller, request: CookRequest, base: BaseModel) -> CheckedSample | None:
    """The request's sample, if any; raises InvalidSample where it is to be verified on, and only vectors came."""
    if request.sample is None:
        return None
    sample = check_sample(registry, caller, request.sample, encoders=base.encoders(), bos=base.bos, novel=True)
    if request.verify and not sample.texts:
        raise InvalidSample(
            "Verifying a soup needs the sample's text, and only vectors came: send texts, or set 'verify' to false.",
            param="verify",
        )
    return sample


def _evidence(sample: CheckedSample | None, chosen: Chosen | None) -> Evidence:
    if chosen is None:
        return Evidence(sample=None if sample is None else sample.report)
    return Evidence(
        selector=chosen.selector.id,
        fitted_at=chosen.selector.fitted_at,
        not_yet_included=chosen.not_yet_included,
        sample=None if sample is None else chosen.report_of(sample),
        selection=chosen.selection,
    )


def _abstain(base: BaseModel, reason: str, evidence: Evidence) -> Cooked:
    model = f"base/{base.entry.id}"
    return Cooked(abstained=True, reason=reason, model=model, digest=None, soup_id=None, evidence=evidence)


def _alone(registry: Registry, mixed: Mixed, request: CookRequest, evidence: Evidence) -> Cooked:
    """A single adapter at weight 1: it needs no row of its own."""
    with registry.database.read() as catalogue:
        row = catalogue.adapters.get(mixed.parts[0].adapter_id)
    named = request.name and not split_name(request.name)[1].startswith(TEMPORARY)
    unused = f" The name {request.name} was not needed." if named else ""
    unsaid = "" if request.owner is None else " Its owner stays who it was."
    reason = f"{row.ref} alone: one ingredient at weight 1 is that adapter.{unused}{unsaid}{_untuned(mixed, request)}"
    return _cooked(mixed, row, evidence, reason=reason, created=False)


def _cooked(mixed: Mixed, row: AdapterRow, evidence: Evidence, *, reason: str, created: bool) -> Cooked:
    return Cooked(
        abstained=False,
        reason=reason,
        model=row.ref,
        digest=row.digest,
        soup_id=row.id,
        cached=mixed.cached,
        created=created,
        recipe=mixed.recipe,
        recipe_digest=mixed.recipe.digest,
        report=mixed.report,
        evidence=evidence,
    )


def _reason(mixed: Mixed, request: CookRequest) -> str:
    """How many by what, and why by that where the request left it open; then what training did, if any was asked for.

    An adapter that was tuned alone is mixed by nothing.
    """
    count, method = len(mixed.parts), mixed.recipe.mixing.method
    some = f"{count} adapters by {method}" if count > 1 else "One adapter"
    if mixed.recipe.tuning is not None:
        return f"{some}, then tuned on the sample."
    how = some if count > 1 else f"{some} by {method}"
    return how + (f": {mixed.why}." if mixed.why else ".") + _untuned(mixed, request)


def _untuned(mixed: Mixed, request: CookRequest) -> str:
    """What is to be said where effort `tune` ends with its start."""
    if request.effort != "tune" or mixed.recipe.tuning is not None:
        return ""
    kept = "" if request.keep is None else f" Nothing is kept as domain {request.keep!r}."
    return f" Training did not better it on the held-out passages.{kept}"
