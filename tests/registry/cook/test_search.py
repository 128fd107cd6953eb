"""Efforts `quick` and `thorough`: who is weighed on what, what is tried on held-out passages, and abstention."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import pytest
from pydantic import ValidationError

from registry.cook import candidates as candidates_module
from registry.cook.choose import part_of
from registry.cook.mix import mix_ingredients
from registry.cook.ways import request_of, side_by_side
from registry.errors import Incompatible, InvalidParameter, InvalidSample, NotFound
from registry.registry import Limits, SampleLimits
from registry.selectors.ranking import LISTED
from registry.spec import ConcatMixing, CookRequest, PrefixConfig, RecompressMixing
from tests.registry.toy_registry import CONFIG, LORA, OTHER_INIT, SHAPE, WIDE_LORA, ToyRegistry, passages, vectors_of

ON_DATABASES = ("sqlite",)  # whatever they ask a catalogue, `test_cook` and its own tests ask one of each kind

PREFIX = PrefixConfig(length=3)
NAMES = ("code", "law", "news", "zoo")


def sample(*domains: str, count: int = 30) -> dict[str, list[str]]:
    return {"texts": [text for domain in domains for text in passages(domain, count, seed=7)]}


@pytest.fixture
def pool(verbs) -> ToyRegistry:
    """Four adapters, each from a start of its own; nobody helps, as far as losses say."""
    for seed, name in enumerate(NAMES):
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


def test_the_heaviest_adapter_by_itself_is_held_against_the_soup_on_the_same_passages(pool):
    digests = helps(pool, law=0.4, news=0.2)
    pool.tiny.anything_helps = 0.1
    pool.gains[digests["law"]] = lambda _: 0.07
    cooked = quick(pool)
    single = cooked.evidence.search.single
    assert (single.ref, single.digest) == (pool.named("acme/law").ref, digests["law"])
    assert single.difference == pytest.approx(-0.07)
    assert single.ahead == pytest.approx(-0.03, abs=0.002)
    assert "law" not in {trial.way for trial in cooked.evidence.search.trials}
    assert cooked.evidence.verification.ways == 2, "it is no candidate for the answer"


def test_losses_say_which_adapter_is_best_by_itself_where_they_are_known(pool):
    digests = helps(pool, law=0.4, news=0.3)
    pool.tiny.anything_helps = 0.1
    single = thorough(pool).evidence.search.single
    assert single.digest == digests["law"]


def test_an_answer_that_is_the_best_adapter_is_not_held_against_itself(pool):
    helps(pool, law=0.4)
    pool.gains[pool.named("acme/law").digest] = lambda _: 0.5
    cooked = quick(pool)
    assert cooked.model == pool.named("acme/law").ref
    assert cooked.evidence.search.single is None


def test_of_few_passages_each_is_scored_by_the_adapter_that_the_others_say_is_best(pool):
    by_turns(pool, {"law": 0.4, "code": 0.1}, *[{"law": 0.4, "code": 0.1}] * 2, {"news": 0.4, "code": 0.1})
    pool.tiny.anything_helps = 0.1
    pool.gains[pool.named("acme/law").digest] = lambda _: 0.06
    pool.gains[pool.named("acme/news").digest] = lambda _: 0.0
    single = few(pool).evidence.search.single
    assert single.digest == pool.named("acme/law").digest
    assert single.difference == pytest.approx(-0.06 * 10 / 15)


def test_what_does_not_beat_the_base_is_not_cooked(pool):
    helps(pool, law=0.4)
    pool.tiny.anything_helps = -0.1
    cooked = quick(pool)
    assert cooked.abstained
    assert cooked.model == "base/tiny"
    assert "On the 6 passages that were held out it does not beat the base model by the 2.57 standard" in cooked.reason
    assert "that so few ask of the best of 2 soups" in cooked.reason
    assert cooked.evidence.verification.ways == 2
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


def test_a_wide_adapter_leaves_out_only_what_does_not_fit_beside_it(pool):
    pool.ready(
        "acme/wide", seed=9, config=CONFIG.model_copy(update={"bottleneck": 5}), provenance=OTHER_INIT, text="law"
    )
    helps(pool, code=0.1, law=0.4, news=0.3, wide=0.2, zoo=0.05)
    pool.tiny.anything_helps = 0.1
    for width, members in ((9, {"law", "news", "wide"}), (8, {"law", "news", "code", "zoo"})):
        found = quick(pool, max_width=width).evidence.search
        weighed = {one.domain for one in found.candidates if one.coefficient is not None}
        assert weighed == members


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


@pytest.mark.parametrize("block", [1, 3, 256])
@pytest.mark.parametrize("most", [1, 3, 64])
@pytest.mark.parametrize("also", [(), ("acme/zoo",)])
def test_a_ranking_is_gone_through_in_blocks_until_there_are_enough(pool, monkeypatch, block, most, also):
    """Of whatever size the blocks are: the same are weighed, and the same is told of the others."""
    pool.ready("acme/lora", seed=9, config=LORA, provenance=OTHER_INIT, text="law")
    helps(pool, law=0.4)
    pool.tiny.anything_helps = 0.1
    monkeypatch.setattr(candidates_module, "MOST", most + len(also))
    found = {}
    for size in (256, block):
        monkeypatch.setattr(candidates_module, "BLOCK", size)
        made = quick(pool, "zoo", "law", also=also).evidence.search
        found[size] = made.candidates, {one.ref: one.reason for one in made.left_out}, made.more_left_out
    assert found[block] == found[256]
    candidates, left, more = found[block]
    named = [one.ref for one in candidates] + list(left)
    assert sorted(named) == [f"acme/{name}@1" for name in ("code", "law", "lora", "news", "zoo")]
    assert len(candidates) == min(most, 4 - len(also)) + len(also)
    assert more == {}
    assert all(why == f"{most} better-ranked ones are weighed." for ref, why in left.items() if "lora" not in ref)


@pytest.mark.parametrize("also", [(), ("acme/law",)])
def test_where_nobody_can_be_put_beside_another_the_block_does_not_matter(verbs, monkeypatch, also):
    """Prefixes are never put side by side; whom the request names is, in a pool of them."""
    for seed, name in enumerate(("code", "news", "zoo")):
        verbs.ready(f"acme/{name}", seed=seed, config=PREFIX, provenance=OTHER_INIT)
    if also:
        verbs.push("acme/law", seed=9)
    found = []
    for size in (256, 1, 2):
        monkeypatch.setattr(candidates_module, "BLOCK", size)
        found.append(quick(verbs, "zoo", also=also).evidence.search.left_out)
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 3


def test_of_many_that_are_not_weighed_the_best_ranked_are_named(pool):
    for number in range(40):
        pool.ready(f"acme/n{number:02}", seed=100 + number, text="law", config=LORA, provenance=OTHER_INIT)
    helps(pool, law=0.4)
    pool.tiny.anything_helps = 0.1
    search = quick(pool, "zoo").evidence.search
    assert len(search.left_out) == LISTED
    assert search.more_left_out == {candidates_module.NOT_BESIDE: 40 - LISTED}


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


# --- thorough -------------------------------------------------------------------------------------


def thorough(pool: ToyRegistry, *domains: str, **request):
    return pool.cook(sample=sample(*(domains or ("law",))), effort="thorough", verify=True, **request)


def test_thorough_weighs_more_for_longer_and_tries_what_losses_say(pool):
    helps(pool, code=0.1, law=0.4, news=0.3, zoo=0.2)
    pool.tiny.anything_helps = 0.1
    search = thorough(pool).evidence.search
    (asked,) = pool.weighings
    assert (asked.keep, asked.steps * asked.batch, asked.alone) == (32, 4 * 24, 4)
    assert [trial.way for trial in search.trials] == ["weighed", "em", "greedy", "selected", "recompressed"]
    assert [trial.members for trial in search.trials] == [4, 4, 2, 1, 4]
    assert search.effort == "thorough"
    assert [one.alone for one in search.candidates] == [-0.4, -0.3, -0.2, -0.1]


def test_a_mixture_of_distributions_keeps_the_bases_share(pool):
    digests = helps(pool, law=0.3, news=0.1)
    request = CookRequest.model_validate({"sample": sample("law"), "effort": "thorough"})
    parts = [part_of(pool.named(f"acme/{name}"), "1", pool.blobs) for name in ("law", "news")]
    asked = request_of(request, [(pool.named(p.ref), p) for p in parts], ["text"])
    ways = side_by_side(pool.weigh("tiny", asked), parts, request, SHAPE, asked)
    mixed, how = ways["em"]
    assert how.mixing == ConcatMixing(scale="0.8")
    assert {one.digest: one.weight for one in mixed} == {digests["law"]: "0.75", digests["news"]: "0.25"}


@pytest.mark.parametrize("best", ["em", "greedy", "weighed"])
def test_whatever_does_best_on_held_out_passages_wins_and_is_made_narrow(pool, best):
    helps(pool, code=0.1, law=0.4, news=0.3, zoo=0.2)
    plain = mixtures(pool)
    pool.gains[plain[best].digest] = lambda _: 0.5
    cooked = thorough(pool)
    assert not cooked.abstained
    assert cooked.digest == plain[best].digest  # the narrow form does not help
    members = {trial.way: trial.members for trial in cooked.evidence.search.trials}
    assert members["recompressed"] == members[best]


def mixtures(pool):
    """The wide soups that thorough tries, by way."""
    candidates = [(pool.named(f"acme/{name}"), part_of(pool.named(f"acme/{name}"), "1", pool.blobs)) for name in NAMES]
    request = CookRequest.model_validate({"sample": sample("law"), "effort": "thorough"})
    asked = request_of(request, candidates, ["text"])
    ways = side_by_side(pool.weigh("tiny", asked), [part for _, part in candidates], request, SHAPE, asked)
    return {
        way: mix_ingredients(pool.registry, pool.tiny, tuple(parts), request=how) for way, (parts, how) in ways.items()
    }


def test_at_most_as_many_as_asked_for_also_by_losses(pool):
    helps(pool, code=0.1, law=0.4, news=0.3, zoo=0.2)
    pool.tiny.anything_helps = 0.1
    search = thorough(pool, options={"max_ingredients": 2}).evidence.search
    assert max(trial.members for trial in search.trials) == 2
    assert pool.weighings[-1].keep == 2
    search = thorough(pool, max_width=7).evidence.search  # each is 2 wide
    assert {trial.way: trial.members for trial in search.trials} | {"selected": 0} == {
        "weighed": 3, "em": 3, "greedy": 2, "recompressed": 3, "selected": 0,
    }  # fmt: skip


# --- few passages: each of them is held out once ----------------------------------------------------


def few(pool: ToyRegistry, count: int = 15, effort: str = "quick", **request):
    return pool.cook(sample=sample("law", count=count), effort=effort, verify=True, **request)


@pytest.mark.parametrize("count", [3, 5, 15, 19])
def test_of_few_passages_each_is_held_out_of_one_weighing_and_the_first_is_by_all(pool, count):
    pool.registry = replace(pool.registry, limits=Limits(sample=SampleLimits(minimum=3, novel=3)))
    helps(pool, law=0.4)
    pool.tiny.anything_helps = 0.1
    cooked = few(pool, count)
    texts = sample("law", count=count)["texts"]
    whole, *folds = [list(one.texts) for one in pool.weighings]
    assert whole == texts
    assert [sorted(set(texts) - set(fold)) for fold in folds] == [sorted(texts[first::3]) for first in range(3)]
    search = cooked.evidence.search
    assert (search.decided_on, search.held_out, cooked.evidence.verification.passages) == (count, count, count)
    assert search.tokens == 4 * 20


def test_two_are_too_few_to_hold_one_out_of_three(pool):
    pool.registry = replace(pool.registry, limits=Limits(sample=SampleLimits(minimum=2, novel=2)))
    with pytest.raises(InvalidSample, match="Of 2 passages too few can be held out: send 3 or more"):
        few(pool, 2)


def by_turns(pool: ToyRegistry, *turns: dict[str, float]) -> dict[str, str]:
    """Have adapters pass the screen of one weighing after another; gives the digest of the soup of each turn."""
    weigh, left = pool.weigh, list(turns)
    soups = {}
    for turn in turns:
        helps(pool, **turn)
        asked = request_of(QUICK, candidates(pool), ["text"])
        ways = side_by_side(weigh("tiny", asked), [part for _, part in candidates(pool)], QUICK, SHAPE, asked)
        if "weighed" in ways:
            parts, how = ways["weighed"]
            soups["+".join(turn)] = mix_ingredients(pool.registry, pool.tiny, tuple(parts), request=how).digest
    pool.weighings.clear()

    def in_turn(base_id, request):
        helps(pool, **left.pop(0))
        return weigh(base_id, request)

    pool.gradients = replace(pool.gradients, weigh=in_turn)
    return soups


QUICK = CookRequest.model_validate({"sample": {"texts": ["text"]}, "effort": "quick"})


def candidates(pool: ToyRegistry):
    return [(pool.named(f"acme/{name}"), part_of(pool.named(f"acme/{name}"), "1", pool.blobs)) for name in NAMES]


def trial(cooked, way: str):
    return next(one for one in cooked.evidence.search.trials if one.way == way)


def test_a_passage_is_tried_by_the_soup_that_was_made_without_it_and_the_answer_is_made_of_all(pool):
    soups = by_turns(pool, {"news": 0.4}, {"law": 0.4}, {"law": 0.4}, {"law": 0.4})
    pool.gains[soups["law"]] = lambda _: 0.5
    pool.gains[soups["news"]] = lambda _: -9.0
    cooked = few(pool)
    assert trial(cooked, "weighed").difference == pytest.approx(-0.5)
    assert not cooked.abstained
    assert cooked.digest == soups["news"]


def test_where_the_other_passages_lead_to_no_soup_the_base_is_what_is_tried(pool):
    soups = by_turns(pool, {"law": 0.4}, {"law": 0.4}, {}, {"law": 0.4})
    pool.gains[soups["law"]] = lambda _: 0.6
    assert trial(few(pool), "weighed").difference == pytest.approx(-0.4)


def test_what_all_passages_do_not_lead_to_is_not_tried(pool):
    by_turns(pool, {}, {"law": 0.4}, {"law": 0.4}, {"law": 0.4})
    assert [one.way for one in few(pool).evidence.search.trials] == ["selected"]


def test_the_selector_does_not_look_at_a_passage_that_is_held_out_either(pool):
    """Every third passage is of another domain: whoever has not seen these mixes only what knows the others."""
    pool.gains[pool.named("acme/law").digest] = lambda _: -0.25
    pool.tiny.anything_helps = 0.5
    texts = [f"{'zoo' if number % 3 == 0 else 'law'} passage {number}" for number in range(15)]
    cooked = pool.cook(sample={"texts": texts}, effort="quick", verify=True)
    assert {one.domain for one in cooked.evidence.selection.selected} == {"law", "zoo"}
    assert trial(cooked, "selected").difference == pytest.approx((-0.5 * 10 + 0.25 * 5) / 15)


def test_the_narrow_form_is_tried_by_narrow_forms(pool):
    helps(pool, law=0.4, news=0.2)
    pool.tiny.anything_helps = 0.1
    cooked = few(pool)
    assert cooked.recipe.mixing == RecompressMixing()
    assert trial(cooked, "recompressed").members == 2
    assert len(pool.weighings) == 4


@pytest.mark.parametrize("most", [3, 2])
def test_rankings_without_a_passage_are_screened_beside_all_candidates_of_any(pool, monkeypatch, most):
    """So that folds know what the first weighing found, though others are among their best; unless these are many."""
    monkeypatch.setattr(candidates_module, "MOST", 2)
    monkeypatch.setattr(import_module("registry.cook.search"), "TOGETHER", most)
    texts = [f"{('zoo', 'law', 'law')[number % 3]} passage {number}" for number in range(15)]
    texts[2::3] = [f"news passage {number}" for number in range(5)]
    pool.cook(sample={"texts": texts}, effort="quick", verify=True)
    own = [{one.blob for one in asked.candidates} for asked in pool.weighings]
    beside = [{one.blob for one in asked.beside} for asked in pool.weighings]
    every = set().union(*own)
    assert len(own) == 4
    assert len(every) == 3
    assert all(len(some) == 2 for some in own)
    assert beside == [every if most == 3 else set()] * 4


def test_few_passages_are_gone_over_as_often_as_many(pool):
    helps(pool, law=0.4)
    few(pool, 15)
    assert [(len(one.texts), one.steps, one.batch, one.parts) for one in pool.weighings] == [
        (15, 15, 2, 15), *[(10, 20, 1, 10)] * 3
    ]  # fmt: skip
    assert all(one.by_screen for one in pool.weighings)
    pool.weighings.clear()
    few(pool, 6, effort="thorough")
    assert all(one.steps * one.batch <= 4 * len(one.texts) for one in pool.weighings)


def test_many_passages_are_weighed_in_steps_of_eight_from_even_coefficients(pool):
    helps(pool, law=0.4)
    pool.cook(sample=sample("law", count=100), effort="quick", verify=True)
    (asked,) = pool.weighings
    assert (len(asked.texts), asked.steps, asked.batch, asked.parts, asked.by_screen) == (80, 12, 8, 5, False)


def test_what_is_found_is_for_its_owner_to_use_again(pool):
    helps(pool, law=0.4)
    few(pool)
    assert {one.owner for one in pool.weighings} == {pool.caller().key_id}


def test_the_narrow_form_of_all_passages_is_never_what_stands_for_it(pool):
    """It was made of what was fitted to them; what the others lead to is one adapter, which is as narrow as it is."""
    soups = by_turns(pool, {"law": 0.4, "news": 0.2}, {"zoo": 0.4}, {"zoo": 0.4}, {"zoo": 0.4})
    pool.tiny.anything_helps = 0.5  # the narrow form of all
    pool.gains[soups["law+news"]] = lambda _: 0.7
    pool.gains[soups["zoo"]] = lambda _: 0.3
    cooked = few(pool)
    assert trial(cooked, "weighed").difference == pytest.approx(-0.3)
    assert trial(cooked, "recompressed").difference == pytest.approx(-0.3)
    assert trial(cooked, "recompressed").members == 2


def test_noise_is_tried_on_every_passage_once(pool):
    helps(pool, law=0.4)
    pool.tiny.anything_helps, pool.noise_helps = 0.1, 0.03
    cooked = few(pool, control=True)
    texts = sample("law", count=15)["texts"]
    drawn = [one for one in pool.weighings if one.noise]
    assert [list(one.unseen) for one in drawn] == [texts[first::3] for first in range(3)]
    assert cooked.evidence.search.noise.difference == pytest.approx(-0.034, abs=0.002)


@pytest.mark.parametrize(("effort", "passes"), [("quick", 18), ("thorough", 25), ("thorough", 60)])
@pytest.mark.parametrize("count", [5, 9, 12])
def test_a_budget_cuts_all_weighings(pool, effort, passes, count):
    helps(pool, law=0.4)
    pool.tiny.anything_helps = 0.1
    few(pool, count, effort=effort)
    free = [(one.screened, one.steps, one.alone) for one in pool.weighings]
    pool.weighings.clear()
    few(pool, count, effort=effort, budget={"passes": passes})
    cut = [(one.screened, one.steps, one.alone) for one in pool.weighings]
    assert all(
        less <= more for one, other in zip(cut, free, strict=True) for less, more in zip(one, other, strict=True)
    )
    assert sum(steps for _, steps, _ in cut) < sum(steps for _, steps, _ in free)
    assert len({alone for _, _, alone in cut}) == 1


def test_a_budget_that_is_too_small_is_refused_before_anything_is_weighed_with_what_would_do(pool):
    helps(pool, law=0.4)
    with pytest.raises(InvalidParameter, match="at least") as refused:
        few(pool, 6, budget={"passes": 1})
    assert pool.weighings == []
    least = float(str(refused.value).partition("at least ")[2].partition(":")[0])
    few(pool, 6, budget={"passes": least + 0.1})
    assert len(pool.weighings) == 4


def test_thorough_too_holds_each_of_few_out_once(pool):
    helps(pool, code=0.1, law=0.4, news=0.3, zoo=0.2)
    pool.tiny.anything_helps = 0.1
    search = few(pool, effort="thorough").evidence.search
    assert len(pool.weighings) == 4
    assert [one.way for one in search.trials] == ["weighed", "em", "greedy", "selected", "recompressed"]


# --- adapters by name, and noise -------------------------------------------------------------------


@pytest.mark.parametrize("effort", ["quick", "thorough"])
def test_adapters_by_name_are_weighed_without_being_in_the_pool(pool, effort):
    outside = pool.push("acme/general", seed=9, provenance={}).row
    helps(pool, general=0.4)
    pool.tiny.anything_helps = 0.1
    cooked = pool.cook(sample=sample("law"), effort=effort, verify=True, also=["acme/general", "acme/general@1"])
    assert [one.digest for one in cooked.recipe.ingredients] == [outside.digest]
    assert len(pool.weighings[-1].candidates) == 5
    pool.cook(sample=sample("law"), effort=effort, verify=True, also=["acme/law"])
    assert len(pool.weighings[-1].candidates) == 4


def test_adapters_by_name_are_seen_by_the_key_and_go_with_the_others(pool):
    pool.push("acme/lora", seed=9, config=LORA)
    pool.ready("other/own", seed=8)
    with pytest.raises(NotFound):
        quick(pool, also=["other/secret"])
    with pytest.raises(NotFound):
        pool.cook(
            sample=sample("law"), effort="quick", verify=True, also=["acme/law"], scope=("other",), namespace="other"
        )
    with pytest.raises(Incompatible, match="What 'also' names cannot be put side by side"):
        quick(pool, also=["acme/lora"])


@pytest.mark.parametrize("effort", ["quick", "thorough"])
def test_noise_is_weighed_alike_and_tried_on_the_same_passages(pool, effort):
    helps(pool, law=0.4, news=0.2)
    pool.tiny.anything_helps, pool.noise_helps = 0.1, 0.03
    cooked = pool.cook(sample=sample("law"), effort=effort, verify=True, control=True)
    real, drawn = pool.weighings
    assert (drawn.noise, drawn.unseen) == (True, tuple(sample("law")["texts"][4::5]))
    assert (drawn.texts, drawn.candidates, drawn.keep, drawn.steps) == (
        real.texts, real.candidates, real.keep, real.steps,
    )  # fmt: skip
    noise = cooked.evidence.search.noise
    assert noise.difference == pytest.approx(-0.035, abs=0.002)
    assert noise.ahead == pytest.approx(-0.065, abs=0.01)
    assert noise.standard_error > 0
    assert quick(pool).evidence.search.noise is None


# --- what is refused -------------------------------------------------------------------------------


def test_adapters_by_name_and_noise_are_for_efforts_that_weigh():
    for field in ({"also": ["acme/law"]}, {"control": True}):
        with pytest.raises(ValidationError, match="are for efforts that weigh adapters"):
            CookRequest.model_validate({"sample": sample("law"), "effort": "tune", **field})


@pytest.mark.parametrize("effort", ["quick", "thorough"])
@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"verify": False}, "'verify' cannot be false"),
        ({"mixing": {"method": "average"}}, "finds its own mixing"),
        ({"options": {"single": True}}, "weighs several adapters"),
    ],
)
def test_contradictions_are_refused(effort, request_, said):
    with pytest.raises(ValidationError, match=said):
        CookRequest.model_validate({"sample": sample("law"), "effort": effort, **request_})


def test_a_recipe_by_hand_has_no_effort():
    with pytest.raises(ValidationError, match="leaves nothing to search"):
        CookRequest.model_validate({"recipe": {"ingredients": [{"ref": "a/b"}]}, "effort": "instant"})


def test_vectors_alone_cannot_be_weighed(pool):
    vectors = vectors_of(pool.base, passages("law", 30, seed=7))
    with pytest.raises(InvalidSample, match="needs the sample's text"):
        pool.cook(sample=vectors, effort="quick", verify=True)
