"""What every strategy of a cook promises, walked over all of them."""

from __future__ import annotations

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


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        *((effort, {"effort": effort}) for effort in STRATEGIES),
        ("instant", {"recipe": RECIPE}),
        ("tune", {"recipe": RECIPE, "effort": "tune"}),
    ],
    ids=[*STRATEGIES, "recipe", "tuned recipe"],
)
@pytest.mark.parametrize("passages", [30, 12])
class TestConformance:
    @pytest.fixture
    def pool(self, verbs: ToyRegistry) -> ToyRegistry:
        for seed, domain in enumerate(ADAPTERS):
            verbs.ready(f"acme/{domain}", seed=seed, provenance={})
        verbs.helpful = {verbs.named(f"acme/{domain}").weights_blob: 0.3 for domain in ("law", "zoo")}
        return verbs

    @pytest.fixture
    def job(self, pool: ToyRegistry, name: Effort, chosen: dict[str, Any], passages: int) -> CookJob:
        fields = {"sample": sample("law", count=passages), "verify": True, **chosen}
        request = CookRequest.model_validate(fields)
        assert strategy_of(request) is STRATEGIES[name]
        job = read_request(
            pool.registry,
            pool.caller(),
            request,
            namespace="acme",
            computations=pool.computations,
            progress=pool.progress,
        )
        return select_ingredients(job)

    @pytest.fixture
    def proposal(self, job: CookJob, name: Effort) -> Proposal:
        proposed = STRATEGIES[name].propose(job)
        assert isinstance(proposed, Proposal)
        return proposed

    def test_it_proposes_mixtures_of_stored_adapters(self, pool: ToyRegistry, proposal: Proposal) -> None:
        digests = {pool.named(f"acme/{domain}").digest for domain in ADAPTERS}
        assert len({candidate.way for candidate in proposal.candidates}) == len(proposal.candidates) > 0
        for candidate in proposal.candidates:
            assert {ingredient.digest for ingredient in candidate.plan.ingredients} <= digests

    def test_it_says_what_it_searched_if_its_effort_holds_passages_out(self, job: CookJob, proposal: Proposal) -> None:
        assert (proposal.search is not None) == (job.request.effort in HOLDS_OUT)

    def test_several_candidates_without_a_search_are_refused(self, job: CookJob, proposal: Proposal) -> None:
        candidate = proposal.candidates[0]
        with pytest.raises(Internal, match="2 candidates without a search"):
            judge(job, Proposal((candidate, candidate)), Evidence())

    def test_workers_that_fit_a_candidate_see_no_passage_that_it_is_scored_on(
        self, pool: ToyRegistry, name: Effort, job: CookJob, proposal: Proposal
    ) -> None:
        assert job.sample is not None
        split = job.sample.split
        tunings = [(split.folds, split.fits_all)] if name == "tune" else []
        assert [(request.folds, request.whole) for request in pool.tunings] == tunings
        fits = [request.texts for request in pool.weighings]
        if name not in WEIGHING:
            assert fits == []
            return
        if split.fits_all:
            assert fits.pop(0) == job.texts  # the answer, which no passage is scored by
            assert all(len(candidate.fold_plans) == len(split.folds) for candidate in proposal.candidates)
        for fold, texts in zip(split.folds, fits, strict=True):
            assert set(texts) == set(job.texts) - set(job.sample.texts_of(fold))

    def test_candidates_are_judged_on_held_out_passages_where_there_is_a_search(
        self, name: Effort, job: CookJob, proposal: Proposal
    ) -> None:
        assert job.sample is not None
        assert (proposal.search is not None) == (name in (*WEIGHING, "tune"))
        if proposal.search is not None:
            assert proposal.search.held_out == len(job.sample.split.held_out)
            assert proposal.search.trials == ()

    def test_where_the_selector_abstains_it_proposes_without_ingredients_or_needs_them(
        self, name: Effort, job: CookJob
    ) -> None:
        strategy = STRATEGIES[name]
        assert strategy.needs_ingredients is (name not in WEIGHING)
        if not strategy.needs_ingredients:
            proposed = strategy.propose(replace(job, ingredients=()))
            assert isinstance(proposed, Proposal)
            assert "selected" not in {candidate.way for candidate in proposed.candidates}


@pytest.mark.parametrize("effort", STRATEGIES)
@pytest.mark.parametrize("passages", [30, 12])
def test_its_price_grows_with_the_adapters_to_look_at(effort: Effort, passages: int) -> None:
    price = STRATEGIES[effort].passes
    assert (price is None) == (effort == "instant")
    if price is not None:
        assert 1 < price(passages, 8) <= price(passages, 64)


def test_a_request_without_an_effort_is_instant() -> None:
    assert strategy_of(CookRequest.model_validate({"sample": sample("law")})) is STRATEGIES["instant"]
