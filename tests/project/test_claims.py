"""Paired statistics of claims: the contrast, its error from passages and from seeds, and the verdict."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.claims import Scored, contrast, verdict
from registry.errors import InvalidParameter


def scored(*, seeds: int = 3, passages: int = 200, effect: float = 0.1, noise: float = 0.05, seed: int = 0) -> Scored:
    """`a` is `effect` nats a token above `b`, with noise of its own for every seed and passage."""
    draw = np.random.default_rng(seed)
    tokens = draw.integers(100, 500, passages)
    common = tokens * draw.normal(3.5, 0.4, passages)
    b = np.stack([common for _ in range(seeds)])
    a = b + tokens * (effect + noise * draw.standard_normal((seeds, passages)))
    return Scored(tokens, {"a": a, "b": b, "base": common[None]})


def test_a_difference_is_found_though_passages_differ_far_more():
    found = contrast({"x": scored(), "y": scored(seed=1)}, {"b": 1.0, "a": -1.0})
    assert found.value == pytest.approx(-0.1, abs=0.01)
    assert 0 < found.standard_error < 0.01
    assert found.minimum_detectable == pytest.approx(2.84 * found.standard_error)
    assert found.verdict == "agrees"
    assert contrast({"x": scored()}, {"a": 1.0, "b": -1.0}).verdict == "disagrees"
    assert set(found.by_domain) == {"x", "y"}


def test_seeds_that_disagree_widen_the_error():
    tokens = np.full(50, 100)
    flat = np.full((1, 50), 350.0)
    apart = flat + 100 * np.array([[0.3], [0.1], [-0.1]])
    found = contrast({"x": Scored(tokens, {"a": apart, "b": flat})}, {"a": 1.0, "b": -1.0})
    assert found.value == pytest.approx(0.1)
    assert found.from_passages == pytest.approx(0.0)
    assert found.from_seeds == pytest.approx(0.2 / np.sqrt(3))
    assert found.verdict == "undetermined"


def test_what_has_no_seeds_stands_beside_every_seed():
    found = contrast({"x": scored()}, {"a": 1.0, "base": -1.0})
    assert found.value == pytest.approx(0.1, abs=0.01)
    alone = contrast({"x": scored(seeds=1)}, {"a": 1.0, "base": -1.0})
    assert alone.from_seeds is None
    assert alone.standard_error == alone.from_passages > 0


def test_what_cannot_be_compared_is_refused():
    domains = {"x": scored()}
    with pytest.raises(InvalidParameter, match="add up to 0"):
        contrast(domains, {"a": 1.0})
    with pytest.raises(InvalidParameter, match="c was not measured"):
        contrast(domains, {"a": 1.0, "c": -1.0})
    few = Scored(domains["x"].tokens, {**domains["x"].nll, "c": domains["x"].nll["a"][:2]})
    with pytest.raises(InvalidParameter, match="2, 200"):
        contrast({"x": few}, {"a": 1.0, "c": -1.0})


@pytest.mark.parametrize(
    ("value", "error", "expected"),
    [(-0.21, 0.1, "agrees"), (0.21, 0.1, "disagrees"), (-0.2, 0.1, "undetermined"), (0.0, 0.0, "undetermined")],
)
def test_a_verdict_is_beyond_two_errors(value, error, expected):
    assert verdict(value, error) == expected
