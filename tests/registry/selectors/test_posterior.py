"""The posteriors of Gaussians against SciPy's densities, and what temperature, cap and exclusion do to weights."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax
from scipy.stats import multivariate_normal

from registry.selectors import SELECTORS
from registry.selectors.posterior import PosteriorSelector
from registry.spec import GmmSpec, PosteriorSpec, SelectOptions
from tests.registry.gaussian_domains import around, centres, digest_for, gaussian_domains

NEAR = gaussian_domains(5, dimensions=16, apart=2.0)
SELECTOR = PosteriorSelector(PosteriorSpec(dimensions=6)).fit(NEAR)
SAMPLE = np.concatenate([around(centres(5, 16, apart=2.0)[n], 20, seed=n) for n in (1, 3)])


def by_scipy(selector: PosteriorSelector, temperature: float) -> np.ndarray:
    """Mean posteriors (domains,) of SAMPLE."""
    gaussians = selector.gaussians_
    covariance = np.linalg.inv(gaussians.whiten @ gaussians.whiten.T)
    points = gaussians.projection(SAMPLE.astype(np.float64))
    densities = np.stack([multivariate_normal(mean, covariance).logpdf(points) for mean in gaussians.means], axis=1)
    return softmax(temperature * densities, axis=1).mean(axis=0)


@pytest.mark.parametrize("temperature", [0.1, 0.5, 1.0])
def test_posteriors_are_those_of_the_densities(temperature: float) -> None:
    selector = PosteriorSelector(PosteriorSpec(dimensions=6, temperature=temperature)).fit(NEAR)
    found = selector.rank(SAMPLE).selection(listed=None).scores
    wanted = dict(zip((f"d{n}" for n in range(5)), by_scipy(selector, temperature), strict=True))
    assert found == pytest.approx(wanted, abs=1e-9)
    assert sum(found.values()) == pytest.approx(1.0)


def test_weights_are_the_posteriors_of_those_that_are_taken() -> None:
    selection = SELECTOR.rank(SAMPLE).selection()
    scores = [one.score or 0.0 for one in selection.selected]
    assert len(scores) > 2
    assert [float(one.weight) for one in selection.selected] == pytest.approx([s / sum(scores) for s in scores])
    assert sum(Decimal(one.weight) for one in selection.selected) == 1
    two = SELECTOR.rank(SAMPLE, options=SelectOptions(max_ingredients=2)).selection().selected
    assert [one.domain for one in two] == [one.domain for one in selection.selected[:2]]
    assert [float(one.weight) for one in two] == pytest.approx([s / sum(scores[:2]) for s in scores[:2]])
    (single,) = SELECTOR.rank(SAMPLE, options=SelectOptions(single=True)).selection().selected
    assert single.weight == "1"


@given(out=st.sets(st.integers(0, 4), max_size=4))
def test_who_is_excluded_shares_in_nothing(out: set[int]) -> None:
    every = SELECTOR.rank(SAMPLE).selection(listed=None).scores
    found = SELECTOR.rank(SAMPLE, exclude={digest_for(f"d{n}"): "Retired." for n in out}).selection(listed=None).scores
    assert found.keys() == {domain for domain in every if int(domain[1:]) not in out}
    assert sum(found.values()) == pytest.approx(1.0)


def test_the_least_share_is_the_specs_or_the_requests() -> None:
    strict = PosteriorSelector(PosteriorSpec(dimensions=6, least=0.2)).fit(NEAR)
    taken = strict.rank(SAMPLE).selection()
    assert all((one.score or 0) >= 0.2 for one in taken.selected)
    assert any("below 0.2." in one.reason for one in taken.left_out)
    assert taken.thresholds == {"min_share": 0.2}
    assert len(strict.rank(SAMPLE, options=SelectOptions(min_share=0.01)).selection().selected) > len(taken.selected)
    lax = PosteriorSelector(PosteriorSpec(dimensions=6, least=0.0)).fit(NEAR)
    assert lax.rank(SAMPLE, options=SelectOptions(min_share=0.1)).selection().thresholds == {"min_share": 0.1}
    everybody = strict.rank(around(np.full(16, 50.0), 5, seed=0), options=SelectOptions(min_share=0.0)).selection()
    assert all(Decimal(one.weight) > 0 for one in everybody.selected)


def test_it_knows_domains_as_well_as_clusters_do() -> None:
    domains = gaussian_domains(8, n=140, dimensions=24, apart=3.0)
    own = PosteriorSelector(PosteriorSpec()).fit(domains).report_
    assert own["held_out_accuracy"] >= SELECTORS["gmm"](GmmSpec()).fit(domains).report_["held_out_accuracy"] > 0.5
    assert (own["domains"], own["dimensions"], own["held_out_by"]) == (8, 24, "other_units")
    assert 1 / 8 < own["held_out_posterior"] < own["held_out_accuracy"]
