"""Files of blobs go outside of the turn to write, and none that a push names meanwhile, whatever comes first."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from registry import stored_bytes
from registry.errors import Busy, Unavailable
from registry.names import sha256_digest
from registry.registry import Registry
from registry.stored_bytes import record_bytes, remove_files
from tests.registry.memory_blobs import MemoryBlobs
from tests.registry.toy_registry import ToyRegistry

DATA = b"bytes that somebody pushes again"
DIGEST = sha256_digest(DATA)
MOMENTS = ("before", "claimed", "deleted", "after")
"""When something happens beside a removal: before it, once it has said what goes, once that is gone, after it."""


class WatchedBlobs(MemoryBlobs):
    """Blobs that let others act around a removal."""

    def __init__(self) -> None:
        super().__init__()
        self.at: dict[str, Callable[[], object]] = {}
        self.fails: str | None = None

    def delete_all(self, digests: Sequence[str]) -> None:
        self.reach("claimed")
        super().delete_all(digests)
        self.reach("deleted")

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
    blobs.put_bytes(DATA)
    with verbs.database.write() as catalogue:
        catalogue.blobs.seen(DIGEST, len(DATA))
        catalogue.removals.forget([DIGEST], datetime.now(UTC))
    return replace(verbs.registry, blobs=blobs)


def name(registry: Registry) -> bool:
    """Name the bytes, as the transaction of a push does after they were stored; whether that was acknowledged."""
    try:
        with registry.database.write() as catalogue:
            record_bytes(registry, catalogue, DIGEST, DATA)
    except Busy:
        return False
    return True


def is_named(registry: Registry) -> bool:
    with registry.database.read() as catalogue:
        return DIGEST in catalogue.blobs.digests()


@pytest.mark.parametrize("fails", [None, "claimed", "deleted"])
@pytest.mark.parametrize(("stored", "named"), list(itertools.combinations_with_replacement(MOMENTS, 2)))
def test_what_a_push_was_promised_is_there_in_every_order(
    registry: Registry, blobs: WatchedBlobs, stored: str, named: str, fails: str | None
) -> None:
    acknowledged: list[bool] = []

    def at(moment: str) -> None:
        if moment == stored:
            blobs.put_bytes(DATA)
        if moment == named:
            acknowledged.append(name(registry))

    blobs.at = {moment: lambda moment=moment: at(moment) for moment in ("claimed", "deleted")}
    blobs.fails = fails
    at("before")
    try:
        remove_files(registry, datetime.now(UTC))
    except Unavailable:
        assert fails is not None
    at("after")
    if named in fails_possible(fails):
        assert len(acknowledged) == 1
    if any(acknowledged):
        assert is_named(registry)
        assert blobs.read(DIGEST) == DATA
        blobs.fails, blobs.at = None, {}
        remove_files(registry, datetime.now(UTC) + timedelta(days=9))
        assert blobs.read(DIGEST) == DATA
    else:
        assert not is_named(registry)


def fails_possible(fails: str | None) -> tuple[str, ...]:
    """The moments that a removal comes to which ends at `fails`."""
    return MOMENTS if fails != "claimed" else ("before", "claimed", "after")


def test_it_is_refused_while_the_file_goes_and_taken_right_after(registry: Registry, blobs: WatchedBlobs) -> None:
    found: list[bool] = []
    blobs.at = {moment: lambda: found.append(name(registry)) for moment in ("claimed", "deleted")}
    assert remove_files(registry, datetime.now(UTC)) == 1
    assert (found, name(registry)) == ([False, False], True)
    assert blobs.read(DIGEST) == DATA


def test_others_write_while_files_go(registry: Registry, blobs: WatchedBlobs) -> None:
    def write() -> None:
        with registry.database.write() as catalogue:
            catalogue.blobs.seen(sha256_digest(b"another"), 7)

    blobs.at = {"claimed": write, "deleted": write}
    assert remove_files(registry, datetime.now(UTC)) == 1


def test_of_two_removals_each_file_goes_with_one(registry: Registry, blobs: WatchedBlobs) -> None:
    found: list[int] = []
    blobs.at = {"claimed": lambda: found.append(remove_files(registry, datetime.now(UTC)))}
    assert (remove_files(registry, datetime.now(UTC)), found) == (1, [0])


@pytest.mark.parametrize("fails", ["claimed", "deleted"])
def test_one_that_ended_in_the_middle_goes_on_once_nothing_of_it_can_be_on_its_way(
    registry: Registry, blobs: WatchedBlobs, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store may still do what it did not answer, so that nobody names the digest before."""
    blobs.fails = fails
    with pytest.raises(Unavailable):
        remove_files(registry, datetime.now(UTC))
    blobs.fails = None
    assert (remove_files(registry, datetime.now(UTC)), name(registry)) == (0, False)
    later = datetime.now(UTC) + stored_bytes.GOING
    monkeypatch.setattr("registry.catalogue.removals.now", lambda: later)
    assert remove_files(registry, later) == 1
    assert not blobs.has(DIGEST)
    assert name(registry)


def test_a_removal_that_had_to_wait_too_long_is_left_to_the_next(
    registry: Registry, blobs: WatchedBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_bytes, "MOST_WAITED", -1.0)
    with pytest.raises(Busy):
        remove_files(registry, datetime.now(UTC))
    assert blobs.has(DIGEST)
