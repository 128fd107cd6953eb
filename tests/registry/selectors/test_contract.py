"""Every selector against the contract, with laws that hold for all of them."""

from __future__ import annotations

import json
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any
from unittest.mock import Mock

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from registry.errors import Cancelled, Internal, InvalidParameter, InvalidSample
from registry.selectors import SELECTORS, posterior, stability
from registry.selectors import ranking as ranking_module
from registry.selectors.contract import Domain, Selector
from registry.selectors.ranking import Candidate, Evidence, Member, RankedCandidates, Ranking
from registry.selectors.stability import DRAWS, SEED, UnitScores
from registry.selectors.state import dump_state
from registry.spec import CosineSpec, GmmSpec, PosteriorSpec, Selection, SelectOptions, UniformSpec
from tests.registry.gaussian_domains import around, centres, digest_for, domain, gaussian_domains

SPECS: dict[str, list[Any]] = {
    "gmm": [GmmSpec(), GmmSpec(mode="paper"), GmmSpec(covariance="diag"), GmmSpec(covariance="spherical", seed=9)],
    "cosine": [CosineSpec(), CosineSpec(encoder="base"), CosineSpec(threshold=0.5, seed=3)],
    "posterior": [PosteriorSpec(), PosteriorSpec(temperature=1.0, dimensions=3, seed=3)],
    "uniform": [UniformSpec()],
}
CASES = [pytest.param(kind, spec, id=f"{kind}-{i}") for kind in SELECTORS for i, spec in enumerate(SPECS[kind])]
DOMAINS = gaussian_domains()
SAMPLE = np.concatenate([around(centres(4, 12)[0], 50, seed=1), around(centres(4, 12)[2], 30, seed=2)])


TEXT_CASES = [case for case in CASES if case.values[0] != "uniform"]
"""Selectors that look at the sample's text."""


@pytest.fixture(scope="module")
def fitted() -> dict[str, Selector]:
    return {case.id or "": SELECTORS[case.values[0]](case.values[1]).fit(DOMAINS) for case in CASES}  # type: ignore


@pytest.fixture
def selector(kind: str, spec: Any, fitted: dict[str, Selector]) -> Selector:
    return fitted[f"{kind}-{SPECS[kind].index(spec)}"]


@pytest.mark.parametrize(("kind", "spec"), CASES)
class TestEverySelector:
    def test_the_state_round_trips_to_the_last_bit(self, kind: str, selector: Selector) -> None:
        arrays, meta = selector.to_state()
        loaded = SELECTORS[kind].from_state(
            {name: np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape) for name, array in arrays.items()},
            json.loads(json.dumps(meta, allow_nan=False)),
        )
        assert (loaded.spec, loaded.members_, loaded.report_) == (selector.spec, selector.members_, selector.report_)
        assert loaded.rank(SAMPLE).selection() == selector.rank(SAMPLE).selection()
        assert dump_state(*loaded.to_state()) == dump_state(*selector.to_state())
        assert all(array.dtype in (np.float64, np.int64) for array in selector.to_state()[0].values())

    def test_the_order_of_the_domains_does_not_matter(self, kind: str, spec: Any, selector: Selector) -> None:
        refitted = SELECTORS[kind](spec).fit(DOMAINS[::-1])
        assert dump_state(*refitted.to_state()) == dump_state(*selector.to_state())

    def test_the_excluded_are_out_with_their_reason(self, selector: Selector) -> None:
        best = selector.rank(SAMPLE, options=SelectOptions(threshold=-1)).selection().selected[0]
        exclude = {best.digest: "Retired.", "sha256:" + "0" * 64: "Unknown."}
        selection = selector.rank(SAMPLE, exclude=exclude).selection()
        assert best.digest not in {entry.digest for entry in selection.selected}
        assert [e.reason for e in selection.left_out if e.digest == best.digest] == ["Retired."]
        assert best.domain not in selection.scores
        nobody = selector.rank(SAMPLE, exclude={d.digest: "Retired." for d in DOMAINS}).selection()
        assert (nobody.abstained, nobody.selected, len(nobody.left_out)) == (True, (), len(DOMAINS))
        assert "left to choose" in nobody.reason

    @pytest.mark.parametrize(
        ("domains", "sentence"), [([], "empty"), ([*DOMAINS, domain("d0", DOMAINS[1].vectors)], "'d0'")]
    )
    def test_an_empty_pool_and_a_domain_twice_are_refused(
        self, kind: str, spec: Any, domains: list[Domain], sentence: str
    ) -> None:
        with pytest.raises(InvalidParameter, match=sentence):
            SELECTORS[kind](spec).fit(domains)

    def test_one_domain_is_a_pool(self, kind: str, spec: Any) -> None:
        selection = SELECTORS[kind](spec).fit(DOMAINS[:1]).rank(DOMAINS[0].vectors[:30]).selection()
        assert [(entry.domain, entry.weight) for entry in selection.selected] in ([("d0", "1")], [])

    def test_progress_reports_and_cancels(self, kind: str, spec: Any) -> None:
        events: list[tuple[int, int, str]] = []
        SELECTORS[kind](spec).fit(DOMAINS, progress=lambda *event: events.append(event))
        assert events[-1][0] == events[-1][1] > 0
        assert [event[0] for event in events] == sorted(event[0] for event in events)
        assert all(message for _, _, message in events)

        with pytest.raises(Cancelled):
            SELECTORS[kind](spec).fit(DOMAINS, progress=Mock(side_effect=Cancelled("enough")))

    def test_a_state_of_another_kind_or_version_or_with_bent_arrays_is_refused(self, selector: Selector) -> None:
        arrays, meta = selector.to_state()
        bad = [(arrays, meta | {"kind": "other"}), (arrays, meta | {"version": 99})]
        for name, array in arrays.items():
            bad += [({key: value for key, value in arrays.items() if key != name}, meta)]
            bad += [(arrays | {name: bent}, meta) for bent in (array[..., None], array.astype(np.float32))]
        for state in bad:
            with pytest.raises(Internal, match="fit it again"):
                SELECTORS[selector.kind].from_state(*state)


@pytest.mark.parametrize(("kind", "spec"), TEXT_CASES)
class TestThoseThatLookAtText:
    def test_single_is_the_top_one_whatever_the_threshold(self, selector: Selector) -> None:
        selection = selector.rank(SAMPLE, options=SelectOptions(single=True, min_share=1.0, threshold=1.0)).selection()
        assert [(entry.domain, entry.weight) for entry in selection.selected] == [("d0", "1")]
        assert list(selection.scores.values()) == sorted(selection.scores.values(), reverse=True)
        assert not selection.abstained

    def test_nothing_good_enough_abstains_or_takes_the_top(self, selector: Selector) -> None:
        strict = SelectOptions(min_share=1.0, threshold=1.0)
        selection = selector.rank(SAMPLE, options=strict).selection()
        assert selection.abstained
        assert selection.selected == ()
        assert selection.reason.startswith("No domain ")
        top = selector.rank(SAMPLE, options=strict.model_copy(update={"when_none": "top"})).selection()
        assert not top.abstained
        assert [entry.domain for entry in top.selected] == ["d0"]
        assert top.reason.endswith("The best match was taken anyway.")

    @pytest.mark.parametrize(
        "vectors",
        [np.empty((0, 12)), np.zeros(12), np.zeros((5, 7)), np.full((5, 12), np.nan), np.full((5, 12), np.inf)],
    )
    def test_an_unusable_sample_is_refused(self, selector: Selector, vectors: Any) -> None:
        with pytest.raises(InvalidSample):
            selector.rank(vectors).selection()

    @pytest.mark.parametrize(
        ("vectors", "words"),
        [
            (np.zeros((3, 12)), "at least 5"),
            (np.zeros((30, 11)), "11"),
            (np.full((30, 12), np.nan), "NaN"),
            (np.zeros(12), "shape"),
        ],
    )
    def test_an_unusable_domain_is_named(self, kind: str, spec: Any, vectors: Any, words: str) -> None:
        with pytest.raises(InvalidParameter, match="'odd'.*" + words):
            SELECTORS[kind](spec).fit([*DOMAINS, domain("odd", vectors)])

    def test_other_seeds_draw_other_units(self, kind: str, spec: Any) -> None:
        means = [
            SELECTORS[kind](spec.model_copy(update={"seed": seed})).fit(DOMAINS).to_state()[0]["means"].tobytes()
            for seed in (1, 1, 2)
        ]
        assert means[0] == means[1] != means[2]

    def test_an_option_of_another_selector_is_noted(self, selector: Selector) -> None:
        foreign = {"min_share": 0.2} if selector.kind == "cosine" else {"threshold": 0.3}
        warned = selector.rank(SAMPLE, options=SelectOptions.model_validate(foreign)).selection().warnings
        assert any(f"'{next(iter(foreign))}' is an option of " in warning for warning in warned)
        queued = SelectOptions.model_validate_json(SelectOptions().model_dump_json())  # all fields set, none asked for
        for options in (SelectOptions(), queued):
            warned = selector.rank(SAMPLE, options=options).selection().warnings
            assert not any("is an option of" in warning for warning in warned)

    def test_own_text_is_familiar_and_strange_text_is_novel(self, selector: Selector) -> None:
        familiar = selector.rank(around(centres(4, 12)[1], 60, seed=5)).selection()
        strange = selector.rank(around(-centres(4, 12).sum(axis=0), 60, seed=6)).selection()
        assert 20 < familiar.novelty < 80 < 95 < strange.novelty


@pytest.mark.parametrize(
    "options",
    [
        SelectOptions(threshold=0.2),
        SelectOptions(max_ingredients=1),
        SelectOptions(single=True),
        SelectOptions(min_share=0.4, threshold=0.6, when_none="top"),
    ],
)
@pytest.mark.parametrize(("kind", "spec"), TEXT_CASES)
class TestStability:
    """Against the slow way: draw the sample's units again, and ask the selector itself."""

    @pytest.fixture(autouse=True)
    def _few_draws(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(stability, "DRAWS", 50)

    def test_it_is_the_share_of_draws_that_choose_the_adapter(self, selector: Selector, options: SelectOptions) -> None:
        sample = np.concatenate([around(centres(4, 12)[n], size, seed=n) for n, size in ((0, 9), (1, 7), (2, 3))])
        times = np.random.default_rng(stability.SEED).multinomial(19, np.full(19, 1 / 19), size=stability.DRAWS)
        exclude = {digest_for("d1"): "Out."}
        counts: Counter[str] = Counter()
        for draw in times:
            drawn = selector.rank(np.repeat(sample, draw, axis=0), options=options, exclude=exclude).selection()
            counts.update(entry.digest for entry in drawn.selected)
        ranking = selector.rank(sample, options=options, exclude=exclude)
        shares = ranking.stability(options.most)
        assert {digest: share for digest, share in shares.items() if share} == {
            digest: count / stability.DRAWS for digest, count in counts.items()
        }
        selection = ranking.selection()
        assert {entry.digest: entry.stability for entry in selection.selected}.items() <= shares.items()
        assert selection == selector.rank(sample, options=options, exclude=exclude).selection()


def test_who_takes_no_part_makes_room() -> None:
    """Cooking leaves out what cannot be mixed: others then move up, in every draw."""
    selector = SELECTORS["cosine"](CosineSpec(threshold=-1.0)).fit(DOMAINS)
    ranking = selector.rank(SAMPLE, options=SelectOptions(max_ingredients=2))
    shares_before = ranking.stability(2)
    best = max(shares_before, key=lambda digest: shares_before[digest])
    shares_after = ranking.stability(2, without={best})
    assert shares_after[best] == 0
    assert sum(shares_after.values()) == sum(shares_before.values()) == 2
    assert all(shares_after[digest] >= shares_before[digest] for digest in shares_before if digest != best)


def test_only_the_best_of_a_large_pool_are_ranked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = SELECTORS["posterior"](PosteriorSpec()).fit(DOMAINS).rank(SAMPLE).selection()
    for module in (posterior, ranking_module):
        monkeypatch.setattr(module, "COMPETITORS", 2)
    limited = SELECTORS["posterior"](PosteriorSpec()).fit(DOMAINS).rank(SAMPLE)
    assert limited.selection() == whole
    assert list(limited.stability(5)) == [candidate.member.digest for candidate in limited.ranked[:2]]


@settings(max_examples=15)
@given(
    remaining=st.sets(st.integers(0, 3)),
    options=st.builds(
        SelectOptions,
        max_ingredients=st.integers(1, 5),
        min_share=st.sampled_from([0, 0.1, 0.5, 1]),
        threshold=st.none() | st.floats(-1, 1),
        when_none=st.sampled_from(["abstain", "top"]),
    ),
    seed=st.integers(0, 3),
)
def test_laws_of_any_selection(remaining: set[int], options: SelectOptions, seed: int) -> None:
    sample = around(np.zeros(12), 25, seed=seed, spread=6)
    exclude = {digest_for(f"d{i}"): "Out." for i in range(4) if i not in remaining}
    for selector in LAWFUL:
        selection = selector.rank(sample, options=options, exclude=exclude).selection()
        assert not {entry.digest for entry in selection.selected} & set(exclude)
        named = [entry.digest for entry in (*selection.selected, *selection.left_out)]
        assert sorted(named) == sorted(member.digest for member in DOMAINS)
        assert all(entry.reason.endswith(".") for entry in selection.left_out)
        assert (selection.units, selection.abstained) == (25, not selection.selected)
        if selection.selected:
            assert sum(Decimal(entry.weight) for entry in selection.selected) == 1
        if selector.kind != "uniform":
            assert len(selection.selected) <= options.most
        if selector.kind == "gmm" and remaining:
            assert sum(selection.counts.values()) == 25
            assert not (options.when_none == "top" and selection.abstained)
        assert selection.novelty is None or 0 <= selection.novelty <= 100


@settings(max_examples=15)
@given(
    listed=st.integers(0, 6),
    out=st.sets(st.integers(0, 3)),
    options=st.builds(
        SelectOptions, single=st.booleans(), max_ingredients=st.integers(1, 3), threshold=st.none() | st.just(0.9)
    ),
)
def test_laws_of_what_is_listed(listed: int, out: set[int], options: SelectOptions) -> None:
    """A shorter list is the beginning of the whole one; whoever it lacks is counted under a reason; nothing else."""
    exclude = {digest_for(f"d{i}"): "Out." for i in out}
    for selector in LAWFUL:
        if options.single and selector.kind == "uniform":
            continue
        ranking = selector.rank(SAMPLE, options=options, exclude=exclude)
        whole, short = ranking.selection(listed=None), ranking.selection(listed=listed)
        assert short.left_out == whole.left_out[:listed]
        assert whole.more_left_out == {}
        assert sum(short.more_left_out.values()) == len(whole.left_out) - len(short.left_out)
        assert short.more_left_out.get("Out.", 0) == sum(entry.reason == "Out." for entry in whole.left_out[listed:])
        assert all(reason.endswith(".") for reason in short.more_left_out)
        assert whole.scores == {candidate.member.domain: candidate.score for candidate in ranking.ranked}
        scored = {
            *(entry.domain for entry in short.selected),
            *(entry.domain for entry in short.left_out if entry.score),
        }
        assert scored <= set(short.scores) <= {entry.domain for entry in (*short.selected, *short.left_out)}
        assert short.scores.items() <= whole.scores.items()
        same = {"left_out": (), "more_left_out": {}, "scores": {}}
        assert short.model_copy(update=same) == whole.model_copy(update=same)


@pytest.mark.parametrize(("kind", "spec"), TEXT_CASES)
def test_those_that_are_not_listed_are_counted_by_what_they_have_in_common(kind: str, selector: Selector) -> None:
    strict = selector.rank(SAMPLE, options=SelectOptions(min_share=1.0, threshold=1.0)).selection(listed=1)
    ((reason, count),) = strict.more_left_out.items()
    assert count == 3
    assert {"gmm": "Below 100 %", "cosine": "Similarity below 1", "posterior": "A posterior below 1"}[kind] in reason
    loose = SelectOptions(max_ingredients=1, min_share=0.0, threshold=-1.0)
    capped = selector.rank(SAMPLE, options=loose, exclude={digest_for("d3"): "Out."}).selection(listed=0)
    assert capped.more_left_out["Out."] == 1
    assert capped.more_left_out["Passes, but 1 better ones are taken already."] >= 1


def test_a_selection_stored_before_is_read() -> None:
    stored = LAWFUL[0].rank(SAMPLE).selection().model_dump(mode="json", exclude={"more_left_out"})
    assert Selection.model_validate(stored).more_left_out == {}


LAWFUL = [SELECTORS[kind](SPECS[kind][0]).fit(DOMAINS) for kind in SELECTORS]


def test_uniform_gives_everybody_the_same_and_the_cap_does_not_apply() -> None:
    selector = SELECTORS["uniform"](UniformSpec()).fit([domain(f"d{i}", np.empty((0, 0))) for i in range(7)])
    selection = selector.rank(np.empty((0, 0)), options=SelectOptions(max_ingredients=2)).selection()
    assert len(selection.selected) == 7
    assert {entry.weight for entry in selection.selected} == {"0.142857143", "0.142857142"}
    assert selection.scores == {f"d{i}": pytest.approx(1 / 7) for i in range(7)}
    assert (selection.units, selection.abstained, selection.novelty) == (0, False, None)
    assert {entry.stability for entry in selection.selected} == {None}


def test_single_has_no_meaning_for_uniform() -> None:
    with pytest.raises(InvalidParameter, match="ranks nothing"):
        SELECTORS["uniform"](UniformSpec()).fit(DOMAINS).rank(SAMPLE, options=SelectOptions(single=True)).selection()


def test_weights_follow_the_rank() -> None:
    members = [Member(ref=f"t/{i}@1", digest=digest_for(str(i)), domain=str(i)) for i in range(3)]
    ranked = RankedCandidates(members, np.arange(3), -np.arange(3.0), np.ones(3, dtype=bool))
    assert ranked[1:] == [Candidate(member, -float(i)) for i, member in enumerate(members)][1:]
    ranking = Ranking(ranked, excluded=[], options=SelectOptions(), evidence=Evidence(units=1), abstention="No.")
    selection = ranking.selection(max_ingredients=5)
    assert [entry.weight for entry in selection.selected] == ["0.333333334", "0.333333333", "0.333333333"]
    assert [entry.domain for entry in selection.selected] == ["0", "1", "2"]


# --- domains whose vectors are read when they are looked at ---------------------------------------


MOST_IN_MEMORY = 2
"""Samples in memory: the one that is looked at, and its like while Python still holds the one before."""


@dataclass
class Reader:
    """Hands out copies of vectors, and counts those still in memory."""

    alive: int = 0
    most: int = 0
    reads: dict[str, int] = field(default_factory=dict)

    def domains(self, domains: Sequence[Domain]) -> list[Domain]:
        return [replace(member, vectors=Read(self, member.digest, member.vectors[:])) for member in domains]

    def read(self, digest: str, rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        self.reads[digest] = self.reads.get(digest, 0) + 1
        copy = rows.copy()
        weakref.finalize(copy, self.gone)
        self.alive += 1
        self.most = max(self.most, self.alive)
        return copy

    def gone(self) -> None:
        self.alive -= 1


@dataclass
class Read:
    """The vectors of a domain, as the contract has them."""

    reader: Reader
    digest: str
    rows: npt.NDArray[np.float32]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.rows.shape

    def __getitem__(self, rows: slice, /) -> npt.NDArray[np.float32]:
        return self.reader.read(self.digest, self.rows[rows])


def state(selector: Any) -> bytes:
    return dump_state(*selector.to_state())


@pytest.mark.parametrize("spec", [PosteriorSpec(dimensions=6), CosineSpec(encoder="base")], ids=lambda spec: spec.kind)
@pytest.mark.parametrize("units", [40, 130])
@pytest.mark.parametrize("large", [False, True])
def test_a_fit_and_an_update_hold_the_vectors_of_one_domain(
    spec: Any, units: int, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if large:
        monkeypatch.setattr("registry.selectors.updating.LARGE", 3)
    in_memory = gaussian_domains(11, n=units)
    reader = Reader()
    read = reader.domains(in_memory)
    kind = SELECTORS[spec.kind]
    whole, streamed = kind(spec).fit(in_memory[:10]), kind(spec).fit(read[:10])
    assert state(streamed) == state(whole)
    assert reader.alive == 0
    assert reader.most <= MOST_IN_MEMORY
    assert max(reader.reads.values()) <= 4  # passes over the domains: of the origin, components, Gaussians, proof
    if large:
        out = next(member for member in read if member.digest not in streamed.held_out_)  # type: ignore[attr-defined]
        now, then = streamed.updated(read[10:11], [out]), whole.updated(in_memory[10:11], [out])
        assert state(now) == state(then)
        assert reader.most <= MOST_IN_MEMORY


# --- stability of a choice ------------------------------------------------------------------------


def slowly(units: UnitScores, allowed: np.ndarray, *, most: int, best_anyway: bool) -> np.ndarray:
    """Every draw's candidates in order, one after the other."""
    count, candidates = units.scores.shape
    times = np.random.default_rng(SEED).multinomial(count, np.full(count, 1.0 / count), size=DRAWS).astype(np.float64)
    scores = np.where(allowed, times @ units.scores / count, -np.inf)
    ties = np.zeros_like(scores) if units.ties is None else times @ units.ties
    chosen = np.zeros(candidates)
    for draw in range(DRAWS):
        ranked = sorted(
            range(candidates),
            key=lambda candidate: (-scores[draw, candidate], -ties[draw, candidate], units.order[candidate]),
        )
        picked = [
            candidate for candidate in ranked[:most] if allowed[candidate] and scores[draw, candidate] >= units.least
        ]
        if best_anyway and not picked and allowed[ranked[0]]:
            picked = ranked[:1]
        chosen[picked] += 1
    return chosen / DRAWS


@settings(max_examples=25)
@given(data=st.data(), seed=st.integers(0, 2**16), candidates=st.integers(1, 6), with_ties=st.booleans())
def test_it_is_the_share_of_draws_by_a_full_sort(
    data: st.DataObject, seed: int, candidates: int, with_ties: bool
) -> None:
    draw = np.random.default_rng(seed)
    scores, ties = (draw.integers(0, 3, (4, candidates)).astype(np.float64) for _ in range(2))  # many are equal
    units = UnitScores(scores, 1.0, draw.permutation(candidates), ties if with_ties else None)
    allowed = np.array(data.draw(st.lists(st.booleans(), min_size=candidates, max_size=candidates)))
    for most in (1, 2, candidates + 1):
        for best_anyway in (False, True):
            shares = units.chosen(allowed, most=most, best_anyway=best_anyway)
            assert np.allclose(shares, slowly(units, allowed, most=most, best_anyway=best_anyway))
