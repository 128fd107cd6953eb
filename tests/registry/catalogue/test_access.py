"""Who may do and see what: keys, the audit, and the visibility of blobs."""

from __future__ import annotations

import hashlib

import pytest
from sqlalchemy import text

from registry.catalogue.namespaces import NamespaceSettings
from registry.errors import NotFound, PreconditionFailed
from registry.names import sha256_digest
from tests.registry.catalogue_rows import add, sample_of

BLOB = sha256_digest(b"bytes")


def new_key(catalogue, secret: str = "s", **fields):
    values = {"namespaces": ("acme",), "scopes": {"read", "write"}, "prefix": "sk-soup-abcd"}
    return catalogue.keys.add("ci", hashlib.sha256(secret.encode()).hexdigest(), **{**values, **fields})


# --- keys -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("namespaces", [None, (), ("acme",), ("b", "a")])
def test_what_is_added_comes_back(catalogue, namespaces):
    row = new_key(catalogue, namespaces=namespaces)
    assert (row.namespaces, row.scopes, row.revoked_at) == (namespaces, frozenset({"read", "write"}), None)
    assert catalogue.keys.by_secret(hashlib.sha256(b"s").hexdigest()) == row
    assert catalogue.keys.list() == [row]
    for wrong in ("", "s", hashlib.sha256(b"s").hexdigest().upper(), "%"):
        assert catalogue.keys.by_secret(wrong) is None


def test_all_namespaces_are_not_none(catalogue):
    """A JSON null read as SQL NULL, or the other way round, would open or close everything."""
    new_key(catalogue, "all", namespaces=None)
    new_key(catalogue, "nothing", namespaces=())
    stored = catalogue.keys._connection.execute(
        text("SELECT CAST(namespaces AS TEXT) FROM keys ORDER BY created_at")
    ).all()
    assert [row[0] for row in stored] == [None, "[]"]


def test_revoking_is_once_and_for_one(catalogue):
    row, another = new_key(catalogue), new_key(catalogue, "t")
    revoked = catalogue.keys.revoke(row.id)
    assert revoked.revoked_at is not None
    assert catalogue.keys.revoke(row.id) == revoked
    assert catalogue.keys.list() == [revoked, another]
    with pytest.raises(NotFound):
        catalogue.keys.revoke("key-unknown")


def test_a_scope_sees_its_namespaces_and_nothing_that_is_nobodys(catalogue):
    for subject in ("acme/law@1", "acmeother/law", "other/law", "key-1", "acme"):
        catalogue.audit.record("push", subject, key_id="key-1", request_id="r-1", detail={"digest": BLOB})
    assert [row.subject for row in catalogue.audit.list(("acme",), limit=9).rows] == ["acme/law@1"]
    assert catalogue.audit.list((), limit=9).rows == ()


# --- blobs ----------------------------------------------------------------------------------------


def test_who_uploaded_it_sees_it_and_who_sees_everything(catalogue):
    is_visible = catalogue.blobs.is_visible
    assert not is_visible(None, BLOB)
    catalogue.blobs.record(BLOB, 5)
    assert not is_visible(("acme",), BLOB)
    for _ in range(2):
        catalogue.blobs.grant("acme", BLOB)
    scopes = [scope for scope in (None, ("acme",), ("other", "acme"), ("other",), ()) if is_visible(scope, BLOB)]
    assert scopes == [None, ("acme",), ("other", "acme")]


def test_the_owner_of_an_adapter_sees_its_weights_and_its_sample(catalogue):
    row = add(catalogue, sample=sample_of("law"), sample_state="ready")
    for digest in (row.weights_blob, row.sample.digest):
        assert catalogue.blobs.is_visible(("acme",), digest)
        assert not catalogue.blobs.is_visible(("other",), digest)
        assert not catalogue.blobs.is_visible((), digest)


def test_a_sample_whose_every_adapter_is_retired_is_seen_by_nobody_through_them(catalogue):
    """The weights stay: soups that name them are rebuilt. Who uploaded the sample has it anyway."""
    first, second = (
        add(catalogue, f"acme/{name}", sample=sample_of("law"), sample_state="ready") for name in ("law", "courts")
    )
    catalogue.adapters.retire(first.id)
    assert catalogue.blobs.is_visible(("acme",), first.sample.digest)
    catalogue.adapters.retire(second.id)
    assert not catalogue.blobs.is_visible(("acme",), first.sample.digest)
    assert catalogue.blobs.is_visible(("acme",), first.weights_blob)
    catalogue.blobs.record(first.sample.digest, 5)
    catalogue.blobs.grant("acme", first.sample.digest)
    assert catalogue.blobs.is_visible(("acme",), first.sample.digest)


def test_a_row_that_has_only_the_digest_of_a_sample_does_not_open_its_text(catalogue):
    owner = add(catalogue, "acme/law", sample=sample_of("law"), sample_state="ready")
    add(catalogue, "beta/soup", digest="soup", sample=sample_of("law", has_text=False), sample_state="ready")
    assert catalogue.blobs.is_visible(("acme",), owner.sample.digest)
    assert not catalogue.blobs.is_visible(("beta",), owner.sample.digest)
    assert catalogue.blobs.references(owner.sample.digest) == ["sample of acme/law@1"]


def test_the_same_bytes_in_another_namespace_open_nothing_else(catalogue):
    theirs = add(catalogue, "other/law", digest="d", sample=sample_of("theirs"), sample_state="ready")
    mine = add(catalogue, "acme/law", digest="d", sample=sample_of("mine"), sample_state="ready")
    assert catalogue.blobs.is_visible(("acme",), mine.weights_blob)
    assert not catalogue.blobs.is_visible(("acme",), theirs.sample.digest)


def test_seen_again_is_seen_later(catalogue):
    stored = lambda: catalogue.blobs._connection.execute(text("SELECT size, seen_at FROM blobs")).all()  # noqa: E731
    catalogue.blobs.record(BLOB, 5)
    ((size, first),) = stored()
    catalogue.blobs.record(BLOB, 5)
    assert stored() == [(size, stored()[0][1])]
    assert stored()[0][1] >= first


# --- settings of namespaces -----------------------------------------------------------------------


@pytest.mark.parametrize("first", [None, "allow", "forbid"])
def test_with_an_etag_only_if_it_is_still_what_was_read(catalogue, first):
    """The defaults have an etag too; setting the same again is another state."""
    read = catalogue.namespaces.get("acme") if first is None else catalogue.namespaces.set("acme", {"tuning": first})
    row = catalogue.namespaces.set("acme", {"tuning": read.tuning}, if_match=frozenset({read.etag}))
    assert row.etag != read.etag
    with pytest.raises(PreconditionFailed, match=row.etag):
        catalogue.namespaces.set("acme", {"tuning": "default"}, if_match=frozenset({read.etag}))
    assert catalogue.namespaces.get("acme") == row


def test_what_changed_after_it_was_read_is_not_overwritten(catalogue, monkeypatch):
    catalogue.namespaces.set("acme", {"tuning": "allow"})
    read = catalogue.namespaces.get("acme")
    changed = catalogue.namespaces.set("acme", {"tuning": "forbid"})
    answers, real = [read], NamespaceSettings.get
    monkeypatch.setattr(NamespaceSettings, "get", lambda self, ns: answers.pop() if answers else real(self, ns))
    with pytest.raises(PreconditionFailed, match="now at etag forbid-2"):
        catalogue.namespaces.set("acme", {"tuning": "default"})
    assert catalogue.namespaces.get("acme") == changed
