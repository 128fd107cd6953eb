"""Efforts `quick` and `thorough`: who is weighed on what, what is tried on held-out passages, and abstention."""

from __future__ import annotations

from dataclasses import replace

import pytest

from registry.cook import shortlist, strategies, weighing
from registry.cook.ingredients import ingredient_of
from registry.cook.mix import mix
from registry.errors import Incompatible, InvalidSample, NotFound
from registry.selectors.ranking import LISTED
from registry.spec import ConcatMixing, CookRequest, PrefixConfig, RecompressMixing
from registry.spec.limits import SampleLimits, SizeLimits
from tests.registry.toy_registry import (
    CONFIG,
    LORA,
    OTHER_INIT,
    SHAPE,
    WIDE_LORA,
    ToyRegistry,
    sample,
)

ON_DATABASES = ("sqlite",)  # whatever they ask a catalogue, `test_cook` and its own tests ask one of each kind

PREFIX = PrefixConfig(length=3)
NAMES = ("code", "law", "news", "zoo")


@pytest.fixture
def pool(ready) -> ToyRegistry:
    """Four adapters, each with its own initialisation. None passes the screen; any soup gains 0.1 nats a token."""
    registry = ready(*NAMES, one_start=False)
    registry.tiny.anything_helps = 0.1
    return registry


def helps(pool: ToyRegistry, **scores: float) -> dict[str, str]:
    """Have adapters pass the screen; gives the digest of each."""
    rows = {name: pool.named(f"acme/{name}") for name in scores}
    pool.helpful = {rows[name].weights_blob: score for name, score in scores.items()}
    return {name: row.digest for name, row in rows.items()}


def quick(pool: ToyRegistry, *domains: str, effort: str = "quick", **request):
    return pool.cook(sample=sample(*(domains or ("law",))), effort=effort, verify=True, **request)


QUICK, THOROUGH = (
    CookRequest.model_validate({"sample": {"texts": ["text"]}, "effort": effort}) for effort in ("quick", "thorough")
)


def ways_of(pool: ToyRegistry, request: CookRequest, *names: str):
    """The mixtures, by way, that a weighing of these adapters (of all, by default) leads to."""
    rows = [pool.named(f"acme/{name}") for name in names or NAMES]
    adapters = [(row, ingredient_of(row, "1", pool.blobs)) for row in rows]
    depth = {"quick": strategies.QUICK, "thorough": strategies.THOROUGH}[request.effort]
    weighing_request = weighing.weighing_request(request, depth, adapters, ["text"])
    weighed = pool.weigh(pool.tiny.entry, weighing_request)
    ingredients = [ingredient for _, ingredient in adapters]
    return weighing.mixtures(weighed, weighing_request, ingredients, shape=SHAPE, max_width=request.max_width)


def test_the_coefficients_are_the_recipe_and_the_soup_is_accepted_on_held_out_passages(pool):
    digests = helps(pool, law=0.4, news=0.2)
    pool.gains[digests["law"]] = lambda _: 0.07
    cooked = quick(pool)
    assert not cooked.abstained
    assert cooked.recipe.mixing == RecompressMixing()
    ingredients = {ingredient.digest: ingredient for ingredient in cooked.recipe.ingredients}
    assert ingredients.keys() == {digests["law"], digests["news"]}
    law = ingredients[digests["law"]]
    assert law.weight == "0.3"  # the mean of .4 and .2
    assert law.layers == {"layers.0.ffn": "1.333333333", "layers.1.ffn": "0.666666667"}
    search, verification = cooked.evidence.search, cooked.evidence.verification
    assert (verification.held_out, verification.passages, verification.ways) == (True, 6, 2)
    assert search.trials[0].difference == pytest.approx(verification.difference)
    # the report: every candidate with its screen, best first
    assert [(c.domain, c.score) for c in search.candidates[:2]] == [("law", 0.4), ("news", 0.2)]
    assert [c.coefficient for c in search.candidates[:2]] == pytest.approx([0.3, 0.15])
    assert all(c.coefficient is None and c.score == -0.1 for c in search.candidates[2:])
    assert (search.effort, search.decided_on, search.held_out) == ("quick", 24, 6)
    # the heaviest adapter alone is compared on the same passages, and is no candidate for the answer
    assert (search.single.ref, search.single.digest) == (pool.named("acme/law").ref, digests["law"])
    assert search.single.difference == pytest.approx(-0.07)
    assert search.single.ahead == pytest.approx(-0.03, abs=0.002)
    assert "law" not in {trial.way for trial in search.trials}
    second = quick(pool)
    assert (second.digest, second.cached, second.created) == (cooked.digest, True, False)


def test_held_out_passages_take_no_part_in_weighing_or_ranking(pool):
    helps(pool, law=0.4)
    texts = sample("law")["texts"]
    texts[4::5] = sample("zoo", count=6)["texts"]
    selection = pool.cook(sample={"texts": texts}, effort="quick", verify=True).evidence.selection
    (request,) = pool.weighings
    assert list(request.texts) == [text for number, text in enumerate(texts) if number % 5 != 4]
    assert len(request.candidates) == 4
    assert selection.units == 24
    assert [domain.domain for domain in selection.selected] == ["law"]
    whole = pool.cook(sample={"texts": texts}, effort="instant").evidence.selection
    assert {domain.domain for domain in whole.selected} == {"law", "zoo"}


@pytest.mark.parametrize("weighed", ["zoo", "law"])
def test_the_selectors_own_soup_is_tried_too_and_wins_with_the_lower_loss(pool, weighed):
    helps(pool, **{weighed: 0.4})
    law = pool.named("acme/law")
    pool.gains[law.digest] = lambda _: 0.5
    cooked = quick(pool)
    assert {trial.way for trial in cooked.evidence.search.trials} == {"weighed", "selected"}
    assert cooked.model == law.ref
    assert (cooked.evidence.search.single is None) == (weighed == "law")  # no adapter is compared with itself


def test_of_few_passages_each_is_scored_by_the_adapter_that_the_others_say_is_best(pool):
    by_turns(pool, {"law": 0.4, "code": 0.1}, *[{"law": 0.4, "code": 0.1}] * 2, {"news": 0.4, "code": 0.1})
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
    assert "On the 6 held-out passages, the soup does not beat the base model by 2.57 standard errors" in cooked.reason
    assert "as required of the best of 2 soups on so few passages" in cooked.reason
    assert cooked.evidence.verification.ways == 2
    assert cooked.evidence.search.trials


def test_where_nobody_passes_the_screen_only_the_selectors_choice_is_tried(pool):
    assert [trial.way for trial in quick(pool).evidence.search.trials] == ["selected"]


def test_at_most_as_many_as_asked_for_and_as_fit_the_width(pool):
    helps(pool, code=0.1, law=0.4, news=0.3, zoo=0.2)
    assert len(quick(pool, options={"max_ingredients": 3}).recipe.ingredients) == 3
    assert len(quick(pool, max_width=4).recipe.ingredients) == 2  # each is 2 wide


def test_a_wide_adapter_leaves_out_only_what_does_not_fit_beside_it(pool):
    pool.ready(
        "acme/wide", seed=9, config=CONFIG.model_copy(update={"bottleneck": 5}), provenance=OTHER_INIT, text="law"
    )
    helps(pool, code=0.1, law=0.4, news=0.3, wide=0.2, zoo=0.05)
    for width, members in ((9, {"law", "news", "wide"}), (8, {"law", "news", "code", "zoo"})):
        search = quick(pool, max_width=width).evidence.search
        assert {candidate.domain for candidate in search.candidates if candidate.coefficient is not None} == members


def test_only_what_can_be_put_side_by_side_is_weighed_and_the_rest_is_told_why(pool):
    pool.ready("acme/lora", seed=9, config=LORA, provenance=OTHER_INIT, text="law")
    helps(pool, law=0.4)
    (left_out,) = quick(pool, "zoo").evidence.search.left_out
    assert {candidate.config.method for candidate in pool.weighings[-1].candidates} == {"bottleneck"}
    assert left_out.ref == "acme/lora@1"
    assert "The methods differ" in left_out.reason


@pytest.mark.parametrize(
    ("block", "most", "also"), [(1, 1, ()), (1, 3, ()), (3, 3, ("acme/zoo",)), (3, 64, ("acme/zoo",))]
)
def test_a_ranking_is_gone_through_in_blocks_until_there_are_enough(pool, monkeypatch, block, most, also):
    """Of whatever size the blocks are: the same are weighed, and the same is told of the others."""
    pool.ready("acme/lora", seed=9, config=LORA, provenance=OTHER_INIT, text="law")
    helps(pool, law=0.4)
    monkeypatch.setattr(shortlist, "MAX_INGREDIENTS", most + len(also))
    searches = {}
    for size in (256, block):
        monkeypatch.setattr(shortlist, "BLOCK", size)
        search = quick(pool, "zoo", "law", also=also).evidence.search
        searches[size] = search.candidates, {entry.ref: entry.reason for entry in search.left_out}, search.more_left_out
    assert searches[block] == searches[256]
    candidates, left_out, more = searches[block]
    named = [candidate.ref for candidate in candidates] + list(left_out)
    assert sorted(named) == [f"acme/{name}@1" for name in ("code", "law", "lora", "news", "zoo")]
    assert len(candidates) == min(most, 4 - len(also)) + len(also)
    assert more == {}
    assert all(
        reason == f"{most} better-ranked ones are weighed." for ref, reason in left_out.items() if "lora" not in ref
    )


@pytest.mark.parametrize("also", [(), ("acme/law",)])
def test_where_nobody_can_be_put_beside_another_the_block_does_not_matter(verbs, monkeypatch, also):
    """Prefixes are never put side by side; whom the request names is, in a pool of them."""
    for seed, name in enumerate(("code", "news", "zoo")):
        verbs.ready(f"acme/{name}", seed=seed, config=PREFIX, provenance=OTHER_INIT)
    if also:
        verbs.push("acme/law", seed=9)
    left_out = []
    for size in (256, 1, 2):
        monkeypatch.setattr(shortlist, "BLOCK", size)
        left_out.append(quick(verbs, "zoo", also=also).evidence.search.left_out)
    assert left_out[0] == left_out[1] == left_out[2]
    assert len(left_out[0]) == 3


def test_of_many_that_are_not_weighed_the_best_ranked_are_named(pool):
    """One that was retired after the fit is not ranked."""
    for number in range(LISTED + 3):
        pool.ready(f"acme/n{number:02}", seed=100 + number, text="law", config=LORA, provenance=OTHER_INIT)
    helps(pool, law=0.4)
    quick(pool, "zoo")
    pool.retire(pool.named("acme/n00").id)
    search = quick(pool, "zoo").evidence.search
    assert len(search.left_out) == LISTED
    assert search.more_left_out == {shortlist.NOT_BESIDE: 2, "retired since the fit": 1}


def test_loras_that_know_different_modules_keep_the_factors_of_their_own(verbs):
    for seed, (name, config) in enumerate({"law": LORA, "zoo": WIDE_LORA}.items()):
        verbs.ready(f"acme/{name}", seed=seed, config=config, provenance={})
    helps(verbs, law=0.4, zoo=0.3)
    verbs.tiny.anything_helps = 0.1
    assert sorted(len(ingredient.layers) for ingredient in quick(verbs, "law", "zoo").recipe.ingredients) == [2, 6]


def test_an_adapter_that_overflows_is_left_out_with_a_reason_and_the_others_are_weighed(pool):
    digests = helps(pool, law=0.4, news=0.2)
    pool.overflowing = {pool.named("acme/law").weights_blob}
    pool.helpful.pop(pool.named("acme/law").weights_blob)
    cooked = quick(pool, "law", "zoo")
    search = cooked.evidence.search
    assert {entry.ref: entry.reason for entry in search.left_out} == {
        "acme/law@1": "With it the base model gives values that are not finite numbers."
    }
    assert {candidate.domain for candidate in search.candidates} == {"code", "news", "zoo"}
    assert [trial.way for trial in search.trials] == ["weighed", "selected"]
    assert {entry.domain for entry in cooked.evidence.selection.selected} == {"law", "zoo"}
    assert [trial.members for trial in search.trials] == [1, 1]
    assert digests["law"] not in [ingredient.digest for ingredient in cooked.recipe.ingredients]


def test_where_the_only_selected_adapter_overflows_and_no_other_helps_the_answer_says_so(pool):
    pool.overflowing = {pool.named("acme/law").weights_blob}
    cooked = quick(pool, "law")
    assert (cooked.abstained, cooked.evidence.search.trials) == (True, ())
    assert cooked.reason == "No adapter that can be weighed lowers the loss on the sample."


# --- thorough -------------------------------------------------------------------------------------


def thorough(pool: ToyRegistry, *domains: str, **request):
    return quick(pool, *domains, effort="thorough", **request)


def test_thorough_weighs_more_for_longer_and_tries_what_losses_say(pool):
    digests = helps(pool, code=0.1, law=0.4, news=0.3, zoo=0.2)
    search = thorough(pool).evidence.search
    (request,) = pool.weighings
    assert (request.keep, request.steps * request.batch, request.alone) == (32, 4 * 24, 4)
    assert [trial.way for trial in search.trials] == ["weighed", "em", "greedy", "selected", "recompressed"]
    assert [trial.members for trial in search.trials] == [4, 4, 2, 1, 4]
    assert search.effort == "thorough"
    assert [candidate.alone for candidate in search.candidates] == [-0.4, -0.3, -0.2, -0.1]
    assert search.single.digest == digests["law"]
    # of few passages each is held out once here too
    pool.weighings.clear()
    assert [trial.way for trial in few(pool, effort="thorough").evidence.search.trials] == [
        trial.way for trial in search.trials
    ]
    assert len(pool.weighings) == 4


def test_a_mixture_of_distributions_keeps_the_bases_share(pool):
    digests = helps(pool, law=0.3, news=0.1)
    plan = ways_of(pool, THOROUGH, "law", "news")["em"]
    assert plan.mixing == ConcatMixing(scale="0.8")
    assert {ingredient.digest: ingredient.weight for ingredient in plan.ingredients} == {
        digests["law"]: "0.75",
        digests["news"]: "0.25",
    }


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
    return {way: mix(pool.registry, pool.tiny, plan) for way, plan in ways_of(pool, THOROUGH).items()}


def test_at_most_as_many_as_asked_for_also_by_losses(pool):
    helps(pool, code=0.1, law=0.4, news=0.3, zoo=0.2)
    search = thorough(pool, options={"max_ingredients": 2}).evidence.search
    assert max(trial.members for trial in search.trials) == 2
    assert pool.weighings[-1].keep == 2
    search = thorough(pool, max_width=7).evidence.search  # each is 2 wide
    assert {trial.way: trial.members for trial in search.trials} | {"selected": 0} == {
        "weighed": 3,
        "em": 3,
        "greedy": 2,
        "recompressed": 3,
        "selected": 0,
    }


# --- few passages: each of them is held out once ----------------------------------------------------


def few(pool: ToyRegistry, count: int = 15, effort: str = "quick", **request):
    return pool.cook(sample=sample("law", count=count), effort=effort, verify=True, **request)


@pytest.mark.parametrize("count", [3, 19])
def test_of_few_passages_each_is_held_out_of_one_weighing_and_the_first_is_by_all(pool, count):
    pool.registry = replace(pool.registry, limits=SizeLimits(sample=SampleLimits(minimum=3, novel=3)))
    helps(pool, law=0.4)
    cooked = few(pool, count)
    texts = sample("law", count=count)["texts"]
    whole, *folds = [list(request.texts) for request in pool.weighings]
    assert whole == texts
    assert [sorted(set(texts) - set(fold)) for fold in folds] == [sorted(texts[first::3]) for first in range(3)]
    search = cooked.evidence.search
    assert (search.decided_on, search.held_out, cooked.evidence.verification.passages) == (count, count, count)
    assert search.tokens == 4 * 20


def test_two_are_too_few_to_hold_one_out_of_three(pool):
    pool.registry = replace(pool.registry, limits=SizeLimits(sample=SampleLimits(minimum=2, novel=2)))
    with pytest.raises(InvalidSample, match="2 passages are too few to hold some out: send 3 or more"):
        few(pool, 2)


def by_turns(pool: ToyRegistry, *turns: dict[str, float]) -> dict[str, str]:
    """Have adapters pass the screen of one weighing after another; return the digest of each turn's soup."""
    weigh, remaining = pool.weigh, list(turns)
    soups = {}
    for turn in turns:
        helps(pool, **turn)
        ways = ways_of(pool, QUICK)
        if "weighed" in ways:
            soups["+".join(turn)] = mix(pool.registry, pool.tiny, ways["weighed"]).digest
    pool.weighings.clear()

    def in_turn(entry, request):
        helps(pool, **remaining.pop(0))
        return weigh(entry, request)

    pool.computations = replace(pool.computations, weigh=in_turn)
    return soups


def trial(cooked, way: str):
    return next(trial for trial in cooked.evidence.search.trials if trial.way == way)


@pytest.mark.parametrize("third", ["law", ""], ids=["a soup each time", "once no soup, so the base"])
def test_a_passage_is_tried_by_the_soup_made_without_it_and_the_answer_is_made_of_all(pool, third):
    pool.tiny.anything_helps = 0.0
    soups = by_turns(pool, {"news": 0.4}, {"law": 0.4}, {third: 0.4} if third else {}, {"law": 0.4})
    pool.gains[soups["law"]] = lambda _: 0.6
    pool.gains[soups["news"]] = lambda _: -9.0
    cooked = few(pool)
    assert trial(cooked, "weighed").difference == pytest.approx(-0.6 if third else -0.4)
    if third:
        assert (cooked.abstained, cooked.digest) == (False, soups["news"])


def test_what_all_passages_do_not_lead_to_is_not_tried(pool):
    by_turns(pool, {}, {"law": 0.4}, {"law": 0.4}, {"law": 0.4})
    assert [trial.way for trial in few(pool).evidence.search.trials] == ["selected"]


def test_the_selector_does_not_look_at_a_passage_that_is_held_out_either(pool):
    """Every third passage is of another domain: whoever has not seen these mixes only what knows the others."""
    pool.gains[pool.named("acme/law").digest] = lambda _: -0.25
    pool.tiny.anything_helps = 0.5
    texts = [f"{'zoo' if number % 3 == 0 else 'law'} passage {number}" for number in range(15)]
    cooked = pool.cook(sample={"texts": texts}, effort="quick", verify=True)
    assert {entry.domain for entry in cooked.evidence.selection.selected} == {"law", "zoo"}
    assert trial(cooked, "selected").difference == pytest.approx((-0.5 * 10 + 0.25 * 5) / 15)


@pytest.mark.parametrize("most", [3, 2])
def test_rankings_without_a_passage_are_screened_beside_all_candidates_of_any(pool, monkeypatch, most):
    """So that folds know what the first weighing found, though others are among their best; unless these are many."""
    monkeypatch.setattr(shortlist, "MAX_INGREDIENTS", 2)
    monkeypatch.setattr(weighing, "MOST_TOGETHER", most)
    texts = [f"{('zoo', 'law', 'law')[number % 3]} passage {number}" for number in range(15)]
    texts[2::3] = [f"news passage {number}" for number in range(5)]
    pool.cook(sample={"texts": texts}, effort="quick", verify=True)
    candidates = [{adapter.blob for adapter in request.candidates} for request in pool.weighings]
    beside = [{adapter.blob for adapter in request.beside} for request in pool.weighings]
    all_candidates = set().union(*candidates)
    assert len(candidates) == 4
    assert len(all_candidates) == 3
    assert all(len(blobs) == 2 for blobs in candidates)
    assert beside == [all_candidates if most == 3 else set()] * 4


def test_few_passages_are_gone_over_as_often_as_many(pool):
    helps(pool, law=0.4)
    few(pool, 15)
    assert [(len(w.texts), w.steps, w.batch, w.groups, w.by_screen, w.owner) for w in pool.weighings] == [
        (15, 15, 2, 15, True, "key-1"),
        *[(10, 20, 1, 10, True, "key-1")] * 3,
    ]
    pool.weighings.clear()
    few(pool, 6, effort="thorough")
    assert all(weighing.steps * weighing.batch <= 4 * len(weighing.texts) for weighing in pool.weighings)
    pool.weighings.clear()
    pool.cook(sample=sample("law", count=100), effort="quick", verify=True)  # many: from even coefficients
    (weighing,) = pool.weighings
    assert (len(weighing.texts), weighing.steps, weighing.batch, weighing.groups) == (80, 12, 4, 5)
    assert not weighing.by_screen


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
    helps(pool, law=0.4, news=0.2)
    pool.noise_helps = 0.03
    cooked = few(pool, control=True)
    texts = sample("law", count=15)["texts"]
    noise = [weighing for weighing in pool.weighings if weighing.noise]
    assert (len(noise), len(pool.weighings)) == (3, 7)
    assert [list(weighing.unseen) for weighing in noise] == [texts[first::3] for first in range(3)]
    assert cooked.evidence.search.noise.difference == pytest.approx(-0.034, abs=0.002)
    assert cooked.recipe.mixing == RecompressMixing()  # the narrow form is tried by the folds' narrow forms
    assert trial(cooked, "recompressed").members == 2


@pytest.mark.parametrize(("effort", "passes", "count"), [("quick", 18, 9), ("thorough", 25, 5), ("thorough", 60, 12)])
def test_a_budget_cuts_all_weighings(pool, effort, passes, count):
    helps(pool, law=0.4)
    few(pool, count, effort=effort)
    free = [(request.screened, request.steps, request.alone) for request in pool.weighings]
    pool.weighings.clear()
    few(pool, count, effort=effort, budget={"passes": passes})
    cut = [(request.screened, request.steps, request.alone) for request in pool.weighings]
    assert all(
        less <= more
        for cut_counts, free_counts in zip(cut, free, strict=True)
        for less, more in zip(cut_counts, free_counts, strict=True)
    )
    assert sum(steps for _, steps, _ in cut) < sum(steps for _, steps, _ in free)
    assert len({alone for _, _, alone in cut}) == 1


# --- adapters by name, and noise -------------------------------------------------------------------


def test_adapters_by_name_are_weighed_without_being_in_the_pool(pool):
    outside = pool.push("acme/general", seed=9, provenance={}).row
    helps(pool, general=0.4)
    cooked = quick(pool, also=["acme/general", "acme/general@1"])
    assert [ingredient.digest for ingredient in cooked.recipe.ingredients] == [outside.digest]
    assert len(pool.weighings[-1].candidates) == 5
    quick(pool, also=["acme/law"])
    assert len(pool.weighings[-1].candidates) == 4


def test_adapters_by_name_are_seen_by_the_key_and_go_with_the_others(pool):
    pool.push("acme/lora", seed=9, config=LORA)
    pool.ready("other/own", seed=8)
    for request, error, message in (
        ({"also": ["other/secret"]}, NotFound, "other/secret"),
        ({"also": ["acme/law"], "scope": ("other",), "namespace": "other"}, NotFound, "acme/law"),
        ({"also": ["acme/lora"]}, Incompatible, "The adapters in 'also' cannot be put side by side"),
    ):
        with pytest.raises(error, match=message):
            quick(pool, **request)


def test_noise_is_weighed_alike_and_tried_on_the_same_passages(pool):
    helps(pool, law=0.4, news=0.2)
    pool.noise_helps = 0.03
    cooked = thorough(pool, control=True)
    real, drawn = pool.weighings
    assert (drawn.noise, drawn.unseen) == (True, tuple(sample("law")["texts"][4::5]))
    assert (drawn.texts, drawn.candidates, drawn.keep, drawn.steps) == (
        real.texts,
        real.candidates,
        real.keep,
        real.steps,
    )
    noise = cooked.evidence.search.noise
    assert noise.difference == pytest.approx(-0.035, abs=0.002)
    assert noise.ahead == pytest.approx(-0.065, abs=0.01)
    assert noise.standard_error > 0
    assert quick(pool).evidence.search.noise is None
