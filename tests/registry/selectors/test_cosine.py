"""cosine and posterior: scores against their formulas, thresholds, temperature, caps and exclusion."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax
from scipy.stats import multivariate_normal

from registry.selectors import SELECTORS
from registry.selectors.cosine import CosineSelector
from registry.selectors.drawing import draw_domain
from registry.selectors.posterior import PosteriorSelector
from registry.spec import CosineSpec, EncoderName, GmmSpec, PosteriorSpec, SelectOptions
from tests.registry.gaussian_domains import around, centres, digest_for, domain, gaussian_domains

PAPER = CosineSpec(threshold=0.15)


def unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def axis_domains(k: int = 7, *, spread: float = 0.1) -> list:
    """Domains along the axes of a k-dimensional space, 120 vectors each."""
    return [domain(f"d{i}", around(np.eye(k)[i], 120, seed=i, spread=spread)) for i in range(k)]


def test_the_score_is_the_mean_cosine_over_all_pairs() -> None:
    domains = [domain(d.domain, d.vectors[:100]) for d in gaussian_domains(3, spread=4)]
    sample = around(np.ones(12), 17, seed=3, spread=2)
    selection = CosineSelector(CosineSpec()).fit(domains).rank(sample).selection()
    for d in domains:
        assert selection.scores[d.domain] == pytest.approx((unit(sample) @ unit(d.vectors).T).mean(), abs=1e-6)


def test_the_papers_threshold_is_there_for_who_asks() -> None:
    selector = CosineSelector(PAPER).fit(axis_domains())
    assert (selector.threshold_, selector.report_["threshold_from"]) == (0.15, "spec")
    selection = selector.rank(np.tile(np.array([1, 0.5, 0.2, 0.17, 0.01, 0, 0]), (30, 1))).selection()
    assert [s.domain for s in selection.selected] == ["d0", "d1", "d2"]
    assert {e.domain: e.reason[:11] for e in selection.left_out} == dict.fromkeys(
        ["d3", "d4", "d5", "d6"], "Similarity "
    )
    assert selection.thresholds == {"similarity": 0.15}


def test_at_most_five_best_first() -> None:
    selection = CosineSelector(PAPER).fit(axis_domains()).rank(np.arange(7.0, 0, -1)[None].repeat(9, 0)).selection()
    assert [s.domain for s in selection.selected] == ["d0", "d1", "d2", "d3", "d4"]
    assert "taken already" in selection.left_out[0].reason


def test_a_threshold_of_zero_is_taken_as_it_is() -> None:
    selector, sample = CosineSelector(CosineSpec()).fit(gaussian_domains(3)), around(np.ones(12), 20, seed=3)
    assert selector.rank(sample, options=SelectOptions(threshold=0.0)).selection().thresholds == {"similarity": 0.0}


@pytest.mark.parametrize("encoder", ["base", "sbert"])
def test_the_threshold_is_the_fifth_percentile_of_own_scores(encoder: EncoderName) -> None:
    shared = np.full(12, 30.0)  # as mean-pooled states have: cosines near 1 between all domains
    domains = [domain(d.domain, d.vectors + shared) for d in gaussian_domains(6, n=200)]
    selector = CosineSelector(CosineSpec(encoder=encoder)).fit(domains)
    own_scores = list(selector.report_["own_scores"].values())
    assert selector.threshold_ == pytest.approx(np.percentile(own_scores, 5))
    assert selector.report_["threshold_from"] == "own_scores_5th_percentile"
    assert min(own_scores) <= selector.threshold_ < np.median(own_scores)
    assert selector.threshold_ > 0.9
    assert selector.rank(domains[3].vectors[100:]).selection().selected[0].domain == "d3"


def test_own_scores_are_of_other_text_by_hand() -> None:
    vectors = around(np.eye(4)[0], 200, seed=0, spread=1.0)
    selector = CosineSelector(CosineSpec(encoder="base", seed=5)).fit([domain("a", vectors)])
    fitted, rest = selector.rows_.means[0], selector.report_["own_scores"]["a"]
    everything = unit(vectors.astype(np.float64)).sum(axis=0)
    assert rest == pytest.approx(float((everything - 100 * fitted) / 100 @ fitted), abs=1e-6)


def test_the_threshold_is_the_specs_or_the_requests() -> None:
    domains, sample = axis_domains(3), np.array([[1.0, 0.6, 0.0]] * 5)
    selector = CosineSelector(CosineSpec(encoder="base", threshold=0.4)).fit(domains)
    assert [s.domain for s in selector.rank(sample).selection().selected] == ["d0", "d1"]
    stricter = selector.rank(sample, options=SelectOptions(threshold=0.7)).selection()
    assert [s.domain for s in stricter.selected] == ["d0"]
    assert stricter.thresholds == {"similarity": 0.7}
    exact = CosineSelector(PAPER).fit(domains)
    reached = exact.rank(sample).selection().scores["d1"]
    selection = exact.rank(sample, options=SelectOptions(threshold=reached)).selection()
    assert len(selection.selected) == 2  # reaching is enough


def test_none_reaches_it_and_the_reason_names_the_best() -> None:
    selection = CosineSelector(PAPER).fit(axis_domains(3)).rank(-np.array([[1.0, 2.0, 3.0]] * 5)).selection()
    assert selection.abstained
    assert "the best is d0" in selection.reason
    assert "0.1500" in selection.reason


def test_a_threshold_that_tells_nothing_apart_is_warned_about() -> None:
    shared = np.full(12, 90.0)
    domains = [domain(d.domain, d.vectors + shared) for d in gaussian_domains(6)]
    selector = CosineSelector(CosineSpec(encoder="base", threshold=0.15)).fit(domains)
    assert selector.report_["domains_passing"] == 6
    assert "tells little apart" in selector.rank(domains[0].vectors).selection().warnings[0]
    assert CosineSelector(CosineSpec()).fit(axis_domains()).report_["warnings"] == []


def test_a_threshold_that_domains_do_not_reach_with_their_own_text_is_warned_about() -> None:
    domains = [domain(d.domain, d.vectors[:100]) for d in gaussian_domains(6, apart=2.0, spread=1.5)]
    halves = sorted(CosineSelector(CosineSpec()).fit(domains).rows_.half_scores)
    strict = CosineSelector(CosineSpec(threshold=halves[1] + 1e-9)).fit(domains)
    (message,) = [w for w in strict.rank(domains[0].vectors).selection().warnings if "strict" in w]
    assert "2 of 6 domains do not reach it" in message
    assert f"median {np.median(halves):.4f}" in message
    assert strict.report_["domains_below_with_own_half"] == 2
    loose = CosineSelector(CosineSpec(threshold=halves[1] - 1e-9)).fit(domains)
    strict_options = SelectOptions(threshold=halves[3])
    for selector, options, warned in (
        (loose, SelectOptions(), False),
        (loose, strict_options, True),
        (CosineSelector(CosineSpec()).fit(domains), SelectOptions(), False),  # calibrated: below them by construction
        (CosineSelector(CosineSpec()).fit(domains), strict_options, True),
    ):
        messages = selector.rank(domains[0].vectors, options=options).selection().warnings
        assert any("strict" in warning for warning in messages) is warned


def test_a_half_scores_the_mean_cosine_with_the_other_half() -> None:
    vectors = around(np.eye(4)[0], 80, seed=0, spread=1.0)
    selector = CosineSelector(CosineSpec(seed=5)).fit([domain("a", vectors)])
    drawn = draw_domain(domain("a", vectors), seed=5, cross_fit=True).fit
    assert selector.rows_.half_scores[0] == pytest.approx((unit(drawn[:40]) @ unit(drawn[40:]).T).mean())


def test_held_out_accuracy_is_of_single_units() -> None:
    assert CosineSelector(CosineSpec()).fit(axis_domains(spread=0.1)).report_["held_out_accuracy"] == 1.0
    assert 1 / 7 < CosineSelector(CosineSpec()).fit(axis_domains(spread=2.0)).report_["held_out_accuracy"] < 0.6


def test_a_zero_vector_is_similar_to_nothing() -> None:
    selection = CosineSelector(CosineSpec()).fit(axis_domains(3)).rank(np.zeros((4, 3))).selection()
    assert set(selection.scores.values()) == {0.0}
    assert selection.abstained


def test_novelty_looks_at_the_domains_that_are_left() -> None:
    selector = CosineSelector(CosineSpec()).fit(axis_domains(3))
    sample = around(np.eye(3)[0], 40, seed=11, spread=0.1)
    near, far = selector.rank(sample).selection(), selector.rank(sample, exclude={digest_for("d0"): "Out."}).selection()
    assert near.novelty < 80
    assert far.novelty == 100


# --- posterior ------------------------------------------------------------------------------------


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
    scores = selector.rank(SAMPLE).selection(listed=None).scores
    expected = dict(zip((f"d{n}" for n in range(5)), by_scipy(selector, temperature), strict=True))
    assert (scores, sum(scores.values())) == (pytest.approx(expected, abs=1e-9), pytest.approx(1.0))


def test_weights_are_the_posteriors_of_those_that_are_taken() -> None:
    selection = SELECTOR.rank(SAMPLE).selection()
    scores = [entry.score or 0.0 for entry in selection.selected]
    assert len(scores) > 2
    assert [float(entry.weight) for entry in selection.selected] == pytest.approx([s / sum(scores) for s in scores])
    assert sum(Decimal(entry.weight) for entry in selection.selected) == 1
    two = SELECTOR.rank(SAMPLE, options=SelectOptions(max_ingredients=2)).selection().selected
    assert [entry.domain for entry in two] == [entry.domain for entry in selection.selected[:2]]
    assert [float(entry.weight) for entry in two] == pytest.approx([s / sum(scores[:2]) for s in scores[:2]])
    (single,) = SELECTOR.rank(SAMPLE, options=SelectOptions(single=True)).selection().selected
    assert single.weight == "1"


@given(out=st.sets(st.integers(0, 4), max_size=4))
def test_who_is_excluded_shares_in_nothing(out: set[int]) -> None:
    all_scores = SELECTOR.rank(SAMPLE).selection(listed=None).scores
    scores = SELECTOR.rank(SAMPLE, exclude={digest_for(f"d{n}"): "Retired." for n in out}).selection(listed=None).scores
    assert scores.keys() == {domain for domain in all_scores if int(domain[1:]) not in out}
    assert sum(scores.values()) == pytest.approx(1.0)


def test_the_least_share_is_the_specs_or_the_requests() -> None:
    strict = PosteriorSelector(PosteriorSpec(dimensions=6, least=0.2)).fit(NEAR)
    selection = strict.rank(SAMPLE).selection()
    assert all((entry.score or 0) >= 0.2 for entry in selection.selected)
    assert any("below 0.2." in entry.reason for entry in selection.left_out)
    assert selection.thresholds == {"min_share": 0.2}
    assert len(strict.rank(SAMPLE, options=SelectOptions(min_share=0.01)).selection().selected) > len(
        selection.selected
    )
    lax = PosteriorSelector(PosteriorSpec(dimensions=6, least=0.0)).fit(NEAR)
    assert lax.rank(SAMPLE, options=SelectOptions(min_share=0.1)).selection().thresholds == {"min_share": 0.1}
    everybody = strict.rank(around(np.full(16, 50.0), 5, seed=0), options=SelectOptions(min_share=0.0)).selection()
    assert all(Decimal(entry.weight) > 0 for entry in everybody.selected)


def test_it_knows_domains_as_well_as_clusters_do() -> None:
    domains = gaussian_domains(8, n=140, dimensions=24, apart=3.0)
    report = PosteriorSelector(PosteriorSpec()).fit(domains).report_
    assert report["held_out_accuracy"] >= SELECTORS["gmm"](GmmSpec()).fit(domains).report_["held_out_accuracy"] > 0.5
    assert (report["domains"], report["dimensions"], report["held_out_by"]) == (8, 24, "other_units")
    assert 1 / 8 < report["held_out_posterior"] < report["held_out_accuracy"]
