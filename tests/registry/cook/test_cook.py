"""Cooking: what is stored beside a soup, what is cooked again, and what of it is named."""

from __future__ import annotations

import pytest

from registry.adapters.weights import load_tensors
from registry.errors import (
    DamagedBlob,
    QuotaExceeded,
)
from registry.spec import (
    GmmSpec,
    PoolSpec,
    UseLimits,
)
from tests.registry.toy_registry import (
    INIT,
    by_hand,
    domains_of,
    reasons,
    sample,
    weights,
)


def test_the_weights_of_a_soup_are_those_of_the_selection(stocked):
    cooked = stocked.cook(sample=sample("law", "code"), selector={"kind": "posterior", "temperature": 0.001})
    weights = {entry.digest: entry.weight for entry in cooked.evidence.selection.selected}
    assert len(set(weights.values())) > 1
    with stocked.database.read() as catalogue:
        recipe = catalogue.soups.recipe(cooked.recipe_digest).recipe
    assert {ingredient.digest: ingredient.weight for ingredient in recipe.ingredients} == weights


def test_what_is_stored_beside_the_soup(stocked):
    cooked = stocked.cook(sample=sample("law", "code"), name="acme/broth")
    assert (cooked.abstained, cooked.created, cooked.cached, cooked.model) == (False, True, False, "acme/broth@1")
    assert cooked.reason == "2 adapters by average: structure, scale and initialisation agree."
    row = stocked.row(cooked.soup_id)
    assert (row.kind, row.sample_state, row.recipe_digest) == ("soup", "ready", cooked.recipe_digest)
    assert not row.sample.has_text
    assert row.provenance == INIT
    assert "acme/law@1 at 0.5" in row.card.description
    with stocked.database.read() as catalogue:
        assert {(parent.ref, weight) for _, weight, parent in catalogue.soups.parents(row.recipe_digest, None)} == {
            ("acme/law@1", "0.5"),
            ("acme/code@1", "0.5"),
        }
        assert [child.ref for child in catalogue.soups.children(stocked.named("acme/law").digest, None)] == [row.ref]
        (evidence,) = catalogue.soups.evidence(row.id)
        assert [entry["domain"] for entry in evidence["selection"]["selected"]] == domains_of(cooked)
        assert evidence["selector"] == cooked.evidence.selector
        assert catalogue.audit.list(None, limit=1).rows[0].action == "soup.cook"
        assert [embedding.encoder_name for embedding in catalogue.samples.embeddings(row.sample.digest)] == ["base"]
    assert not any(b"passage 7" in stocked.blobs.read(digest) for digest in stocked.blobs.digests())


def test_cooked_again_it_is_the_same_row_with_more_evidence(stocked):
    first = stocked.cook(sample=sample("law", "code"))
    second = stocked.cook(sample=sample("law", "code"))
    assert (second.cached, second.created, second.soup_id, second.digest) == (True, False, first.soup_id, first.digest)
    assert first.model.startswith("acme/soup-" + first.digest[7:19])
    with stocked.database.read() as catalogue:
        assert len(catalogue.soups.evidence(first.soup_id)) == 2
    renamed = stocked.cook(sample=sample("law", "code"), name="acme/named")  # another row of the same bytes
    assert (renamed.cached, renamed.created, renamed.digest) == (True, True, first.digest)
    assert renamed.soup_id != first.soup_id


def test_a_soup_that_the_caller_does_not_see_is_not_called_cached(stocked):
    """Else Bob learns that Alice has cooked the same text, since its weights tell a sample from any other."""

    def cook(namespace):
        scope, pool = ("acme", namespace), {"namespaces": ["acme"]}
        return stocked.cook(sample=sample("law", "code"), pool=pool, scope=scope, namespace=namespace)

    alices, bobs, bobs_again = cook("alice"), cook("bob"), cook("bob")
    assert alices.recipe_digest == bobs.recipe_digest
    assert [cooked.cached for cooked in (alices, bobs, bobs_again)] == [False, False, True]
    assert [cooked.created for cooked in (alices, bobs, bobs_again)] == [True, True, False]


def test_the_vectors_of_a_sample_that_a_known_soup_does_not_take_are_not_stored(stocked):
    by_recipe = stocked.cook(recipe=by_hand("acme/law", "acme/code"), name="acme/broth")
    cooked = stocked.cook(sample=sample("law", "code"), name="acme/broth")
    assert (cooked.created, cooked.soup_id) == (False, by_recipe.soup_id)
    with stocked.database.read() as catalogue:
        assert set(stocked.blobs.digests()) == catalogue.blobs.digests()


def test_what_a_quota_refuses_after_it_was_stored_is_deleted(stocked, monkeypatch):
    """Another cook has used up the quota meanwhile."""
    with stocked.database.write() as catalogue:
        catalogue.limits.set("namespace", "acme", UseLimits(adapters=1))
    monkeypatch.setattr("registry.cook.store.check_additions", lambda *_, **__: None)
    with pytest.raises(QuotaExceeded):
        stocked.cook(sample=sample("law", "code"))
    with stocked.database.read() as catalogue:
        assert set(stocked.blobs.digests()) == catalogue.blobs.digests()


def test_damaged_vectors_of_a_soup_are_stored_again_with_it(stocked):
    cooked = stocked.cook(sample=sample("law", "code"))
    with stocked.database.read() as catalogue:
        (vectors,) = catalogue.samples.embeddings(stocked.row(cooked.soup_id).sample.digest)
    stocked.blobs.damage(vectors.blob_digest, b"other bytes")
    assert stocked.cook(sample=sample("law", "code")).soup_id == cooked.soup_id
    assert stocked.blobs.is_whole(vectors.blob_digest)


def test_an_owner_is_given_to_the_name_new_or_known(stocked):
    recipe = by_hand("acme/law", "acme/code")
    for number, (new_owner, owner) in enumerate([(None, None), ("us", "us"), (None, "us"), ("them", "them")]):
        cooked = stocked.cook(recipe=recipe, name="acme/owned", owner=new_owner)
        assert (cooked.created, stocked.row(cooked.soup_id).owner) == (number == 0, owner)
        with stocked.database.read() as catalogue:
            detail = catalogue.audit.list(None, limit=1).rows[0].detail
        assert detail.get("owner") == new_owner
    changed_recipe = {"ingredients": [{"ref": "acme/law", "weight": 0.1}, {"ref": "acme/code", "weight": 0.9}]}
    newer = stocked.cook(recipe=changed_recipe, name="acme/owned", owner="all")
    assert newer.created
    assert {stocked.row(id).owner for id in (cooked.soup_id, newer.soup_id)} == {"all"}


def test_damaged_bytes_are_made_again(stocked):
    recipe = {"ingredients": [{"ref": "acme/law", "weight": 0.3}, {"ref": "acme/code", "weight": 0.7}]}
    first = stocked.cook(recipe=recipe)
    blob = stocked.row(first.soup_id).weights_blob
    data = stocked.blobs.read(blob)
    stocked.blobs.damage(blob, data[:-1] + bytes([data[-1] ^ 1]))
    rebuilt = stocked.cook(recipe=recipe)
    assert (rebuilt.cached, rebuilt.soup_id, stocked.blobs.read(blob)) == (False, first.soup_id, data)


def test_stored_weights_that_are_not_what_they_were_are_never_mixed(stocked):
    law = stocked.named("acme/law")
    stocked.blobs.damage(law.weights_blob, weights(9))  # a disk that lies
    with pytest.raises(DamagedBlob, match=f"{law.weights_blob} .* not those of its digest"):
        stocked.cook(recipe=by_hand("acme/law", "acme/code"))


def test_a_scaled_ingredient_is_a_soup_and_a_bare_one_is_itself(stocked):
    recipe = {"ingredients": [{"ref": "acme/law", "weight": 7}]}
    bare = stocked.cook(recipe=recipe, name="acme/unused", owner="team-law")
    assert (bare.model, bare.created, bare.digest) == ("acme/law@1", False, stocked.named("acme/law").digest)
    assert "The name acme/unused was not needed. Its owner does not change." in bare.reason
    assert stocked.named("acme/law").owner is None
    scaled = stocked.cook(recipe=recipe, mixing={"scale": 2})
    assert (stocked.row(scaled.soup_id).kind, scaled.recipe.mixing.scale) == ("soup", "2")
    law = load_tensors(weights(0))
    for name, tensor in load_tensors(stocked.blobs.read(stocked.row(scaled.soup_id).weights_blob)).items():
        assert tensor.equal(law[name] * 2 if ".up." in name else law[name])


def test_an_adapter_named_twice_counts_twice_and_weight_0_not_at_all(stocked):
    refs = ["acme/law", "acme/law@1", stocked.named("acme/law").digest, "acme/code"]
    cooked = stocked.cook(recipe={"ingredients": [*({"ref": ref} for ref in refs), {"ref": "acme/zoo", "weight": 0}]})
    assert sorted(ingredient.weight for ingredient in cooked.recipe.ingredients) == ["0.25", "0.75"]


def test_soups_are_chosen_from_on_request_and_their_pools_refitted(stocked):
    pool = {"include_soups": True}
    stocked.cook(sample=sample("law"), pool=pool, selector={"kind": "gmm"})
    stocked.cook(sample=sample("law", "code"), name="acme/both")
    with stocked.database.read() as catalogue:
        (job,) = catalogue.jobs.list(None, kind="fit", limit=9).rows
    assert job.arguments["pool"]["include_soups"]
    stocked.fit(PoolSpec.model_validate(job.arguments["pool"]), GmmSpec(), stocked.base.digest)
    cooked = stocked.cook(sample=sample("law"), pool=pool, options={"single": True})
    assert "both" in {*reasons(cooked), *domains_of(cooked)}


def test_ingredients_of_namespaces_the_soups_readers_may_not_see_are_not_named(stocked):
    stocked.ready("other/secret-project", seed=9)
    cooked = stocked.cook(recipe={"ingredients": [{"ref": "acme/law"}, {"ref": "other/secret-project"}]})
    description = stocked.row(cooked.soup_id).card.description
    assert "secret" not in description
    assert stocked.named("other/secret-project").digest[:19] in description
