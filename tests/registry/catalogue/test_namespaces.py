"""Settings of namespaces: the defaults, compare-and-set, and who else's stay as they are."""

from __future__ import annotations

import pytest

from registry.catalogue.namespaces import NamespaceSettings
from registry.errors import PreconditionFailed


@pytest.mark.parametrize("first", [None, "allow", "forbid"])
def test_with_an_etag_only_if_it_is_still_what_was_read(catalogue, first):
    """The defaults have an etag too; setting the same again is another state."""
    read = catalogue.namespaces.get("acme") if first is None else catalogue.namespaces.set("acme", {"tuning": first})
    row = catalogue.namespaces.set("acme", {"tuning": read.tuning}, if_match=read.etag)
    assert row.etag != read.etag
    with pytest.raises(PreconditionFailed, match=row.etag):
        catalogue.namespaces.set("acme", {"tuning": "default"}, if_match=read.etag)
    assert catalogue.namespaces.get("acme") == row


def test_what_changed_after_it_was_read_is_not_overwritten(catalogue, monkeypatch):
    catalogue.namespaces.set("acme", {"tuning": "allow"})
    read = catalogue.namespaces.get("acme")
    other = catalogue.namespaces.set("acme", {"tuning": "forbid"})
    answers, real = [read], NamespaceSettings.get
    monkeypatch.setattr(NamespaceSettings, "get", lambda self, ns: answers.pop() if answers else real(self, ns))
    with pytest.raises(PreconditionFailed, match="now at etag forbid-2"):
        catalogue.namespaces.set("acme", {"tuning": "default"})
    assert catalogue.namespaces.get("acme") == other
