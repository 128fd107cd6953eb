"""Strategy `instant`: the adapters that the selector chose, or that the recipe names, as they are.

The selection with its weights is the paper's soup (AdapterSoup, section 2).
"""

from __future__ import annotations

from registry.cook.acceptance import check_verifiable
from registry.cook.candidate import Candidate, Proposal
from registry.cook.job import CookJob
from registry.cook.mix import MixPlan
from registry.cook.statistics import with_statistics


def propose(job: CookJob) -> Proposal:
    """The soup of the job's ingredients, which is verified on the sample if the request has `verify`."""
    if job.sample is not None and job.request.verify:
        check_verifiable(job.base, job.ingredients, effort=job.request.effort)
    plan = MixPlan(job.ingredients, job.request.mixing, job.request.max_width)
    return Proposal((Candidate("selected", with_statistics(job, plan)),))
