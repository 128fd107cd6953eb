"""What a cook says of its price: what it took, and what efforts that do more would take."""

from __future__ import annotations

import pytest

from registry.cook.price import START_SECONDS, beyond, passes_of
from registry.cook.timed import TimedBase
from registry.progress import silent
from registry.spec import CookRequest, Spent
from tests.registry.cook.test_setting import set_tuning
from tests.registry.toy_registry import FakeBase, ToyRegistry, passages

SAMPLE = {"texts": passages("law", 30, seed=7)}


def request(**fields) -> CookRequest:
    return CookRequest.model_validate({"sample": SAMPLE, **fields})


@pytest.fixture
def pool(verbs) -> ToyRegistry:
    for seed, name in enumerate(("code", "law", "zoo")):
        verbs.ready(f"acme/{name}", seed=seed)
    return verbs


@pytest.mark.parametrize(
    ("effort", "more"),
    [
        (None, ["quick", "thorough", "tune"]),
        ("instant", ["quick", "thorough", "tune"]),
        ("quick", ["thorough", "tune"]),
        ("thorough", ["tune"]),
        ("tune", []),
    ],
)
def test_what_does_more_has_a_price(effort, more):
    found = beyond(request(effort=effort), Spent(seconds=9.0, forward_seconds=2.0), 30, tuning=True)
    assert [one.effort for one in found] == more
    for one in found:
        assert one.seconds == pytest.approx(START_SECONDS + 2.0 * one.passes)
        assert one.passes == passes_of(one.effort, 30)


def test_a_recipe_by_hand_leaves_training_and_a_namespace_may_forbid_it():
    spent = Spent(seconds=9.0, forward_seconds=2.0)
    by_hand = request(recipe={"ingredients": [{"ref": "a/b"}]})
    assert [one.effort for one in beyond(by_hand, spent, 30, tuning=True)] == ["tune"]
    assert beyond(by_hand, spent, 30, tuning=False) == ()
    assert [one.effort for one in beyond(request(), spent, 30, tuning=False)] == ["quick", "thorough"]


def test_without_a_timed_pass_there_is_no_price():
    assert beyond(request(), Spent(seconds=9.0), 30, tuning=True) == ()
    assert beyond(request(verify=False), Spent(seconds=9.0, forward_seconds=1.0), 30, tuning=True) == ()


@pytest.mark.parametrize("passages", [100, 30, 20, 15, 5])
def test_more_is_dearer(passages):
    assert 1 < passes_of("quick", passages) < passes_of("thorough", passages)


def test_a_sample_of_a_hundred_is_within_what_the_efforts_promise():
    assert passes_of("quick", 100) <= 9
    assert passes_of("thorough", 100) <= 35
    assert passes_of("tune", 100) <= 5


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
    assert ("tune" in [one.effort for one in cooked.beyond]) == (effort != "tune")


def test_where_tuning_is_forbidden_it_has_no_price(pool):
    set_tuning(pool, "forbid")
    cooked = pool.cook(sample=SAMPLE, effort="quick", verify=True)
    assert [one.effort for one in cooked.beyond] == ["thorough"]


def test_a_recipe_without_a_sample_has_no_price(pool):
    cooked = pool.cook(recipe={"ingredients": [{"ref": "acme/law"}, {"ref": "acme/zoo"}]})
    assert (cooked.spent.passes, cooked.beyond) == (None, ())
