"""Cook a request: from a sample, or a recipe, to a stored soup and the report on it.

Called by the cook job and by trainings.
"""

from __future__ import annotations

from dataclasses import replace

from registry.context import Caller, Registry
from registry.cook.answer import Outcome, abstained, cooked_soup, evidence_of, single_adapter
from registry.cook.default_effort import check_tuning, may_tune, with_default_effort
from registry.cook.ingredients import recipe_ingredients, select_ingredients
from registry.cook.job import STEPS, Computations, CookJob
from registry.cook.sample import read_sample
from registry.cook.scoring import judge
from registry.cook.store import purged_while_cooking, store_soup
from registry.cook.strategies import dearer_efforts, strategy_of
from registry.cook.timed import PassTimer
from registry.errors import DamagedBlob, Forbidden, Incompatible, InvalidParameter, InvalidSample, Retired, Unavailable
from registry.mixing.compat import SoupIngredient
from registry.names import split_name
from registry.progress import Progress
from registry.select.pools import pool_base
from registry.spec import MIN_TUNING_TOKENS, Cooked, CookRequest, Effort, Price, Recipe, Spent


def cook(
    registry: Registry,
    caller: Caller,
    request: CookRequest,
    *,
    namespace: str,
    computations: Computations,
    progress: Progress,
    queued_effort: Effort | None = None,
) -> Cooked:
    """Cook a request; `namespace` takes an unnamed soup, and `progress` may raise Cancelled between two steps.

    `queued_effort` is the default effort that was chosen when the request was queued, in place of the default of now.
    If the default is `tune`, and tuning is refused, the request is cooked with `quick`.
    An adapter that is purged meanwhile is left out with its reason; where the request names it, Retired is raised.
    Raises Incompatible with all reasons at once, InvalidSample, InvalidRecipe, InvalidParameter, NotFound, and for
    effort `tune` Forbidden where the namespace that the soup is written to forbids it.
    """
    target = split_name(request.name)[0] if request.name else namespace
    effort_by_default = request.effort is None
    request = with_default_effort(registry, request, target, queued=queued_effort)
    progress(0, STEPS, "reading the sample")
    job = read_request(registry, caller, request, namespace=namespace, computations=computations, progress=progress)
    tunes_by_default = effort_by_default and request.effort == "tune"
    job, cooked = _tune_or_weigh(job, target) if tunes_by_default else (job, _cook_with_retry(job))
    offers_tuning = not tunes_by_default and may_tune(registry.database, target) and _is_long_enough(job, cooked)
    spent = job.timer.spent(job.texts)
    return cooked.model_copy(update={"spent": spent, "beyond": _prices(job, spent, cooked, tuning=offers_tuning)})


def read_request(
    registry: Registry,
    caller: Caller,
    request: CookRequest,
    *,
    namespace: str,
    computations: Computations,
    progress: Progress,
) -> CookJob:
    """The job of a request: its recipe resolved, its base model found, its sample read."""
    ingredients: tuple[SoupIngredient, ...] = ()
    if request.recipe is not None:
        rows, ingredients = recipe_ingredients(registry, caller, request.recipe)
        base_id = rows[0].base_model
    else:
        base_id = pool_base(request.pool, registry.bases)
    if base_id not in registry.bases:
        raise Unavailable(f"The adapters need base model {base_id!r}, which this server no longer serves.")
    base = registry.bases[base_id]
    timer = PassTimer()
    sample = read_sample(registry, caller, request, base)
    return CookJob(registry, caller, request, base, timer, sample, ingredients, namespace, computations, progress)


def _tune_or_weigh(job: CookJob, namespace: str) -> tuple[CookJob, Cooked]:
    """Cook with effort `tune`, or with `quick` if that is refused, as by the `namespace` that is written to.

    Returns the job that was cooked, and its answer.
    """
    try:
        with job.registry.database.read() as catalogue:
            check_tuning(catalogue, namespace)
        cooked, note = _cook_with_retry(job), ""
    except (Forbidden, Incompatible, InvalidParameter, InvalidSample) as error:
        job = replace(job, request=job.request.model_copy(update={"effort": "quick"}))
        cooked, note = _cook_with_retry(job), f" Cooked with effort 'quick' instead of 'tune': {error}"
    if cooked.recipe is not None and cooked.recipe.tuning is not None:
        note = " Tuned by default; effort 'quick' makes a mixture, which does not learn the sample."
    return job, cooked.model_copy(update={"reason": f"{cooked.reason}{note}"})


def _cook_with_retry(job: CookJob) -> Cooked:
    """Cook once; retry if an adapter the selector knew was purged while cooking."""
    purged = _count_purged(job)
    while True:
        try:
            return _cook_once(job)
        except (Retired, DamagedBlob):
            _check_present(job)
            purged_before, purged = purged, _count_purged(job)
            if purged == purged_before:
                raise
            job.report(1, "beginning again without what was purged meanwhile")


def _count_purged(job: CookJob) -> int:
    with job.registry.database.read() as catalogue:
        return catalogue.removals.count_purged()


def _check_present(job: CookJob) -> None:
    """Raises Retired where an ingredient of the recipe was purged."""
    with job.registry.database.read() as catalogue:
        purged = catalogue.removals.missing_ids([ingredient.adapter_id for ingredient in job.ingredients])
    for ingredient in job.ingredients:
        if ingredient.adapter_id in purged:
            raise purged_while_cooking(ingredient)


def _cook_once(job: CookJob) -> Cooked:
    """Choose ingredients, propose candidates, judge them, and store the one that is accepted."""
    job.report(1, "choosing adapters")
    job = select_ingredients(job)
    outcome = _outcome(job)
    if outcome.soup is None or outcome.abstains:
        return abstained(job, outcome)
    if outcome.soup.is_single:
        return single_adapter(job, outcome.soup, outcome.evidence)
    soup = replace(outcome.soup, cached=outcome.soup.cached and _sees_soup(job, outcome.soup.recipe))
    row, created = store_soup(job, soup, outcome.evidence)
    return cooked_soup(job, soup, row, outcome.evidence, created=created)


def _sees_soup(job: CookJob, recipe: Recipe) -> bool:
    """Return True if the caller sees a live soup of this recipe.

    Weights are a fingerprint of the sample: an answer that says `cached` to anybody else reveals that another key has
    cooked the same text.
    """
    with job.registry.database.read() as catalogue:
        return catalogue.adapters.find_by_recipe(job.caller.namespaces, recipe.digest) is not None


def _outcome(job: CookJob) -> Outcome:
    """The strategy's own outcome, or its proposal judged."""
    strategy = strategy_of(job.request)
    evidence = evidence_of(job)
    if strategy.needs_ingredients and not job.ingredients:
        return Outcome(None, evidence)
    proposed = strategy.propose(job)
    return proposed if isinstance(proposed, Outcome) else judge(job, proposed, evidence)


def _is_long_enough(job: CookJob, cooked: Cooked) -> bool:
    """Return True if the sample has enough tokens for `tune`, estimated from the verified passages.

    True if none was verified.
    """
    check = cooked.evidence.verification
    return check is None or check.tokens * len(job.texts) >= MIN_TUNING_TOKENS * check.passages


def _prices(job: CookJob, spent: Spent, cooked: Cooked, *, tuning: bool) -> tuple[Price, ...]:
    """The efforts that would do more with the same sample, and what each would take."""
    if not job.texts:
        return ()
    selection = cooked.evidence.selection
    ranked = 0
    if selection is not None:
        ranked = len(selection.selected) + len(selection.left_out) + sum(selection.more_left_out.values())
    return dearer_efforts(job.request, spent, len(job.texts), adapters=ranked, tuning=tuning)
