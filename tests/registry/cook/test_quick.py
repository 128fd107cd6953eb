"""Effort `quick`: who is weighed on what, what is tried on passages that were held out, and when nothing is cooked."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from registry.errors import InvalidSample
from registry.spec import CookRequest, RecompressMixing
from tests.registry.toy_registry import LORA, OTHER_INIT, WIDE_LORA, ToyRegistry, passages, vectors_of


def sample(*domains: str, count: int = 30) -> dict[str, list[str]]:
    return {"texts": [text for domain in domains for text in passages(domain, count, seed=7)]}


@pytest.fixture
def pool(verbs) -> ToyRegistry:
    """Four adapters, each from a start of its own; nobody helps, as far as losses say."""
    for seed, name in enumerate(("code", "law", "news", "zoo")):
        verbs.ready(f"acme/{name}", seed=seed, provenance={})
    return verbs


def helps(pool: ToyRegistry, **scores: float) -> dict[str, str]:
    """Have adapters pass the screen; gives the digest of each."""
    rows = {name: pool.named(f"acme/{name}") for name in scores}
    pool.helpful = {rows[name].weights_blob: score for name, score in scores.items()}
    return {name: row.digest for name, row in rows.items()}


def quick(pool: ToyRegistry, *domains: str, **request):
    return pool.cook(sample=sample(*(domains or ("law",))), effort="quick", verify=True, **request)


def test_the_coefficients_are_the_recipe_and_the_soup_is_accepted_on_held_out_passages(pool):
    digests = helps(pool, law=0.4, news=0.2)
    pool.tiny.anything_helps = 0.1
    cooked = quick(pool)
    assert not cooked.abstained
    assert cooked.recipe.mixing == RecompressMixing()
    found = {one.digest: one for one in cooked.recipe.ingredients}
    assert found.keys() == {digests["law"], digests["news"]}
    law = found[digests["law"]]
    assert law.weight == "0.3"  # the mean of .4 and .2
    assert law.layers == {"layers.0.ffn": "1.333333333", "layers.1.ffn": "0.666666667"}
    verification = cooked.evidence.verification
    assert (verification.held_out, verification.passages) == (True, 6)
    assert cooked.evidence.search.trials[0].difference == pytest.approx(verification.difference)


def test_passages_that_were_held_out_are_not_decided_on(pool):
    helps(pool, law=0.4)
    pool.tiny.anything_helps = 0.1
    quick(pool)
    (asked,) = pool.weighings
    texts = sample("law")["texts"]
    assert list(asked.texts) == [text for number, text in enumerate(texts) if number % 5 != 4]
    assert len(asked.candidates) == 4


def test_passages_that_were_held_out_have_no_part_in_ranking_either(pool):
    helps(pool, law=0.4)
    pool.tiny.anything_helps = 0.1
    texts = sample("law")["texts"]
    texts[4::5] = sample("zoo", count=6)["texts"]
    selection = pool.cook(sample={"texts": texts}, effort="quick", verify=True).evidence.selection
    assert selection.units == 24
    assert [one.domain for one in selection.selected] == ["law"]
    whole = pool.cook(sample={"texts": texts}, effort="instant").evidence.selection
    assert {one.domain for one in whole.selected} == {"law", "zoo"}


def test_the_report_names_every_candidate_with_its_screen_best_first(pool):
    helps(pool, law=0.4, news=0.2)
    pool.tiny.anything_helps = 0.1
    search = quick(pool).evidence.search
    assert [(one.domain, one.score) for one in search.candidates[:2]] == [("law", 0.4), ("news", 0.2)]
    assert [one.coefficient for one in search.candidates[:2]] == pytest.approx([0.3, 0.15])
    assert all(one.coefficient is None and one.score == -0.1 for one in search.candidates[2:])
    assert (search.effort, search.decided_on, search.held_out) == ("quick", 24, 6)


def test_the_better_of_both_ways_wins(pool):
    """The selector's own choice is tried too; whoever has the lower loss on the held-out passages is taken."""
    helps(pool, zoo=0.4)
    pool.gains[pool.named("acme/law").digest] = lambda _: 0.5
    cooked = quick(pool)
    assert {trial.way for trial in cooked.evidence.search.trials} == {"weighed", "selected"}
    assert cooked.model == pool.named("acme/law").ref


def test_what_does_not_beat_the_base_is_not_cooked(pool):
    helps(pool, law=0.4)
    pool.tiny.anything_helps = -0.1
    cooked = quick(pool)
    assert cooked.abstained
    assert cooked.model == "base/tiny"
    assert (
        "On the 6 passages that were held out it does not beat the base model by two standard errors" in cooked.reason
    )
    assert cooked.evidence.search.trials


def test_where_nobody_passes_the_screen_only_the_selectors_choice_is_tried(pool):
    cooked = quick(pool)
    assert cooked.abstained
    assert [trial.way for trial in cooked.evidence.search.trials] == ["selected"]


def test_at_most_as_many_as_asked_for_and_as_fit_the_width(pool):
    helps(pool, code=0.1, law=0.4, news=0.3, zoo=0.2)
    pool.tiny.anything_helps = 0.1
    assert len(quick(pool, options={"max_ingredients": 3}).recipe.ingredients) == 3
    assert len(quick(pool, max_width=4).recipe.ingredients) == 2  # each is 2 wide


def test_only_what_can_be_put_side_by_side_is_weighed(pool):
    pool.ready("acme/lora", seed=9, config=LORA, provenance=OTHER_INIT, text="law")
    helps(pool, law=0.4)
    pool.tiny.anything_helps = 0.1
    quick(pool, "zoo")
    assert {one.config.method for one in pool.weighings[-1].candidates} == {"bottleneck"}


def test_who_is_not_weighed_is_told_why(pool):
    pool.ready("acme/lora", seed=9, config=LORA, provenance=OTHER_INIT, text="law")
    helps(pool, law=0.4)
    pool.tiny.anything_helps = 0.1
    (out,) = quick(pool, "zoo").evidence.search.left_out
    assert out.ref == "acme/lora@1"
    assert "The methods differ" in out.reason


def test_loras_that_know_different_modules_keep_the_factors_of_their_own(verbs):
    for seed, (name, config) in enumerate({"law": LORA, "zoo": WIDE_LORA}.items()):
        verbs.ready(f"acme/{name}", seed=seed, config=config, provenance={})
    helps(verbs, law=0.4, zoo=0.3)
    verbs.tiny.anything_helps = 0.1
    cooked = quick(verbs, "law", "zoo")
    assert sorted(len(one.layers) for one in cooked.recipe.ingredients) == [2, 6]


def test_the_same_request_again_is_the_same_soup(pool):
    helps(pool, law=0.4, news=0.2)
    pool.tiny.anything_helps = 0.1
    first, again = quick(pool), quick(pool)
    assert (again.digest, again.cached, again.created) == (first.digest, True, False)


def test_instant_takes_the_posteriors_weights(pool):
    cooked = pool.cook(sample=sample("law", "zoo"), effort="instant", mixing={"method": "concat"})
    assert cooked.evidence.selection.thresholds == {"min_share": 0.02}
    assert not pool.weighings


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"verify": False}, "'verify' cannot be false"),
        ({"mixing": {"method": "average"}}, "finds its own mixing"),
        ({"options": {"single": True}}, "weighs several adapters"),
    ],
)
def test_contradictions_are_refused(request_, said):
    with pytest.raises(ValidationError, match=said):
        CookRequest.model_validate({"sample": sample("law"), "effort": "quick", **request_})


def test_a_recipe_by_hand_has_no_effort():
    with pytest.raises(ValidationError, match="leaves nothing to search"):
        CookRequest.model_validate({"recipe": {"ingredients": [{"ref": "a/b"}]}, "effort": "instant"})


def test_vectors_alone_cannot_be_weighed(pool):
    vectors = vectors_of(pool.base, passages("law", 30, seed=7))
    with pytest.raises(InvalidSample, match="needs the sample's text"):
        pool.cook(sample=vectors, effort="quick", verify=True)
