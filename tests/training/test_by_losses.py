"""Mixtures by losses: weights that make a text most likely, members that lower a loss, on models and on tables."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

import training.by_losses
from registry.adapters import AdapterModule, from_tensors
from registry.adapters.weighted import WeightedAdapter
from registry.base_model import LoadedBase
from registry.cook.budget import scored_by_losses
from registry.errors import Cancelled
from registry.spec import ByLosses, Weighing
from tests.training.test_coefficients import TEXTS, asked, bank_of, weighed
from training.by_losses import expectation_maximisation, greedy, token_scores
from training.coefficients import weigh
from training.passages import Rows, rows_of, tokens_of
from training.score_cache import ENTRY_BYTES, ScoreCache

TABLES = st.integers(0, 2**32 - 1).map(
    lambda seed: np.log(np.random.default_rng(seed).uniform(0.001, 1, size=(2 + seed % 4, 30)))
)


def likelihood(weights: Sequence[float] | np.ndarray, log_probs: np.ndarray) -> float:
    return float(np.log(np.asarray(weights) @ np.exp(log_probs)).sum())


# --- weights ---------------------------------------------------------------------------------------


@given(TABLES)
def test_every_iteration_makes_the_text_more_likely_and_weights_are_shares(log_probs: np.ndarray) -> None:
    found = [expectation_maximisation(log_probs, iterations=number) for number in (0, 1, 2, 5, 50)]
    values = [likelihood(weights, log_probs) for weights in found]
    assert all(after >= before - 1e-9 for before, after in itertools.pairwise(values))
    assert all(weights.sum() == pytest.approx(1) and (weights >= 0).all() for weights in found)


@given(TABLES)
def test_no_other_weights_make_it_more_likely(log_probs: np.ndarray) -> None:
    """Against SciPy's solver of the same convex problem."""
    count = len(log_probs)
    best = minimize(
        lambda weights: -likelihood(np.maximum(weights, 1e-12), log_probs), np.full(count, 1 / count),
        bounds=[(0, 1)] * count, constraints={"type": "eq", "fun": lambda weights: weights.sum() - 1}, method="SLSQP",
    )  # fmt: skip
    found = likelihood(expectation_maximisation(log_probs, iterations=3000), log_probs)
    assert found >= -best.fun - 1e-3


@given(TABLES, st.floats(-500, 500))
def test_a_factor_of_a_tokens_own_changes_nothing(log_probs: np.ndarray, shift: float) -> None:
    moved = log_probs.copy()
    moved[:, 3] += shift
    assert expectation_maximisation(moved) == pytest.approx(expectation_maximisation(log_probs), abs=1e-9)


def test_who_is_always_better_has_nearly_all() -> None:
    assert expectation_maximisation(np.log([[0.9] * 50, [0.1] * 50]))[0] > 0.999


# --- members ---------------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 6))
def test_members_are_added_while_they_lower_the_loss(seed: int, count: int, most: int) -> None:
    draw = np.random.default_rng(seed)
    table = {
        frozenset(some): draw.uniform() for n in range(count) for some in itertools.combinations(range(count), n + 1)
    }
    found = greedy(count, lambda members: table[frozenset(members)], fits=lambda some: len(some) <= most)
    assert 1 <= len(found) <= min(most, count)
    assert len(set(found)) == len(found)
    losses = [table[frozenset(found[: n + 1])] for n in range(len(found))]
    assert losses[0] == min(table[frozenset([n])] for n in range(count))
    assert all(after < before for before, after in itertools.pairwise(losses))
    if len(found) < min(most, count):
        others = set(range(count)) - set(found)
        assert all(table[frozenset([*found, other])] >= losses[-1] for other in others)


# --- on a model ------------------------------------------------------------------------------------


def by_losses(base: LoadedBase, **fields: object) -> ByLosses:
    found = weighed(base, bank_of(base, 5), alone=3, **fields).by_losses
    assert found is not None
    return found


def test_the_best_by_the_screen_are_scored_by_themselves(base: LoadedBase) -> None:
    bank = bank_of(base, 5)
    found = weighed(base, bank, alone=3)
    assert found.by_losses is not None
    scores = [one.score for one in found.screened]
    assert found.by_losses.scored == tuple(sorted(range(5), key=lambda at: -scores[at])[:3])
    rows = rows_of(base, TEXTS, max_tokens=512)
    plain = token_scores(base, None, rows)
    assert len(plain) == tokens_of(rows)
    adapters = list(bank.values())
    for number, difference in zip(found.by_losses.scored, found.by_losses.differences, strict=True):
        config, tensors = adapters[number]
        scored = token_scores(base, from_tensors(config, base.shape, tensors), rows)
        assert difference == pytest.approx(plain.mean() - scored.mean(), abs=1e-6)
    assert 0 <= sum(found.by_losses.em) <= 1 + 1e-9


def test_greedy_members_have_the_loss_of_their_even_mixture(base: LoadedBase) -> None:
    bank = list(bank_of(base, 5).values())
    found = by_losses(base, keep=2)
    assert 1 <= len(found.greedy) <= 2
    assert set(found.greedy) <= set(found.scored)
    rows = rows_of(base, TEXTS, max_tokens=512)[::4]
    mixture = WeightedAdapter(*zip(*(bank[at] for at in found.scored), strict=True), base.shape)  # type: ignore[misc]
    mixture.requires_grad_(False)

    def loss(members: Sequence[int]) -> float:
        mixture.coefficients.zero_()
        mixture.coefficients[:, [found.scored.index(at) for at in members]] = 1 / len(members)
        mixture.apply_coefficients()
        return -float(token_scores(base, mixture, rows).mean())

    alone = {at: loss([at]) for at in found.scored}
    assert loss(found.greedy) <= min(alone.values()) + 1e-9
    assert found.greedy[0] == min(alone, key=lambda at: alone[at])


@pytest.mark.parametrize("keep", [1, 5])
def test_the_plan_counts_at_least_the_passages_that_are_scored(
    base: LoadedBase, monkeypatch: pytest.MonkeyPatch, keep: int
) -> None:
    """The price of a thorough cook has the most that greedy search can take; less where adapters stop helping."""
    scored: list[int] = []

    def counted(base: LoadedBase, adapter: AdapterModule | None, rows: Rows) -> np.ndarray:
        scored.append(len(rows))
        return token_scores(base, adapter, rows)

    monkeypatch.setattr(training.by_losses, "token_scores", counted)
    monkeypatch.setattr(training.by_losses, "greedy", lambda count, loss, *, fits: every_step(count, loss, keep))
    texts = TEXTS[: len(TEXTS) // 4 * 4]
    weighed(base, bank_of(base, 8), texts=texts, alone=8, keep=keep)
    least = 9 * len(texts)  # the base and each of eight
    assert least < sum(scored) <= scored_by_losses(8, [len(texts)])
    assert keep == 1 or sum(scored) > 0.9 * scored_by_losses(8, [len(texts)])


def every_step(count: int, loss: Callable[[Sequence[int]], float], most: int) -> tuple[int, ...]:
    """Greedy search in which every step helps."""
    chosen: list[int] = []
    while len(chosen) < min(most, count):
        for other in sorted(set(range(count)) - set(chosen)):
            loss([*chosen, other])
        chosen.append(min(set(range(count)) - set(chosen)))
    return tuple(chosen)


def test_nothing_is_scored_alone_unless_asked_for_and_it_can_be_ended(base: LoadedBase) -> None:
    bank = bank_of(base, 3)
    assert weighed(base, bank).by_losses is None
    said: list[tuple[int, int]] = []

    def end(done: int, total: int, message: str) -> None:
        said.append((done, total))
        if "by itself" in message:
            raise Cancelled("enough")

    before = token_scores(base, None, rows_of(base, TEXTS, max_tokens=512))
    with pytest.raises(Cancelled):
        weigh(base, asked(bank, alone=3), lambda one: bank[one.blob][1], progress=end)
    assert (token_scores(base, None, rows_of(base, TEXTS, max_tokens=512)) == before).all()
    assert all(done < total for done, total in said)


# --- what is known ---------------------------------------------------------------------------------


def test_a_second_answer_is_the_same_and_scores_nothing_that_is_known(base: LoadedBase) -> None:
    bank, cache = bank_of(base, 5), ScoreCache()
    request = asked(bank, alone=3, owner="me")
    first, again = (weigh(base, request, lambda one: bank[one.blob][1], cache=cache) for _ in range(2))
    assert again.model_dump(exclude={"screen_tokens", "alone_tokens"}) == first.model_dump(
        exclude={"screen_tokens", "alone_tokens"}
    )
    tokens = tokens_of(rows_of(base, TEXTS, max_tokens=512))
    assert (first.screen_tokens, first.alone_tokens) == (tokens, 4 * tokens)
    assert (again.screen_tokens, again.alone_tokens) == (0, 0)
    assert weighed(base, bank, alone=3).by_losses == first.by_losses


def test_a_part_of_the_passages_is_known_and_another_owner_or_noise_knows_nothing(base: LoadedBase) -> None:
    bank, cache = bank_of(base, 4), ScoreCache()

    def found(**fields: object) -> Weighing:
        request = asked(bank, **{"alone": 2, "owner": "me", "groups": 100, "screened": 100, **fields})
        return weigh(base, request, lambda one: bank[one.blob][1], cache=cache)

    found(alone=4)
    part = found(texts=TEXTS[::2])
    assert (part.screen_tokens, part.alone_tokens) == (0, 0)
    fresh = weighed(base, bank, texts=TEXTS[::2], alone=2, groups=100, screened=100)
    assert part.chosen == fresh.chosen
    assert part.screened == fresh.screened
    assert part.by_losses == fresh.by_losses
    for other in ({"owner": "you"}, {"owner": "me", "noise": True}, {"texts": (*TEXTS, "one more")}):
        assert found(**other).screen_tokens > 0
        assert found(**{**other, "owner": "x"}).alone_tokens > 0


def test_the_least_recently_used_entry_is_evicted() -> None:
    cache = ScoreCache(3 * (8 * 10 + ENTRY_BYTES))
    for name in (b"a", b"b", b"c"):
        cache.put(name, np.zeros(10))
    assert cache.get(b"a") is not None
    cache.put(b"d", np.zeros(10))
    assert cache.get(b"b") is None
    assert all(cache.get(name) is not None for name in (b"a", b"c", b"d"))
    cache.put(b"e", np.zeros(1000))  # more than there is room for
    assert cache.get(b"e") is None
