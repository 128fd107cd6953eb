"""Efforts: which one a cook takes that leaves it open, what a namespace forbids, what they take, and budgets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.cook.budget import (
    START_SECONDS,
    Depth,
    Size,
    cut_training,
    cut_weighing,
    passes_within,
    past_gains,
    weighing_passes,
)
from registry.cook.job import Computations, CookJob
from registry.cook.sample import Split
from registry.cook.strategies import QUICK, STRATEGIES, THOROUGH, dearer_efforts
from registry.cook.timed import PassTimer
from registry.errors import Forbidden, Incompatible, InvalidParameter, InvalidSample
from registry.progress import silent
from registry.spec import Budget, CookRequest, Spent
from tests.registry.toy_registry import SHAPE, FakeBase, ToyRegistry, by_hand, sample, vectors_of

ON_DATABASES = ("sqlite",)  # whatever they ask a catalogue, `test_cook` asks one of each kind

SAMPLE = sample("law", "zoo")
BY_HAND = by_hand("acme/law", "acme/zoo")
TUNED_BY_DEFAULT = "Tuned by default; effort 'quick' makes a mixture, which does not learn the sample."


@pytest.fixture
def pool(ready) -> ToyRegistry:
    return ready("law", "zoo")


def set_tuning(pool: ToyRegistry, tuning: str, namespace: str = "acme") -> None:
    with pool.database.write() as catalogue:
        catalogue.namespaces.set(namespace, {"tuning": tuning})


def soups(pool: ToyRegistry) -> int:
    with pool.database.read() as catalogue:
        return len(catalogue.adapters.list(None, kind="soup", limit=9).rows)


def tune(pool: ToyRegistry, **request):
    return pool.cook(sample=SAMPLE, effort="tune", verify=True, **request)


def left_open(pool: ToyRegistry, **request):
    return pool.cook(**{"sample": SAMPLE, "verify": True, **request})


# --- forbid ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("request_", [{}, {"recipe": BY_HAND}, {"name": "acme/leases", "keep": "leases"}])
def test_nothing_is_trained_and_the_sentence_says_what_to_do(pool, request_):
    set_tuning(pool, "forbid")
    with pytest.raises(Forbidden, match=r"Namespace 'acme' forbids .* effort 'quick' or 'instant'.* 'allow'\.$"):
        tune(pool, **request_)
    assert (pool.tunings, soups(pool)) == ([], 0)


def test_it_is_the_namespace_that_is_written_to(pool):
    set_tuning(pool, "forbid")
    assert tune(pool, name="other/leases").model == "other/leases@1"
    set_tuning(pool, "forbid", "third")
    with pytest.raises(Forbidden, match="'third'"):
        tune(pool, namespace="other", name="third/leases")


def test_what_was_tuned_before_is_not_handed_out_again_and_mixtures_are_cooked_as_ever(pool):
    tune(pool)
    set_tuning(pool, "forbid")
    with pytest.raises(Forbidden):
        tune(pool)
    assert not pool.cook(sample=SAMPLE, effort="instant").abstained
    assert not pool.cook(recipe=BY_HAND).abstained


def test_what_was_forbidden_while_it_trained_is_not_stored(pool, monkeypatch):
    soups_before, trained = soups(pool), pool.computations.tune

    def meanwhile(*arguments):
        set_tuning(pool, "forbid")
        return trained(*arguments)

    monkeypatch.setattr(pool, "computations", replace(pool.computations, tune=meanwhile))
    with pytest.raises(Forbidden):
        tune(pool)
    assert (len(pool.tunings), soups(pool)) == (1, soups_before)
    set_tuning(pool, "allow")
    by_default = left_open(pool)
    assert by_default.evidence.search.effort == "quick"
    assert "instead of 'tune': Namespace 'acme' forbids" in by_default.reason


# --- default --------------------------------------------------------------------------------------


def test_a_request_that_leaves_it_open_is_tuned_and_the_answer_says_so(pool):
    pool.registry = replace(pool.registry, default_effort="quick")
    set_tuning(pool, "default")
    cooked = left_open(pool)
    assert cooked.evidence.search.effort == "tune"
    assert cooked.recipe.tuning is not None
    assert cooked.reason.endswith(TUNED_BY_DEFAULT)
    explicit = tune(pool)
    assert (explicit.digest, explicit.cached) == (cooked.digest, True)
    assert "default" not in explicit.reason
    pool.learns, pool.starts = -0.1, 3.2
    abstained = left_open(pool, sample=sample("zoo"))
    assert abstained.abstained
    assert "default" not in abstained.reason


@pytest.mark.parametrize(
    "request_",
    [
        {"effort": "instant"},
        {"selector": {"kind": "uniform"}},
        {"sample": None, "recipe": BY_HAND},
        {"recipe": BY_HAND},
        {"verify": False},
        {"name": "other/leases"},
    ],
    ids=["an effort", "a selector", "a recipe alone", "a recipe", "not verified", "another namespace"],
)
def test_every_other_request_is_cooked_as_it_says(pool, request_):
    pool.tiny.anything_helps = 0.1
    pool.registry = replace(pool.registry, default_effort="quick")
    set_tuning(pool, "default")
    cooked = left_open(pool, **request_)
    assert pool.tunings == []
    assert cooked.recipe is None or cooked.recipe.tuning is None
    assert "default" not in cooked.reason


def test_vectors_without_text_are_not_tuned_on(pool):
    set_tuning(pool, "default")
    assert left_open(pool, sample=vectors_of(pool.base, SAMPLE["texts"]), verify=False).evidence.search is None


# --- the servers default --------------------------------------------------------------------------


# Of a request that names no effort, selector or recipe.


@pytest.mark.parametrize("effort", ["quick", "thorough"])
def test_what_is_left_open_is_weighed(pool, effort):
    pool.registry = replace(pool.registry, default_effort=effort)
    pool.tiny.anything_helps = 0.1
    cooked = left_open(pool)
    assert cooked.evidence.search.effort == effort
    assert "default" not in cooked.reason
    assert cooked.digest == left_open(pool, effort=effort).digest


def test_by_default_it_is_tuned(pool):
    cooked = left_open(pool)
    assert cooked.evidence.search.effort == "tune"
    assert cooked.reason.endswith(TUNED_BY_DEFAULT)


@pytest.mark.parametrize("settled", [None, "tune"], ids=["when it is cooked", "when it was queued"])
def test_a_namespace_that_forbids_tuning_gets_a_weighed_soup_and_the_answer_says_why(pool, settled):
    set_tuning(pool, "forbid")
    cooked = left_open(pool, settled=settled)
    assert (cooked.evidence.search.effort, pool.tunings) == ("quick", [])
    assert " Cooked with effort 'quick' instead of 'tune': Namespace 'acme' forbids tuned soups" in cooked.reason
    assert [price.effort for price in cooked.beyond] == ["thorough"]


def test_who_names_quick_is_not_told_of_a_namespace_that_forbids_tuning(pool):
    set_tuning(pool, "forbid")
    assert "instead of" not in left_open(pool, effort="quick").reason


@pytest.mark.parametrize(
    "error",
    [InvalidSample("It has 9 tokens."), InvalidParameter("It is pruned."), Incompatible("They are too wide.")],
)
def test_what_cannot_be_tuned_is_weighed_and_the_answer_says_why(pool, monkeypatch, error):
    monkeypatch.setattr(pool, "computations", replace(pool.computations, tune=Mock(side_effect=error)))
    cooked = left_open(pool)
    assert cooked.evidence.search.effort == "quick"
    assert cooked.reason.endswith(f" Cooked with effort 'quick' instead of 'tune': {error}")
    assert [price.effort for price in cooked.beyond] == ["thorough"]
    with pytest.raises(type(error)):  # only a default has a substitute
        tune(pool)


@pytest.mark.parametrize(
    ("request_", "tuning_is_beyond"),
    [
        ({"effort": "instant"}, True),
        ({"effort": "instant", "sample": sample("law", "zoo", count=49)}, False),  # 392 tokens
        ({"verify": False}, False),
        ({"mixing": {"method": "concat"}}, True),
        ({"options": {"single": True}}, True),
    ],
)
def test_what_says_how_to_mix_or_not_to_verify_is_instant(pool, request_, tuning_is_beyond):
    cooked = left_open(pool, **{"sample": sample("law", "zoo", count=50), **request_})
    assert (pool.weighings, cooked.evidence.search) == ([], None)
    assert cooked.evidence.selection.thresholds == {"min_share": 0.02}
    assert ("tune" in [price.effort for price in cooked.beyond]) == tuning_is_beyond


def test_so_is_what_is_for_an_encoder(pool):
    pool.tiny.shape = SHAPE.model_copy(update={"kind": "encoder"})
    with pytest.raises(InvalidParameter, match="'tiny' is an encoder: set 'verify' to false"):
        left_open(pool)
    assert pool.weighings == []


@pytest.mark.parametrize("request_", [{"selector": {"kind": "gmm"}}, {"recipe": BY_HAND}])
def test_a_selector_or_a_recipe_leaves_nothing_open(pool, request_):
    assert (left_open(pool, **request_).evidence.search, pool.weighings) == (None, [])


@pytest.mark.parametrize(("settled", "default"), [("instant", "quick"), (None, "instant")])
def test_a_job_takes_the_effort_that_was_settled_when_its_request_was_made(pool, settled, default):
    pool.registry = replace(pool.registry, default_effort=default)
    cooked = left_open(pool, settled=settled)
    assert (cooked.evidence.search, pool.weighings) == (None, [])
    assert cooked.evidence.selection.thresholds == {"min_share": 0.02}
    tuned = left_open(pool, settled="tune")
    assert tuned.evidence.search.effort == "tune"
    assert tuned.reason.endswith(TUNED_BY_DEFAULT)


def listed(pool: ToyRegistry, digest: str, visible=None) -> list[str]:
    with pool.database.read() as catalogue:
        return [row.ref for row in catalogue.adapters.list(visible, tuned_on=digest, limit=9).rows]


def test_what_has_learnt_from_a_sample_is_found_by_it_until_it_is_retired(pool):
    first, second = tune(pool, name="acme/leases"), tune(pool, name="other/leases", keep="leases")
    shorter = pool.cook(sample={"texts": SAMPLE["texts"][:30]}, effort="tune", verify=True)
    pool.cook(sample=SAMPLE, effort="instant", name="acme/mixture")
    digest = first.recipe.tuning.sample
    assert listed(pool, digest) == [second.model, first.model] == ["other/leases@1", "acme/leases@1"]
    assert listed(pool, digest, ("acme",)) == ["acme/leases@1"]
    assert listed(pool, shorter.recipe.tuning.sample) == [shorter.model]
    pool.retire(first.soup_id)
    assert listed(pool, digest) == ["other/leases@1"]


# --- prices ----------------------------------------------------------------------------------------

LAW = sample("law")
SPENT = Spent(seconds=9.0, forward_seconds=2.0)


def passes_of(effort: str, passages: int, adapters: int) -> float:
    return STRATEGIES[effort].passes(passages, adapters)


def request(**fields) -> CookRequest:
    return CookRequest.model_validate({"sample": LAW, **fields})


@pytest.mark.parametrize(
    ("fields", "more"),
    [
        ({}, ["quick", "thorough", "tune"]),
        ({"effort": "instant"}, ["quick", "thorough", "tune"]),
        ({"effort": "quick"}, ["thorough", "tune"]),
        ({"effort": "thorough"}, ["tune"]),
        ({"effort": "tune"}, []),
        ({"recipe": by_hand("a/b")}, ["tune"]),
        ({"verify": False}, []),
    ],
)
def test_what_does_more_has_a_price(fields, more):
    prices = dearer_efforts(request(**fields), SPENT, 30, adapters=21, tuning=True)
    assert [price.effort for price in prices] == more
    for price in prices:
        assert price.seconds == pytest.approx(START_SECONDS + 2.0 * price.passes)
        assert price.passes == passes_of(price.effort, 30, 21)
    forbidden = dearer_efforts(request(**fields), SPENT, 30, adapters=21, tuning=False)
    assert [price.effort for price in forbidden] == [effort for effort in more if effort != "tune"]
    assert (
        dearer_efforts(request(**fields), Spent(seconds=9.0), 30, adapters=21, tuning=True) == ()
    )  # no pass was timed


@pytest.mark.parametrize("passages", [100, 30, 20, 15, 5])
def test_more_is_dearer(passages):
    assert 1 < passes_of("quick", passages, 21) < passes_of("thorough", passages, 21)
    for effort in ("quick", "thorough"):
        assert passes_of(effort, passages, 8) < passes_of(effort, passages, 21) < passes_of(effort, passages, 64)
        assert passes_of(effort, passages, 64) == passes_of(effort, passages, 5000)  # no more are looked at


def test_a_sample_of_a_hundred_is_within_what_the_efforts_promise():
    for effort, passages, most in (("quick", 60, 8), ("quick", 100, 6), ("thorough", 100, 35), ("tune", 60, 15)):
        assert passes_of(effort, passages, 64) <= most, (effort, passages)


def test_few_passages_cost_no_multiple_of_what_many_do():
    for passages in range(3, 31):
        assert passes_of("quick", passages, 21) <= 8 * passes_of("quick", 100, 21)
        assert passes_of("thorough", passages, 21) <= 5 * passes_of("thorough", 100, 21)


def job_on(base: FakeBase) -> CookJob:
    """A job that scores texts, and does nothing else."""
    request = CookRequest(sample=SAMPLE, effort="quick")
    computations = Mock(spec=Computations)
    return CookJob(Mock(), Mock(), request, base, PassTimer(), None, (), "acme", computations, silent)


def test_passes_are_seconds_over_those_of_one_pass():
    job = job_on(FakeBase({}))
    timer = job.timer
    assert timer.spent(["some text"]).passes is None
    job.score(["ten letter", "ten letter"], None)
    timed = timer.seconds
    timer.add(3.0, ["x" * 40])
    spent = timer.spent(["x" * 30])
    assert spent.forward_seconds == pytest.approx((timed + 3.0) / 60 * 30)
    assert spent.passes == pytest.approx(spent.seconds / spent.forward_seconds)
    assert timer.spent([]).passes is None


@pytest.mark.parametrize("effort", ["instant", "quick", "tune"])
def test_every_answer_says_what_it_took(stocked, effort):
    cooked = stocked.cook(sample=sample("law", count=100), effort=effort, verify=True)
    assert cooked.spent.seconds > 0
    assert (cooked.spent.passes is None) == (effort == "tune")  # whose made-up training takes no time
    assert ("tune" in [price.effort for price in cooked.beyond]) == (effort != "tune")
    without = stocked.cook(recipe=by_hand("acme/law", "acme/zoo"))
    assert (without.spent.passes, without.beyond) == (None, ())


def test_the_gain_of_past_cooks_is_over_the_soup_as_selected(pool):
    assert past_gains(pool.database, "tiny", None) == {}
    evidence = tune(pool).evidence
    as_selected = next(trial.difference for trial in evidence.search.trials if trial.way == "selected")
    gain = as_selected - evidence.verification.difference
    assert gain > 0
    assert past_gains(pool.database, "tiny", None) == {"tune": (pytest.approx(gain), 1)}
    assert past_gains(pool.database, "tiny", ("other",)) == {}


# --- budgets ---------------------------------------------------------------------------------------


def least_of(cut: Callable[[float], object]) -> float:
    """The fewest passes that this effort takes, by the message of the refusal."""
    with pytest.raises(InvalidParameter, match=r"this effort takes at least (\S+):") as refused:
        cut(0.01)
    return float(str(refused.value).partition("at least ")[2].partition(":")[0])


@given(st.integers(4, 200), st.integers(4, 40), st.integers(0, 10), st.floats(0.1, 100), st.integers(1, 100))
def test_what_is_left_of_weighing_fits_the_budget_or_nothing_is_done(passages, steps, alone, passes, candidates):
    depth = Depth(members=5, steps=steps, most_texts=8, turns=2, alone=alone, trials=4)
    size = Size.of(Split.of(passages), candidates)
    least = least_of(partial(cut_weighing, depth, size))
    if passes < least - 0.1:  # it is rounded up to one decimal
        with pytest.raises(InvalidParameter, match="this effort takes at least"):
            cut_weighing(depth, size, passes)
        return
    cut = cut_weighing(depth, size, max(passes, least))
    more = cut_weighing(depth, size, max(passes, least) * 2)
    assert (cut.screened, cut.steps) <= (more.screened, max(more.steps, cut.steps))
    assert 4 <= cut.steps <= max(4, steps)
    assert cut.alone == 0 or cut.alone >= min(3, alone, candidates)
    assert cut_weighing(depth, size, 1e6) == cut_weighing(depth, size, 1e9)


@pytest.mark.parametrize("passages", [5, 15, 30, 100])
@pytest.mark.parametrize("depth", [QUICK, THOROUGH])
def test_a_budget_that_is_what_an_effort_takes_leaves_all_of_it(depth, passages):
    size = Size.of(Split.of(passages), 21)
    whole = cut_weighing(depth, size, 1e6)
    assert cut_weighing(depth, size, weighing_passes(depth, passages, 21)) == whole
    assert cut_weighing(depth, size, least_of(partial(cut_weighing, depth, size))) != whole


@pytest.mark.parametrize(
    ("passages", "passes", "expected"), [(100, 10.0, 1), (100, 19.0, 2), (15, 16.0, 1), (15, 47.0, 3)]
)
def test_passes_of_training_are_as_many_as_fit(passages, passes, expected):
    assert cut_training(6, passes, passages) == expected
    assert cut_training(1, 1000.0, passages) == 1


@pytest.mark.parametrize("passages", [5, 13, 15, 23, 100])
def test_less_than_a_pass_of_training_is_refused_with_the_least(passages):
    least = least_of(lambda passes: cut_training(1, passes, passages))
    assert cut_training(1, least, passages) == 1
    with pytest.raises(InvalidParameter, match=rf"allows {least - 0.2:.1f} passes .* takes at least {least:.1f}:"):
        cut_training(1, least - 0.11, passages)  # both are rounded away from each other


def test_a_budget_is_in_passes_tokens_or_seconds():
    texts = ["two words"] * 40
    job = job_on(FakeBase({}))
    assert passes_within(Budget(passes=3.5), job, texts) == 3.5
    assert job.timer.characters == 0
    assert passes_within(Budget(tokens=160), job, texts) == pytest.approx(2.0)  # 80 tokens a pass
    job = job_on(FakeBase({}))
    job.timer.add(100.0, ["two words"] * 20)
    passes = passes_within(Budget(seconds=START_SECONDS + 300.0), job, texts)
    assert passes == pytest.approx(300.0 / (100.0 / 28 * 40), rel=1e-3)  # eight more were timed, in no time
    assert passes_within(Budget(seconds=1.0), job, texts) == 0


def test_a_cook_within_a_budget_does_less_and_holds_out_as_much(stocked):
    search = stocked.cook(sample=LAW, effort="quick", verify=True, budget={"passes": 3}).evidence.search
    (weighing,) = stocked.weighings
    assert weighing.steps < 12
    assert (search.decided_on, search.held_out) == (24, 6)
    cooked = stocked.cook(sample=LAW, effort="tune", verify=True, budget={"passes": 19}, tuning={"passes": 5})
    assert stocked.tunings[-1].passes == 2
    assert cooked.evidence.search.held_out == 6
    with pytest.raises(InvalidParameter, match=r"The budget allows 1\.0 passes"):
        stocked.cook(sample=LAW, effort="thorough", verify=True, budget={"passes": 1})
    assert len(stocked.weighings) == 1  # it is refused before anything is weighed


def test_several_weighings_share_a_budget():
    depth = QUICK
    once, folds = Size((10,), 15, 21), Size((15, 10, 10, 10), 15, 21)
    assert least_of(partial(cut_weighing, depth, folds)) > least_of(partial(cut_weighing, depth, once))
    assert cut_weighing(depth, once, 8.0).steps > cut_weighing(depth, folds, 8.0).steps


@pytest.mark.parametrize("passages", [20, 23, 24, 29, 30, 100])
def test_a_fifth_is_held_out_and_at_least_six(passages):
    split = Split.of(passages)
    assert max(6, passages // 5) <= len(split.held_out) <= passages / 3
    assert sorted([*split.fit, *split.held_out]) == list(range(passages))
