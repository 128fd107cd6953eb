"""Files of blobs go in the turn to write, and none that a push names meanwhile, whatever comes first."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from registry.catalogue import Database
from registry.context import Registry
from registry.errors import Unavailable
from registry.names import sha256_digest
from registry.stored import files as stored_files
from registry.stored.files import record_bytes, remove_files
from tests.postgres import Databases, Postgres
from tests.registry.memory_blobs import MemoryBlobs
from tests.registry.toy_registry import ToyRegistry

ON_DATABASES = ("sqlite",)  # their statements are the same on each kind; turns to write have tests of their own
DATA = b"bytes that somebody pushes again"
DIGEST = sha256_digest(DATA)
MOMENTS = ("before", "going", "gone", "after")
"""When something happens beside a removal: before it, while it has the turn and after each deletion, after it."""


class WatchedBlobs(MemoryBlobs):
    """Blobs that let others act around a removal."""

    def __init__(self) -> None:
        super().__init__()
        self.at: dict[str, Callable[[], object]] = {}
        self.fails: str | None = None
        self.together: list[int] = []

    def delete_all(
        self, digests: Sequence[str], *, set_aside: bool = True, confirm: Callable[[], None] | None = None
    ) -> None:
        self.together.append(len(digests))
        self.reach("going")
        super().delete_all(digests, confirm=confirm)
        self.reach("gone")

    def reach(self, moment: str) -> None:
        """Do what is to happen at this moment; raises Unavailable where the removal ends there."""
        self.at.get(moment, lambda: None)()
        if self.fails == moment:
            raise Unavailable("The store does not answer.")


@pytest.fixture
def blobs() -> WatchedBlobs:
    return WatchedBlobs()


@pytest.fixture
def registry(verbs: ToyRegistry, blobs: WatchedBlobs) -> Registry:
    """A registry with a blob whose row is gone, and whose file is due."""
    registry = replace(verbs.registry, blobs=blobs)
    forget(registry, DATA)
    return registry


def forget(registry: Registry, *blobs: bytes) -> None:
    """Store blobs that nothing names any more."""
    with registry.database.write() as catalogue:
        for data in blobs:
            catalogue.blobs.record(registry.blobs.put_bytes(data), len(data))
        catalogue.removals.forget([sha256_digest(data) for data in blobs], datetime.now(UTC))


def name(registry: Registry) -> None:
    """Name the bytes, as the transaction of a push does after they were stored."""
    with registry.database.write() as catalogue:
        record_bytes(registry, catalogue, DIGEST, DATA)


@pytest.mark.parametrize("fails", [None, "going", "gone"])
@pytest.mark.parametrize(("stored", "named"), list(itertools.combinations_with_replacement(MOMENTS, 2)))
def test_what_a_push_was_promised_is_there_in_every_order(
    registry: Registry, blobs: WatchedBlobs, stored: str, named: str, fails: str | None
) -> None:
    """A push is another thread: where it names the bytes while they go, it waits for the turn."""
    pushes: list[threading.Thread] = []

    def at(moment: str) -> None:
        if moment == stored:
            blobs.put_bytes(DATA)
        if moment == named:
            push = threading.Thread(target=name, args=(registry,))
            push.start()
            pushes.append(push)
        if moment in {"before", "after"}:
            for push in pushes:
                push.join()

    blobs.at = {moment: lambda moment=moment: at(moment) for moment in ("going", "gone")}
    blobs.fails = fails
    at("before")
    try:
        remove_files(registry, datetime.now(UTC))
    except Unavailable:
        assert fails is not None
    at("after")
    if pushes:  # a removal that failed has not come to every moment
        with registry.database.read() as catalogue:
            assert DIGEST in catalogue.blobs.digests()
        blobs.fails, blobs.at = None, {}
        remove_files(registry, datetime.now(UTC) + timedelta(days=9))
        assert blobs.read(DIGEST) == DATA
    else:
        assert (fails, named) == ("going", "gone")


@pytest.mark.parametrize("fails", ["going", "gone"])
def test_one_that_ended_in_the_middle_is_done_by_the_next(registry: Registry, blobs: WatchedBlobs, fails: str) -> None:
    blobs.fails = fails
    with pytest.raises(Unavailable):
        remove_files(registry, datetime.now(UTC))
    blobs.fails = None
    with registry.database.read() as catalogue:
        assert catalogue.removals.pending() == {DIGEST}
    assert remove_files(registry, datetime.now(UTC)) == 1
    assert not blobs.has(DIGEST)
    with registry.database.read() as catalogue:
        assert catalogue.removals.pending() == set()


def test_a_server_whose_session_has_ended_deletes_nothing(
    postgres: Postgres, tmp_path: Path, blobs: WatchedBlobs
) -> None:
    """Its turn has ended too, and another server may have stored the same bytes again."""
    with Databases("postgresql", postgres).url(tmp_path) as url, ExitStack() as stack:
        registry, second = (
            replace(ToyRegistry(stack.enter_context(closing(Database(url)))).registry, blobs=blobs) for _ in range(2)
        )
        forget(registry, DATA)

        def push() -> None:
            sessions = "datname = current_database() AND pid <> pg_backend_pid()"
            with second.database.engine.begin() as connection:
                connection.exec_driver_sql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {sessions}")
            name(second)

        blobs.at = {"going": push}
        with pytest.raises(Unavailable):
            remove_files(registry, datetime.now(UTC))
        assert blobs.read(DIGEST) == DATA


def test_a_turn_removes_so_many_and_others_write_in_between(
    registry: Registry, blobs: WatchedBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_files, "BATCH", 2)
    forget(registry, b"one", b"two", b"three", b"four")
    blobs.fails = None
    assert remove_files(registry, datetime.now(UTC)) == 5
    assert blobs.together == [2, 2, 1]
    assert list(blobs.digests()) == []
