"""Weighing: slopes are the slopes of the loss, coefficients are the weights of the soup that is made of them; and
mixtures by losses, on models and on tables."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor

import training.by_losses
from registry.adapters import AdapterModule, attached, expected_tensors, from_tensors, paper_config, sites_of
from registry.adapters.weighted import WeightedAdapter
from registry.base_model import LoadedBase
from registry.cook.budget import scored_by_losses
from registry.errors import Cancelled, Incompatible, InvalidSample
from registry.mixing import concat
from registry.names import sha256_digest
from registry.spec import (
    AdapterConfig,
    ConcatMixing,
    LoraConfig,
    LoraModule,
    StoredAdapter,
    Weighing,
    WeighingRequest,
)
from tests.registry.random_adapters import make_ingredient
from tests.tiny_models import TINY_SENTENCES
from training.by_losses import expectation_maximisation, greedy, token_scores
from training.coefficients import noise_like, weigh
from training.passages import Rows, rows_of, tokens_of
from training.score_cache import ENTRY_BYTES, ScoreCache
from training.tasks.language import passage_scores

ON_BASES = ("gpt2", "llama")
TEXTS = tuple(f"{sentence} {number}" for number in range(3) for sentence in TINY_SENTENCES)
Bank = dict[str, tuple[AdapterConfig, dict[str, Tensor]]]


def loras(base: LoadedBase) -> tuple[AdapterConfig, AdapterConfig]:
    """Two LoRAs of different ranks, of which the second knows more modules."""
    paths = sorted(path for path in base.shape.linears if path.endswith(("c_attn", "q_proj", "query_key_value")))
    more = sorted(path for path in base.shape.linears if path.endswith(("c_fc", "up_proj", "dense_h_to_4h")))
    return (
        LoraConfig.of({path: LoraModule(2, 4.0) for path in paths}),
        LoraConfig.of({path: LoraModule(3, 1.0) for path in [*paths, *more]}),
    )


def drawn(base: LoadedBase, config: AdapterConfig, seed: int, size: float = 0.2) -> dict[str, Tensor]:
    """Tensors that change what the base says, Houlsby's norms the same for every seed."""
    draw, same = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(99)
    return {
        name: 1 + 0.1 * torch.randn(shape, generator=same)
        if ".base_norm." in name
        else size * torch.randn(shape, generator=draw)
        for name, shape in expected_tensors(config, base.shape).items()
    }


def bank_of(base: LoadedBase, count: int = 4) -> Bank:
    """Adapters and their opposites: of each pair one helps on a text."""
    config = paper_config("bapna_firat", bottleneck=4)
    adapters = [drawn(base, config, number // 2) for number in range(count)]
    signed = [
        {n: -t if ".up." in n and number % 2 else t for n, t in tensors.items()}
        for number, tensors in enumerate(adapters)
    ]
    return {sha256_digest(str(number).encode()): (config, tensors) for number, tensors in enumerate(signed)}


def request_of(bank: Bank, texts: Sequence[str] = TEXTS, **fields: object) -> WeighingRequest:
    candidates = [StoredAdapter(config=config, blob=blob) for blob, (config, _) in bank.items()]
    return WeighingRequest.model_validate({"texts": texts, "candidates": candidates, "steps": 4, **fields})


def weighed(base: LoadedBase, bank: Bank, cache: ScoreCache | None = None, **fields: object) -> Weighing:
    return weigh(base, request_of(bank, **fields), lambda candidate: bank[candidate.blob][1], cache=cache)


def mean_nll(base: LoadedBase, texts: Sequence[str] = TEXTS) -> float:
    scores = passage_scores(base, texts, block=base.shape.context)
    return sum(score.nll for score in scores) / sum(score.tokens for score in scores)


@pytest.mark.parametrize("structure", ["bapna_firat", "houlsby", "parallel", "lora"])
def test_coefficients_are_the_weights_of_the_soup_that_they_are_written_into(base: LoadedBase, structure: str) -> None:
    if structure == "lora":
        configs = loras(base)
    else:
        configs = (paper_config(structure, bottleneck=3), paper_config(structure, bottleneck=5))
    loaded = [drawn(base, config, seed) for seed, config in enumerate(configs)]
    bank = WeightedAdapter(configs, loaded, base.shape)
    with torch.no_grad():
        values = torch.rand(bank.coefficients.shape, generator=torch.Generator().manual_seed(5))
        bank.coefficients.copy_(values.round(decimals=3))
        bank.apply_coefficients()
    ingredients = [
        make_ingredient(
            number,
            config,
            load=lambda n=number: loaded[n],
            layers={
                site: f"{float(row[number]):.9f}"
                for site, row in zip(bank.sites, bank.coefficients.tolist(), strict=True)
                if site in sites_of(config, base.shape)
            },
        )
        for number, config in enumerate(configs)
    ]
    mixing = ConcatMixing()
    soup = from_tensors(concat.result(ingredients, mixing), base.shape, concat.mix(ingredients, mixing))
    with attached(base.model, bank):
        nll = mean_nll(base)
    with attached(base.model, soup):
        assert nll == pytest.approx(mean_nll(base), abs=1e-5)
    assert nll != pytest.approx(mean_nll(base), abs=1e-3)


def test_the_screen_is_the_slope_of_the_mean_nll(base: LoadedBase) -> None:
    bank = bank_of(base, 3)
    weighing = weighed(base, bank, screened=100)
    assert len(weighing.screened) == 3
    step = 1e-3
    for screened, (config, tensors) in zip(weighing.screened, bank.values(), strict=True):
        at: dict[float, float] = {}
        for weight in (step, -step):
            scaled = {name: t * weight if ".up." in name else t for name, t in tensors.items()}
            with attached(base.model, from_tensors(config, base.shape, scaled).double()):
                at[weight] = mean_nll(base)
        assert screened.score == pytest.approx((at[-step] - at[step]) / (2 * step), rel=1e-2, abs=1e-3)
        assert 0 < screened.standard_error < 1


def test_what_only_harms_is_not_kept(gpt2: LoadedBase) -> None:
    """Of an adapter and its opposite exactly one helps, to first order."""
    pair = bank_of(gpt2, 2)
    weighing = weighed(gpt2, pair)
    scores = [screened.score for screened in weighing.screened]
    assert scores[0] == pytest.approx(-scores[1], rel=1e-3)
    assert weighing.chosen == ((0,) if scores[0] > 0 else (1,))
    nothing = weighed(gpt2, {blob: pair[blob] for number, blob in enumerate(pair) if number not in weighing.chosen})
    assert (nothing.chosen, nothing.coefficients, nothing.losses) == ((), (), ())


def test_only_those_that_fit_the_width_beside_the_better_ones_are_kept_and_mixed(gpt2: LoadedBase) -> None:
    """Of an adapter and its opposite one helps: two of these four, here of different widths."""
    bank = bank_of(gpt2, 4)
    scores = [screened.score for screened in weighed(gpt2, bank).screened]
    first, second = (at for at in sorted(range(4), key=lambda at: -scores[at]) if scores[at] > 0)
    assert weighed(gpt2, bank, max_width=8).chosen == (first, second)  # each is 4 wide
    narrow = weighed(gpt2, bank, max_width=7, alone=4)
    assert narrow.chosen == (first,)
    assert len(narrow.by_losses.greedy) == 1
    assert weighed(gpt2, bank, max_width=1).chosen == (first,)  # one by itself is as wide as it is


def test_loras_of_different_modules_are_as_wide_as_the_wider(gpt2: LoadedBase) -> None:
    first, elsewhere = loras(gpt2)[0], LoraConfig.of({"elsewhere": LoraModule(8, 8.0)})
    stored = [StoredAdapter(config=config, blob=sha256_digest(b"x")) for config in (first, elsewhere)]
    request = WeighingRequest(texts=("t",), candidates=tuple(stored), max_width=8)
    assert request.fits([0, 1])
    assert not request.model_copy(update={"max_width": 7}).fits([0, 1])


def test_steps_lower_the_loss_and_are_the_same_bits_again(gpt2: LoadedBase) -> None:
    bank = bank_of(gpt2, 5)
    first, repeated = (weighed(gpt2, bank, keep=3, steps=20, batch=len(TEXTS)) for _ in range(2))
    assert first.losses[-1] < first.losses[0]
    assert (first.coefficients, first.screened, first.losses) == (
        repeated.coefficients,
        repeated.screened,
        repeated.losses,
    )
    assert len(first.chosen) <= 3
    assert all(value == 0 or value >= 0.01 for by_site in first.coefficients for value in by_site.values())
    assert weighed(gpt2, bank, keep=3, steps=20, seed=1, batch=4).losses != first.losses


def test_a_start_by_the_screen_has_its_proportions(gpt2: LoadedBase) -> None:
    weighing = weighed(gpt2, bank_of(gpt2, 6), by_screen=True, steps=1, rate=1e-9, start=0.3)
    scores = [weighing.screened[at].score for at in weighing.chosen]
    total = min(1.0, 0.3 * len(scores))
    for score, by_site in zip(scores, weighing.coefficients, strict=True):
        start = score / sum(scores) * total
        assert list(by_site.values()) == pytest.approx([start if start >= 0.01 else 0.0] * len(by_site), rel=1e-4)


def test_the_base_is_as_it_was_also_where_it_was_ended(gpt2: LoadedBase) -> None:
    nll_before = mean_nll(gpt2)
    bank = bank_of(gpt2)
    weighed(gpt2, bank)
    assert mean_nll(gpt2) == nll_before

    def end(done: int, _total: int, _message: str) -> None:
        if done >= 6:
            raise Cancelled("enough")

    with pytest.raises(Cancelled):
        weigh(gpt2, request_of(bank), lambda candidate: bank[candidate.blob][1], progress=end)
    assert mean_nll(gpt2) == nll_before
    assert not any(parameter.requires_grad for parameter in gpt2.model.parameters())


def test_texts_are_counted_cut_and_refused_where_none_has_a_token(gpt2: LoadedBase) -> None:
    bank = bank_of(gpt2, 2)
    weighing = weighed(gpt2, bank, texts=TEXTS, screened=4, max_tokens=5, batch=3, steps=2)
    assert weighing.screen_tokens == 4 * 4
    assert weighing.step_tokens == 2 * 3 * 4
    assert all(map(math.isfinite, weighing.losses))
    with pytest.raises(InvalidSample, match="no token that the base model can predict"):
        weighed(gpt2, bank, texts=("",))


def test_one_text_is_enough(gpt2: LoadedBase) -> None:
    assert [screened.standard_error for screened in weighed(gpt2, bank_of(gpt2, 2), texts=TEXTS[:1]).screened] == [
        None,
        None,
    ]


def test_adapters_of_another_base_are_refused(gpt2: LoadedBase) -> None:
    bank = bank_of(gpt2, 2)
    short = {blob: {n: t for n, t in tensors.items() if "layers.1" not in n} for blob, (_, tensors) in bank.items()}
    with pytest.raises(Incompatible):
        weigh(gpt2, request_of(bank), lambda candidate: short[candidate.blob])


# --- adapters that overflow --------------------------------------------------------------------------


def with_overflow(base: LoadedBase, at: str, *, size: float, count: int = 6) -> tuple[Bank, Bank]:
    """LoRAs of which the fourth has huge finite values in A or B; also without it."""
    config = loras(base)[0]
    bank = {sha256_digest(str(seed).encode()): (config, drawn(base, config, seed)) for seed in range(count)}
    broken = sha256_digest(b"3")
    huge = {name: tensor * size if at in name else tensor for name, tensor in bank[broken][1].items()}
    assert all(tensor.isfinite().all() for tensor in huge.values())
    return {**bank, broken: (config, huge)}, {blob: adapter for blob, adapter in bank.items() if blob != broken}


def without(weighing: Weighing, left_out: int) -> Weighing:
    """A weighing as it is when this candidate is not there."""
    return weighing.model_copy(
        update={
            "screened": tuple(screened for number, screened in enumerate(weighing.screened) if number != left_out),
            "chosen": tuple(number - (number > left_out) for number in weighing.chosen),
            "by_losses": None,
        }
    )


@pytest.mark.parametrize("fields", [{}, {"alone": 6, "keep": 32}, {"groups": 100, "by_screen": True}])
def test_an_adapter_that_overflows_is_left_out_and_the_others_are_weighed_as_without_it(
    base: LoadedBase, fields: dict[str, object]
) -> None:
    bank, healthy = with_overflow(base, "lora_A", size=3e38)
    weighing, expected = weighed(base, bank, **fields), weighed(base, healthy, **fields)
    assert [number for number, screened in enumerate(weighing.screened) if screened is None] == [3]
    assert weighing.chosen
    assert without(weighing, 3).model_dump(exclude=TOOK) == expected.model_dump(exclude={*TOOK, "by_losses"}) | {
        "by_losses": None
    }
    cache = ScoreCache()
    weighed(base, bank, cache, owner="me", **fields)
    repeated = weighed(base, bank, cache, owner="me", **fields)
    assert (repeated.screen_tokens, repeated.model_dump(exclude=TOOK)) == (0, weighing.model_dump(exclude=TOOK))


def test_an_adapter_that_overflows_once_it_has_a_coefficient_is_left_out_too(gpt2: LoadedBase) -> None:
    """Its slopes are finite numbers, and no loss with it is."""
    for sign in (1, -1):
        bank, healthy = with_overflow(gpt2, "lora_B", size=sign * 1e36)
        weighing = weighed(gpt2, bank, alone=6)
        assert 3 not in weighing.chosen
        assert 3 not in weighing.by_losses.scored
        assert len(weighing.by_losses.scored) == len(healthy)
        assert weighing.losses


def test_where_all_overflow_none_is_weighed(gpt2: LoadedBase) -> None:
    broken, healthy = with_overflow(gpt2, "lora_A", size=3e38)
    weighing = weighed(gpt2, {blob: adapter for blob, adapter in broken.items() if blob not in healthy}, alone=1)
    assert (weighing.screened, weighing.chosen, weighing.losses) == ((None,), (), ())
    assert weighing.by_losses.scored == ()


# --- noise, and texts that had no part in it -------------------------------------------------------


def test_unseen_texts_are_scored_under_the_coefficients(base: LoadedBase) -> None:
    bank = bank_of(base, 3)
    unseen = ("Another text that nobody weighed.", "", "And one more of these.")
    weighing = weighed(base, bank, unseen=unseen, steps=6)
    chosen = [list(bank.values())[at] for at in weighing.chosen]
    mixture = WeightedAdapter([config for config, _ in chosen], [tensors for _, tensors in chosen], base.shape)
    with torch.no_grad():
        for column, by_site in enumerate(weighing.coefficients):
            for row, site in enumerate(mixture.sites):
                mixture.coefficients[row, column] = by_site[site]
        mixture.apply_coefficients()
    with attached(base.model, mixture):
        expected = passage_scores(base, unseen, block=base.shape.context)
    assert weighing.unseen.nll == pytest.approx([score.nll for score in expected], abs=1e-4)
    assert weighing.unseen.tokens == tuple(score.tokens for score in expected)
    harmful = {blob: adapter for number, (blob, adapter) in enumerate(bank.items()) if number not in weighing.chosen}
    nothing = weighed(base, harmful, unseen=unseen).unseen
    assert nothing.nll == pytest.approx([score.nll for score in passage_scores(base, unseen, block=base.shape.context)])


@pytest.mark.parametrize("structure", ["bapna_firat", "houlsby"])
def test_noise_has_the_shapes_and_the_spread_of_what_it_stands_for(gpt2: LoadedBase, structure: str) -> None:
    tensors = drawn(gpt2, paper_config(structure, bottleneck=64), 3)
    noise = noise_like(tensors, np.random.default_rng(1))
    assert noise.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (noise[name].shape, noise[name].dtype) == (tensor.shape, tensor.dtype)
        assert torch.equal(noise[name], tensor) is (".base_norm." in name), "the base's LayerNorms are not drawn"
    large = max(tensors, key=lambda name: tensors[name].numel())
    assert float(noise[large].std()) == pytest.approx(float(tensors[large].std()), rel=0.1)
    assert not (noise_like(tensors, np.random.default_rng(1))[large] != noise[large]).any()


def test_noise_takes_the_place_of_the_candidates(gpt2: LoadedBase) -> None:
    bank = bank_of(gpt2, 3)
    real, first, repeated, reseeded = (
        weighed(gpt2, bank, **fields) for fields in ({}, {"noise": True}, {"noise": True}, {"noise": True, "seed": 1})
    )
    assert first.screened == repeated.screened
    assert len({real.screened, first.screened, reseeded.screened}) == 3


# --- what is known ---------------------------------------------------------------------------------

TOOK = {"screen_tokens", "alone_tokens"}


@pytest.mark.parametrize("few", [True, False])
def test_an_answer_has_the_same_bits_whatever_was_asked_before(gpt2: LoadedBase, few: bool) -> None:
    """Some of its passages, some of its adapters, or all in another order: sums run as if nothing had been."""
    bank, names = bank_of(gpt2, 6), list(bank_of(gpt2, 6))
    options = {"alone": 3, "owner": "me", "by_screen": few, **({"groups": 100, "screened": 100} if few else {})}

    def weighing_of(texts: Sequence[str], of: Sequence[str], cache: ScoreCache) -> Weighing:
        return weighed(gpt2, {name: bank[name] for name in of}, cache, texts=texts, **options)

    texts = TEXTS[:7]
    cold = weighing_of(texts[1:], names, ScoreCache())
    for earlier in ((texts[::2], names), (texts, names[:4]), (texts, names[::-1]), (texts[1:], names[::-1])):
        cache = ScoreCache()
        weighing_of(*earlier, cache)
        warm = weighing_of(texts[1:], names, cache)
        assert warm.model_dump(exclude=TOOK) == cold.model_dump(exclude=TOOK)
    assert (warm.screen_tokens, warm.alone_tokens) == (0, 0)


def test_who_stands_beside_the_candidates_is_screened_for_the_same_bits_and_never_kept(gpt2: LoadedBase) -> None:
    """So requests about other candidates of the same adapters know what the first of them found."""
    bank, cache = bank_of(gpt2, 6), ScoreCache()
    everyone = request_of(bank, owner="me", by_screen=True).candidates

    def weighing_of(candidates: Sequence[StoredAdapter], cache: ScoreCache) -> Weighing:
        request = request_of(bank, owner="me", by_screen=True, alone=2)
        request = request.model_copy(update={"candidates": tuple(candidates), "beside": everyone})
        return weigh(gpt2, request, lambda candidate: bank[candidate.blob][1], cache=cache)

    whole = weighing_of(everyone, cache)
    subset = weighing_of(everyone[4:0:-1], cache)
    assert subset.screen_tokens == 0
    assert [screened.score for screened in subset.screened] == [screened.score for screened in whole.screened[4:0:-1]]
    assert max(subset.chosen) < 4
    assert subset.model_dump(exclude=TOOK) == weighing_of(everyone[4:0:-1], ScoreCache()).model_dump(exclude=TOOK)


# --- mixtures by losses -----------------------------------------------------------------------------

TABLES = st.integers(0, 2**32 - 1).map(
    lambda seed: np.log(np.random.default_rng(seed).uniform(0.001, 1, size=(2 + seed % 4, 30)))
)


def likelihood(weights: Sequence[float] | np.ndarray, log_probs: np.ndarray) -> float:
    return float(np.log(np.asarray(weights) @ np.exp(log_probs)).sum())


# --- weights ---------------------------------------------------------------------------------------


@given(TABLES)
def test_every_iteration_makes_the_text_more_likely_and_weights_are_shares(log_probs: np.ndarray) -> None:
    shares = [expectation_maximisation(log_probs, iterations=number) for number in (0, 1, 2, 5, 50)]
    values = [likelihood(weights, log_probs) for weights in shares]
    assert all(current >= previous - 1e-9 for previous, current in itertools.pairwise(values))
    assert all(weights.sum() == pytest.approx(1) and (weights >= 0).all() for weights in shares)


@settings(max_examples=10)
@given(TABLES)
def test_no_other_weights_make_it_more_likely(log_probs: np.ndarray) -> None:
    """Against SciPy's solver of the same convex problem."""
    count = len(log_probs)
    best = minimize(
        lambda weights: -likelihood(np.maximum(weights, 1e-12), log_probs),
        np.full(count, 1 / count),
        bounds=[(0, 1)] * count,
        constraints={"type": "eq", "fun": lambda weights: weights.sum() - 1},
        method="SLSQP",
    )
    assert likelihood(expectation_maximisation(log_probs, iterations=3000), log_probs) >= -best.fun - 1e-3


@given(TABLES, st.floats(-500, 500))
def test_a_factor_of_a_tokens_own_changes_nothing(log_probs: np.ndarray, shift: float) -> None:
    moved = log_probs.copy()
    moved[:, 3] += shift
    assert expectation_maximisation(moved) == pytest.approx(expectation_maximisation(log_probs), abs=1e-9)


# --- members ---------------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.integers(1, 6))
def test_members_are_added_while_they_lower_the_loss(seed: int, count: int, most: int) -> None:
    draw = np.random.default_rng(seed)
    table = {
        frozenset(members): draw.uniform()
        for n in range(count)
        for members in itertools.combinations(range(count), n + 1)
    }
    chosen = greedy(count, lambda members: table[frozenset(members)], fits=lambda members: len(members) <= most)
    assert 1 <= len(chosen) <= min(most, count)
    assert len(set(chosen)) == len(chosen)
    losses = [table[frozenset(chosen[: n + 1])] for n in range(len(chosen))]
    assert losses[0] == min(table[frozenset([n])] for n in range(count))
    assert all(current < previous for previous, current in itertools.pairwise(losses))
    if len(chosen) < min(most, count):
        assert all(
            table[frozenset([*chosen, candidate])] >= losses[-1] for candidate in set(range(count)) - set(chosen)
        )


# --- on a model ------------------------------------------------------------------------------------


def test_the_best_by_the_screen_are_scored_by_themselves(gpt2: LoadedBase) -> None:
    bank = bank_of(gpt2, 5)
    weighing = weighed(gpt2, bank, alone=3)
    scores = [screened.score for screened in weighing.screened]
    assert weighing.by_losses.scored == tuple(sorted(range(5), key=lambda at: -scores[at])[:3])
    rows = rows_of(gpt2, TEXTS, max_tokens=512)
    plain = token_scores(gpt2, None, rows)
    assert weighing.alone_tokens == 4 * len(plain) == 4 * tokens_of(rows)
    adapters = list(bank.values())
    for number, difference in zip(weighing.by_losses.scored, weighing.by_losses.differences, strict=True):
        config, tensors = adapters[number]
        scored = token_scores(gpt2, from_tensors(config, gpt2.shape, tensors), rows)
        assert difference == pytest.approx(plain.mean() - scored.mean(), abs=1e-6)
    assert 0 <= sum(weighing.by_losses.em) <= 1 + 1e-9


def test_greedy_members_have_the_loss_of_their_even_mixture(gpt2: LoadedBase) -> None:
    bank = list(bank_of(gpt2, 5).values())
    by_losses = weighed(gpt2, bank_of(gpt2, 5), alone=3, keep=2).by_losses
    assert 1 <= len(by_losses.greedy) <= 2
    assert set(by_losses.greedy) <= set(by_losses.scored)
    rows = rows_of(gpt2, TEXTS, max_tokens=512)[::4]
    mixture = WeightedAdapter(*zip(*(bank[at] for at in by_losses.scored), strict=True), gpt2.shape)  # type: ignore[misc]
    mixture.requires_grad_(False)

    def loss(members: Sequence[int]) -> float:
        mixture.coefficients.zero_()
        mixture.coefficients[:, [by_losses.scored.index(at) for at in members]] = 1 / len(members)
        mixture.apply_coefficients()
        return -float(token_scores(gpt2, mixture, rows).mean())

    alone = {at: loss([at]) for at in by_losses.scored}
    assert loss(by_losses.greedy) <= min(alone.values()) + 1e-9
    assert by_losses.greedy[0] == min(alone, key=lambda at: alone[at])


@pytest.mark.parametrize("keep", [1, 5])
def test_the_plan_counts_at_least_the_passages_that_are_scored(
    gpt2: LoadedBase, monkeypatch: pytest.MonkeyPatch, keep: int
) -> None:
    """The price of a thorough cook has the most that greedy search can take; less where adapters stop helping."""
    scored: list[int] = []

    def counted(base: LoadedBase, adapter: AdapterModule | None, rows: Rows) -> np.ndarray:
        scored.append(len(rows))
        return token_scores(base, adapter, rows)

    monkeypatch.setattr(training.by_losses, "token_scores", counted)
    monkeypatch.setattr(training.by_losses, "greedy", lambda count, loss, *, fits: every_step(count, loss, keep))
    texts = TEXTS[: len(TEXTS) // 4 * 4]
    weighed(gpt2, bank_of(gpt2, 8), texts=texts, alone=8, keep=keep)
    least = 9 * len(texts)  # the base and each of eight
    assert least < sum(scored) <= scored_by_losses(8, [len(texts)])
    assert keep == 1 or sum(scored) > 0.9 * scored_by_losses(8, [len(texts)])


def every_step(count: int, loss: Callable[[Sequence[int]], float], most: int) -> tuple[int, ...]:
    """Greedy search in which every step helps."""
    chosen: list[int] = []
    while len(chosen) < min(most, count):
        for candidate in sorted(set(range(count)) - set(chosen)):
            loss([*chosen, candidate])
        chosen.append(min(set(range(count)) - set(chosen)))
    return tuple(chosen)


def test_nothing_is_scored_alone_unless_asked_for_and_it_can_be_ended(gpt2: LoadedBase) -> None:
    bank = bank_of(gpt2, 3)
    assert weighed(gpt2, bank).by_losses is None
    reports: list[tuple[int, int]] = []

    def end(done: int, total: int, message: str) -> None:
        reports.append((done, total))
        if "by itself" in message:
            raise Cancelled("enough")

    scores_before = token_scores(gpt2, None, rows_of(gpt2, TEXTS, max_tokens=512))
    with pytest.raises(Cancelled):
        weigh(gpt2, request_of(bank, alone=3), lambda candidate: bank[candidate.blob][1], progress=end)
    assert (token_scores(gpt2, None, rows_of(gpt2, TEXTS, max_tokens=512)) == scores_before).all()
    assert all(done < total for done, total in reports)


# --- what is known ---------------------------------------------------------------------------------


def test_a_part_of_the_passages_is_known_and_another_owner_or_noise_knows_nothing(gpt2: LoadedBase) -> None:
    bank, cache = bank_of(gpt2, 4), ScoreCache()

    cached_weighing = partial(weighed, gpt2, bank, cache, alone=2, owner="me", groups=100, screened=100)
    cached_weighing(alone=4)
    subset = cached_weighing(texts=TEXTS[::2])
    assert (subset.screen_tokens, subset.alone_tokens) == (0, 0)
    for changes in ({"owner": "you"}, {"owner": "me", "noise": True}, {"texts": (*TEXTS, "one more")}):
        assert cached_weighing(**changes).screen_tokens > 0
        assert cached_weighing(**{**changes, "owner": "x"}).alone_tokens > 0


def test_the_least_recently_used_entry_is_evicted() -> None:
    cache = ScoreCache(3 * (8 * 10 + ENTRY_BYTES))
    for name in ("a", "b", "c"):
        cache.add(name, np.zeros(10))
    assert cache.get("a") is not None
    cache.add("d", np.zeros(10))
    assert cache.get("b") is None
    assert all(cache.get(name) is not None for name in ("a", "c", "d"))
    cache.add("e", np.zeros(1000))  # more than there is room for
    assert all(cache.get(name) is None for name in ("a", "c", "d"))
