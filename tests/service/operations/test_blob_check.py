"""The check of blobs against their database at a start: it never deletes anything that a push was promised."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, date, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from registry.blobs import LocalBlobs
from registry.catalogue import Database
from registry.errors import Unavailable
from registry.files import CHUNK
from registry.lifecycle.purge import purge
from registry.progress import Progress, silent
from registry.spec import CosineSpec, PoolSpec, StoreMark
from service.jobs.cook import request_bytes
from service.operations import blob_check, blob_hashes
from service.operations.blob_check import BlobReport, check_blobs, delete_ended_requests
from service.operations.blob_hashes import Checked, check_hashes
from tests.postgres import Databases
from tests.registry.catalogue_rows import new_database
from tests.registry.damaged_files import flip, overwrite
from tests.registry.memory_blobs import MemoryBlobs
from tests.registry.toy_registry import SHAPE, ToyRegistry

ON_DATABASES = ("sqlite",)  # servers that start over PostgreSQL ask it what these do
TODAY = date(2026, 11, 23)


@pytest.fixture
def blobs(tmp_path) -> LocalBlobs:
    return LocalBlobs(tmp_path / "blobs")


@contextmanager
def opened(folder: Path) -> Iterator[Database]:
    """A database with every table in a new folder."""
    folder.mkdir()
    with closing(new_database(folder)) as database:
        yield database


def start(
    database: Database, blobs: LocalBlobs, *, alone: bool = True, accept: bool = False, today: date = TODAY
) -> BlobReport:
    return check_blobs(database, blobs, alone=alone, accept=accept, today=today)


def named(database: Database, blobs, *texts: bytes) -> list[str]:
    """Bytes that rows name."""
    digests = [blobs.put_bytes(text) for text in texts]
    with database.write() as catalogue:
        for digest in digests:
            catalogue.blobs.record(digest, 5)
    return digests


def cook(database: Database, request: str, *, ended: bool) -> None:
    arguments = {"request": request, "scope": None, "namespace": "acme", "request_id": "r"}
    with database.write() as catalogue:
        job = catalogue.jobs.enqueue("cook", arguments, namespace="acme", created_by="key-1")
        if ended:
            catalogue.jobs.cancel(job.id)


def aside(blobs: LocalBlobs) -> set[str]:
    return {"sha256:" + path.name for path in blobs.set_aside.folder.glob("*/*")}


class TestTheirOwn:
    @pytest.fixture(autouse=True)
    def _first_start(self, database, blobs) -> None:
        start(database, blobs)

    def test_what_no_row_names_is_set_aside_and_what_one_names_stays(self, database, blobs):
        (named_blob,) = named(database, blobs, b"named")
        orphan = blobs.put_bytes(b"orphan")
        assert start(database, blobs) == BlobReport(older=False, restored=0, moved=1, set_aside=1, deleted=0, missing=0)
        assert (set(blobs.digests()), aside(blobs)) == ({named_blob}, {orphan})

    def test_requests_of_cooks_are_not_kept_unless_the_cook_waits(self, database, blobs):
        ended, _lost, waiting = (blobs.put_bytes(request_bytes({"sample": text})) for text in ("a", "b", "c"))
        cook(database, ended, ended=True)
        cook(database, waiting, ended=False)
        assert start(database, blobs) == BlobReport(older=False, restored=0, moved=0, set_aside=0, deleted=2, missing=0)
        assert (set(blobs.digests()), aside(blobs)) == ({waiting}, set())

    def test_what_is_noted_to_go_is_left_to_the_collection(self, database, blobs):
        (going,) = named(database, blobs, b"going")
        with database.write() as catalogue:
            catalogue.removals.forget([going], datetime.now(UTC))
        assert start(database, blobs).moved == 0
        assert set(blobs.digests()) == {going}

    def test_what_is_deleted_is_not_left_set_aside(self, database, blobs):
        orphan = blobs.put_bytes(b"orphan")
        start(database, blobs)
        assert aside(blobs) == {orphan}
        blobs.delete(orphan)
        assert aside(blobs) == set()

    def test_what_is_set_aside_stays_and_every_start_says_so(self, database, blobs, caplog):
        orphan = blobs.put_bytes(b"orphan")
        start(database, blobs)
        with caplog.at_level(logging.WARNING):
            assert start(database, blobs, today=date(2028, 1, 1)).set_aside == 1
        assert "1 blobs that the database does not name are set aside" in caplog.text
        assert aside(blobs) == {orphan}
        (blobs.set_aside.folder / "2026-11-23" / "notes.txt").write_text("somebody else's")
        assert start(database, blobs).set_aside == 1

    def test_what_a_row_names_by_now_comes_back(self, database, blobs):
        orphan = blobs.put_bytes(b"orphan")
        start(database, blobs)
        with database.write() as catalogue:
            catalogue.blobs.record(orphan, 6)
        assert start(database, blobs).restored == 1
        assert blobs.read(orphan) == b"orphan"

    def test_what_is_missing_is_counted_and_told(self, database, blobs, caplog):
        (lost,) = named(database, blobs, b"lost")
        blobs.delete(lost)
        with caplog.at_level(logging.WARNING):
            assert start(database, blobs).missing == 1
        assert "1 blobs that the database names are not in" in caplog.text

    @pytest.mark.parametrize("alone", [True, False])
    def test_a_folder_without_a_mark_that_holds_none_of_them_is_not_mounted(self, database, blobs, tmp_path, alone):
        named(database, blobs, b"one", b"two")
        empty = LocalBlobs(tmp_path / "empty")
        for _ in range(2):
            with pytest.raises(
                Unavailable, match=r"names 2 blobs and none is in .*empty, which carries no mark: mount"
            ):
                start(database, empty, alone=alone)
        assert start(database, empty, alone=alone, accept=True).missing == 2

    def test_a_copy_without_a_mark_is_taken(self, database, blobs):
        named(database, blobs, b"one")
        (blobs.folder / "store.json").unlink()
        assert start(database, blobs).missing == 0


def test_who_shares_them_sets_nothing_aside(database, blobs):
    """Bytes without a row may be on their way to one in another process."""
    start(database, blobs, alone=False)
    orphan = blobs.put_bytes(b"orphan")
    assert start(database, blobs, alone=False).moved == 0
    assert set(blobs.digests()) == {orphan}


# --- another database -----------------------------------------------------------------------------


@pytest.fixture
def full(database, blobs) -> list[str]:
    """A folder whose database names all of it."""
    start(database, blobs)
    return named(database, blobs, b"one", b"two")


@pytest.mark.parametrize(("alone", "marked"), [(True, True), (False, True), (True, False)])
def test_a_new_one_is_refused_and_nothing_is_touched(full, blobs, tmp_path, alone, marked):
    if not marked:  # as before there were marks
        (blobs.folder / "store.json").unlink()
    with opened(tmp_path / "new") as lost:
        for _ in range(2):
            with pytest.raises(Unavailable, match=r"is new and names no blob, but .* holds 2: restore a copy"):
                start(lost, blobs, alone=alone)
    assert set(blobs.digests()) == set(full)


def test_another_servers_is_refused(full, blobs, tmp_path):
    with opened(tmp_path / "new") as second_database:
        elsewhere = LocalBlobs(tmp_path / "elsewhere")
        start(second_database, elsewhere)
        named(second_database, elsewhere, b"three")
        with pytest.raises(Unavailable, match="belong to another database"):
            start(second_database, blobs)
    assert set(blobs.digests()) == set(full)


def test_one_that_is_taken_as_it_is_sets_them_aside_and_the_lost_one_has_them_back(
    full, database, blobs, tmp_path, caplog
):
    with opened(tmp_path / "new") as lost:
        with caplog.at_level(logging.WARNING):
            assert start(lost, blobs, accept=True) == BlobReport(
                older=True, restored=0, moved=2, set_aside=2, deleted=0, missing=0
            )
        assert "2 blobs that the database does not name are set aside" in caplog.text
        start(lost, blobs)
    assert aside(blobs) == set(full)
    assert start(database, blobs).restored == 2
    assert set(blobs.digests()) == set(full)


def test_one_of_before_there_were_marks_is_refused_where_nothing_here_is_its_own(full, blobs, tmp_path):
    with opened(tmp_path / "new") as second_database:
        named(second_database, LocalBlobs(tmp_path / "elsewhere"), b"three")
        with pytest.raises(Unavailable, match="belong to another database"):
            start(second_database, blobs)


def test_an_older_copy_is_told_where_servers_share_too(full, database, blobs, caplog):
    blobs.set_aside.set_mark(blobs.set_aside.mark().model_copy(update={"generation": 99}))
    with caplog.at_level(logging.WARNING):
        assert start(database, blobs, alone=False).older
    assert "the database is an older copy than its blobs" in caplog.text
    assert not start(database, blobs, alone=False).older


def test_a_mark_that_nobody_wrote_is_no_reason_to_delete(full, database, blobs):
    (blobs.folder / "store.json").write_text("{}")
    with pytest.raises(Unavailable, match=r"store.json, .* cannot be read \(it is not what a server wrote\)"):
        start(database, blobs)
    assert set(blobs.digests()) == set(full)


def test_servers_that_start_together_agree(database, blobs, monkeypatch):
    """Each has seen a database without a mark; whoever is second to make one takes the first one's."""
    advance, late = blob_check._advance, []

    def meanwhile(*arguments):
        if not late:
            late.append(True)
            start(database, blobs, alone=False)
        advance(*arguments)

    monkeypatch.setattr(blob_check, "_advance", meanwhile)
    start(database, blobs, alone=False)
    with database.read() as catalogue:
        assert catalogue.stores.mark() == blobs.set_aside.mark()
    start(database, blobs, alone=False)


def test_an_older_copy_loses_nothing(tmp_path, blobs, caplog):
    with opened(tmp_path / "db") as database:
        start(database, blobs)
        old = named(database, blobs, b"old")
        newer = named(database, blobs, b"newer")  # is scheduled for removal in the copy, and stored again after it
        with database.write() as catalogue:
            catalogue.removals.forget(newer, datetime.now(UTC))
        database.close()  # a copy of the file then, as a backup makes it
        (tmp_path / "backup").mkdir()
        backup = Path(shutil.copy(database.engine.url.database, tmp_path / "backup" / "soup.db"))
        start(database, blobs)
        new = named(database, blobs, b"new", b"newer")
        request = blobs.put_bytes(request_bytes({"sample": "text"}))
        older = Database(f"sqlite:///{backup}")
        with older.read() as catalogue:
            assert catalogue.removals.pending() == set(newer)
        with caplog.at_level(logging.WARNING):
            assert start(older, blobs) == BlobReport(older=True, restored=0, moved=3, set_aside=3, deleted=0, missing=0)
        assert "the database is an older copy than its blobs" in caplog.text
        assert set(blobs.digests()) == set(old)
        with older.read() as catalogue:
            assert catalogue.removals.pending() == set()  # else the next collection deletes what is set aside
        older.close()
        report = start(database, blobs)
        assert (report.older, report.restored) == (True, 2)  # the other one is ahead of it by now
        assert set(blobs.digests()) == {*old, *new}
        assert aside(blobs) == {request}


@pytest.fixture
def older(database, blobs, tmp_path) -> Iterator[Database]:
    """A copy of the database that was made before its latest start."""
    start(database, blobs)
    database.close()
    (tmp_path / "copy").mkdir()
    copy = Path(shutil.copy(database.engine.url.database, tmp_path / "copy" / "soup.db"))
    start(database, blobs)
    with closing(Database(f"sqlite:///{copy}")) as older:
        yield older


@pytest.mark.parametrize("ended", [False, True])
def test_the_text_of_a_waiting_cook_alone_comes_back_after_starts_on_an_older_copy(database, older, blobs, ended):
    request = blobs.put_bytes(request_bytes({"sample": "text"}))
    cook(database, request, ended=ended)
    for _ in range(2):
        start(older, blobs)
    assert aside(blobs) == {request}
    report = start(database, blobs)
    assert (report.restored, report.deleted) == ((0, 1) if ended else (1, 0))
    assert set(blobs.digests()) == (set() if ended else {request})
    assert aside(blobs) == set()


def test_an_upload_that_begins_like_a_request_comes_back_after_starts_on_an_older_copy(database, older, blobs):
    (upload,) = named(database, blobs, b'{"request": {"text": "Summarise this."}}')
    for _ in range(2):
        start(older, blobs)
    assert aside(blobs) == {upload}
    assert start(database, blobs).restored == 1
    assert set(blobs.digests()) == {upload}


def test_set_aside_training_data_that_begins_like_a_request_is_not_deleted(database, blobs):
    start(database, blobs)
    data = blobs.put_bytes(b'{"request": "Summarise this.", "answer": "..."}\n')
    for _ in range(2):
        start(database, blobs)
    assert aside(blobs) == {data}


def test_requests_that_ended_go_wherever_they_are(database):
    blobs = MemoryBlobs()
    ended, waiting, unrelated = (blobs.put_bytes(text) for text in (b"ended", b"waiting", b"other"))
    cook(database, ended, ended=True)
    cook(database, waiting, ended=False)
    assert len(delete_ended_requests(database, blobs, set(blobs.digests()))) == 1
    assert set(blobs.digests()) == {waiting, unrelated}
    assert delete_ended_requests(database, blobs, set(blobs.digests())) == set()


# --- reading every blob ---------------------------------------------------------------------------


FAST = 10**12


@pytest.fixture
def verbs(databases: Databases, tmp_path):
    """The verbs over a folder that carries its database's mark."""
    with databases.new(tmp_path, pool_size=4) as database:
        verbs = ToyRegistry(database, LocalBlobs(tmp_path / "blobs"))
        with database.write() as catalogue:
            verbs.blobs.set_aside.set_mark(catalogue.stores.advance("0" * 32, after=0))
        yield verbs


def checked(verbs: ToyRegistry, *, rate: int | None = FAST, progress: Progress = silent) -> Checked:
    blobs = LocalBlobs(verbs.blobs.folder, make=False)
    return check_hashes(verbs.database, blobs, rate=rate, progress=progress)


def unsound(verbs: ToyRegistry, **options) -> dict[str, tuple]:
    return {blob.digest: (blob.problem, blob.named_by) for blob in checked(verbs, **options).unsound}


def test_nothing_where_all_is_well(verbs):
    row = verbs.ready("acme/law")
    progress_calls: list = []
    done = checked(verbs, progress=lambda *progress: progress_calls.append(progress))
    stored = list(verbs.blobs.digests())
    assert (done.blobs, done.unsound) == (len(stored), ())
    assert done.bytes == sum(verbs.blobs.size(digest) for digest in stored)
    assert progress_calls[0][:2] == (0, len(stored))
    assert progress_calls[-1] == (len(stored), len(stored), f"0 not whole, {done.bytes} bytes read")
    assert row.weights_blob in stored


def test_each_is_named_with_all_that_needs_it(verbs):
    row = verbs.ready("acme/law")
    verbs.push("acme/twin")
    verbs.ready("acme/code", seed=1)
    selector = verbs.fit(PoolSpec(base_fingerprint=SHAPE.fingerprint), CosineSpec(encoder="base"), verbs.base.digest)
    soup = verbs.row(verbs.cook(recipe={"ingredients": [{"ref": "acme/law"}, {"ref": "acme/code"}]}).soup_id)
    with verbs.database.read() as catalogue:
        vectors = catalogue.samples.embedding(row.sample.digest, verbs.base.digest).blob_digest
    flip(verbs.blobs.place(row.weights_blob))
    flip(verbs.blobs.place(row.sample.digest))
    flip(verbs.blobs.place(vectors), at=len(verbs.blobs.place(vectors).read_bytes()) // 2)
    overwrite(verbs.blobs.place(selector.state_blob), b"")
    verbs.blobs.place(soup.weights_blob).unlink()
    assert unsound(verbs) == {
        row.weights_blob: ("damaged", ("weights of acme/law@1", "weights of acme/twin@1")),
        row.sample.digest: ("damaged", ("sample of acme/law@1",)),
        vectors: ("damaged", ("embeddings of acme/law@1",)),
        selector.state_blob: ("damaged", (f"selector {selector.id}",)),
        soup.weights_blob: ("missing", (f"weights of {soup.ref}", f"recipe {soup.recipe_digest}")),
    }
    sizes_only = unsound(verbs, rate=None)
    assert {digest: problem for digest, (problem, _) in sizes_only.items()} == {
        selector.state_blob: "damaged",
        soup.weights_blob: "missing",
    }


def test_uploads_that_nothing_is_made_of_and_what_no_row_names(verbs):
    upload, request = verbs.blobs.put_bytes(b"an upload"), verbs.blobs.put_bytes(b"a request")
    with verbs.database.write() as catalogue:
        catalogue.blobs.record(upload, 9)
        catalogue.blobs.grant("acme", upload)
    for digest in (upload, request):
        flip(verbs.blobs.place(digest))
    assert unsound(verbs) == {upload: ("damaged", ("uploaded by namespace acme",)), request: ("damaged", ())}


def test_what_is_purged_during_the_check_is_not_missing(verbs):
    law = verbs.ready("acme/law")

    def purge_at_first(number: int, *_: object) -> None:
        if number == 0:
            purge(verbs.registry, verbs.caller(), law.id)

    assert checked(verbs, progress=purge_at_first).unsound == ()
    assert not verbs.blobs.is_whole(law.weights_blob)


def test_what_the_disk_does_not_give(verbs):
    row = verbs.push().row
    place = verbs.blobs.place(row.weights_blob)
    place.unlink()
    place.mkdir()
    assert unsound(verbs) == {row.weights_blob: ("unreadable", ("weights of acme/law@1",))}


def test_nothing_is_remembered_from_what_was_read_before(verbs):
    row = verbs.push().row
    checked(verbs)
    verbs.blobs.read(row.weights_blob)
    place = verbs.blobs.place(row.weights_blob)
    changed = bytearray(place.read_bytes())
    changed[-1] ^= 1
    place.write_bytes(changed)
    assert list(unsound(verbs)) == [row.weights_blob]


@pytest.mark.parametrize("mark", [None, StoreMark(store="1" * 32, generation=1)])
def test_another_folder_is_not_called_a_folder_of_lost_blobs(verbs, mark):
    verbs.push()
    (verbs.blobs.folder / "store.json").unlink()
    if mark is not None:
        verbs.blobs.set_aside.set_mark(mark)
    with pytest.raises(Unavailable, match="is not the place of this database's blobs"):
        checked(verbs)


def test_the_rate_is_kept_and_a_slow_disk_is_not_made_up_for(verbs, monkeypatch):
    verbs.blobs.put_bytes(bytes(2 * CHUNK + CHUNK // 2))
    now, slept = [0.0], []
    seconds_of_reading = iter([0.0, 0.25, 10.0, 0.25])

    def read() -> float:
        now[0] += next(seconds_of_reading)
        return now[0]

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    clock = SimpleNamespace(monotonic=read, sleep=sleep)
    monkeypatch.setattr(blob_hashes, "time", clock)
    checked(verbs, rate=CHUNK)
    assert slept == [0.75, 0.0, 0.25]
