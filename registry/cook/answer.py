"""The answer of a cook: a soup, a single adapter or the base model, with the reason and the evidence."""

from __future__ import annotations

from dataclasses import dataclass

from registry.catalogue.rows import AdapterRow
from registry.cook.acceptance import why_not
from registry.cook.job import CookJob
from registry.cook.mix import Mixed
from registry.names import TEMPORARY, split_name
from registry.spec import Cooked, CookRequest, Evidence


@dataclass(frozen=True)
class Outcome:
    """The best soup that was found, if any, and the evidence with its verification."""

    soup: Mixed | None
    evidence: Evidence

    @property
    def abstains(self) -> bool:
        """True where the soup was verified and does not help."""
        return self.evidence.verification is not None and not self.evidence.verification.helps


def evidence_of(job: CookJob) -> Evidence:
    """The evidence of choosing: sample, selector and selection."""
    if job.selection is None:
        return Evidence(sample=None if job.sample is None else job.sample.report)
    return Evidence(
        selector=job.selection.selector.id,
        fitted_at=job.selection.selector.fitted_at,
        not_yet_included=job.selection.not_yet_included,
        sample=None if job.sample is None else job.selection.report_of(job.sample),
        selection=job.selection.selection,
    )


def abstained(job: CookJob, outcome: Outcome) -> Cooked:
    """The answer where there is no soup, or none that helps: the base model."""
    reason = "" if job.selection is None else job.selection.selection.reason
    if outcome.soup is None and job.ingredients:  # all selected adapters overflow
        reason = "No adapter that can be weighed lowers the loss on the sample."
    if outcome.soup is not None and outcome.evidence.verification is not None:
        reason = why_not(outcome.evidence.verification)
    model = f"base/{job.base.entry.id}"
    return Cooked(abstained=True, reason=reason, model=model, digest=None, soup_id=None, evidence=outcome.evidence)


def single_adapter(job: CookJob, soup: Mixed, evidence: Evidence) -> Cooked:
    """The answer where one ingredient at weight 1 is left: that adapter, which needs no row of its own."""
    request = job.request
    with job.registry.database.read() as catalogue:
        row = catalogue.adapters.get(soup.ingredients[0].adapter_id)
    has_name = request.name and not split_name(request.name)[1].startswith(TEMPORARY)
    unused = f" The name {request.name} was not needed." if has_name else ""
    owner = "" if request.owner is None else " Its owner does not change."
    alone = f"{row.ref} alone: a soup of one adapter is that adapter, so no soup was stored."
    return _cooked(soup, row, evidence, reason=f"{alone}{unused}{owner}{_untuned(soup, request)}", created=False)


def cooked_soup(job: CookJob, soup: Mixed, row: AdapterRow, evidence: Evidence, *, created: bool) -> Cooked:
    """The answer with a stored soup."""
    return _cooked(soup, row, evidence, reason=_reason(soup, job.request), created=created)


def _cooked(soup: Mixed, row: AdapterRow, evidence: Evidence, *, reason: str, created: bool) -> Cooked:
    return Cooked(
        abstained=False,
        reason=reason,
        model=row.ref,
        digest=row.digest,
        soup_id=row.id,
        cached=soup.cached,
        created=created,
        recipe=soup.recipe,
        recipe_digest=soup.recipe.digest,
        report=soup.report,
        evidence=evidence,
    )


def _reason(soup: Mixed, request: CookRequest) -> str:
    """How many adapters were mixed by which method, why by that one, and whether the soup was tuned."""
    count, method = len(soup.ingredients), soup.recipe.mixing.method
    adapters = f"{count} adapters by {method}" if count > 1 else "One adapter"
    if soup.recipe.tuning is not None:
        return f"{adapters}, then tuned on the sample."
    mixed = adapters if count > 1 else f"{adapters} by {method}"
    return mixed + (f": {soup.reason}." if soup.reason else ".") + _untuned(soup, request)


def _untuned(soup: Mixed, request: CookRequest) -> str:
    """A sentence for effort `tune` if the training did not improve the soup; else empty."""
    if request.effort != "tune" or soup.recipe.tuning is not None:
        return ""
    not_kept = "" if request.keep is None else f" Nothing is kept as domain {request.keep!r}."
    return f" Training did not better it on the held-out passages.{not_kept}"
