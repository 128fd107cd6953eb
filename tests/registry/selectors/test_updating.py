"""A selector that is brought up to date against one that is fitted on the same domains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.covariance import ledoit_wolf
from sklearn.decomposition import PCA

from registry.selectors import SELECTORS, updating
from registry.selectors.contract import Domain, Selector
from registry.selectors.drawing import draw_domain
from registry.selectors.mahalanobis import whitening
from registry.selectors.posterior import PosteriorSelector
from registry.selectors.projection import FittedProjection, Spread
from registry.selectors.state import dump_state
from registry.spec import CosineSpec, GmmSpec, PosteriorSpec, UniformSpec
from tests.registry.gaussian_domains import around, digest_for, domain, gaussian_domains

LARGE = 3
MANY = gaussian_domains(12, n=130, dimensions=10, apart=3.0)
FEW_UNITS = [domain(member.domain, member.vectors[:40]) for member in MANY]
SAMPLE = around(np.zeros(10), 40, seed=3, spread=3.0)
SPECS = [CosineSpec(), CosineSpec(encoder="base", seed=4), PosteriorSpec(dimensions=5), PosteriorSpec(seed=2)]


@pytest.fixture(autouse=True)
def small_pools_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updating, "LARGE", LARGE)


def proved_on(domains: Sequence[Domain]) -> set[str]:
    return set(sorted(member.digest for member in domains)[:LARGE])


def refitted(previous: Selector[Any], domains: Sequence[Domain]) -> Selector[Any]:
    """Fit on these domains with the projections of `previous`."""
    if not isinstance(previous, PosteriorSelector):
        return SELECTORS[previous.kind](previous.spec).fit(domains)
    proof, final = (
        FittedProjection(gaussians.projection, previous.explained_)
        for gaussians in (previous.proof_gaussians_, previous.gaussians_)
    )
    selector = PosteriorSelector(previous.spec)
    selector._projections = lambda _ordered: (proof, final)
    return selector.fit(domains)


def without_age(selector: Selector[Any]) -> dict[str, Any]:
    own_scores = {f"own score of {name}": score for name, score in selector.report_.get("own_scores", {}).items()}
    return own_scores | {
        name: value
        for name, value in selector.report_.items()
        if name not in ("changes_since_whole_fit", "own_scores", "warnings")
    }


@settings(max_examples=60, deadline=None)
@given(data=st.data(), spec=st.sampled_from(SPECS), pool=st.sampled_from([MANY, FEW_UNITS]))
def test_an_update_is_a_fit(data: st.DataObject, spec: Any, pool: list[Domain]) -> None:
    """Law: whatever comes and goes, in however many steps, the state is a fit's to 1e-6, and so is each answer."""
    order = [pool[number] for number in data.draw(st.permutations(range(len(pool))))]
    members = order[: data.draw(st.integers(LARGE + 1, 8))]
    selector: Selector[Any] = SELECTORS[spec.kind](spec).fit(members)
    for _ in range(data.draw(st.integers(1, 3))):
        came = data.draw(st.sets(st.integers(0, 11), max_size=3))
        went = data.draw(st.sets(st.integers(0, 11), max_size=3))
        inside = {member.digest for member in members}
        added = [pool[number] for number in came if pool[number].digest not in inside]
        free = [pool[number] for number in went if pool[number].digest in inside - proved_on(members)]
        removed = free[: len(members) + len(added) - LARGE - 1]
        gone = {member.digest for member in removed}
        members = [member for member in members if member.digest not in gone] + added
        with pytest.MonkeyPatch.context() as monkey:
            monkey.setattr(updating, "DRIFT", 100.0)
            selector = selector.updated(added, removed)
    whole = refitted(selector, members)
    assert selector.members_ == whole.members_
    (arrays, _), (expected, _) = selector.to_state(), whole.to_state()
    assert arrays.keys() == expected.keys()
    for name in arrays.keys() - {"age"}:
        assert np.allclose(arrays[name], expected[name], rtol=1e-6, atol=1e-6), name
    assert without_age(selector) == pytest.approx(without_age(whole), abs=1e-6)
    updated_ranking, whole_ranking = selector.rank(SAMPLE), whole.rank(SAMPLE)
    scores = [ranking.selection(listed=None).scores for ranking in (updated_ranking, whole_ranking)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-6)
    assert updated_ranking.evidence.novelty == pytest.approx(whole_ranking.evidence.novelty, abs=1e-6)


@pytest.mark.parametrize("spec", SPECS)
class TestWhenAWholeFitIsDue:
    def fitted(self, spec: Any, domains: Sequence[Domain]) -> Selector[Any]:
        return SELECTORS[spec.kind](spec).fit(domains)

    def test_a_small_pool_is_always_fitted_whole(self, spec: Any) -> None:
        assert self.fitted(spec, MANY[:LARGE]).updated(MANY[LARGE : LARGE + 1], []) is None
        pool = MANY[: LARGE + 1]
        assert (
            self.fitted(spec, pool).updated([], [member for member in pool if member.digest not in proved_on(pool)])
            is None
        )

    def test_a_domain_that_it_is_proved_on_went(self, spec: Any) -> None:
        assert self.fitted(spec, MANY).updated([], [min(MANY, key=lambda member: member.digest)]) is None

    def test_a_domain_came_that_has_the_pool_proved_in_another_way(self, spec: Any) -> None:
        small = domain("small", around(np.ones(10), 40, seed=9))
        assert self.fitted(spec, MANY).updated([small], []) is None
        high = max(range(99), key=lambda number: digest_for(f"small{number}"))  # not one that is proved on
        small = domain(f"small{high}", small.vectors)
        mixed = self.fitted(spec, [*MANY, small])
        assert mixed.updated([], [small]) is None
        assert mixed.updated([domain("more", around(np.ones(10), 130, seed=8))], []) is not None

    def test_the_pool_drifted_away_from_what_was_learnt_of_all(self, spec: Any) -> None:
        selector: Selector[Any] | None = self.fitted(spec, MANY[:8])
        for new in MANY[8:10]:
            selector = selector.updated([new], [])
        assert selector.report_["changes_since_whole_fit"] == 2
        assert (selector.updated([MANY[10]], []) is None) is (spec.kind == "posterior")

    def test_a_restored_selector_goes_on(self, spec: Any) -> None:
        selector = self.fitted(spec, MANY[:8])
        restored = SELECTORS[spec.kind].from_state(*selector.to_state())
        updated, restored_updated = selector.updated([MANY[8]], []), restored.updated([MANY[8]], [])
        assert dump_state(*updated.to_state()) == dump_state(*restored_updated.to_state())

    def test_nothing_of_the_selector_before_is_changed(self, spec: Any) -> None:
        selector = self.fitted(spec, MANY[:8])
        state_before = dump_state(*selector.to_state())
        assert selector.updated([MANY[8]], []) is not None
        assert dump_state(*selector.to_state()) == state_before


@pytest.mark.parametrize("spec", [GmmSpec(), UniformSpec()])
def test_clusters_are_always_fitted_whole(spec: Any) -> None:
    assert not issubclass(SELECTORS[spec.kind], updating.UpdatableSelector)


def test_sums_give_the_principal_components_of_scikit_learn() -> None:
    samples = [member.vectors.astype(np.float64) + 1e3 for member in MANY]
    spread = Spread(samples[0][0])
    for sample in samples:
        spread.add(sample)
    fitted, expected = spread.projection(dimensions=4), PCA(n_components=4).fit(np.concatenate(samples))
    assert np.allclose(np.abs(fitted.projection.components @ expected.components_.T), np.eye(4), atol=1e-8)
    assert np.allclose(fitted.projection.mean, expected.mean_)
    assert fitted.explained == pytest.approx(expected.explained_variance_ratio_.sum())
    assert len(spread.projection(dimensions=99).projection.components) == 10


@given(n=st.integers(2, 40), d=st.integers(1, 12), seed=st.integers(0, 99))
def test_sums_give_the_shrunk_covariance_of_scikit_learn(n: int, d: int, seed: int) -> None:
    residuals = np.random.default_rng(seed).normal(size=(n, d)) * np.arange(1, d + 1)
    covariance, _ = ledoit_wolf(residuals, assume_centered=True)
    white = whitening(residuals)
    assert np.allclose(np.linalg.inv(white @ white.T), covariance, rtol=1e-4, atol=1e-5 * np.trace(covariance))


def test_a_small_pool_is_proved_on_all_held_out_units() -> None:
    draws = [draw_domain(member, seed=0, cross_fit=False) for member in MANY[:LARGE]]
    for spec in (CosineSpec(), PosteriorSpec()):
        fitted = SELECTORS[spec.kind](spec).fit(MANY[:LARGE])
        assert fitted.report_["units_held_out"] == sum(len(draw.held_out) for draw in draws)
        assert SELECTORS[spec.kind](spec).fit(MANY).report_["units_held_out"] == LARGE * updating.PROOF_UNITS
