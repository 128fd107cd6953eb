"""Purging versions: what goes with them, what stays for whom, what is told, and pushes beside it."""

from __future__ import annotations

from datetime import UTC, datetime
from unittest.mock import Mock

import pytest

from registry.catalogue.rows import AdapterRow
from registry.errors import Conflict, DamagedBlob, NotFound, Retired, Unavailable
from registry.lifecycle.purge import Purged, purge
from registry.names import parse_ref
from registry.select.pools import gone_members
from registry.spec import CosineSpec, PoolSpec
from registry.stored.files import remove_files
from tests.registry.toy_registry import SHAPE, ToyRegistry, passages, sample

POOL = PoolSpec(base_fingerprint=SHAPE.fingerprint)
RECIPE = {"ingredients": [{"ref": "acme/law", "weight": 0.5}, {"ref": "acme/tax", "weight": 0.5}]}


def purged(verbs: ToyRegistry, row: AdapterRow) -> Purged:
    return purge(verbs.registry, verbs.caller(), row.id)


def blobs_of(verbs: ToyRegistry, row: AdapterRow) -> set[str]:
    """Weights, sample and embeddings of a version."""
    with verbs.database.read() as catalogue:
        embedded = {embedding.blob_digest for embedding in catalogue.samples.embeddings(row.sample.digest)}
    return {row.weights_blob, row.sample.digest, *embedded}


def test_nothing_of_it_is_left(verbs: ToyRegistry) -> None:
    law, tax = verbs.ready("acme/law"), verbs.ready("acme/tax", seed=1)
    blobs = blobs_of(verbs, law)
    assert len(blobs) == 4
    done = purged(verbs, law)
    assert done.blobs == 4
    assert done.bytes > 0
    assert not any(map(verbs.blobs.has, blobs))
    with verbs.database.read() as catalogue:
        assert catalogue.removals.pending() == set()
        assert catalogue.adapters.get_or_none(law.id) is None
        for ref in ("acme/law", "acme/law@1", law.digest):
            with pytest.raises(Retired, match=f"{ref} was purged on 2"):
                catalogue.adapters.resolve(None, parse_ref(ref))
            with pytest.raises(NotFound, match="There is no adapter"):
                catalogue.adapters.resolve(("other",), parse_ref(ref))
        remaining = catalogue.blobs.digests()
    (entry,) = verbs.audit("adapter.purge")
    assert remaining == blobs_of(verbs, tax)
    assert (entry.subject, entry.namespace, entry.detail["sample"]) == ("acme/law@1", "acme", law.sample.digest)
    with pytest.raises(Retired, match="purged meanwhile"):  # of two at the same time one hears that it is gone
        purged(verbs, law)


@pytest.mark.slow
def test_its_number_is_not_given_again(verbs: ToyRegistry) -> None:
    purged(verbs, verbs.push("acme/law").row)
    repushed = verbs.push("acme/law").row
    assert repushed.ref == "acme/law@2"
    assert verbs.blobs.is_whole(repushed.weights_blob)
    with verbs.database.read() as catalogue:
        for ref in ("acme/law@prod", "acme/law@7"):  # unknown and not purged
            with pytest.raises(NotFound):
                catalogue.adapters.resolve(None, parse_ref(ref))
        assert catalogue.adapters.resolve(None, parse_ref("acme/law")).ref == "acme/law@2"


def test_what_others_need_stays_for_them(verbs: ToyRegistry) -> None:
    """Equal bytes and an equal sample in another namespace are that namespace's own."""
    law = verbs.ready("acme/law")
    twin = verbs.ready("beta/law", text="law")
    assert purged(verbs, law).blobs == 0
    with verbs.database.read() as catalogue:
        for digest in (law.weights_blob, law.sample.digest):
            assert catalogue.blobs.is_visible(("beta",), digest)
            assert not catalogue.blobs.is_visible(("acme",), digest)
    assert all(map(verbs.blobs.is_whole, blobs_of(verbs, twin)))


@pytest.mark.parametrize("copied", [False, True], ids=["", "while another namespace has the bytes"])
def test_soups_of_it_are_named_and_go_on(verbs: ToyRegistry, copied: bool) -> None:
    """Unless anybody still has their ingredients: then they can be rebuilt."""
    law, _ = verbs.push_all("acme/law", "acme/tax")
    if copied:
        verbs.push("beta/copy")
    soup = verbs.row(verbs.cook(recipe=RECIPE, name="acme/mixed").soup_id)
    with verbs.database.read() as catalogue:
        assert catalogue.soups.missing_ingredients(soup.recipe_digest) == set()
    assert [row.ref for row in purged(verbs, law).not_rebuildable] == ([] if copied else [soup.ref])
    assert verbs.blobs.is_whole(soup.weights_blob)
    with verbs.database.read() as catalogue:
        assert catalogue.soups.missing_ingredients(soup.recipe_digest) == (set() if copied else {law.digest})


def test_a_soup_goes_with_its_recipe_and_evidence(verbs: ToyRegistry) -> None:
    verbs.push_all("acme/law", "acme/tax")
    soup = verbs.row(verbs.cook(recipe=RECIPE, name="acme/mixed").soup_id)
    twin = verbs.row(verbs.cook(recipe=RECIPE, name="acme/again").soup_id)
    assert purged(verbs, soup).blobs == 0
    with verbs.database.read() as catalogue:
        assert catalogue.soups.recipe(twin.recipe_digest) is not None
    assert purged(verbs, twin).blobs == 1
    with verbs.database.read() as catalogue:
        assert catalogue.soups.recipe(twin.recipe_digest) is None
    assert verbs.cook(recipe=RECIPE, name="acme/mixed").digest == soup.digest, "its ingredients are there"


def test_who_has_learnt_from_its_sample_is_named(verbs: ToyRegistry) -> None:
    texts = passages("novel", 60)
    law = verbs.ready("acme/law")
    tuned = verbs.cook(sample={"texts": texts}, effort="tune", verify=True, name="acme/tuned")
    assert not tuned.abstained
    row = verbs.row(tuned.soup_id)
    owner = verbs.push("acme/novel", seed=9, sample={"texts": texts}).row
    assert owner.sample.digest == row.tuned_on
    mixed = verbs.cook(recipe={"ingredients": [{"ref": row.ref}, {"ref": "acme/law"}]}, mixing={"method": "concat"})
    remixed = verbs.cook(recipe={"ingredients": [{"ref": mixed.digest}]}, mixing={"method": "concat", "scale": 0.5})
    purged(verbs, row)  # what was made of it has learnt from the sample all the same
    assert [tuned_soup.id for tuned_soup in purged(verbs, owner).tuned] == [remixed.soup_id, mixed.soup_id]
    assert verbs.row(law.id).ref == "acme/law@1"


def test_a_soup_for_the_same_texts_does_not_keep_them(verbs: ToyRegistry) -> None:
    """The soup has their digest and their vectors."""
    verbs.ready_all("acme/law", "acme/tax")
    owner = verbs.push("acme/both", seed=9, sample=sample("law", "tax")).row
    soup = verbs.row(verbs.cook(sample=sample("law", "tax"), name="acme/mixed").soup_id)
    assert soup.sample.digest == owner.sample.digest
    purged(verbs, owner)
    assert not verbs.blobs.has(owner.sample.digest)
    assert not any(b"passage 7" in verbs.blobs.read(digest) for digest in verbs.blobs.digests())


def test_an_alias_holds_it(verbs: ToyRegistry) -> None:
    law = verbs.push("acme/law").row
    with verbs.database.write() as catalogue:
        catalogue.aliases.put("acme", "law", "prod", 1)
    with pytest.raises(Conflict, match="The alias 'prod' points at acme/law@1"):
        purged(verbs, law)
    assert verbs.row(law.id).retired_at is None


def test_a_pool_is_fitted_anew_without_it(verbs: ToyRegistry) -> None:
    law = verbs.ready("acme/law")
    verbs.ready("acme/tax", seed=1)
    first = verbs.fit(POOL, CosineSpec(), verbs.sentences.digest)
    purged(verbs, law)
    with verbs.database.read() as catalogue:
        assert [job.kind for job in catalogue.jobs.active("fit")] == ["fit"]
    second = verbs.fit(POOL, CosineSpec(), verbs.sentences.digest)
    assert [member.ref for member in first.members] == ["acme/law@1", "acme/tax@1"]
    assert [member.ref for member in second.members] == ["acme/tax@1"]


def test_a_selector_knows_that_its_member_is_purged_whatever_is_pushed_since(verbs: ToyRegistry) -> None:
    verbs.ready("acme/tax")
    law = verbs.ready("acme/law", seed=1)
    selector = verbs.fit(POOL, CosineSpec(), verbs.sentences.digest)
    purged(verbs, law)
    verbs.ready("acme/law", seed=2)
    with verbs.database.read() as catalogue:
        assert gone_members(catalogue, selector) == {law.digest: "purged since the fit"}


def test_an_embedding_of_what_is_purged_meanwhile_is_not_kept(verbs: ToyRegistry, monkeypatch) -> None:
    law = verbs.push("acme/law", sample={"texts": passages("law")}).row
    real = verbs.sentences.encode

    def purging(*args, **options):
        purged(verbs, law)
        monkeypatch.setattr(verbs.blobs, "put_bytes", Mock(side_effect=AssertionError("its vectors are written")))
        return real(*args, **options)

    monkeypatch.setattr(verbs.sentences, "encode", purging)
    with pytest.raises((Retired, DamagedBlob)):
        verbs.embed(law)
    with verbs.database.read() as catalogue:
        assert catalogue.samples.embeddings(law.sample.digest) == []


def test_a_push_of_the_same_bytes_beside_it_loses_nothing(verbs: ToyRegistry, monkeypatch) -> None:
    """Stored, then purged by another, then named: the worst order that the two can take."""
    law = verbs.push("acme/law").row
    real = verbs.registry.blobs.put_bytes
    stored = []

    def interrupted(data: bytes) -> str:
        digest = real(data)
        if not stored:
            stored.append(digest)
            purged(verbs, law)
        return digest

    monkeypatch.setattr(verbs.registry.blobs, "put_bytes", interrupted)
    repushed = verbs.push("acme/law").row
    assert stored == [repushed.weights_blob]
    assert verbs.blobs.is_whole(repushed.weights_blob)


def test_files_that_could_not_go_are_removed_later(verbs: ToyRegistry, monkeypatch) -> None:
    """Files are left after a process was killed between its two transactions, or in the second."""
    law = verbs.push("acme/law").row
    with monkeypatch.context() as patch:
        patch.setattr(verbs.registry.blobs, "delete_all", Mock(side_effect=Unavailable("The folder is gone.")))
        assert purged(verbs, law).row.ref == "acme/law@1"
    assert verbs.blobs.has(law.weights_blob)
    assert remove_files(verbs.registry, datetime.now(UTC)) == 1
    assert not verbs.blobs.has(law.weights_blob)
