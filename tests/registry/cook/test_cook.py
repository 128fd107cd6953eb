"""Select and cook: what is chosen, what is left out and why, what is stored, and when the answer is the base model."""

from __future__ import annotations

import pytest
from sqlalchemy import update

from registry.adapters.weights import adapter_digest, load_tensors
from registry.catalogue.tables import adapters
from registry.errors import (
    Cancelled,
    DamagedBlob,
    Incompatible,
    InvalidParameter,
    InvalidRecipe,
    InvalidSample,
    NotFound,
    Retired,
    Unavailable,
)
from registry.names import parse_ref, sha256_digest
from registry.samples.sample import check_sample
from registry.select.select import SelectQuery, encoder_for, select
from registry.spec import (
    CosineSpec,
    GmmSpec,
    PassageScore,
    PoolRequest,
    PoolSpec,
    SampleSource,
    SelectOptions,
)
from tests.registry.toy_registry import (
    CONFIG,
    INIT,
    OTHER_CONFIG,
    OTHER_INIT,
    SHAPE,
    ToyRegistry,
    by_hand,
    passages,
    sample,
    vectors_of,
    weights,
)  # fmt: skip

UNIFORM = {"kind": "uniform"}


@pytest.fixture
def stocked(verbs) -> ToyRegistry:
    """Three domains that can be mixed."""
    for seed, name in enumerate(("law", "code", "zoo")):
        verbs.ready(f"acme/{name}", seed=seed)
    return verbs


def domains_of(cooked) -> list[str]:
    return [one.domain for one in cooked.evidence.selection.selected]


def reasons(cooked) -> dict[str, str]:
    return {one.domain: one.reason for one in cooked.evidence.selection.left_out}


class TestSelect:
    def chosen(self, verbs: ToyRegistry, texts: dict, spec=None, **options):
        source = SampleSource.model_validate(texts)
        return select(
            verbs.registry,
            verbs.caller(),
            check_sample(verbs.registry, verbs.caller(), source, encoders=verbs.known, bos=None),
            SelectQuery(PoolRequest(), spec or GmmSpec(), SelectOptions(**options)),
            fit=verbs.fit,
        )

    def test_a_pool_is_fitted_once_and_the_old_selector_names_what_it_does_not_know(self, stocked):
        first = self.chosen(stocked, sample("law"))
        stocked.ready("acme/new", seed=5)
        again = self.chosen(stocked, sample("zoo"))
        assert (stocked.fits, again.not_yet_included) == (1, ("acme/new@1",))
        assert first.selector.id == again.selector.id
        assert [domain.domain for domain in first.selection.selected] == ["law"]
        assert [domain.domain for domain in again.selection.selected] == ["zoo"]

    def test_it_says_who_was_superseded_and_by_whom(self, verbs):
        verbs.ready("acme/old", domain="law")
        verbs.ready("acme/new", domain="law", seed=1)
        verbs.ready("acme/twin", domain="zoo", seed=2)
        verbs.ready("acme/zoo", domain="animals", seed=2)
        verbs.ready("evil/copy", domain="anything", seed=1)
        said = {one.ref: one.reason for one in self.chosen(verbs, sample("law")).selection.left_out}
        assert said["acme/old@1"] == "acme/new@1 is newer and has the same domain label."
        assert said["acme/twin@1"] == "acme/zoo@1 is newer and has the same bytes."
        assert said["evil/copy@1"] == "acme/new@1 has the same bytes and was there before."

    def test_a_retired_member_is_dropped_before_thresholds(self, stocked):
        """Two in three passages are of a domain that was retired: no threshold counts them for it any more."""
        self.chosen(stocked, sample("law"))
        ids = {name: stocked.named(f"acme/{name}").id for name in ("law", "code", "zoo")}
        with stocked.database.write() as catalogue:
            catalogue.adapters.retire(ids["law"])
        mixed = {"texts": passages("law", 60, seed=7) + passages("code", 30, seed=7)}
        chosen = self.chosen(stocked, mixed, min_share=0.5)
        assert stocked.fits == 1
        assert sum(chosen.selection.scores.values()) == pytest.approx(1)
        assert set(chosen.selection.scores) == {"code", "zoo"}
        assert len(chosen.selection.selected) == 1
        left = {domain.ref: domain.reason for domain in chosen.selection.left_out}
        assert "retired since the fit" in left["acme/law@1"]
        with stocked.database.write() as catalogue:
            for name in ("code", "zoo"):
                catalogue.adapters.retire(ids[name])
        none = self.chosen(stocked, sample("law")).selection
        assert (none.abstained, len(none.left_out)) == (True, 3)

    def test_vectors_must_be_of_the_selectors_encoder(self, stocked):
        assert self.chosen(stocked, vectors_of(stocked.base, passages("law"))).selection.selected[0].domain == "law"
        with pytest.raises(InvalidSample, match="needs vectors of encoder 'sbert'"):
            self.chosen(stocked, vectors_of(stocked.base, passages("law")), CosineSpec())

    def test_an_encoder_that_is_not_installed_is_unavailable(self, stocked):
        with pytest.raises(Unavailable, match="'sbert'"):
            encoder_for(CosineSpec(), {stocked.base.digest: stocked.base})


class TestSoups:
    def test_the_weights_of_a_soup_are_those_of_the_selection(self, stocked):
        cooked = stocked.cook(sample=sample("law", "code"), selector={"kind": "posterior", "temperature": 0.001})
        weights = {one.digest: one.weight for one in cooked.evidence.selection.selected}
        assert len(set(weights.values())) > 1
        with stocked.database.read() as catalogue:
            recipe = catalogue.soups.recipe(cooked.recipe_digest).recipe
        assert {one.digest: one.weight for one in recipe.ingredients} == weights

    def test_what_is_stored_beside_the_soup(self, stocked):
        cooked = stocked.cook(sample=sample("law", "code"), name="acme/broth")
        assert (cooked.abstained, cooked.created, cooked.cached, cooked.model) == (False, True, False, "acme/broth@1")
        assert cooked.reason == "2 adapters by average: structure, scale and initialisation agree."
        row = stocked.row(cooked.soup_id)
        assert (row.kind, row.sample_state, row.recipe_digest) == ("soup", "ready", cooked.recipe_digest)
        assert not row.sample.has_text
        assert row.provenance == INIT
        assert "acme/law@1 at 0.5" in row.card.description
        with stocked.database.read() as catalogue:
            parents = catalogue.soups.parents(row.recipe_digest, None)
            assert {(parent.ref, weight) for _, weight, parent in parents} == {
                ("acme/law@1", "0.5"), ("acme/code@1", "0.5"),
            }  # fmt: skip
            assert [one.ref for one in catalogue.soups.children(stocked.named("acme/law").digest, None)] == [row.ref]
            (evidence,) = catalogue.soups.evidence(row.id)
            assert [one["domain"] for one in evidence["selection"]["selected"]] == domains_of(cooked)
            assert evidence["selector"] == cooked.evidence.selector
            assert catalogue.audit.list(None, limit=1).rows[0].action == "soup.cook"
            assert [one.encoder_name for one in catalogue.samples.embeddings(row.sample.digest)] == ["base"]
        assert not any(b"passage 7" in stocked.blobs.read(digest) for digest in stocked.blobs.digests())

    def test_the_bytes_are_the_average(self, stocked):
        cooked = stocked.cook(recipe={"ingredients": [{"ref": "acme/law"}, {"ref": "acme/code", "weight": 3}]})
        tensors = load_tensors(stocked.blobs.read(stocked.row(cooked.soup_id).weights_blob))
        law, code = load_tensors(weights(0)), load_tensors(weights(1))
        for name, found in tensors.items():
            assert found.allclose(0.25 * law[name] + 0.75 * code[name], atol=1e-6)
        assert cooked.digest == adapter_digest(SHAPE.fingerprint, CONFIG, tensors)

    def test_cooked_again_it_is_the_same_row_with_more_evidence(self, stocked):
        first = stocked.cook(sample=sample("law", "code"))
        again = stocked.cook(sample=sample("law", "code"))
        assert (again.cached, again.created, again.soup_id, again.digest) == (True, False, first.soup_id, first.digest)
        assert first.model.startswith("acme/soup-" + first.digest[7:19])
        with stocked.database.read() as catalogue:
            assert len(catalogue.soups.evidence(first.soup_id)) == 2
        other = stocked.cook(sample=sample("law", "code"), name="acme/named")  # another row of the same bytes
        assert (other.cached, other.created, other.digest) == (True, True, first.digest)
        assert other.soup_id != first.soup_id

    def test_an_owner_is_given_to_the_name_new_or_known(self, stocked):
        recipe = by_hand("acme/law", "acme/code")
        for number, (said, owner) in enumerate([(None, None), ("us", "us"), (None, "us"), ("them", "them")]):
            cooked = stocked.cook(recipe=recipe, name="acme/owned", owner=said)
            assert (cooked.created, stocked.row(cooked.soup_id).owner) == (number == 0, owner)
            with stocked.database.read() as catalogue:
                detail = catalogue.audit.list(None, limit=1).rows[0].detail
            assert detail.get("owner") == said
        other = {"ingredients": [{"ref": "acme/law", "weight": 0.1}, {"ref": "acme/code", "weight": 0.9}]}
        newer = stocked.cook(recipe=other, name="acme/owned", owner="all")
        assert newer.created
        assert {stocked.row(id).owner for id in (cooked.soup_id, newer.soup_id)} == {"all"}

    def test_damaged_bytes_are_made_again(self, stocked):
        recipe = {"ingredients": [{"ref": "acme/law", "weight": 0.3}, {"ref": "acme/code", "weight": 0.7}]}
        first = stocked.cook(recipe=recipe)
        blob = stocked.row(first.soup_id).weights_blob
        data = stocked.blobs.read(blob)
        stocked.blobs.damage(blob, data[:-1] + bytes([data[-1] ^ 1]))
        again = stocked.cook(recipe=recipe)
        assert (again.cached, again.soup_id, stocked.blobs.read(blob)) == (False, first.soup_id, data)

    def test_stored_weights_that_are_not_what_they_were_are_never_mixed(self, stocked):
        law = stocked.named("acme/law")
        stocked.blobs.damage(law.weights_blob, weights(9))  # a disk that lies
        with pytest.raises(DamagedBlob, match=f"{law.weights_blob} .* not those of its digest"):
            stocked.cook(recipe=by_hand("acme/law", "acme/code"))

    def test_a_scaled_ingredient_is_a_soup_and_a_bare_one_is_itself(self, stocked):
        one = {"ingredients": [{"ref": "acme/law", "weight": 7}]}
        bare = stocked.cook(recipe=one, name="acme/unused", owner="team-law")
        assert (bare.model, bare.created, bare.digest) == ("acme/law@1", False, stocked.named("acme/law").digest)
        assert "The name acme/unused was not needed. Its owner stays who it was." in bare.reason
        assert stocked.named("acme/law").owner is None
        scaled = stocked.cook(recipe=one, mixing={"scale": 2})
        assert (stocked.row(scaled.soup_id).kind, scaled.recipe.mixing.scale) == ("soup", "2")
        law = load_tensors(weights(0))
        tensors = load_tensors(stocked.blobs.read(stocked.row(scaled.soup_id).weights_blob))
        for name, found in tensors.items():
            assert found.equal(law[name] * 2 if ".up." in name else law[name])

    def test_an_adapter_named_twice_counts_twice_and_weight_0_not_at_all(self, stocked):
        refs = ["acme/law", "acme/law@1", stocked.named("acme/law").digest, "acme/code"]
        cooked = stocked.cook(
            recipe={"ingredients": [*({"ref": ref} for ref in refs), {"ref": "acme/zoo", "weight": 0}]}
        )
        assert sorted(one.weight for one in cooked.recipe.ingredients) == ["0.25", "0.75"]

    def test_soups_are_chosen_from_on_request_and_their_pools_refitted(self, stocked):
        pool = {"include_soups": True}
        stocked.cook(sample=sample("law"), pool=pool, selector={"kind": "gmm"})
        stocked.cook(sample=sample("law", "code"), name="acme/both")
        with stocked.database.read() as catalogue:
            (job,) = catalogue.jobs.list(None, kind="fit", limit=9).rows
        assert job.arguments["pool"]["include_soups"]
        stocked.fit(PoolSpec.model_validate(job.arguments["pool"]), GmmSpec(), stocked.base.digest)
        cooked = stocked.cook(sample=sample("law"), pool=pool, options={"single": True})
        assert "both" in {*reasons(cooked), *domains_of(cooked)}

    def test_ingredients_of_namespaces_the_soups_readers_may_not_see_are_not_named(self, stocked):
        stocked.ready("other/secret-project", seed=9)
        cooked = stocked.cook(recipe={"ingredients": [{"ref": "acme/law"}, {"ref": "other/secret-project"}]})
        description = stocked.row(cooked.soup_id).card.description
        assert "secret" not in description
        assert stocked.named("other/secret-project").digest[:19] in description


class TestMixedPools:
    def test_others_than_the_best_leave_before_the_cap_with_their_reasons(self, stocked):
        stocked.ready("acme/otherinit", seed=10, provenance=OTHER_INIT)
        stocked.ready("acme/unknowninit", seed=11, provenance={})
        stocked.ready("acme/structure", seed=12, config=OTHER_CONFIG)
        texts = passages("law", 40, seed=7)
        for name in ("otherinit", "unknowninit", "structure", "code", "zoo"):
            texts += passages(name, 20, seed=7)
        options = {"max_ingredients": 3, "min_share": 0.05}
        cooked = stocked.cook(sample={"texts": texts}, options=options, mixing={"method": "average"})
        assert set(domains_of(cooked)) == {"law", "code", "zoo"}
        assert [one.weight for one in cooked.evidence.selection.selected] == ["0.5", "0.25", "0.25"]
        assert cooked.reason == "3 adapters by average."
        assert cooked.evidence.selection.reason.startswith("6 domains pass, 3 can be mixed with acme/law@1")
        left = reasons(cooked)
        assert "initialisations differ" in left["otherinit"]
        assert "initialisation of acme/unknowninit@1 is unknown" in left["unknowninit"]
        assert "'structure' differ" in left["structure"]
        assert all("Cannot be mixed with acme/law@1" in left[name] for name in left)
        assert sum(cooked.evidence.selection.scores.values()) == pytest.approx(1)

    def test_the_cap_comes_after_and_says_so(self, stocked):
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

    def test_vouching_for_the_initialisations_lets_them_in(self, stocked):
        stocked.ready("acme/unknowninit", seed=11, provenance={})
        cooked = stocked.cook(sample=sample("law", "unknowninit"), mixing={"assume_same_init": True})
        assert set(domains_of(cooked)) == {"law", "unknowninit"}
        row = stocked.row(cooked.soup_id)
        assert row.card.metadata["assume_same_init"] is True
        assert row.provenance.init_source == "unknown"

    def test_uniform_ranks_nothing_so_the_largest_group_that_mixes_decides(self, stocked):
        stocked.ready("acme/aaa-first", seed=10, provenance={})
        stocked.ready("acme/aab-second", seed=11, provenance={})
        cooked = stocked.cook(sample=sample("law"), selector=UNIFORM)
        assert set(domains_of(cooked)) == {"law", "code", "zoo"}
        assert "unknown" in reasons(cooked)["aaa-first"]
        with stocked.database.write() as catalogue:
            for name in ("law", "code", "zoo"):
                catalogue.adapters.retire(catalogue.adapters.resolve(None, parse_ref(f"acme/{name}")).id)
        alone = stocked.cook(sample=sample("law"), selector=UNIFORM, mixing={"method": "average"})
        assert alone.model == "acme/aaa-first@1"  # where nothing mixes it is one adapter

    def test_a_member_that_is_gone_keeps_that_reason(self, stocked):
        stranger = stocked.ready("acme/stranger", seed=10, provenance={})
        stocked.cook(sample=sample("law"))
        with stocked.database.write() as catalogue:
            catalogue.adapters.retire(stranger.id)
        stocked.ready("acme/new", seed=11, provenance={})
        assert "retired since the fit" in reasons(stocked.cook(sample=sample("law")))["stranger"]


class TestAbstaining:
    def test_a_sample_of_no_domain(self, stocked):
        request = {"sample": sample("law"), "selector": {"kind": "cosine", "threshold": 1.0}}
        cooked = stocked.cook(**request)
        assert (cooked.abstained, cooked.model, cooked.soup_id, cooked.digest) == (True, "base/tiny", None, None)
        assert cooked.evidence.selection.abstained
        assert cooked.reason == cooked.evidence.selection.reason
        assert stocked.scored == []
        assert stocked.cook(**request, options={"when_none": "top"}).model == "acme/law@1"

    @pytest.mark.parametrize(("gain", "helps"), [(0.5, True), (0.0, False), (-0.5, False)])
    def test_verify(self, stocked, gain, helps):
        soup = stocked.cook(sample=sample("law", "code"), name="acme/probe").digest
        stocked.gains[soup] = lambda text: gain
        cooked = stocked.cook(sample=sample("law", "code"), effort="instant", verify=True, name="acme/verified")
        seen = cooked.evidence.verification
        assert seen.helps is helps
        assert cooked.abstained is not helps
        assert seen.difference == pytest.approx(-gain)
        assert seen.passages == 60
        assert stocked.scored == [soup]  # the base's NLL came with the embedding
        if not helps:
            assert "does not beat the base model by one standard error" in cooked.reason
            with pytest.raises(NotFound):
                stocked.named("acme/verified")

    def test_a_gain_within_one_standard_error_does_not_help(self, stocked):
        soup = stocked.cook(sample=sample("law", "code")).digest
        noisy = {text: (2.0 if number % 2 else -1.9) for number, text in enumerate(sample("law", "code")["texts"])}
        stocked.gains[soup] = noisy.__getitem__
        seen = stocked.cook(sample=sample("law", "code"), verify=True).evidence.verification
        assert -seen.standard_error < seen.difference < 0
        assert not seen.helps

    def test_a_recipe_by_hand_is_verified_where_a_sample_comes_with_it(self, stocked):
        recipe = by_hand("acme/law", "acme/code")
        cooked = stocked.cook(recipe=recipe, sample=sample("law"), verify=True)
        assert cooked.abstained
        assert stocked.scored[1] is None  # nothing was embedded, so the base is scored too
        assert not stocked.cook(recipe=recipe, verify=True).abstained

    def test_verifying_needs_text_and_tokens_and_cooking_only_vectors(self, stocked):
        vectors = vectors_of(stocked.base, passages("law") + passages("code"))
        cooked = stocked.cook(sample=vectors)
        assert set(domains_of(cooked)) == {"law", "code"}
        assert not stocked.row(cooked.soup_id).sample.has_text
        with pytest.raises(InvalidSample, match="only vectors came"):
            stocked.cook(sample=vectors, verify=True)
        stocked.tiny.score = lambda texts, *_, **__: [PassageScore(nll=0, tokens=0, bytes=1) for _ in texts]
        with pytest.raises(InvalidSample, match="no token"):
            stocked.cook(recipe=by_hand("acme/law"), sample=sample("law"), verify=True)


class TestRefusals:
    def test_a_pool_with_no_adapters(self, verbs):
        with pytest.raises(InvalidParameter, match="push adapters with a sample first"):
            verbs.cook(sample=sample("law"))

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
    def test_one_sentence(self, stocked, request_, error, sentence):
        with pytest.raises(error, match=sentence):
            stocked.cook(**request_)

    def test_retired_ingredients(self, stocked):
        row = stocked.named("acme/law")
        with stocked.database.write() as catalogue:
            catalogue.adapters.retire(row.id)
        with pytest.raises(Retired):
            stocked.cook(recipe=by_hand("acme/law"))

    def test_all_incompatibilities_at_once_before_a_tensor_is_read(self, stocked):
        stocked.push("acme/a", seed=20, config=OTHER_CONFIG, provenance={})
        stocked.push("acme/b", seed=21, provenance=OTHER_INIT)
        for digest in list(stocked.blobs.digests()):
            stocked.blobs.delete(digest)
        refs = ["acme/law", "acme/a", "acme/b"]
        with pytest.raises(Incompatible) as caught:
            stocked.cook(recipe=by_hand(*refs))
        assert len(caught.value.problems) == 3
        assert "one structure" in caught.value.message

    def test_two_bases_and_a_base_that_was_replaced(self, stocked):
        foreign = stocked.push("acme/foreign", seed=20).row
        replaced = update(adapters).where(adapters.c.id == foreign.id)
        with stocked.database.engine.begin() as connection:
            connection.execute(replaced.values(base_fingerprint=sha256_digest(b"older")))
        with pytest.raises(Incompatible, match="base models differ"):
            stocked.cook(recipe=by_hand("acme/law", "acme/foreign"))
        with pytest.raises(Incompatible, match="another state of base model 'tiny'"):
            stocked.cook(recipe=by_hand("acme/foreign"))

    def test_foreign_ingredients_and_samples_are_unknown(self, stocked):
        theirs = stocked.ready("theirs/secret", seed=30)
        for ref in ("theirs/secret", "theirs/secret@1", theirs.digest):
            with pytest.raises(NotFound):
                stocked.cook(scope=("acme",), recipe=by_hand(ref))
        cooked = stocked.cook(scope=("acme",), sample=sample("law", "secret"), selector=UNIFORM)
        assert "secret" not in cooked.model_dump_json()
        with pytest.raises(NotFound):
            stocked.cook(scope=("acme",), sample={"blob": theirs.sample.digest})
        assert stocked.cook(scope=("acme", "theirs"), sample={"blob": theirs.sample.digest}).model

    def test_cancelled_between_two_steps_nothing_is_stored(self, stocked):
        def stop(done: int, total: int, message: str) -> None:
            if message.startswith("verifying"):
                raise Cancelled("enough")

        stocked.progress = stop
        with pytest.raises(Cancelled):
            stocked.cook(sample=sample("law", "code"), effort="instant", verify=True, name="acme/never")
        with pytest.raises(NotFound):
            stocked.named("acme/never")
