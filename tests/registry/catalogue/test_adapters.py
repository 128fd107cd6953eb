"""Adapters of the catalogue: versions, refs, retiring, cards, aliases, samples and pools."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from pydantic import TypeAdapter
from sqlalchemy import insert, update

from registry.catalogue.adapters import columns_of
from registry.catalogue.tables import adapters
from registry.errors import Incompatible, NotFound, PreconditionFailed
from registry.names import DigestRef, parse_ref, sha256_digest
from registry.spec import BottleneckConfig, Card, Owner, Provenance
from tests.registry.catalogue.test_paging import all_rows
from tests.registry.catalogue_rows import add, add_ready, new_adapter, pool_of, sample_of


def resolve(catalogue, text: str, scope=None):
    return catalogue.adapters.resolve(scope, parse_ref(text))


# --- versions -------------------------------------------------------------------------------------


def test_what_is_added_comes_back(catalogue):
    new = new_adapter(
        config=BottleneckConfig(structure="bapna_firat", bottleneck=3, activation="gelu", scale=0.1, input="residual"),
        card=Card(description="Ünïcode", license="MIT", tags=("b", "a"), metadata={"x": 0.1, "y": None}),
        provenance=Provenance(init_hash=sha256_digest(b"0"), init_source="declared", training={"steps": 3}),
        sample=sample_of("law", seed=4, notes=("few",)),
        sample_state="pending",
        parameters=2**40,
    )
    catalogue.blobs.record(new.weights_blob, 40)
    began = datetime.now(UTC)
    row = catalogue.adapters.add(new)
    assert {field: getattr(row, field) for field in vars(new)} == vars(new)
    assert (row.version, row.retired_at, row.ref) == (1, None, "acme/law@1")
    assert began <= row.created_at <= datetime.now(UTC)
    assert row.created_at.utcoffset() == timedelta(0)
    assert catalogue.adapters.get(row.id) == row


def test_versions_count_up_within_a_name_and_none_is_given_again(catalogue):
    refs = [add(catalogue, name).ref for name in ("acme/law", "acme/law", "acme/lay", "other/law")]
    assert refs == ["acme/law@1", "acme/law@2", "acme/lay@1", "other/law@1"]
    catalogue.adapters.retire(resolve(catalogue, "acme/law").id)
    assert add(catalogue).version == 3


def test_the_id_of_a_purged_version_is_not_given_again(catalogue):
    rows = [add(catalogue, "acme/law"), add(catalogue, "acme/tax")]
    for row in reversed(rows):
        catalogue.removals.purge(row)
    assert add(catalogue, "other/secret").id > rows[1].id


def test_live_versions_and_those_that_aliases_point_at(catalogue):
    rows = [add(catalogue) for _ in range(4)]
    for alias, version in (("old", 1), ("older", 1), ("gone", 2), ("prod", 3)):
        catalogue.aliases.put("acme", "law", alias, version)
    catalogue.aliases.put("acme", "lay", "other", 4)
    catalogue.adapters.retire(rows[1].id)
    assert [row.version for row in catalogue.adapters.aliased_versions("acme", "law")] == [3, 1]
    assert [row.version for row in catalogue.adapters.live_versions("acme", "law")] == [4, 3, 1]
    assert [row.version for row in catalogue.adapters.live_versions("acme", "law", limit=1)] == [4]


# --- resolve --------------------------------------------------------------------------------------


def test_foreign_is_unknown_word_for_word(catalogue):
    row = add(catalogue)
    retired = add(catalogue, "acme/old")
    catalogue.adapters.retire(retired.id)
    catalogue.aliases.put("acme", "law", "stable", 1)
    for text in ("acme/law", "acme/law@1", "acme/law@stable", "acme/old", row.digest, retired.digest):
        for scope in ((), ("other",)):
            with pytest.raises(NotFound) as foreign:
                resolve(catalogue, text, scope)
            assert foreign.value.message == f"There is no adapter {text}, or this key does not see it."
    assert resolve(catalogue, "acme/law@stable", ("acme",)) == row


def test_a_digest_is_any_live_row_of_it_that_is_visible(catalogue):
    mine, theirs = add(catalogue, "acme/law", digest="d"), add(catalogue, "other/law", digest="d")
    ref = DigestRef(mine.digest)
    assert catalogue.adapters.resolve(None, ref) == theirs
    assert catalogue.adapters.resolve(("acme",), ref) == mine
    catalogue.adapters.retire(theirs.id)
    assert catalogue.adapters.resolve(None, ref) == mine


def test_names_are_compared_exactly(catalogue):
    add(catalogue, "acme/a.b")
    for text in ("acme/a-b", "acme/a_b", "acme/a.", "acme/axb"):
        with pytest.raises(NotFound):
            resolve(catalogue, text)


# --- aliases --------------------------------------------------------------------------------------


def test_they_are_listed_and_deleted(catalogue):
    for alias in ("stable", "beta"):
        catalogue.aliases.put("acme", "law", alias, 1)
    catalogue.aliases.put("acme", "lay", "stable", 1)
    assert [row.alias for row in catalogue.aliases.list("acme", "law")] == ["beta", "stable"]
    catalogue.aliases.delete("acme", "law", "beta")
    assert [row.alias for row in catalogue.aliases.list("acme", "law")] == ["stable"]
    with pytest.raises(NotFound):
        catalogue.aliases.delete("acme", "law", "beta")


def test_aliases_of_these_names_and_no_others(catalogue):
    for name in ("acme/law", "acme/food", "other/law"):
        for alias in ("prod", "best"):
            catalogue.aliases.put(*name.split("/"), alias, 1)
    rows = catalogue.aliases.by_names([("acme", "law"), ("other", "law"), ("other", "food")])
    assert [(row.namespace, row.name, row.alias, row.version) for row in rows] == [
        (namespace, "law", alias, 1) for namespace in ("acme", "other") for alias in ("best", "prod")
    ]
    assert catalogue.aliases.by_names([]) == []


def test_an_alias_moves_by_compare_and_set(catalogue):
    row = catalogue.aliases.put("acme", "law", "stable", 1)
    with pytest.raises(PreconditionFailed, match="does not exist"):
        catalogue.aliases.put("acme", "law", "beta", 1, if_match=frozenset({row.etag}))
    moved = catalogue.aliases.put("acme", "law", "stable", 1, if_match=frozenset({row.etag}))
    assert moved.etag != row.etag, "a change to the same version is a change"
    for change in (
        lambda: catalogue.aliases.put("acme", "law", "stable", 2, if_match=frozenset({row.etag})),
        lambda: catalogue.aliases.delete("acme", "law", "stable", if_match=frozenset({row.etag})),
    ):
        with pytest.raises(PreconditionFailed, match=moved.etag):
            change()
    catalogue.aliases.delete("acme", "law", "stable", if_match=frozenset({moved.etag}))


def test_a_change_between_reading_and_writing_is_not_lost(catalogue, monkeypatch):
    catalogue.aliases.put("acme", "law", "stable", 1)
    read = catalogue.aliases.get("acme", "law", "stable")
    moved = catalogue.aliases.put("acme", "law", "stable", 2)
    aliases, real = type(catalogue.aliases), type(catalogue.aliases).get
    answers = []
    monkeypatch.setattr(aliases, "get", lambda self, *key: answers.pop() if answers else real(self, *key))
    for change in (
        lambda: catalogue.aliases.put("acme", "law", "stable", 3),
        lambda: catalogue.aliases.delete("acme", "law", "stable"),
    ):
        answers.append(read)  # what this one read before the other wrote
        with pytest.raises(PreconditionFailed, match=moved.etag):
            change()
    assert catalogue.aliases.get("acme", "law", "stable") == moved


# --- cards ----------------------------------------------------------------------------------------


def test_a_card_changes_if_it_is_what_was_read(catalogue):
    row, another = add(catalogue), add(catalogue)
    changed = catalogue.adapters.update_card(row.id, domain="a", if_match=frozenset({row.etag}))
    for wrong in (row.etag, another.etag, "", "x-1", changed.etag + "0"):
        with pytest.raises(PreconditionFailed, match=changed.etag):
            catalogue.adapters.update_card(row.id, domain="b", if_match=frozenset({wrong}))
    assert catalogue.adapters.get(row.id) == changed


def test_retiring_is_once_and_changes_the_etag(catalogue):
    row = add(catalogue)
    retired = catalogue.adapters.retire(row.id)
    assert retired.retired_at is not None
    assert retired.etag != row.etag
    assert catalogue.adapters.retire(row.id) == retired


def test_the_progress_of_a_sample_leaves_the_etag(catalogue):
    """Who read a card before its sample was embedded can still change it."""
    row = add(catalogue)
    assert catalogue.adapters.set_sample_state(row.id, "failed").sample is None
    attached = catalogue.adapters.attach_sample(row.id, sample_of("law"))
    ready = catalogue.adapters.set_sample_state(row.id, "ready", truncated={"sbert": 3})
    assert (attached.sample_state, ready.sample_state) == ("pending", "ready")
    assert ready.sample == sample_of("law", truncated={"sbert": 3})
    assert ready.etag == row.etag
    assert catalogue.adapters.set_sample_state(row.id, "failed").sample == ready.sample


def test_samples_that_were_learnt_from_are_found_by_tensors_and_live_rows_by_them(catalogue):
    """Of all names and versions of some tensors, the retired ones too."""
    first, second = (sample_of(text).digest for text in ("one", "two"))
    both = add(catalogue, "acme/both", digest="tuned", learnt_from=(first, second))
    add(catalogue, "acme/second", digest="other", learnt_from=(second,))
    add(catalogue, "acme/plain")
    assert both.learnt_from == (first, second)
    assert catalogue.adapters.training_samples([both.digest]) == {first, second}
    assert catalogue.adapters.training_samples(
        [new_adapter(digest=text).digest for text in ("other", "acme/plain")]
    ) == {second}
    assert catalogue.adapters.training_samples([]) == set()
    assert [row.ref for row in catalogue.adapters.learnt_from(second)] == ["acme/second@1", "acme/both@1"]
    assert [row.ref for row in catalogue.adapters.learnt_from(first)] == ["acme/both@1"]
    catalogue.adapters.retire(both.id)
    assert catalogue.adapters.learnt_from(first) == []
    assert catalogue.adapters.training_samples([both.digest]) == {first, second}


def test_every_filter_filters(catalogue):
    add(catalogue, "acme/a", tags=("x",), domain="law")
    add(catalogue, "acme/b", kind="soup", domain="law")
    add(catalogue, "other/c", base_model="big", tags=("x", "y"))
    for filters, expected in (
        ({"kind": "soup"}, "b"),
        ({"kind": "adapter"}, "ca"),
        ({"domain": "law"}, "ba"),
        ({"domain": "LAW"}, ""),
        ({"base_model": "big"}, "c"),
        ({"method": "bottleneck"}, "cba"),
        ({"method": "lora"}, ""),
        ({"tags": ["x"]}, "ca"),
        ({"tags": ["x"], "kind": "adapter", "domain": "law"}, "a"),
        ({"tags": ["x"], "base_model": "tiny", "domain": "c"}, ""),
    ):
        rows = all_rows(lambda filters=filters, **page: catalogue.adapters.list(None, **filters, **page), 2)
        assert "".join(row.name for row in rows) == expected, filters
    add(catalogue, "acme/a", digest="newer")
    newest = catalogue.adapters.list(None, newest=True, limit=100).rows
    assert [row.ref for row in newest] == ["acme/a@2", "other/c@1", "acme/b@1"]


# --- pools ----------------------------------------------------------------------------------------


def pooled(catalogue, *namespaces: str, **fields) -> list[str]:
    return [row.ref for row in catalogue.adapters.pool(pool_of(*namespaces, **fields))]


def test_the_newest_live_version_of_each_name_with_a_ready_sample(catalogue):
    first = add_ready(catalogue, "acme/law")
    second = add_ready(catalogue, "acme/law")
    add_ready(catalogue, "other/law")
    add(catalogue, "acme/none")
    add(catalogue, "acme/waits", sample=sample_of("w"), sample_state="pending")
    add(catalogue, "acme/failed", sample=sample_of("f"), sample_state="failed")
    add_ready(catalogue, "acme/foreign", base_fingerprint=sha256_digest(b"other base"))
    assert pooled(catalogue) == ["acme/law@2", "other/law@1"]
    assert pooled(catalogue, "acme") == ["acme/law@2"]
    assert pooled(catalogue, "nobody") == []
    assert [row.ref for row in catalogue.adapters.pending(pool_of())] == ["acme/waits@1"]
    catalogue.adapters.retire(second.id)
    assert pooled(catalogue, "acme") == [first.ref]
    catalogue.adapters.retire(first.id)
    assert pooled(catalogue, "acme") == []


def test_a_version_whose_sample_waits_takes_no_place_yet_and_one_without_a_sample_does(catalogue):
    add_ready(catalogue, "acme/law")
    waiting = add(catalogue, "acme/law", sample=sample_of("w"), sample_state="pending")
    assert pooled(catalogue) == ["acme/law@1"]
    assert [row.ref for row in catalogue.adapters.pending(pool_of())] == ["acme/law@2"]
    catalogue.adapters.set_sample_state(waiting.id, "ready")
    assert pooled(catalogue) == ["acme/law@2"]
    add(catalogue, "acme/law")
    assert pooled(catalogue) == []


def test_a_config_of_a_later_version_is_refused_by_name(catalogue):
    row = add_ready(catalogue, "acme/law")
    catalogue.adapters._update(adapters, adapters.c.id == row.id, config={"method": "of tomorrow"})
    for read in (lambda: pooled(catalogue), lambda: catalogue.adapters.get(row.id)):
        with pytest.raises(Incompatible, match="acme/law has a config this server cannot read"):
            read()


def test_narrowed_by_tag_and_method_with_soups_on_request(catalogue):
    add_ready(catalogue, "acme/a", tags=("x",))
    add_ready(catalogue, "acme/b")
    add_ready(catalogue, "acme/s", kind="soup", tags=("x",))
    for filters, expected in (
        ({}, ["acme/a@1", "acme/b@1"]),
        ({"tag": "x"}, ["acme/a@1"]),
        ({"tag": "x", "include_soups": True}, ["acme/a@1", "acme/s@1"]),
        ({"method": "bottleneck"}, ["acme/a@1", "acme/b@1"]),
        ({"method": "lora"}, []),
    ):
        assert pooled(catalogue, **filters) == expected, filters


# --- owners: one for all versions of a name -------------------------------------------------------


def owners(catalogue, **filters):
    return {row.ref: row.owner for row in catalogue.adapters.list(None, limit=100, **filters).rows}


def test_a_later_version_has_the_owner_of_its_name_unless_it_brings_another(catalogue):
    add(catalogue, owner="legal")
    assert add(catalogue, digest="two").owner == "legal"
    assert add(catalogue, digest="three", owner="contracts").owner == "contracts"
    assert set(owners(catalogue).values()) == {"contracts"}
    assert add(catalogue, "acme/lay").owner is None
    assert add(catalogue, "other/law").owner is None


def test_all_versions_change_and_no_etag_does(catalogue):
    first, second = add(catalogue), add(catalogue, digest="two")
    neighbour = add(catalogue, "acme/lay", owner="legal")
    changed = catalogue.adapters.set_owner(second, "legal")
    assert changed.owner == catalogue.adapters.get(first.id).owner == "legal"
    assert changed.etag == second.etag
    assert catalogue.adapters.update_card(first.id, domain="courts", if_match=frozenset({first.etag})).owner == "legal"
    catalogue.adapters.retire(first.id)
    assert catalogue.adapters.set_owner(changed, "court").owner == catalogue.adapters.restore(first.id).owner == "court"
    assert catalogue.adapters.set_owner(changed, None).owner is None
    assert owners(catalogue) == {"acme/law@1": None, "acme/law@2": None, "acme/lay@1": "legal"}
    assert catalogue.adapters.get(neighbour.id) == neighbour


def test_lists_are_filtered_by_the_owner_letter_for_letter(catalogue):
    for name, owner in (("a", "legal"), ("b", "Legal"), ("c", None), ("d", "legal")):
        add(catalogue, f"acme/{name}", owner=owner)
    for filters, expected in (
        ({"owner": "legal"}, ["acme/d@1", "acme/a@1"]),
        ({"owner": "legal", "name": "a"}, ["acme/a@1"]),
        ({"owner": "leg"}, []),
    ):
        assert list(owners(catalogue, **filters)) == expected, filters


def test_what_a_server_of_the_release_before_stores_is_healed_by_the_next_version(catalogue):
    """It knows no owner, and inserts none; the version after it finds the one that the name had."""
    row = add(catalogue, owner="legal")
    new = new_adapter(digest="two", weights_blob=row.weights_blob)
    columns = {name: value for name, value in columns_of(new).items() if name != "owner"}
    catalogue.adapters._connection.execute(insert(adapters).values(**columns, version=2))
    catalogue.adapters._connection.execute(update(adapters).where(adapters.c.id == row.id).values(domain="statutes"))
    assert owners(catalogue) == {"acme/law@2": None, "acme/law@1": "legal"}
    assert add(catalogue, digest="three").owner == "legal"
    assert set(owners(catalogue, name="law").values()) == {"legal"}


@pytest.mark.parametrize("text", ["legal", "legal@acme.example", "Rechtsabteilung Köln", "法務部", "قانون", "x" * 200])
def test_a_team_or_an_address_of_any_script_is_an_owner(text):
    assert TypeAdapter(Owner).validate_python(text) == text
