"""gmm: parity with scikit-learn, the paper's mode on a hand-made example, ownership of clusters, warnings, edges."""

from __future__ import annotations

import json
import warnings
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.decomposition import PCA
from sklearn.mixture import GaussianMixture

from registry.errors import Cancelled, InvalidParameter
from registry.progress import Steps
from registry.selectors.contract import STATE_VERSION, Domain
from registry.selectors.drawing import HELD_OUT, UNITS, draw_domain, has_few_units
from registry.selectors.gaussian_mixture import Mixture, fit_mixture
from registry.selectors.gmm import GmmSelector
from registry.selectors.novelty import novelty, percentile
from registry.selectors.projection import fit_projection
from registry.spec import GmmSpec, SelectOptions
from tests.registry.gaussian_domains import around, digest_for, domain, gaussian_domains

Covariance = Literal["full", "tied", "diag", "spherical"]
COVARIANCES: list[Covariance] = ["full", "tied", "diag", "spherical"]
SHARED = [[6, 0, 4], [0, 7, 3], [0, 0, 0]]
"""Domain 2 shares the first two clusters, and is the majority of none."""
APART = [[9, 0, 0], [0, 9, 0], [0, 0, 9]]
QUIET = Steps(None, 1)


def nuisance(centre: tuple[float, float], n: int, seed: int) -> npt.NDArray[np.float32]:
    """Domains that differ on axes 1 and 2, while axis 0, the first component, is large noise that all share."""
    vectors = around(np.array([0.0, *centre, 0.0]), n, seed=seed, spread=0.3)
    vectors[:, 0] *= 300
    return vectors


def paper_domains() -> list[Any]:
    return [domain(f"d{i}", nuisance(c, 150, i)) for i, c in enumerate([(0, 9), (9, 0), (-9, -9)])]


def handmade(table: list[list[int]], means: list[list[float]] | None = None) -> GmmSelector:
    """A selector in the plane with unit covariance, without fitting: what it answers can be worked out by hand."""
    k = len(table)
    where = np.array(means or [[0, 0], [10, 0], [0, 10]][:k], dtype=np.float64)
    arrays = {
        "projection_mean": np.zeros(2),
        "projection_components": np.eye(2),
        "weights": np.full(k, 1 / k),
        "means": where,
        "precisions_cholesky": np.eye(2),
        "table": np.array(table, dtype=np.int64),
        "domain_means": where,
        "whiten": np.eye(2),
        "own_distances": np.arange(1.0, 101.0),
    }
    members = [{"ref": f"t/d{i}@1", "digest": digest_for(f"d{i}"), "domain": f"d{i}"} for i in range(k)]
    meta = {"version": STATE_VERSION, "kind": "gmm", "spec": {}, "members": members, "report": {"warnings": []}}
    return GmmSelector.from_state(arrays, meta)


def points(*where: tuple[float, float, int]) -> npt.NDArray[np.float64]:
    return np.array([[x, y] for x, y, n in where for _ in range(n)])


# --- parity ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_the_fit_is_scikit_learns(covariance: Covariance) -> None:
    data = np.random.default_rng(2).standard_t(4, size=(300, 3))  # no clusters in it: EM takes its time
    ours = fit_mixture(data, k=3, covariance=covariance, max_iter=150, seed=4, steps=QUIET)
    theirs = GaussianMixture(3, covariance_type=covariance, max_iter=150, random_state=4).fit(data)
    assert ours.iterations == theirs.n_iter_ > 10  # more than one warm start, or this shows nothing
    assert ours.converged
    assert np.array_equal(ours.mixture.means, theirs.means_)
    assert np.array_equal(ours.mixture.precisions_cholesky, theirs.precisions_cholesky_)
    assert np.array_equal(ours.mixture.weights, theirs.weights_)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_a_stored_selector_predicts_as_a_rebuilt_mixture_does(covariance: Covariance) -> None:
    selector = GmmSelector(GmmSpec(covariance=covariance, component_zero="keep")).fit(gaussian_domains(apart=1))
    arrays, meta = selector.to_state()
    theirs = GaussianMixture(4, covariance_type=covariance)
    theirs.weights_, theirs.means_ = arrays["weights"], arrays["means"]
    theirs.precisions_cholesky_ = arrays["precisions_cholesky"]
    restored = GmmSelector.from_state(arrays, json.loads(json.dumps(meta)))
    sample = restored.clusters_.projection(around(np.zeros(12), 80, seed=2, spread=2).astype(np.float64))
    cluster, posterior = restored.clusters_.assign(sample)
    assert np.array_equal(cluster, theirs.predict(sample))
    assert posterior == pytest.approx(theirs.predict_proba(sample).max(axis=1), abs=1e-9)
    joint = restored.clusters_.mixture.log_joint(sample)
    assert np.logaddexp.reduce(joint, axis=1) == pytest.approx(theirs.score_samples(sample), rel=1e-9)


@pytest.mark.parametrize("drop", [False, True])
def test_the_projection_is_scikit_learns_pca(drop: bool) -> None:
    data = np.concatenate([d.vectors for d in gaussian_domains()]).astype(np.float64)
    fitted = fit_projection(data, dimensions=5, drop_first=drop)
    theirs = PCA(5 + drop, svd_solver="full").fit(data)
    assert fitted.projection(data) == pytest.approx(theirs.transform(data)[:, int(drop) :], abs=1e-9)
    assert fitted.explained == pytest.approx(theirs.explained_variance_ratio_[int(drop) :].sum())
    assert len(fit_projection(data, dimensions=99, drop_first=drop).projection.components) == 12 - drop


@pytest.fixture(scope="module")
def selector() -> GmmSelector:
    return GmmSelector(GmmSpec(mode="paper")).fit(paper_domains())


# --- paper mode -----------------------------------------------------------------------------------


# 100 passages a domain, PCA without component 0, full covariance, one cluster a domain, 10 % of the sample.


def test_component_zero_is_gone(selector: GmmSelector) -> None:
    components = selector.clusters_.projection.components
    assert components.shape == (3, 4)
    assert np.abs(components[:, 0]).max() < 0.01
    assert (selector.report_["component_zero"]["chosen"], selector.report_["covariance"]) == ("drop", "full")
    assert selector.clusters_.mixture.precisions_cholesky.shape == (3, 3, 3)
    assert "3 dimensions of the 50" in selector.report_["warnings"][0]
    assert selector.report_["held_out_accuracy"] == 1.0


def test_a_tenth_of_the_sample_is_enough(selector: GmmSelector) -> None:
    sample = np.concatenate([nuisance((0, 9), 10, 50), nuisance((9, 0), 8, 51), nuisance((-9, -9), 2, 52)])
    selection = selector.rank(sample).selection()
    assert [(s.domain, s.score, s.weight) for s in selection.selected] == [
        ("d0", 0.5, "0.333333334"),
        ("d1", 0.4, "0.333333333"),
        ("d2", 0.1, "0.333333333"),
    ]
    assert (sorted(selection.counts.values()), selection.thresholds) == ([2, 8, 10], {"min_share": 0.1})


def test_less_than_a_tenth_is_not(selector: GmmSelector) -> None:
    selection = selector.rank(np.concatenate([nuisance((9, 0), 19, 50), nuisance((-9, -9), 2, 52)])).selection()
    assert [s.domain for s in selection.selected] == ["d1"]
    assert [(e.domain, e.reason) for e in selection.left_out] == [
        ("d2", "2 of the sample's 21 units, below 10 %."),
        ("d0", "None of the sample's 21 units is in its cluster."),
    ]


def test_the_default_finds_out_that_component_zero_is_in_the_way() -> None:
    report = GmmSelector(GmmSpec()).fit(paper_domains()).report_
    assert (report["covariance"], report["component_zero"]["chosen"]) == ("tied", "drop")
    accuracy = report["component_zero"]["held_out_accuracy"]
    assert accuracy["drop"] == 1.0 > accuracy["keep"]
    assert report["held_out_accuracy"] == accuracy["drop"]


def test_the_default_keeps_component_zero_where_it_tells_domains_apart() -> None:
    line = [domain(f"d{i}", around(np.array([20.0 * i, 0, 0]), 150, seed=i)) for i in range(3)]
    report = GmmSelector(GmmSpec()).fit(line).report_
    assert report["component_zero"]["chosen"] == "keep"
    assert report["component_zero"]["held_out_accuracy"]["drop"] < 0.6
    paper = GmmSelector(GmmSpec(mode="paper", component_zero="keep")).fit(line).report_
    assert (paper["component_zero"]["asked"], paper["covariance"]) == ("keep", "full")


# --- ownership ------------------------------------------------------------------------------------


def test_majority_and_the_domain_that_is_majority_nowhere() -> None:
    selector = handmade(SHARED)
    assert (selector.clusters_.majority, selector.clusters_.owners) == ([0, 1, None], [[0, 2], [1], []])
    assert selector.clusters_.purity == 13 / 20
    # an empty cluster stands for no domain and takes nothing
    assert selector.rank(points((1, 10, 5))).selection().counts == {"0": 5}
    # a shared cluster stays while one of its domains does
    selection = selector.rank(points((0, 0, 10)), exclude={digest_for("d0"): "Retired."}).selection()
    assert [(s.domain, s.score) for s in selection.selected] == [("d2", 1.0)]


def test_one_domain_may_own_two_clusters() -> None:
    selector = handmade([[5, 0, 0], [5, 0, 2], [0, 9, 1]])
    assert selector.clusters_.owners == [[0], [0, 2], [1]]
    selection = selector.rank(points((0, 0, 3), (10, 0, 3), (0, 10, 4))).selection()
    assert (selection.scores, selection.counts) == ({"d0": 0.6, "d1": 0.4, "d2": 0.3}, {"0": 3, "1": 3, "2": 4})


def test_a_shared_cluster_counts_for_both_the_majority_first() -> None:
    # d0 and d2 share cluster 0, and d0 makes up less of it
    selector = handmade([[4, 0, 6], [1, 9, 0], [0, 0, 0]])
    assert selector.clusters_.owners == [[2, 0], [1], []]
    selection = selector.rank(points((0, 0, 10))).selection()
    assert [s.domain for s in selection.selected] == ["d2", "d0"]
    assert selection.scores["d0"] == selection.scores["d2"] == 1.0


def test_units_of_an_excluded_domain_go_to_the_next_best_before_the_threshold() -> None:
    selector = handmade(APART)
    sample = points((2, 0, 19), (0, 9, 1))
    assert [s.domain for s in selector.rank(sample).selection().selected] == ["d0"]
    selection = selector.rank(sample, exclude={digest_for("d0"): "Retired."}).selection()
    assert [(s.domain, s.score) for s in selection.selected] == [("d1", 0.95)]
    assert [(e.domain, e.reason) for e in selection.left_out] == [
        ("d2", "1 of the sample's 20 units, below 10 %."),
        ("d0", "Retired."),
    ]


def test_order_is_by_count_then_label_and_no_unit_is_too_few_without_a_minimum_too() -> None:
    selector = handmade(APART)
    selection = selector.rank(points((0, 10, 4), (10, 0, 4), (0, 0, 3))).selection()
    assert [s.domain for s in selection.selected] == ["d1", "d2", "d0"]
    none = selector.rank(points((0, 0, 4)), options=SelectOptions(min_share=0)).selection()
    assert [s.domain for s in none.selected] == ["d0"]


def test_novelty_is_the_percentile_of_the_median_distance_to_the_nearest() -> None:
    distances = np.array([1.0, 2.0, 2.0, 3.0])  # ties count by half
    assert [percentile(x, distances) for x in (0.5, 1, 2, 2.5, 9)] == [0, 12.5, 50, 75, 100]
    assert novelty(np.array([[1.0, 9.0], [30.5, 40.0], [80.0, 70.0]]), np.arange(1.0, 101.0)) == 30


def test_a_strange_sample_is_warned_about_and_excluded_domains_are_not_near() -> None:
    selector = handmade([[9, 0], [0, 9]], [[0, 0], [200, 0]])
    near = selector.rank(points((0, 50.5, 9))).selection()
    assert (near.novelty, near.warnings) == (50, ())
    far = selector.rank(points((0, 50.5, 9)), exclude={digest_for("d0"): "Out."}).selection()
    assert far.novelty == 100
    assert "no domain is really like it" in far.warnings[0]


# --- proof ----------------------------------------------------------------------------------------


def test_other_units_are_held_out_where_there_are_enough() -> None:
    wide = gaussian_domains(2, n=250)[0]
    assert not has_few_units(wide)
    draw = draw_domain(wide, seed=0, cross_fit=False)
    assert draw.proof_fit is draw.fit
    assert (len(draw.fit), len(draw.held_out)) == (UNITS, HELD_OUT)


def test_otherwise_the_draw_is_split() -> None:
    large = gaussian_domains(2, n=250)[0]
    small = domain("small", large.vectors[:105])
    assert has_few_units(small)
    for member in (small, large):
        draw = draw_domain(member, seed=0, cross_fit=True)
        assert (len(draw.fit), len(draw.proof_fit), len(draw.held_out)) == (100, 80, 20)
        assert np.array_equal(np.concatenate([draw.proof_fit, draw.held_out]), draw.fit)


def test_one_domain_of_few_units_splits_the_draws_of_the_whole_pool() -> None:
    large, second = gaussian_domains(2, n=250)
    report = GmmSelector(GmmSpec()).fit([domain("small", large.vectors[:105]), second]).report_
    assert (report["held_out_by"], report["units_held_out"]) == ("cross_fit_80_20", 40)


def test_a_domains_draw_depends_on_its_digest_and_the_seed_and_not_on_its_neighbours() -> None:
    def draws(*domains: Domain, seed: int = 1) -> list[npt.NDArray[np.float64]]:
        return [draw_domain(domain, seed=seed, cross_fit=False).fit for domain in domains]

    first, second, third = gaussian_domains(3)
    (alone,) = draws(third)
    assert np.array_equal(draws(first, second, third)[2], alone)
    assert not np.array_equal(draws(domain("other", third.vectors))[0], alone)
    assert not np.array_equal(draws(third, seed=2)[0], alone)


def test_no_unit_is_on_both_sides() -> None:
    vectors = np.arange(180.0).reshape(180, 1)
    for units, cross_fit in ((180, False), (180, True), (60, True)):
        draw = draw_domain(domain("a", vectors[:units]), seed=3, cross_fit=cross_fit)
        assert len(draw.held_out) > 0
        assert not set(draw.proof_fit.ravel()) & set(draw.held_out.ravel())


def test_the_final_selector_is_fitted_on_all_drawn_units() -> None:
    selector = GmmSelector(GmmSpec()).fit(gaussian_domains(3, n=40))
    assert selector.report_["held_out_by"] == "cross_fit_80_20"
    assert selector.clusters_.table.sum() == selector.report_["units_fitted"] == 120
    assert selector.report_["units_held_out"] == len(selector.own_distances_) == 24


def test_trap_a_full_covariance_looks_fine_until_it_sees_other_text() -> None:
    """Nearly singular covariances show in held-out accuracy, not in training purity (methods.md#clustering)."""
    domains = gaussian_domains(8, n=200, dimensions=100, apart=1.6)
    full = GmmSelector(GmmSpec(mode="paper", dimensions=98)).fit(domains).report_
    tied = GmmSelector(GmmSpec(dimensions=32)).fit(domains).report_
    assert tied["held_out_accuracy"] > 0.9
    assert full["training_purity"] > 0.75
    assert full["held_out_accuracy"] < 0.5
    assert any("do not carry over" in warning for warning in full["warnings"])
    assert any("saturated" in warning for warning in full["warnings"])
    assert tied["warnings"] == []
    selection = GmmSelector(GmmSpec(mode="paper", dimensions=98)).fit(domains).rank(domains[0].vectors).selection()
    assert any("saturated" in warning for warning in selection.warnings)


def test_em_that_has_not_settled_is_a_warning_of_the_report() -> None:
    report = GmmSelector(GmmSpec(max_iter=1)).fit(gaussian_domains(apart=1)).report_
    assert (report["iterations"], report["converged"]) == (1, False)
    assert any("not settled after 1 iterations" in warning for warning in report["warnings"])


def test_duplicates_are_a_warning_of_the_report() -> None:
    first, second = around(np.ones(6), 1, seed=0).repeat(30, axis=0), around(-np.ones(6), 1, seed=1).repeat(30, axis=0)
    report = GmmSelector(GmmSpec()).fit([domain("a", first), domain("b", first), domain("c", second)]).report_
    assert any("distinct clusters" in warning for warning in report["warnings"])
    assert report["majority_nowhere"] == ["b"]


# --- edges ----------------------------------------------------------------------------------------


def test_one_domain_of_twenty_passages_is_enough() -> None:
    selector = GmmSelector(GmmSpec()).fit(gaussian_domains(1, n=20, dimensions=16))
    assert selector.report_["dimensions"] <= 16
    assert "16" in " ".join(selector.report_["warnings"])
    assert [s.weight for s in selector.rank(around(np.zeros(16), 20, seed=9)).selection().selected] == ["1"]


@pytest.mark.parametrize("mode", ["default", "paper"])
def test_the_smallest_pool_there_can_be(mode: Any) -> None:
    vectors = around(np.zeros(3), 5, seed=0)
    assert GmmSelector(GmmSpec(mode=mode)).fit([domain("a", vectors)]).report_["dimensions"] >= 1


def test_one_direction_is_kept_by_default_and_cannot_be_dropped() -> None:
    line = [domain(f"d{i}", np.linspace(i * 10, i * 10 + 1, 30)[:, None] * np.ones(4)) for i in range(2)]
    report = GmmSelector(GmmSpec()).fit(line).report_
    assert (report["component_zero"]["chosen"], report["dimensions"]) == ("keep", 1)
    with pytest.raises(InvalidParameter, match="one direction"):
        GmmSelector(GmmSpec(component_zero="drop")).fit(line)


def test_the_same_vector_everywhere_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="the same"):
        GmmSelector(GmmSpec()).fit([domain(label, np.full((30, 4), 0.1)) for label in "ab"])


def test_scale_does_not_break_it() -> None:
    for scale in (1e-2, 1e4):
        domains = [domain(d.domain, d.vectors * scale) for d in gaussian_domains()]
        assert GmmSelector(GmmSpec()).fit(domains).report_["held_out_accuracy"] > 0.7


def test_em_can_be_cancelled_between_iterations() -> None:
    messages: list[str] = []

    def cancel(done: int, total: int, message: str) -> None:
        messages.append(message)
        if "iteration 10 " in message:
            raise Cancelled("enough")

    with pytest.raises(Cancelled):
        GmmSelector(GmmSpec(covariance="full")).fit(gaussian_domains(4, apart=1), progress=cancel)
    assert not any("iteration 20" in message for message in messages)


def test_log_joint_of_one_gaussian_by_hand() -> None:
    mixture = Mixture(
        covariance="diag", weights=np.array([1.0]), means=np.zeros((1, 2)), precisions_cholesky=np.array([[1.0, 0.5]])
    )
    expected = -np.log(2 * np.pi) + np.log(0.5) - 0.5 * (9 + 4)
    assert mixture.log_joint(np.array([[3.0, 4.0]])) == pytest.approx(np.array([[expected]]))


def test_points_that_carry_no_mixture_are_refused_in_one_sentence() -> None:
    line = np.linspace(0, 1e12, 40)[:, None] * np.array([1.0, 1.0, 1.0])
    with pytest.raises(InvalidParameter, match="2 clusters with 'full' covariance"):
        fit_mixture(line, k=2, covariance="full", max_iter=150, seed=0, steps=QUIET)


def test_other_warnings_go_on_to_whoever_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    fit = GaussianMixture.fit

    def loud(self: GaussianMixture, data: Any) -> GaussianMixture:
        warnings.warn("something else", UserWarning, stacklevel=1)
        return fit(self, data)

    monkeypatch.setattr(GaussianMixture, "fit", loud)
    with pytest.warns(UserWarning, match="something else"):
        fitted = fit_mixture(np.eye(4), k=1, covariance="tied", max_iter=150, seed=0, steps=QUIET)
    assert fitted.warnings == ()
