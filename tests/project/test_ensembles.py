"""benchmarks.ensembles: each way's probabilities, from a tiny model and from numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from benchmarks import ensembles
from benchmarks.ensembles import Bank, Datastore, after_prefix, mixed, neighbours
from registry.adapters import AdapterModule, from_tensors
from registry.base_model import LoadedBase
from tests.training.test_coefficients import bank_of
from training.by_losses import expectation_maximisation, token_scores
from training.passages import Rows, rows_of

SAMPLE = [f"Court {n} is void." for n in range(15)]
TEST = ["Court 3 is void.", "A zebra ate."]


def rows(base: LoadedBase, texts: list[str]) -> Rows:
    return rows_of(base, texts, max_tokens=base.shape.context)


def test_neighbours_give_their_share_to_the_tokens_that_came_after_them() -> None:
    store = Datastore(torch.tensor([[0.0, 0.0], [0.0, 0.1], [5.0, 5.0]]), torch.tensor([7, 8, 9]))
    found = store.log_probs(torch.tensor([[0.0, 0.0], [5.0, 5.0]]), torch.tensor([7, 9]))
    coldest = found[min(found)]
    assert np.exp(coldest)[1] == pytest.approx(1)
    assert 0.4 < np.exp(coldest)[0] < 0.7
    assert np.exp(store.log_probs(torch.zeros(1, 2), torch.tensor([3]))[0.1])[0] < 1e-9


def test_a_share_of_nothing_is_the_base_and_others_are_in_between() -> None:
    base, near = np.log([0.5, 0.1]), np.log([0.1, 0.9])
    assert mixed(base, near, 0.0) is base
    assert np.exp(mixed(base, near, 0.25)) == pytest.approx([0.4, 0.3])


def test_neighbours_of_the_same_text_help(base: LoadedBase) -> None:
    plain = token_scores(base, None, rows(base, TEST[:1]))
    assert neighbours(base, rows(base, SAMPLE), rows(base, TEST[:1])).mean() > plain.mean() + 0.3
    few = neighbours(base, rows(base, SAMPLE[:3]), rows(base, TEST))  # nothing to choose a share on
    assert few == pytest.approx(token_scores(base, None, rows(base, TEST)))


def test_a_prefix_stands_before_the_row_and_is_not_scored(base: LoadedBase) -> None:
    sample, (row, _) = rows(base, SAMPLE), rows(base, TEST)
    assert after_prefix(base, [], row) == pytest.approx(token_scores(base, None, [row]))
    found = after_prefix(base, sample[:1], row)
    assert len(found) == len(row) - 1
    whole = token_scores(base, None, [[*sample[0], *row]])
    assert found == pytest.approx(whole[-len(found) :])
    full = after_prefix(base, sample * 40, row)
    assert len(full) == len(row) - 1
    assert np.isfinite(full).all()


def test_every_way_is_there_for_every_domain_and_ensembles_are_mixtures(base: LoadedBase) -> None:
    singles = [from_tensors(config, base.shape, tensors) for config, tensors in bank_of(base, 2).values()]

    class Two(Bank):
        def __init__(self) -> None:
            self.base = base

        def adapters(self) -> Iterator[AdapterModule]:
            yield from singles

    texts: Any = SimpleNamespace(
        job=SimpleNamespace(novel=("law",)), largest=15, sample=lambda *_, **__: SAMPLE, test=lambda _: TEST
    )
    result = ensembles.run(texts, Two())
    assert {row["way"] for row in result.rows} == {"base", "even ensemble", "em ensemble", "prefix", "neighbours"}
    assert set(result.figures) == {f"{way}_ratio" for way in ("even_ensemble", "em_ensemble", "prefix", "neighbours")}
    test = rows(base, TEST)
    ways = Two().ways(rows(base, SAMPLE), test)
    even = ways["even ensemble"]
    by_hand = np.mean([np.exp(token_scores(base, one, test)) for one in singles], axis=0)
    assert np.exp(even) == pytest.approx(by_hand)
    models = [None, *singles]
    pi = expectation_maximisation(np.array([token_scores(base, one, rows(base, SAMPLE)) for one in models]))
    of_test = np.array([np.exp(token_scores(base, one, test)) for one in models])
    assert np.exp(ways["em ensemble"]) == pytest.approx(pi @ of_test)
    assert ways["prefix"] == pytest.approx(
        np.concatenate([after_prefix(base, rows(base, SAMPLE), one) for one in test])
    )
    (row,) = (one for one in result.rows if one["way"] == "even ensemble")
    difference = -(even.sum() - token_scores(base, None, test).sum()) / len(even)
    assert cast(float, row["difference"]) == pytest.approx(difference)
