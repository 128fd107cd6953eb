"""benchmarks.ensembles: each way's probabilities, from a tiny model and from numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from benchmarks import ensembles
from benchmarks.ensembles import Bank, Datastore, after_prefix, mixed, neighbours
from benchmarks.mean_pooling import encoder_of
from benchmarks.soups.domain_map import mapped
from benchmarks.soups.fresh import dropping, fresh
from registry.adapters import AdapterModule, create, from_tensors, paper_config
from registry.base_model import LoadedBase
from tests.tiny_models import TINY_SENTENCES
from tests.training.test_coefficients import bank_of
from training.by_losses import expectation_maximisation, token_scores
from training.passages import Rows, rows_of

SAMPLE = [f"Court {n} is void." for n in range(15)]
TEST = ["Court 3 is void.", "A zebra ate."]


def rows(base: LoadedBase, texts: list[str]) -> Rows:
    return rows_of(base, texts, max_tokens=base.shape.context)


def texts_of(novel: tuple[str, ...]) -> Any:
    """Two training domains, and a novel one that is like the first."""
    own = {
        "court": [f"The court held that contract {n} was void." for n in range(20)],
        "kitchen": [f"Heat the oil for {n} minutes, and stir." for n in range(20)],
    }
    job = SimpleNamespace(novel=novel, training=tuple(own), training_sample=own.__getitem__)
    return SimpleNamespace(job=job, largest=15, sample=lambda *_, **__: SAMPLE, test=lambda _: TEST)


def test_the_map_has_every_domain_at_the_mean_of_its_passages(base: LoadedBase) -> None:
    texts = texts_of(("law",))
    texts.sample = lambda *_, **__: texts.job.training_sample("court")[::-1]
    found = mapped(base, texts)
    court, kitchen, law = found.rows
    assert [(one["map"], one["domain"]) for one in found.rows] == [
        ("training", "court"), ("training", "kitchen"), ("novel", "law")
    ]  # fmt: skip
    assert (law["x"], law["y"]) == pytest.approx((court["x"], court["y"]), abs=0.1 * abs(court["x"] - kitchen["x"]))
    assert next(iter(law["nearest"])) == "court"
    assert 0.5 < law["nearest"]["court"] <= 1
    vectors = [encoder_of(base).encode(texts.job.training_sample(name)).vectors for name in ("court", "kitchen")]
    every = np.concatenate(vectors).astype(np.float64)
    spread = np.linalg.svd(every - every.mean(axis=0), compute_uv=False) ** 2
    assert found.variance == pytest.approx(spread[:2].sum() / spread.sum(), abs=0.05)


# --- a fresh adapter --------------------------------------------------------------------------------

LEARNT = [f"{sentence} {n}" for n in range(4) for sentence in TINY_SENTENCES]
CONFIG = paper_config("bapna_firat", bottleneck=4)


def test_gradients_see_outputs_with_a_share_dropped_and_scores_do_not(base: LoadedBase) -> None:
    adapter, row = create(CONFIG, base.shape, seed=0), rows(base, TEST)[:1]
    ids = torch.tensor(row)
    plain, other = (base.model(ids).logits.detach() for _ in range(2))
    assert torch.equal(plain, other)
    with dropping(base.model, adapter, 0.5):
        assert torch.equal(token_scores_of(base, ids), plain)
        first = base.model(ids).logits.detach()
        assert not torch.allclose(first, plain, atol=1e-3)
    with dropping(base.model, adapter, 0.5):
        assert torch.equal(base.model(ids).logits.detach(), first)  # the same ones each time
    assert torch.equal(base.model(ids).logits.detach(), plain)


def token_scores_of(base: LoadedBase, ids: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return base.model(ids).logits.clone()


def test_a_fresh_adapter_learns_from_the_sample_and_with_dropout_learns_something_else(base: LoadedBase) -> None:
    test = rows(base, TINY_SENTENCES)
    plain, dropped = (fresh(base, CONFIG, LEARNT, dropped=share) for share in (0.0, 0.5))
    scores = [token_scores(base, one, test) for one in (None, plain, dropped)]
    assert scores[1].mean() > scores[0].mean() + 0.01
    assert scores[2].mean() > scores[0].mean()
    assert not np.allclose(scores[1], scores[2])
    again = fresh(base, CONFIG, LEARNT, dropped=0.5)
    assert all(torch.equal(one, other) for one, other in zip(dropped.parameters(), again.parameters(), strict=True))


# --- each way's probabilities -----------------------------------------------------------------------


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

        def trained(self, sample: Sequence[str], test: Rows) -> dict[str, np.ndarray]:
            assert list(sample) == SAMPLE
            return {"fresh": token_scores(base, None, test)}

    told: list[str] = []
    result = ensembles.run(texts_of(("law",)), Two(), told=told.append)
    assert told == ["law", "the map of domains"]
    ways = ("even ensemble", "em ensemble", "prefix", "neighbours", "fresh")
    assert {row["way"] for row in result.rows if "way" in row} == {"base", *ways}
    assert set(result.figures) == {*(f"{way.replace(' ', '_')}_ratio" for way in ways), "map_variance"}
    test = rows(base, TEST)
    found = Two().ways(rows(base, SAMPLE), test)
    even = found["even ensemble"]
    by_hand = np.mean([np.exp(token_scores(base, one, test)) for one in singles], axis=0)
    assert np.exp(even) == pytest.approx(by_hand)
    models = [None, *singles]
    pi = expectation_maximisation(np.array([token_scores(base, one, rows(base, SAMPLE)) for one in models]))
    of_test = np.array([np.exp(token_scores(base, one, test)) for one in models])
    assert np.exp(found["em ensemble"]) == pytest.approx(pi @ of_test)
    assert found["prefix"] == pytest.approx(
        np.concatenate([after_prefix(base, rows(base, SAMPLE), one) for one in test])
    )
    (row,) = (one for one in result.rows if one.get("way") == "even ensemble")
    difference = -(even.sum() - token_scores(base, None, test).sum()) / len(even)
    assert cast(float, row["difference"]) == pytest.approx(difference)
