"""What efforts take: what an answer says of it, what those that do more would take, and how a budget cuts them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from registry.cook.budget import (
    START_SECONDS,
    Depth,
    Size,
    cut_training,
    cut_weighing,
    passes_within,
)
from registry.cook.sample import Split
from registry.cook.strategies import STRATEGIES, dearer_efforts, quick, thorough
from registry.cook.timed import TimedBase
from registry.errors import InvalidParameter
from registry.progress import silent
from registry.spec import Budget, CookRequest, Spent
from tests.registry.cook.test_default_effort import set_tuning
from tests.registry.toy_registry import FakeBase, ToyRegistry, by_hand, sample

ON_DATABASES = ("sqlite",)  # whatever they ask a catalogue, `test_cook` and its own tests ask one of each kind

SAMPLE = sample("law")
SPENT = Spent(seconds=9.0, forward_seconds=2.0)


def passes_of(effort: str, passages: int, adapters: int) -> float:
    passes = STRATEGIES[effort].passes
    assert passes is not None
    return passes(passages, adapters)


def request(**fields) -> CookRequest:
    return CookRequest.model_validate({"sample": SAMPLE, **fields})


@pytest.fixture
def pool(verbs) -> ToyRegistry:
    for seed, name in enumerate(("code", "law", "zoo")):
        verbs.ready(f"acme/{name}", seed=seed)
    return verbs


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
    assert passes_of("quick", 100, 64) <= 9
    assert passes_of("thorough", 100, 64) <= 35
    assert passes_of("tune", 100, 64) <= 5


@pytest.mark.parametrize("passages", range(3, 31))
def test_few_passages_cost_no_multiple_of_what_many_do(passages):
    assert passes_of("quick", passages, 21) <= 5 * passes_of("quick", 100, 21)
    assert passes_of("thorough", passages, 21) <= 5 * passes_of("thorough", 100, 21)


def test_passes_are_seconds_over_those_of_one_pass():
    base = TimedBase(FakeBase({}))
    assert base.spent(["some text"]).passes is None
    base.score(["ten letter", "ten letter"], None, progress=silent)
    timed = base.seconds
    base.add(3.0, ["x" * 40])
    spent = base.spent(["x" * 30])
    assert spent.forward_seconds == pytest.approx((timed + 3.0) / 60 * 30)
    assert spent.passes == pytest.approx(spent.seconds / spent.forward_seconds)
    assert base.spent([]).passes is None


@pytest.mark.parametrize("effort", [None, "instant", "quick", "thorough", "tune"])
def test_every_answer_says_what_it_took(pool, effort):
    cooked = pool.cook(sample=SAMPLE, effort=effort, verify=True)
    assert cooked.spent.seconds > 0
    assert (cooked.spent.passes is None) == (effort == "tune")  # whose made-up training takes no time
    assert ("tune" in [price.effort for price in cooked.beyond]) == (effort != "tune")
    without = pool.cook(recipe=by_hand("acme/law", "acme/zoo"))
    assert (without.spent.passes, without.beyond) == (None, ())


def test_where_tuning_is_forbidden_it_has_no_price(pool):
    set_tuning(pool, "forbid")
    cooked = pool.cook(sample=SAMPLE, effort="quick", verify=True)
    assert [one.effort for one in cooked.beyond] == ["thorough"]


# --- budgets ---------------------------------------------------------------------------------------


def least_of(depth: Depth, size: Size) -> float:
    """What the least takes, as the refusal says it."""
    with pytest.raises(InvalidParameter, match=r"this effort takes at least (\S+):") as refused:
        cut_weighing(depth, size, 0.01)
    return float(str(refused.value).partition("at least ")[2].partition(":")[0])


@given(st.integers(4, 200), st.integers(4, 40), st.integers(0, 10), st.floats(0.1, 100), st.integers(1, 100))
def test_what_is_left_of_weighing_fits_the_budget_or_nothing_is_done(passages, steps, alone, passes, candidates):
    depth, size = Depth(members=5, steps=steps, turns=2, alone=alone, trials=4), Size.of(Split.of(passages), candidates)
    if passes < least_of(depth, size) - 0.1:  # which is told to one decimal
        with pytest.raises(InvalidParameter, match="this effort takes at least"):
            cut_weighing(depth, size, passes)
        return
    cut = cut_weighing(depth, size, max(passes, least_of(depth, size) + 0.1))
    more = cut_weighing(depth, size, max(passes, least_of(depth, size) + 0.1) * 2)
    assert (cut.screened, cut.steps) <= (more.screened, max(more.steps, cut.steps))
    assert 4 <= cut.steps <= max(4, steps)
    assert cut.alone == 0 or cut.alone >= min(3, alone, candidates)
    assert cut_weighing(depth, size, 1e6) == cut_weighing(depth, size, 1e9)


@pytest.mark.parametrize("passages", [5, 15, 30, 100])
@pytest.mark.parametrize("strategy", [quick, thorough])
def test_a_budget_that_is_what_an_effort_takes_leaves_all_of_it(strategy, passages):
    depth, size = strategy.DEPTH, Size.of(Split.of(passages), 21)
    whole = cut_weighing(depth, size, 1e6)
    assert cut_weighing(depth, size, strategy.passes(passages, 21)) == whole
    assert cut_weighing(depth, size, 0.6 * strategy.passes(passages, 21)) != whole


@pytest.mark.parametrize(("passages", "passes", "left"), [(100, 3.0, 1), (100, 6.0, 2), (15, 11.0, 1), (15, 33.0, 3)])
def test_passes_of_training_are_as_many_as_fit(passages, passes, left):
    assert cut_training(6, passes, passages) == left
    assert cut_training(1, 1000.0, passages) == 1


def test_less_than_a_pass_of_training_is_refused_with_the_least():
    with pytest.raises(InvalidParameter, match=r"allows 2.0 passes .* takes at least 2.8"):
        cut_training(1, 2.0, 100)


def test_a_budget_is_in_passes_tokens_or_seconds():
    texts = ["two words"] * 40
    base = TimedBase(FakeBase({}))
    assert passes_within(Budget(passes=3.5), base, texts, progress=silent) == 3.5
    assert base.characters == 0
    assert passes_within(Budget(tokens=160), base, texts, progress=silent) == pytest.approx(2.0)  # 80 tokens a pass
    base = TimedBase(FakeBase({}))
    base.add(100.0, ["two words"] * 20)
    found = passes_within(Budget(seconds=START_SECONDS + 300.0), base, texts, progress=silent)
    assert found == pytest.approx(300.0 / (100.0 / 28 * 40), rel=1e-3)  # eight more were timed, in no time
    assert passes_within(Budget(seconds=1.0), base, texts, progress=silent) == 0


@pytest.mark.parametrize("given_", [{}, {"passes": 1, "seconds": 1}, {"passes": 0}, {"seconds": -1}, {"tokens": 0}])
def test_a_budget_is_one_number_above_zero(given_):
    with pytest.raises(ValidationError):
        Budget.model_validate(given_)


@pytest.mark.parametrize("effort", [None, "instant"])
def test_a_budget_is_for_efforts_that_compute_gradients(effort):
    with pytest.raises(ValidationError, match="'budget' is for efforts that compute gradients"):
        request(effort=effort, budget={"passes": 3})


def test_a_cook_within_a_budget_does_less_and_holds_out_as_much(pool):
    search = pool.cook(sample=SAMPLE, effort="quick", verify=True, budget={"passes": 5}).evidence.search
    (asked,) = pool.weighings
    assert asked.steps < 12
    assert (search.decided_on, search.held_out) == (24, 6)
    cooked = pool.cook(sample=SAMPLE, effort="tune", verify=True, budget={"passes": 6}, tuning={"passes": 5})
    assert pool.tunings[-1].passes == 2
    assert cooked.evidence.search.held_out == 6
    with pytest.raises(InvalidParameter, match=r"The budget allows 1\.0 passes"):
        pool.cook(sample=SAMPLE, effort="thorough", verify=True, budget={"passes": 1})


def test_several_weighings_share_a_budget():
    depth = quick.DEPTH
    once, folds = Size((10,), 15, 21), Size((15, 10, 10, 10), 15, 21)
    assert least_of(depth, folds) > least_of(depth, once)
    assert cut_weighing(depth, once, 8.0).steps > cut_weighing(depth, folds, 8.0).steps
