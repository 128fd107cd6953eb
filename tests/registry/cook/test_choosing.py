"""Select and cook: what is chosen, what is left out and why, also of what is purged meanwhile, and when the answer is
the base model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import update

from benchmarks.acceptance import Case
from registry.catalogue.tables import adapters
from registry.cook import ingredients
from registry.cook.acceptance import verification_of, why_not
from registry.cook.candidate import Proposal
from registry.cook.cook import read_request
from registry.cook.ingredients import select_ingredients
from registry.cook.job import Computations, CookJob
from registry.cook.sample import Split
from registry.cook.scoring import judge
from registry.cook.strategies import STRATEGIES, strategy_of
from registry.errors import (
    Cancelled,
    Incompatible,
    Internal,
    InvalidParameter,
    InvalidRecipe,
    InvalidSample,
    NotFound,
    Retired,
    Unavailable,
)
from registry.names import sha256_digest
from registry.samples.sample import check_sample, clean_sample
from registry.select.requested import encoder_for
from registry.select.select import SelectQuery, select_for_prompt, select_from_pool
from registry.selectors.ranking import LISTED
from registry.spec import (
    HOLDS_OUT,
    BaseEntry,
    CookRequest,
    CosineSpec,
    Effort,
    Evidence,
    GmmSpec,
    PassageScore,
    PoolRequest,
    PoolSpec,
    PosteriorSpec,
    SampleSource,
    SelectOptions,
    UniformSpec,
    Verification,
    Weighing,
    WeighingRequest,
)
from registry.spec.limits import SampleLimits
from tests.registry.toy_registry import (
    OTHER_CONFIG,
    OTHER_INIT,
    SHAPE,
    ToyRegistry,
    by_hand,
    domains_of,
    passages,
    purging,
    reasons,
    sample,
    vectors_of,
)

ON_DATABASES = ("sqlite",)  # whatever they ask a catalogue, `test_cook` and its own tests ask one of each kind

UNIFORM = {"kind": "uniform"}


# --- select ---------------------------------------------------------------------------------------


def choose(verbs: ToyRegistry, texts: dict, spec=None, listed=LISTED, **options):
    source = SampleSource.model_validate(texts)
    return select_from_pool(
        verbs.registry,
        verbs.caller(),
        check_sample(verbs.registry, verbs.caller(), source, encoders=verbs.encoders, bos=None),
        SelectQuery(PoolRequest(), spec or GmmSpec(), SelectOptions(**options), listed=listed),
        fit=verbs.fit,
    )


def test_a_pool_is_fitted_once_and_the_old_selector_names_what_it_does_not_know(stocked):
    first = choose(stocked, sample("law"))
    stocked.ready("acme/new", seed=5)
    stocked.push("acme/waiting", seed=6, domain="waiting", sample=sample("waiting"))  # and not embedded
    second = choose(stocked, sample("zoo"))
    assert (stocked.fits, second.not_yet_included) == (1, ("acme/new@1", "acme/waiting@1"))
    assert choose(stocked, sample("zoo"), listed=1).not_yet_included == ("acme/new@1",)
    assert first.selector.id == second.selector.id
    assert [domain.domain for domain in first.selection.selected] == ["law"]
    assert [domain.domain for domain in second.selection.selected] == ["zoo"]


def test_a_first_fit_names_what_is_still_to_be_embedded(verbs):
    verbs.ready("acme/law", domain="law")
    verbs.push("acme/zoo", seed=1, domain="zoo", sample=sample("zoo"))
    chosen = choose(verbs, sample("zoo"))
    assert [member.ref for member in chosen.selector.members] == ["acme/law@1"]
    assert chosen.not_yet_included == ("acme/zoo@1",)


def test_it_says_who_was_superseded_and_by_whom(verbs):
    for name, domain, seed in (
        ("acme/old", "law", 0),
        ("acme/new", "law", 1),
        ("acme/twin", "zoo", 2),
        ("acme/zoo", "animals", 2),
        ("evil/copy", "anything", 1),
    ):
        verbs.ready(name, domain=domain, seed=seed)
    expected = {
        "acme/old@1": "acme/new@1 is newer and has the same domain label.",
        "acme/twin@1": "acme/zoo@1 is newer and has the same bytes.",
        "evil/copy@1": "acme/new@1 has the same bytes and was there before.",
    }
    reasons_by_ref = {entry.ref: entry.reason for entry in choose(verbs, sample("law")).selection.left_out}
    assert {ref: reasons_by_ref[ref] for ref in expected} == expected


def test_a_retired_member_is_dropped_before_thresholds(stocked):
    """Two in three passages are of a domain that was retired: no threshold counts them for it any more."""
    choose(stocked, sample("law"))
    ids = {name: stocked.named(f"acme/{name}").id for name in ("law", "code", "zoo")}
    stocked.retire(ids["law"])
    mixed = {"texts": passages("law", 60, seed=7) + passages("code", 30, seed=7)}
    chosen = choose(stocked, mixed, min_share=0.5)
    assert stocked.fits == 1
    assert sum(chosen.selection.scores.values()) == pytest.approx(1)
    assert set(chosen.selection.scores) == {"code", "zoo"}
    assert len(chosen.selection.selected) == 1
    left_out = {entry.ref: entry.reason for entry in chosen.selection.left_out}
    assert "retired since the fit" in left_out["acme/law@1"]
    stocked.retire(ids["code"], ids["zoo"])
    none = choose(stocked, sample("law")).selection
    assert (none.abstained, len(none.left_out)) == (True, 3)


def test_a_retired_member_is_not_chosen_for_a_prompt_whose_selector_is_refitted_meanwhile(stocked, monkeypatch):
    pool, encode = PoolSpec(base_fingerprint=SHAPE.fingerprint), stocked.base.encode
    stocked.fit(pool, PosteriorSpec(), stocked.base.digest)
    stocked.retire(stocked.named("acme/law").id)

    def refit(*texts: Any, **options: Any) -> Any:
        stocked.fit(pool, PosteriorSpec(), stocked.base.digest)
        return encode(*texts, **options)

    monkeypatch.setattr(stocked.base, "encode", refit)
    prompt = clean_sample(passages("law"), SampleLimits(), novel=True)
    chosen = select_for_prompt(stocked.registry, stocked.caller(), prompt, pool=PoolRequest())
    assert list(chosen.shares) == ["acme/zoo@1"]


def test_vectors_must_be_of_the_selectors_encoder(stocked):
    assert choose(stocked, vectors_of(stocked.base, passages("law"))).selection.selected[0].domain == "law"
    with pytest.raises(InvalidSample, match="needs vectors of encoder 'sbert'"):
        choose(stocked, vectors_of(stocked.base, passages("law")), CosineSpec())


def test_a_sample_whose_sentences_are_all_held_out_is_to_be_split(stocked, monkeypatch):
    """Encoders draw sentences from the whole sample, and nearly all may be of one long passage."""
    choose(stocked, sample("law"), CosineSpec())
    encode = stocked.sentences.encode

    def of_one_passage(texts, **options):
        (fold,) = Split.of(len(texts)).folds
        return replace(encode(texts, **options), source=np.full(len(texts), fold[0]))

    monkeypatch.setattr(stocked.sentences, "encode", of_one_passage)
    with pytest.raises(InvalidSample, match="split its longest passages"):
        stocked.cook(sample=sample("law"), selector={"kind": "cosine"}, effort="quick", verify=True)


def test_an_encoder_that_is_not_installed_is_unavailable(stocked):
    with pytest.raises(Unavailable, match="'sbert'"):
        encoder_for(CosineSpec(), {stocked.base.digest: stocked.base})


# --- mixed pools ----------------------------------------------------------------------------------


def test_others_than_the_best_leave_before_the_cap_with_their_reasons(stocked):
    stocked.ready("acme/otherinit", seed=10, provenance=OTHER_INIT)
    stocked.ready("acme/unknowninit", seed=11, provenance={})
    stocked.ready("acme/structure", seed=12, config=OTHER_CONFIG)
    texts = passages("law", 40, seed=7)
    for name in ("otherinit", "unknowninit", "structure", "code", "zoo"):
        texts += passages(name, 20, seed=7)
    options = {"max_ingredients": 3, "min_share": 0.05}
    cooked = stocked.cook(sample={"texts": texts}, options=options, mixing={"method": "average"})
    assert set(domains_of(cooked)) == {"law", "code", "zoo"}
    assert [entry.weight for entry in cooked.evidence.selection.selected] == ["0.5", "0.25", "0.25"]
    assert cooked.reason == "3 adapters by average."
    assert cooked.evidence.selection.reason.startswith("6 domains pass, 3 can be mixed with acme/law@1")
    left_out = reasons(cooked)
    assert "initialisations differ" in left_out["otherinit"]
    assert "initialisation of acme/unknowninit@1 is unknown" in left_out["unknowninit"]
    assert "'structure' differ" in left_out["structure"]
    assert all("Cannot be mixed with acme/law@1" in left_out[name] for name in left_out)
    assert sum(cooked.evidence.selection.scores.values()) == pytest.approx(1)


def test_the_cap_comes_after_and_says_so(stocked):
    """And what cannot be mixed gives its text to nobody: no third domain may gain from that."""
    stocked.ready("acme/stranger", seed=10, provenance={})
    texts = passages("law", 40, seed=7) + passages("stranger", 39, seed=7)
    alone = stocked.cook(sample={"texts": texts}, mixing={"method": "average"})
    assert alone.model == "acme/law@1"
    assert set(reasons(alone)) == {"stranger", "code", "zoo"}
    texts += passages("code", 25, seed=7) + passages("zoo", 20, seed=7)
    cooked = stocked.cook(sample={"texts": texts}, options={"max_ingredients": 2}, mixing={"method": "average"})
    assert domains_of(cooked) == ["law", "code"]
    assert reasons(cooked)["zoo"] == "Passes, but 2 better ones are taken already."


def test_vouching_for_the_initialisations_lets_them_in(stocked):
    stocked.ready("acme/unknowninit", seed=11, provenance={})
    cooked = stocked.cook(sample=sample("law", "unknowninit"), mixing={"assume_same_init": True})
    assert set(domains_of(cooked)) == {"law", "unknowninit"}
    row = stocked.row(cooked.soup_id)
    assert row.card.metadata["assume_same_init"] is True
    assert row.provenance.init_source == "unknown"


def test_uniform_ranks_nothing_so_the_largest_group_that_mixes_decides(stocked):
    stocked.ready("acme/aaa-first", seed=10, provenance={})
    stocked.ready("acme/aab-second", seed=11, provenance={})
    cooked = stocked.cook(sample=sample("law"), selector=UNIFORM)
    assert set(domains_of(cooked)) == {"law", "code", "zoo"}
    assert "unknown" in reasons(cooked)["aaa-first"]
    stocked.retire(*(stocked.named(f"acme/{name}").id for name in ("law", "code", "zoo")))
    alone = stocked.cook(sample=sample("law"), selector=UNIFORM, mixing={"method": "average"})
    assert alone.model == "acme/aaa-first@1"  # where nothing mixes it is one adapter


def test_a_member_that_is_gone_keeps_that_reason(stocked):
    stranger = stocked.ready("acme/stranger", seed=10, provenance={})
    stocked.cook(sample=sample("law"))
    stocked.retire(stranger.id)
    stocked.ready("acme/new", seed=11, provenance={})
    assert "retired since the fit" in reasons(stocked.cook(sample=sample("law")))["stranger"]


# --- abstaining -----------------------------------------------------------------------------------


def test_a_sample_of_no_domain(stocked):
    request = {"sample": sample("law"), "selector": {"kind": "cosine", "threshold": 1.0}}
    cooked = stocked.cook(**request)
    assert (cooked.abstained, cooked.model, cooked.soup_id, cooked.digest) == (True, "base/tiny", None, None)
    assert cooked.evidence.selection.abstained
    assert cooked.reason == cooked.evidence.selection.reason
    assert stocked.scored == []
    assert stocked.cook(**request, options={"when_none": "top"}).model == "acme/law@1"
    tuned = stocked.cook(**request, effort="tune", verify=True)
    assert [ingredient.digest for ingredient in tuned.recipe.ingredients] == [stocked.named("acme/law").digest]


@pytest.mark.parametrize(("gain", "helps"), [(0.5, True), (0.0, False)])
def test_a_soup_is_verified(stocked, gain, helps):
    soup = stocked.cook(sample=sample("law", "code"), name="acme/probe").digest
    stocked.gains[soup] = lambda text: gain
    cooked = stocked.cook(sample=sample("law", "code"), effort="instant", verify=True, name="acme/verified")
    verification = cooked.evidence.verification
    assert verification.helps is helps
    assert cooked.abstained is not helps
    assert (verification.difference, verification.passages) == (pytest.approx(-gain), 60)
    assert stocked.scored == [soup]  # the base's NLL came with the embedding
    if not helps:
        assert "does not beat the base model by one standard error" in cooked.reason
        with pytest.raises(NotFound):
            stocked.named("acme/verified")


def test_a_recipe_by_hand_is_verified_where_a_sample_comes_with_it(stocked):
    recipe = by_hand("acme/law", "acme/code")
    assert stocked.cook(recipe=recipe, sample=sample("law"), verify=True).abstained
    assert stocked.scored[1] is None  # nothing was embedded, so the base is scored too
    assert not stocked.cook(recipe=recipe, verify=True).abstained


def test_verifying_needs_text_and_tokens_and_cooking_only_vectors(stocked):
    vectors = vectors_of(stocked.base, passages("law") + passages("code"))
    cooked = stocked.cook(sample=vectors)
    assert set(domains_of(cooked)) == {"law", "code"}
    assert not stocked.row(cooked.soup_id).sample.has_text
    with pytest.raises(InvalidSample, match="has only vectors"):
        stocked.cook(sample=vectors, verify=True)
    stocked.tiny.score = lambda texts, *_, **__: [PassageScore(nll=0, tokens=0, bytes=1) for _ in texts]
    with pytest.raises(InvalidSample, match="no token"):
        stocked.cook(recipe=by_hand("acme/law"), sample=sample("law"), verify=True)


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "error", "sentence"),
    [
        ({"recipe": {"ingredients": [{"ref": "acme/nobody"}]}}, NotFound, "acme/nobody"),
        ({"recipe": {"ingredients": [{"ref": "base/tiny"}]}}, NotFound, "is a base model"),
        ({"recipe": {"ingredients": [{"ref": "acme/law", "weight": 0}]}}, InvalidRecipe, "Every weight"),
        ({"recipe": {"ingredients": [{"ref": "acme/law", "weight": 1e308}] * 2}}, InvalidRecipe, "must be finite"),
        ({"sample": {"texts": ["one"]}}, InvalidSample, "at least 5"),
        ({"sample": sample("law"), "selector": UNIFORM, "options": {"single": True}}, InvalidParameter, "single"),
    ],
)
def test_what_is_refused_in_one_sentence(stocked, request_, error, sentence):
    with pytest.raises(error, match=sentence):
        stocked.cook(**request_)


def test_all_incompatibilities_at_once_before_a_tensor_is_read(stocked):
    stocked.push("acme/a", seed=20, config=OTHER_CONFIG, provenance={})
    stocked.push("acme/b", seed=21, provenance=OTHER_INIT)
    for digest in list(stocked.blobs.digests()):
        stocked.blobs.delete(digest)
    with pytest.raises(Incompatible) as caught:
        stocked.cook(recipe=by_hand("acme/law", "acme/a", "acme/b"))
    assert len(caught.value.problems) == 3
    assert "one structure" in caught.value.message


def test_an_adapter_of_a_base_that_was_replaced(stocked):
    foreign = stocked.push("acme/foreign", seed=20).row
    replaced = update(adapters).where(adapters.c.id == foreign.id)
    with stocked.database.engine.begin() as connection:
        connection.execute(replaced.values(base_fingerprint=sha256_digest(b"older")))
    with pytest.raises(Incompatible, match="other weights of base model 'tiny'"):
        stocked.cook(recipe=by_hand("acme/foreign"))


def test_foreign_ingredients_and_samples_are_unknown(stocked):
    theirs = stocked.ready("theirs/secret", seed=30)
    for ref in ("theirs/secret", "theirs/secret@1", theirs.digest):
        with pytest.raises(NotFound):
            stocked.cook(scope=("acme",), recipe=by_hand(ref))
    cooked = stocked.cook(scope=("acme",), sample=sample("law", "secret"), selector=UNIFORM)
    assert "secret" not in cooked.model_dump_json()
    with pytest.raises(NotFound):
        stocked.cook(scope=("acme",), sample={"blob": theirs.sample.digest})
    assert stocked.cook(scope=("acme", "theirs"), sample={"blob": theirs.sample.digest}).model


def test_cancelled_between_two_steps_nothing_is_stored(stocked):
    def stop(done: int, total: int, message: str) -> None:
        if message.startswith("verifying"):
            raise Cancelled("enough")

    stocked.progress = stop
    with pytest.raises(Cancelled):
        stocked.cook(sample=sample("law", "code"), effort="instant", verify=True, name="acme/never")
    with pytest.raises(NotFound):
        stocked.named("acme/never")


# --- an adapter that is purged in the middle of a cook ---------------------------------------------------

EVERYBODY = PoolSpec(base_fingerprint=SHAPE.fingerprint)
TWO_DOMAINS = {"texts": passages("law", 15, seed=1) + passages("tax", 15, seed=1)}
BOTH = {"ingredients": [{"ref": f"acme/{name}", "weight": 0.5} for name in ("law", "tax")]}


@pytest.fixture
def three(ready) -> ToyRegistry:
    registry = ready("law", "tax", "code")
    registry.tiny.anything_helps = 0.5
    return registry


@pytest.mark.parametrize("moment", ["once it is chosen", "before its weights are read", "before the soup is stored"])
def test_a_cook_goes_on_without_it_and_says_why(
    three: ToyRegistry, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    where = {
        "once it is chosen": (ingredients, "rows_of"),
        "before its weights are read": (three.blobs, "read"),
        "before the soup is stored": (three.blobs, "put_bytes"),
    }
    three.fit(EVERYBODY, UniformSpec(), None)
    purging(three, monkeypatch, *where[moment])
    cooked = three.cook(sample=TWO_DOMAINS, selector={"kind": "uniform"}, name="acme/soup")
    assert "purged since the fit" in reasons(cooked)["law"]
    assert len(cooked.recipe.ingredients) == 2
    with three.database.read() as catalogue:
        stored = [row.ref for row in catalogue.adapters.list(None, kind="soup", limit=9).rows]
        assert catalogue.soups.children(cooked.recipe.ingredients[0].digest, None)[0].ref == cooked.model
    assert stored == ["acme/soup@1"]  # and no soup of it, which its purge could not have named


@pytest.mark.parametrize("effort", ["quick", "tune"])
def test_a_search_and_a_training_begin_again(
    three: ToyRegistry, monkeypatch: pytest.MonkeyPatch, effort: Literal["quick", "tune"]
) -> None:
    three.helpful = {three.named(f"acme/{name}").weights_blob: 0.4 for name in ("law", "tax")}
    three.cook(sample=TWO_DOMAINS, effort="instant", verify=True)

    def weigh(entry: BaseEntry, request: WeighingRequest) -> Weighing:
        for candidate in request.candidates:  # as the process that weighs does
            three.blobs.read(candidate.blob)
        return three.weigh(entry, request)

    processes = SimpleNamespace(weigh=weigh, tune=three.tune)
    purging(three, monkeypatch, processes, "weigh" if effort == "quick" else "tune")
    three.computations = Computations(
        three.fit,
        lambda *arguments: processes.weigh(*arguments),
        lambda *arguments: processes.tune(*arguments),
        three.measure,
    )
    cooked = three.cook(sample=TWO_DOMAINS, effort=effort, verify=True, name="acme/soup")
    assert "purged since the fit" in reasons(cooked)["law"]
    assert "beginning again without what was purged meanwhile" in three.progress_messages


@pytest.mark.parametrize("where", ["read", "put_bytes"])
def test_where_it_was_named_the_answer_names_it(
    three: ToyRegistry, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    purging(three, monkeypatch, three.blobs, where)
    with pytest.raises(Retired, match=r"acme/law@1 was purged while the soup was made: nothing of it is left"):
        three.cook(recipe=BOTH, name="acme/soup")


def test_what_others_still_have_is_mixed(three: ToyRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    three.push("other/law", seed=0)
    purging(three, monkeypatch, three.blobs, "read")
    assert not three.cook(recipe=BOTH, name="acme/soup").abstained


# --- strategies -----------------------------------------------------------------------------------


ADAPTERS = ("code", "law", "zoo")
WEIGHING = ("quick", "thorough")
RECIPE = by_hand("acme/law", "acme/zoo")


EVERY_STRATEGY = pytest.mark.parametrize(
    ("name", "chosen"),
    [
        *(pytest.param(effort, {"effort": effort}, id=effort) for effort in STRATEGIES),
        pytest.param("instant", {"recipe": RECIPE}, id="recipe"),
        pytest.param("tune", {"recipe": RECIPE, "effort": "tune"}, id="tuned recipe"),
    ],
)
MANY_OR_FEW = pytest.mark.parametrize("passages", [30, 12])


@pytest.fixture
def pool(ready: Callable[..., ToyRegistry]) -> ToyRegistry:
    """Three adapters, of which weighing finds two helpful."""
    verbs = ready(*ADAPTERS, one_start=False)
    verbs.helpful = {verbs.named(f"acme/{domain}").weights_blob: 0.3 for domain in ("law", "zoo")}
    return verbs


def job_of(pool: ToyRegistry, passages: int, **chosen: Any) -> CookJob:
    """A cook's job with its ingredients selected."""
    return select_ingredients(
        read_request(
            pool.registry,
            pool.caller(),
            CookRequest.model_validate({"sample": sample("law", count=passages), "verify": True, **chosen}),
            namespace="acme",
            computations=pool.computations,
            progress=pool.progress,
        )
    )


def propose(job: CookJob, name: Effort) -> Proposal:
    assert strategy_of(job.request) is STRATEGIES[name]
    return STRATEGIES[name].propose(job)


@EVERY_STRATEGY
@MANY_OR_FEW
def test_it_proposes_mixtures_of_stored_adapters_to_judge_on_held_out_passages_if_it_searches(
    pool: ToyRegistry, name: Effort, chosen: dict[str, Any], passages: int
) -> None:
    job = job_of(pool, passages, **chosen)
    proposal = propose(job, name)
    digests = {pool.named(f"acme/{domain}").digest for domain in ADAPTERS}
    assert len({candidate.way for candidate in proposal.candidates}) == len(proposal.candidates) > 0
    for candidate in proposal.candidates:
        assert {ingredient.digest for ingredient in candidate.plan.ingredients} <= digests
    assert (proposal.search is not None) == (job.request.effort in HOLDS_OUT) == (name in (*WEIGHING, "tune"))
    if proposal.search is not None:
        assert proposal.search.held_out == len(job.sample.split.held_out)
        assert proposal.search.trials == ()


@EVERY_STRATEGY
@MANY_OR_FEW
def test_workers_that_fit_a_candidate_see_no_passage_that_it_is_scored_on(
    pool: ToyRegistry, name: Effort, chosen: dict[str, Any], passages: int
) -> None:
    job = job_of(pool, passages, **chosen)
    proposal = propose(job, name)
    split = job.sample.split
    assert [request.folds for request in pool.tunings] == ([split.folds] if name == "tune" else [])
    fits = [request.texts for request in pool.weighings]
    if name not in WEIGHING:
        assert fits == []
        return
    if split.fits_all:
        assert fits.pop(0) == job.texts  # the answer, which no passage is scored by
        assert all(len(candidate.fold_plans) == len(split.folds) for candidate in proposal.candidates)
    for fold, texts in zip(split.folds, fits, strict=True):
        assert set(texts) == set(job.texts) - set(job.sample.texts_of(fold))


def test_several_candidates_without_a_search_are_refused(pool: ToyRegistry) -> None:
    job = job_of(pool, 30)
    candidate = propose(job, "instant").candidates[0]
    with pytest.raises(Internal, match="2 candidates without a search"):
        judge(job, Proposal((candidate, candidate)), Evidence())


def test_losses_of_a_soup_and_the_base_over_different_tokens_are_not_compared(pool: ToyRegistry) -> None:
    job = job_of(pool, 30)
    vectors = replace(job.selection.vectors, base_tokens=job.selection.vectors.base_tokens + 1)
    with pytest.raises(Internal, match="scored on different tokens"):
        judge(replace(job, selection=replace(job.selection, vectors=vectors)), propose(job, "instant"), Evidence())


@pytest.mark.parametrize("name", STRATEGIES)
@MANY_OR_FEW
def test_where_the_selector_abstains_weighing_proposes_its_own_and_others_need_ingredients(
    pool: ToyRegistry, name: Effort, passages: int
) -> None:
    assert STRATEGIES[name].needs_ingredients is (name not in WEIGHING)
    if name in WEIGHING:
        job = replace(job_of(pool, passages, effort=name), ingredients=())
        assert "selected" not in {candidate.way for candidate in propose(job, name).candidates}


# --- the rule of acceptance -----------------------------------------------------------------------


def verified(differences: list[float], *, held_out: bool, ways: int = 1) -> Verification:
    """The verification on passages of ten tokens with these differences of mean NLL."""
    base = np.full(len(differences), 30.0)
    nll = base + 10 * np.array(differences)
    return verification_of(nll, base, np.full(len(base), 10), held_out=held_out, ways=ways)


def test_on_the_sample_one_standard_error_is_asked_for_and_on_held_out_passages_two():
    differences = [-0.1, -0.02, 0.02, -0.03, -0.04, 0.04, -0.02, -0.01, 0.03, -0.05]
    on_sample, on_held_out = verified(differences, held_out=False), verified(differences, held_out=True)
    assert 1 < -on_sample.difference / on_sample.standard_error < 2
    assert (on_sample.helps, on_held_out.helps) == (True, False)
    assert "On the 10 held-out passages, the soup does not beat the base model by two standard errors" in why_not(
        on_held_out
    )
    within = verified([-0.1, 0.08, -0.02], held_out=False)
    assert -within.standard_error < within.difference < 0
    assert not within.helps


def test_few_held_out_passages_have_to_show_more():
    """Three passages that are better by more than two errors have an interval with zero in it."""
    few = verified([-0.02, -0.1, -0.12], held_out=True)
    assert few.difference < -2 * few.standard_error
    assert few.interval[1] > 0
    assert not few.helps
    assert few.margin == pytest.approx(2.92, abs=0.005)  # Student's t of two degrees of freedom
    assert "the base model by 2.92 standard errors, as required on so few passages: mean NLL" in why_not(few)
    many = verified([-0.02, -0.1, -0.12] * 5, held_out=True)
    assert many.helps
    assert many.margin == 2


def test_the_best_of_several_has_to_show_more_and_the_sentence_says_so() -> None:
    differences = [-0.1, -0.02, 0.02, -0.03, -0.04, 0.03, -0.05, -0.03, 0.01, -0.06]
    alone, best = verified(differences, held_out=True), verified(differences, held_out=True, ways=4)
    assert (alone.helps, best.helps) == (True, False)
    assert best.margin == pytest.approx(2.685, abs=0.005)  # of 9 degrees of freedom, at a level of .0125
    assert "by 2.69 standard errors, as required of the best of 4 soups on so few passages:" in why_not(best)
    assert verified(differences, held_out=False, ways=1).margin is None


def test_a_single_passage_says_nothing() -> None:
    single = verified([-5.0], held_out=True)
    assert not single.helps
    assert why_not(single).startswith("Only one held-out passage can be scored")


def test_without_a_token_nothing_is_said():
    with pytest.raises(InvalidSample, match="no token"):
        verification_of(np.zeros(2), np.zeros(2), np.zeros(2), held_out=True)


NOMINAL, DRAWS = 0.05, 300
"""Of a 90 % interval one side; and so many samples are drawn."""


@settings(max_examples=4)
@given(st.integers(5, 15), st.integers(0, 2**16), st.sampled_from([0.0, 0.01]), st.sampled_from(["normal", "t"]))
def test_on_few_held_out_passages_what_does_not_help_is_claimed_to_no_more_than_nominally(
    passages: int, seed: int, worse: float, noise: str
) -> None:
    claim_rate = Case(passages, worse=worse, noise=noise).claimed(np.random.default_rng(seed), DRAWS)
    assert claim_rate <= NOMINAL + 3.5 * (NOMINAL * (1 - NOMINAL) / DRAWS) ** 0.5


@pytest.mark.parametrize("ways", [2, 4])
@pytest.mark.parametrize("correlation", [0.5, 0.9])
def test_the_best_of_several_that_do_not_help_is_claimed_to_no_more_than_nominally(
    ways: int, correlation: float
) -> None:
    claim_rate = Case(8, ways=ways, correlation=correlation).claimed(np.random.default_rng(1), DRAWS)
    assert claim_rate <= NOMINAL + 3.5 * (NOMINAL * (1 - NOMINAL) / DRAWS) ** 0.5
