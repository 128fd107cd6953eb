"""What every strategy of a cook promises, walked over all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from registry.cook.candidate import Proposal
from registry.cook.cook import read_request
from registry.cook.ingredients import select_ingredients
from registry.cook.job import CookJob
from registry.cook.scoring import judge
from registry.cook.strategies import STRATEGIES, strategy_of
from registry.errors import Internal
from registry.spec import HOLDS_OUT, CookRequest, Effort, Evidence
from tests.registry.toy_registry import ToyRegistry, by_hand, sample

ON_DATABASES = ("sqlite",)  # they ask a catalogue nothing that the tests of cooks do not

ADAPTERS = ("code", "law", "zoo")
WEIGHING = ("quick", "thorough")
RECIPE = by_hand("acme/law", "acme/zoo")


EVERY_STRATEGY = pytest.mark.parametrize(
    ("name", "chosen"),
    [
        *(pytest.param(effort, {"effort": effort}, id=effort) for effort in STRATEGIES),
        pytest.param("instant", {"recipe": RECIPE}, id="recipe"),
        pytest.param("tune", {"recipe": RECIPE, "effort": "tune"}, id="tuned recipe"),
    ],
)
MANY_OR_FEW = pytest.mark.parametrize("passages", [30, 12])


@pytest.fixture
def pool(ready: Callable[..., ToyRegistry]) -> ToyRegistry:
    """Three adapters, of which weighing finds two helpful."""
    verbs = ready(*ADAPTERS, one_start=False)
    verbs.helpful = {verbs.named(f"acme/{domain}").weights_blob: 0.3 for domain in ("law", "zoo")}
    return verbs


def job_of(pool: ToyRegistry, passages: int, **chosen: Any) -> CookJob:
    """A cook's job with its ingredients selected."""
    return select_ingredients(
        read_request(
            pool.registry,
            pool.caller(),
            CookRequest.model_validate({"sample": sample("law", count=passages), "verify": True, **chosen}),
            namespace="acme",
            computations=pool.computations,
            progress=pool.progress,
        )
    )


def propose(job: CookJob, name: Effort) -> Proposal:
    assert strategy_of(job.request) is STRATEGIES[name]
    return STRATEGIES[name].propose(job)


@EVERY_STRATEGY
@MANY_OR_FEW
def test_it_proposes_mixtures_of_stored_adapters_to_judge_on_held_out_passages_if_it_searches(
    pool: ToyRegistry, name: Effort, chosen: dict[str, Any], passages: int
) -> None:
    job = job_of(pool, passages, **chosen)
    proposal = propose(job, name)
    digests = {pool.named(f"acme/{domain}").digest for domain in ADAPTERS}
    assert len({candidate.way for candidate in proposal.candidates}) == len(proposal.candidates) > 0
    for candidate in proposal.candidates:
        assert {ingredient.digest for ingredient in candidate.plan.ingredients} <= digests
    assert (proposal.search is not None) == (job.request.effort in HOLDS_OUT) == (name in (*WEIGHING, "tune"))
    if proposal.search is not None:
        assert proposal.search.held_out == len(job.sample.split.held_out)
        assert proposal.search.trials == ()


@EVERY_STRATEGY
@MANY_OR_FEW
def test_workers_that_fit_a_candidate_see_no_passage_that_it_is_scored_on(
    pool: ToyRegistry, name: Effort, chosen: dict[str, Any], passages: int
) -> None:
    job = job_of(pool, passages, **chosen)
    proposal = propose(job, name)
    split = job.sample.split
    assert [request.folds for request in pool.tunings] == ([split.folds] if name == "tune" else [])
    fits = [request.texts for request in pool.weighings]
    if name not in WEIGHING:
        assert fits == []
        return
    if split.fits_all:
        assert fits.pop(0) == job.texts  # the answer, which no passage is scored by
        assert all(len(candidate.fold_plans) == len(split.folds) for candidate in proposal.candidates)
    for fold, texts in zip(split.folds, fits, strict=True):
        assert set(texts) == set(job.texts) - set(job.sample.texts_of(fold))


def test_several_candidates_without_a_search_are_refused(pool: ToyRegistry) -> None:
    job = job_of(pool, 30)
    candidate = propose(job, "instant").candidates[0]
    with pytest.raises(Internal, match="2 candidates without a search"):
        judge(job, Proposal((candidate, candidate)), Evidence())


@pytest.mark.parametrize("name", STRATEGIES)
@MANY_OR_FEW
def test_where_the_selector_abstains_weighing_proposes_its_own_and_others_need_ingredients(
    pool: ToyRegistry, name: Effort, passages: int
) -> None:
    assert STRATEGIES[name].needs_ingredients is (name not in WEIGHING)
    if name in WEIGHING:
        job = replace(job_of(pool, passages, effort=name), ingredients=())
        assert "selected" not in {candidate.way for candidate in propose(job, name).candidates}
