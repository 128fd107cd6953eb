"""A copy of all blobs has what the server has, and loses nothing that only it has."""

from __future__ import annotations

import pytest

from registry.blobs import LocalBlobs
from registry.lifecycle.purge import purge
from registry.progress import silent
from registry.spec import StoreMark
from service.operations.blob_copy import Copied, copy_store
from tests.postgres import Databases
from tests.registry.toy_registry import ToyRegistry

ON_DATABASES = ("sqlite",)  # a copy reads rows that each kind has
STORE = "0" * 32


@pytest.fixture
def verbs(databases: Databases, tmp_path):
    """The verbs over a folder that carries its database's mark."""
    with databases.new(tmp_path, pool_size=4) as database:
        verbs = ToyRegistry(database, LocalBlobs(tmp_path / "blobs"))
        with database.write() as catalogue:
            verbs.blobs.set_aside.set_mark(catalogue.stores.advance(STORE, after=0))
        yield verbs


@pytest.fixture
def target(tmp_path) -> LocalBlobs:
    return LocalBlobs(tmp_path / "target")


def copied(verbs: ToyRegistry, target: LocalBlobs) -> Copied:
    return copy_store(verbs.database, verbs.blobs, target, progress=silent)


def test_what_was_purged_since_the_first_copy_is_removed_by_the_second(verbs, target):
    law = verbs.ready("acme/law")
    verbs.ready("acme/tax", seed=1)
    copied(verbs, target)
    purge(verbs.registry, verbs.caller(), law.id)
    assert copied(verbs, target).removed > 0
    assert set(target.digests()) == set(verbs.blobs.digests())


def test_a_store_that_the_server_has_left_removes_nothing_from_its_new_one(verbs, target):
    verbs.ready("acme/law")
    copied(verbs, target)
    with verbs.database.write() as catalogue:
        target.set_aside.set_mark(catalogue.stores.advance(STORE, after=0))  # a start over the new store
    target.put_bytes(b"a push whose transaction is still open")
    digests_before = set(target.digests())
    assert copied(verbs, target).removed == 0
    assert set(target.digests()) == digests_before


def test_files_of_a_store_without_a_mark_stay(verbs, target):
    verbs.ready("acme/law")
    foreign = target.put_bytes(b"of something else")
    assert copied(verbs, target).removed == 0
    assert target.has(foreign)
    assert target.set_aside.mark() == StoreMark(store=STORE, generation=1)
