"""Effort `tune`: what is trained on what, what is kept, how a tuned soup is marked, and when nothing is cooked."""

from __future__ import annotations

from datetime import UTC, datetime
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.adapters.weights import load_tensors, save_tensors
from registry.catalogue.removals import Removals
from registry.cook.strategies.tune import held_out_nll
from registry.errors import Busy, InvalidParameter
from registry.samples.sample import check_sample
from registry.select.select import SelectQuery, select_from_pool
from registry.spec import (
    HeadConfig,
    PoolRequest,
    PoolSpec,
    PosteriorSpec,
    Provenance,
    SampleSource,
    Tuned,
    UnionConfig,
)
from registry.stored.files import LONGEST_USE, remove_files
from tests.registry.pruned_adapters import sparse
from tests.registry.toy_registry import (
    CONFIG,
    LINEARS,
    LORA,
    SHAPE,
    WEIGHTS,
    ToyRegistry,
    by_hand,
    domains_of,
    inline,
    sample,
    weights,
)

ON_DATABASES = ("sqlite",)  # whatever they ask a catalogue, `test_cook` and its own tests ask one of each kind

HEADED = UnionConfig(members=(CONFIG, HeadConfig(task="classification", labels=("bad", "good"))))


@pytest.fixture
def pool(ready) -> ToyRegistry:
    """Four adapters that started from the same tensors."""
    return ready("code", "law", "news", "zoo")


def tune(pool: ToyRegistry, *domains: str, count: int = 30, **request):
    return pool.cook(sample=sample(*(domains or ("law", "zoo")), count=count), effort="tune", verify=True, **request)


def test_the_start_is_the_selectors_soup_and_the_tuned_one_is_stored_and_marked(pool):
    cooked = tune(pool)
    (request,) = pool.tunings
    row = pool.row(cooked.soup_id)
    assert (cooked.abstained, cooked.recipe.mixing.method) == (False, "average")
    assert cooked.reason == "2 adapters by average, then tuned on the sample."
    assert (row.tuned, row.card.metadata["tuned"]) == (True, True)
    assert "it has learnt from sample" in row.card.description
    assert row.provenance == Provenance(training={"tuning": cooked.recipe.tuning.model_dump(mode="json")})
    assert cooked.recipe.tuning.sample == row.sample.digest
    assert (row.size_bytes, cooked.report.residual) == (cooked.report.size_bytes, None)
    assert any("no mixture" in note for note in cooked.report.notes)
    start = pool.cook(sample=sample("law", "zoo"), effort="instant")
    start_row = pool.row(start.soup_id)
    assert cooked.recipe.ingredients == start.recipe.ingredients
    assert request.start.config == start_row.config
    assert cooked.digest != start.digest
    assert "tuning" not in start.recipe.model_dump(mode="json")
    assert (start_row.tuned, start_row.learnt_from) == (False, ())


def test_tensors_that_a_killed_process_passed_on_are_removed_by_a_collection(pool, monkeypatch):
    with monkeypatch.context() as patch:  # killed before it deletes them, or their removals
        patch.setattr(pool.blobs, "delete", lambda _: None)
        patch.setattr(Removals, "record_removed", lambda *_: None)
        tune(pool)
    (request,) = pool.tunings
    remove_files(pool.registry, datetime.now(UTC))
    assert pool.blobs.has(request.start.blob)  # as it may be in use
    remove_files(pool.registry, datetime.now(UTC) + LONGEST_USE)
    assert not pool.blobs.has(request.start.blob)


def test_a_busy_database_does_not_keep_a_soup_from_its_training(pool, monkeypatch):
    monkeypatch.setattr(Removals, "forget", Mock(side_effect=Busy("The database is locked.")))
    assert pool.row(tune(pool).soup_id).tuned
    assert not pool.blobs.has(pool.tunings[0].start.blob)


def test_a_mixture_of_tuned_soups_says_what_they_have_learnt_from(pool):
    """Its recipe determines bytes and says nothing of it; the soup's row and card do."""
    tuned = [pool.row(tune(pool, *domains).soup_id) for domains in (("law", "zoo"), ("code", "news"))]
    assert [row.learnt_from for row in tuned] == [(row.tuned_on,) for row in tuned]
    recipe = by_hand(*(row.ref for row in tuned), "acme/law")
    row = pool.row(pool.cook(recipe=recipe, mixing={"method": "concat"}).soup_id)
    samples = sorted(row.tuned_on for row in tuned)
    assert (row.tuned, row.learnt_from) == (False, tuple(samples))
    assert f"Through its ingredients it has learnt from samples {', '.join(samples)}." in row.card.description
    assert (row.card.metadata["samples_learnt_from"], "tuned" in row.card.metadata) == (2, False)
    with pool.database.read() as catalogue:
        assert next(adapter.id for adapter in catalogue.adapters.learnt_from(samples[0])) == row.id


def test_a_tuned_soup_that_is_pushed_again_says_what_it_has_learnt_from(pool):
    row = pool.row(tune(pool).soup_id)
    copy = pool.push("acme/copy", **same_bytes(pool, row.ref)).row
    assert (copy.digest, copy.tuned, copy.learnt_from) == (row.digest, False, (row.tuned_on,))
    mixture = pool.cook(recipe=by_hand(copy.ref, "acme/law"), mixing={"method": "concat"})
    assert pool.row(mixture.soup_id).learnt_from == (row.tuned_on,)


def same_bytes(pool: ToyRegistry, name: str) -> dict:
    """Fields of a push that has the configuration and weights of a stored adapter."""
    row = pool.named(name)
    return {"config": row.config, "files": {WEIGHTS: inline(pool.registry.blobs.read(row.weights_blob))}}


def test_of_few_passages_each_is_held_out_once_and_the_last_training_is_on_all(pool):
    search = tune(pool, "law", count=7).evidence.search
    (request,) = pool.tunings
    assert sorted(number for fold in request.folds for number in fold) == list(range(7))
    assert (search.decided_on, search.held_out, search.tuning.trainings) == (7, 7, 4)


@pytest.mark.parametrize(("count", "rate"), [(60, "0.005"), (58, "0.003"), (30, "0.003"), (29, "0.001"), (5, "0.001")])
def test_few_passages_are_trained_on_at_a_lower_rate(pool, count, rate):
    tuning = tune(pool, "law", count=count).recipe.tuning
    assert (tuning.passes, tuning.rate, tuning.batch) == (3, rate, 1)


def test_what_is_asked_for_is_what_is_done_and_is_in_the_recipe(pool):
    tuning = tune(pool, tuning={"passes": 2, "rate": 0.01, "batch": 8, "max_tokens": 128, "seed": 5}).recipe.tuning
    (request,) = pool.tunings
    for value in (tuning, request):
        assert (value.passes, value.rate, value.batch, value.max_tokens, value.seed) == (2, "0.01", 8, 128, 5)
    assert tuning.dtype == "float32"


@pytest.mark.parametrize("target_modules", ["all-linear", "pool"])
def test_a_soup_of_loras_is_trained_in_all_linear_modules_or_in_those_of_the_pool(ready, target_modules):
    pool = ready()
    for seed, domain in enumerate(("code", "law")):
        pool.ready(f"acme/{domain}", seed=seed, config=LORA, text=domain)
    cooked = tune(pool, "law", "code", tuning={"target_modules": target_modules})
    (request,) = pool.tunings
    row = pool.row(cooked.soup_id)
    modules = LINEARS if target_modules == "all-linear" else LORA.modules()
    assert set(row.config.modules()) == set(request.start.config.modules()) == set(modules)
    assert cooked.recipe.tuning.target_modules == (None if target_modules == "pool" else target_modules)
    assert cooked.report.parameters == sum(
        module.rank * sum(SHAPE.linears[path]) for path, module in row.config.modules().items()
    )
    assert tune(pool, "law", "code", tuning={"target_modules": target_modules}).cached


def test_the_same_request_again_trains_nothing(pool):
    first, second = tune(pool), tune(pool)
    assert len(pool.tunings) == 1
    assert (second.digest, second.cached, second.created) == (first.digest, True, False)
    assert second.evidence.verification == first.evidence.verification
    assert second.evidence.search == first.evidence.search


def test_the_same_request_trains_anew_once_texts_begin_without_a_bos(pool):
    assert tune(pool, "law").recipe.tuning.bos is None
    pool.tiny.entry = pool.tiny.entry.model_copy(update={"bos": False})
    cooked = tune(pool, "law")
    assert (cooked.recipe.tuning.bos, cooked.cached, len(pool.tunings)) == (False, False, 2)


def test_who_does_not_see_the_soup_of_an_equal_request_does_not_learn_that_there_is_one(pool):
    first = tune(pool, name="other/mine", scope=("acme", "other"))
    second = tune(pool, name="acme/yours", scope=("acme",))
    assert (len(pool.tunings), second.cached, second.digest) == (2, False, first.digest)
    assert tune(pool, name="acme/again", scope=("acme",)).cached


def test_a_retired_soup_is_trained_anew(pool):
    pool.retire(tune(pool, name="acme/tuned").soup_id)
    assert not tune(pool, name="acme/tuned").cached
    assert len(pool.tunings) == 2


@pytest.mark.parametrize("recipe", [None, by_hand("acme/law", "acme/zoo")])
def test_where_training_does_not_help_the_answer_is_the_start_and_nothing_is_kept(pool, recipe):
    pool.learns = -0.1
    cooked = tune(pool, keep="leases", recipe=recipe)
    assert cooked.recipe.tuning is None
    assert (pool.row(cooked.soup_id).tuned_on, pool.row(cooked.soup_id).kind) == (None, "soup")
    assert cooked.digest == pool.cook(sample=sample("law", "zoo"), effort="instant").digest
    assert cooked.evidence.search.tuning.kept == 0
    assert cooked.evidence.verification.held_out
    assert "Training did not better it" in cooked.reason
    assert "Nothing is kept as domain 'leases'" in cooked.reason


def test_what_does_not_beat_the_base_is_not_cooked_and_leaves_no_blob(pool):
    digests_before = set(pool.blobs.digests())
    pool.learns, pool.starts = -0.1, 3.2
    cooked = tune(pool)
    assert cooked.abstained
    assert "does not beat the base model by two standard errors" in cooked.reason
    after = set(pool.blobs.digests()) - digests_before
    assert not [digest for digest in after if b"passing" in pool.blobs.read(digest)[:2000]]


def test_a_recipe_by_hand_is_a_start_too_also_of_one_adapter(pool):
    cooked = tune(pool, recipe=by_hand("acme/law", "acme/news"))
    assert {ingredient.weight for ingredient in cooked.recipe.ingredients} == {"0.5"}
    assert cooked.recipe.tuning is not None
    alone = tune(pool, recipe=by_hand("acme/law"))
    assert alone.reason == "One adapter, then tuned on the sample."
    assert pool.row(alone.soup_id).kind == "soup"
    assert alone.digest != pool.named("acme/law").digest


def test_a_pruned_lora_is_given_to_the_training_as_it_is_to_be_refused_there(pool):
    config, tensors = sparse(LORA, 0, tensors=load_tensors(weights(0, LORA)))
    pool.push("acme/pruned", config=config, files={WEIGHTS: inline(save_tensors(tensors))})
    pool.learns = -0.1  # the tensors are not changed
    tune(pool, recipe=by_hand("acme/pruned"))
    assert pool.tunings[0].start.config == config


def test_a_start_that_is_best_says_which_passages_were_trained_on(pool):
    pool.learns = -0.1
    search = tune(pool, recipe=by_hand("acme/law")).evidence.search
    assert (search.decided_on, search.held_out, search.tuning.trainings) == (48, 12, 1)


def test_what_cannot_be_averaged_starts_as_narrow_as_one_adapter(ready):
    verbs = ready("law", "zoo", one_start=False)
    cooked = tune(verbs)
    assert cooked.recipe.mixing.method == "recompress"
    assert verbs.tunings[0].start.config.width == cooked.report.width_in[0] == cooked.report.width_out


def test_a_tuned_soup_kept_as_a_domain_goes_back_into_the_pool_and_stays_there(pool):
    cooked = tune(pool, "law", keep="leases", name="acme/leases")
    row = pool.row(cooked.soup_id)
    assert (row.kind, row.domain, row.sample_state, row.tuned) == ("adapter", "leases", "ready", True)
    second = tune(pool, "law", name="acme/leases")  # the same request without `keep`
    assert (second.soup_id, second.created, pool.row(row.id).kind) == (cooked.soup_id, False, "adapter")
    third = tune(pool, "law", keep="rents", name="acme/leases")
    assert (pool.row(third.soup_id).domain, third.created, len(pool.tunings)) == ("rents", True, 1)
    fitted = pool.fit(PoolSpec(base_fingerprint=SHAPE.fingerprint), PosteriorSpec(), pool.base.digest)
    assert {"leases", "rents"} & {member.domain for member in fitted.members} == {"rents"}


def test_a_tuned_soup_that_is_there_can_be_kept_later(pool):
    first = tune(pool, "law", name="acme/leases")
    second = tune(pool, "law", name="acme/leases", keep="leases")
    assert (second.digest, second.created, len(pool.tunings)) == (first.digest, True, 1)
    assert (pool.row(second.soup_id).kind, pool.row(second.soup_id).version) == ("adapter", 2)


def test_what_has_no_likelihood_is_refused_without_a_word_of_verify(pool):
    pool.ready("acme/headed", seed=9, config=HEADED)
    with pytest.raises(InvalidParameter, match="compares losses on text, and acme/headed") as refused:
        tune(pool, recipe=by_hand("acme/headed"))
    assert (refused.value.param, "verify" in refused.value.message) == ("effort", False)


# --- what has learnt the sample ---------------------------------------------------------------------


@pytest.fixture
def learnt(pool) -> ToyRegistry:
    """A pool with acme/leases, which has learnt the sample of `tune(pool, "law")`, and is fitted with it."""
    tune(pool, "law", name="acme/leases", keep="leases")
    pool.fit(PoolSpec(base_fingerprint=SHAPE.fingerprint), PosteriorSpec(), pool.base.digest)
    return pool


@pytest.mark.parametrize("effort", ["instant", "quick", "thorough", "tune"])
def test_what_has_learnt_the_sample_takes_no_part_in_choosing_for_it(learnt, effort):
    learnt.helpful = {row.weights_blob: 0.4 for row in (learnt.named("acme/leases"), learnt.named("acme/law"))}
    cooked = learnt.cook(sample=sample("law"), effort=effort, verify=True)
    left_out = {entry.ref: entry.reason for entry in cooked.evidence.selection.left_out}
    assert left_out["acme/leases@1"] == "has learnt from this sample"
    blob = learnt.named("acme/leases").weights_blob
    assert all(
        candidate.blob != blob for weighed in learnt.weighings for candidate in (*weighed.candidates, *weighed.beside)
    )
    assert all(tuning.start.blob != blob for tuning in learnt.tunings)
    assert "leases" not in domains_of(cooked)


def test_a_mixture_with_what_has_learnt_the_sample_takes_no_part_either(learnt):
    mixed = learnt.cook(sample=sample("law", count=29), effort="instant", name="acme/mixed")
    assert learnt.named("acme/leases").digest in [ingredient.digest for ingredient in mixed.recipe.ingredients]
    cooked = learnt.cook(sample=sample("law"), effort="instant", pool={"include_soups": True})
    left_out = {entry.ref: entry.reason for entry in cooked.evidence.selection.left_out}
    assert left_out["acme/mixed@1"] == left_out["acme/leases@1"] == "has learnt from this sample"


def test_the_same_request_again_is_answered_with_its_result_and_does_not_start_from_it(learnt):
    second = tune(learnt, "law", name="acme/leases", keep="leases")
    assert (second.digest, second.cached, len(learnt.tunings)) == (learnt.named("acme/leases").digest, True, 1)


def test_a_search_for_what_is_like_the_sample_finds_it(learnt):
    source = SampleSource.model_validate(sample("law"))
    checked = check_sample(learnt.registry, learnt.caller(), source, encoders=learnt.encoders, bos=None)
    query = SelectQuery(PoolRequest(), PosteriorSpec(), include_learnt=True)
    chosen = select_from_pool(learnt.registry, learnt.caller(), checked, query, fit=learnt.fit)
    assert "leases" in [candidate.member.domain for candidate in chosen.ranking.ranked]


@pytest.mark.parametrize("effort", ["quick", "thorough"])
def test_what_has_learnt_the_sample_is_not_weighed_on_it_by_name(learnt, effort):
    learnt.push("acme/copy", **same_bytes(learnt, "acme/leases"))
    for ref in ("acme/leases", "acme/copy"):
        with pytest.raises(InvalidParameter, match=rf"^{ref}@1 has learnt from this sample") as refused:
            learnt.cook(sample=sample("law"), effort=effort, verify=True, also=[ref])
        assert refused.value.param == "also"
    learnt.cook(sample=sample("law", count=29), effort=effort, verify=True, also=["acme/leases"])


def test_what_has_learnt_the_sample_is_not_tuned_on_it_again(learnt):
    trainings_before = len(learnt.tunings)
    with pytest.raises(InvalidParameter, match=r"^acme/leases@1 has learnt from this sample") as refused:
        tune(learnt, "law", recipe=by_hand("acme/law", "acme/leases"))
    assert (refused.value.param, len(learnt.tunings)) == ("recipe", trainings_before)
    assert tune(learnt, "law", count=29, recipe=by_hand("acme/leases")).recipe.tuning is not None


def test_a_recipe_of_what_has_learnt_the_sample_is_verified_on_it_and_not_as_held_out(learnt):
    learnt.tiny.anything_helps = 0.1
    cooked = learnt.cook(sample=sample("law"), verify=True, recipe=by_hand("acme/leases"))
    assert not cooked.evidence.verification.held_out


@given(
    st.integers(2, 4).flatmap(
        lambda states: st.lists(st.lists(st.floats(1, 9), min_size=states, max_size=states), min_size=2, max_size=6)
    )
)
def test_no_passage_has_a_part_in_choosing_the_state_that_it_is_scored_under(by_passage):
    """Whatever a passage's own losses are, it is scored under the state that the others chose."""
    count = len(by_passage)
    nll = np.array(by_passage).T
    scored_nll = held_out_nll(
        Tuned(
            held_out=tuple(range(count)),
            tokens=(1,) * count,
            base_nll=(9.0,) * count,
            nll=tuple(tuple(row) for row in nll.tolist()),
            best_pass=0,
            blob=None,
            trained_tokens=0,
        )
    )
    for number in range(count):
        remaining_nll = np.delete(nll, number, axis=1).sum(axis=1)
        assert scored_nll[number] in nll[np.isclose(remaining_nll, remaining_nll.min(), rtol=1e-12), number]
