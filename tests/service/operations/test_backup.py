"""Backup and restore: the same rows and blobs between all kinds of databases, and nothing half taken for whole."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from registry.blobs import LocalBlobs
from registry.catalogue import Database
from registry.catalogue.tables import metadata
from registry.errors import Busy, Conflict, DamagedBlob, InvalidParameter, NotFound, SoupError, Unavailable
from registry.lifecycle.purge import purge
from registry.progress import Progress, silent
from registry.spec import CosineSpec, PoolSpec, StoreMark
from service.access.key_watch import KeyWatch
from service.access.keys import new_secret, secret_sha256
from service.access.sessions import Sessions
from service.operations import storage
from service.operations.backup import BackedUp, back_up, open_for_backup, read_manifest, write_manifest
from service.operations.blob_check import check_blobs
from service.operations.restore import restore
from service.settings import Settings
from tests.postgres import KINDS, Databases
from tests.registry.damaged_files import flip
from tests.registry.refusing_disk import failing, refuse_new_files
from tests.registry.toy_registry import SHAPE, ToyRegistry

STORE = "0" * 32


@contextmanager
def registry_over(databases: Databases, data: Path) -> Iterator[ToyRegistry]:
    """A registry of two adapters and a selector over a folder that carries its database's mark."""
    data.mkdir()
    with databases.new(data, pool_size=4) as database:
        verbs = ToyRegistry(database, LocalBlobs(data / "blobs"))
        with database.write() as catalogue:
            verbs.blobs.set_aside.set_mark(catalogue.stores.advance(STORE, after=0))
        verbs.ready("acme/law")
        verbs.ready("acme/code", seed=1)
        verbs.fit(PoolSpec(base_fingerprint=SHAPE.fingerprint), CosineSpec(encoder="base"), verbs.base.digest)
        yield verbs


@pytest.fixture
def verbs(tmp_path: Path) -> Iterator[ToyRegistry]:
    """A registry whose kind of database is none of the test's business."""
    with registry_over(Databases("sqlite", None), tmp_path / "data") as verbs:
        yield verbs


@pytest.fixture
def verbs_of_each(databases: Databases, tmp_path: Path) -> Iterator[ToyRegistry]:
    """One on each kind of database."""
    with registry_over(databases, tmp_path / "data") as verbs:
        yield verbs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "backup"


def backed_up(verbs: ToyRegistry, folder: Path, *, key: Path | None = None, progress: Progress = silent) -> BackedUp:
    blobs = LocalBlobs(verbs.blobs.folder, make=False)
    return back_up(verbs.database, blobs, folder, admin_key=key, progress=progress)


def cut_off(where: str, *, after: int = 0) -> Progress:
    """Interrupt what tells its progress in such words, once so much is done."""

    def progress(done: int, total: int, message: str) -> None:
        if where in message and done >= after:
            raise KeyboardInterrupt

    return progress


def rows(database: Database) -> dict[str, list[Any]]:
    with database.engine.connect() as connection:
        return {
            table.name: sorted(map(repr, connection.execute(select(table)).all())) for table in metadata.sorted_tables
        }


def restored_rows(database: Database) -> dict[str, list[Any]]:
    """The rows that a restore of this database gives: all but the sessions, one of which may have been ended since."""
    rows_by_table = rows(database)
    assert rows_by_table["sessions"]
    return {**rows_by_table, "sessions": []}


def weights_of(verbs: ToyRegistry, name: str) -> str:
    with verbs.database.read() as catalogue:
        blobs_by_name = {row.name: row.weights_blob for row in catalogue.adapters.list(None, limit=9).rows}
    return str(blobs_by_name[name])


def started(settings: Settings, *, alone: bool = True) -> Any:
    """The report of a server's start on the blobs of a data folder."""
    with closing(Database(settings.database)) as database:
        return check_blobs(database, LocalBlobs(settings.blobs_dir), alone=alone, accept=False, today=date(2026, 1, 2))


def restored(folder: Path, data: Path) -> Settings:
    """Settings of a new data folder, into which this backup was restored."""
    settings = Settings(data=data)
    restore(settings, folder, replace=False, progress=silent)
    return settings


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_trip_into_either_kind_of_database(verbs_of_each, folder, tmp_path, kind, request) -> None:
    verbs = verbs_of_each
    _sign_in(verbs.database)
    done = backed_up(verbs, folder)
    assert done.unsound == ()
    named = set(verbs.blobs.digests())
    assert (done.manifest.blobs, done.new) == (len(named), len(named))
    url = request.getfixturevalue("postgres").url(empty=True) if kind == "postgresql" else None
    settings = Settings(data=tmp_path / "other", database_url=url)
    restore(settings, folder, replace=False, progress=silent)
    with closing(Database(settings.database)) as database:
        assert rows(database) == restored_rows(verbs.database)
        blobs = LocalBlobs(settings.blobs_dir)
        assert all(blobs.is_whole(digest) for digest in named)
        report = started(settings)
        assert (report.older, report.moved, report.deleted, report.missing) == (False, 0, 0, 0)
        ToyRegistry(database, blobs).push("acme/after", seed=2)  # numbered after those that came
        with database.read() as catalogue:
            assert {"law", "code", "after"} == {row.name for row in catalogue.adapters.list(None, limit=9).rows}
    assert {path.name for path in settings.data.iterdir()} >= {"blobs", "lock"}
    assert not list(settings.data.glob("*restoring*"))
    if url is not None:
        _replaced_in_one_transaction(verbs, folder, settings)
        request.getfixturevalue("postgres").drop(url)


@pytest.mark.parametrize("kind", KINDS)
def test_an_id_of_a_purged_adapter_is_not_given_after_a_restore_either(
    verbs_of_each, folder, tmp_path, kind, request
) -> None:
    gone = verbs_of_each.push("acme/gone", seed=2).row
    purge(verbs_of_each.registry, verbs_of_each.caller(), gone.id)
    backed_up(verbs_of_each, folder)
    url = request.getfixturevalue("postgres").url(empty=True) if kind == "postgresql" else None
    settings = Settings(data=tmp_path / "other", database_url=url)
    restore(settings, folder, replace=False, progress=silent)
    with closing(Database(settings.database)) as database:
        assert ToyRegistry(database, LocalBlobs(settings.blobs_dir)).push("acme/after", seed=3).row.id > gone.id
    if url is not None:
        request.getfixturevalue("postgres").drop(url)


def _sign_in(database: Database) -> None:
    secret = new_secret()
    with database.write() as catalogue:
        catalogue.keys.add("browser", secret_sha256(secret), namespaces=("acme",), scopes=["read"], prefix="sk")
    Sessions(database, KeyWatch(database), seconds=3600).begin(secret, "request-1")


def _replaced_in_one_transaction(verbs: ToyRegistry, folder: Path, settings: Settings) -> None:
    with pytest.raises(Conflict, match="--replace"):
        restore(settings, folder, replace=False, progress=silent)
    with closing(Database(settings.database)) as database:
        there = rows(database)
        with pytest.raises(KeyboardInterrupt):
            restore(settings, folder, replace=True, progress=cut_off("rows are there"))
        assert rows(database) == there
        ToyRegistry(database, LocalBlobs(settings.blobs_dir)).push("acme/last", seed=3)  # no number is given twice
    restore(settings, folder, replace=True, progress=silent)
    with closing(Database(settings.database)) as database:
        assert rows(database) == restored_rows(verbs.database)


def test_what_is_pushed_meanwhile_is_in_it_whole_or_not_at_all(verbs_of_each, folder, tmp_path) -> None:
    verbs, seeds = verbs_of_each, iter(range(10, 99))

    def progress(done: int, total: int, message: str) -> None:
        if total and done < total:
            verbs.push(f"acme/new{(seed := next(seeds))}", seed=seed)

    first = backed_up(verbs, folder, progress=progress)
    assert first.unsound == ()
    second = backed_up(verbs, folder)
    assert second.new == second.manifest.blobs - first.manifest.blobs > 0
    assert [path.name for path in folder.glob("*.db")] == [second.manifest.database]
    settings = restored(folder, tmp_path / "other")
    assert started(settings).missing == 0


class TestBackup:
    def test_one_that_is_cut_off_is_none_and_a_second_leaves_the_first(self, verbs, folder, tmp_path) -> None:
        with pytest.raises(KeyboardInterrupt):
            backed_up(verbs, folder, progress=cut_off("new", after=1))
        with pytest.raises(NotFound, match=r"no whole backup"):
            restore(Settings(data=tmp_path / "other"), folder, replace=False, progress=silent)
        backed_up(verbs, folder)
        rows_before = rows(verbs.database)
        verbs.push("acme/later", seed=9)
        with pytest.raises(KeyboardInterrupt):
            backed_up(verbs, folder, progress=cut_off("new", after=1))
        settings = restored(folder, tmp_path / "other")
        with closing(Database(settings.database)) as database:
            assert rows(database) == rows_before

    def test_what_is_not_whole_is_named_and_left_out(self, verbs, folder, tmp_path) -> None:
        law = weights_of(verbs, "law")
        flip(verbs.blobs.place(law))
        code = verbs.blobs.place(weights_of(verbs, "code"))
        code.rename(tmp_path / "moved")
        code.symlink_to(tmp_path / "moved")
        done = backed_up(verbs, folder)
        assert {(blob.digest, blob.problem) for blob in done.unsound} == {
            (law, "damaged"),
            (f"sha256:{code.name}", "unreadable"),
        }
        assert ("weights of acme/law@1",) in [blob.named_by for blob in done.unsound]
        settings = Settings(data=tmp_path / "other")
        assert len(restore(settings, folder, replace=False, progress=silent).manifest.lacking) == 2
        assert started(settings).missing == 2
        flip(verbs.blobs.place(law))
        assert len(backed_up(verbs, folder).unsound) == 1

    def test_a_blob_that_was_damaged_in_the_backup_is_copied_again(self, verbs, folder, tmp_path) -> None:
        backed_up(verbs, folder)
        flip(next((folder / "blobs").glob("??/*")))
        assert backed_up(verbs, folder).new == 1
        restore(Settings(data=tmp_path / "other"), folder, replace=False, progress=silent)

    def test_it_is_closed_to_others_and_has_the_key_only_where_asked(
        self, verbs, folder, tmp_path, monkeypatch
    ) -> None:
        key = tmp_path / "admin.key"
        key.write_text("secret\n")
        assert backed_up(verbs, folder, key=key).manifest.admin_key
        modes = {path: path.stat().st_mode & 0o777 for path in (folder, *folder.rglob("*"))}
        assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
        assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}
        settings = restored(folder, tmp_path / "other")
        assert settings.admin_key_path.read_text() == "secret\n"
        with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
            patch.setattr(storage, "finish_sqlite", failing(errno.ENOSPC))
            backed_up(verbs, folder)
        restore(Settings(data=tmp_path / "another"), folder, replace=False, progress=silent)
        backed_up(verbs, folder)
        assert not (folder / "admin.key").exists()

    def test_a_full_disk_is_the_one_of_the_backup(self, verbs, folder, monkeypatch) -> None:
        backed_up(verbs, folder)
        files_before = files(folder)
        verbs.push("acme/later", seed=9)
        refuse_new_files(monkeypatch, errno.ENOSPC)
        with pytest.raises(Unavailable, match=f"The folder {folder}/blobs of the backup is full"):
            backed_up(verbs, folder)
        assert read_manifest(folder).database in files_before

    def test_a_database_that_cannot_be_copied_is_named(self, verbs, tmp_path) -> None:
        with pytest.raises(Unavailable, match=r"soup\.db cannot be copied to .*/missing/copy\.db"):
            storage.copy_database(verbs.database, tmp_path / "missing" / "copy.db")

    def test_a_folder_of_something_else_is_left_alone(self, verbs, folder, tmp_path) -> None:
        with pytest.raises(InvalidParameter, match="is no backup"):
            backed_up(verbs, verbs.blobs.folder.parent)
        backed_up(verbs, folder)
        with open_for_backup(folder), pytest.raises(Busy):
            backed_up(verbs, folder)
        write_manifest(folder, read_manifest(folder).model_copy(update={"store": "1" * 32}))
        with pytest.raises(Conflict, match="another server"):
            backed_up(verbs, folder)


class TestRestore:
    def refused(self, settings: Settings, folder: Path, error: type[SoupError], says: str, **options: bool) -> None:
        """Refused, with nothing written."""
        files_before = files(settings.data)
        with pytest.raises(error, match=says):
            restore(settings, folder, replace=options.get("replace", False), progress=silent)
        assert {**files(settings.data), "lock": b""} == {**files_before, "lock": b""}

    def test_nothing_is_written_of_a_damaged_backup(self, verbs, folder, tmp_path) -> None:
        manifest = backed_up(verbs, folder).manifest
        blob = next((folder / "blobs").glob("??/*"))
        flip(blob)
        settings = Settings(data=tmp_path / "other")
        self.refused(settings, folder, DamagedBlob, f"sha256:{blob.name}")
        flip(blob)
        (folder / "blobs" / "incoming").rmdir()  # as in a copy by way of git, zip or an object store
        moved = blob.rename(folder / "elsewhere")
        self.refused(settings, folder, DamagedBlob, f"sha256:{blob.name}")
        moved.rename(blob)
        flip(folder / manifest.database)
        self.refused(settings, folder, Unavailable, "is damaged")
        flip(folder / manifest.database)
        write_manifest(folder, manifest.model_copy(update={"revision": "9999"}))
        self.refused(settings, folder, Unavailable, "'9999', which this version")
        write_manifest(folder, manifest.model_copy(update={"database": "../data/soup.db"}))
        self.refused(settings, folder, InvalidParameter, "is not what")

    def test_what_is_there_is_replaced_only_when_asked_and_kept(self, verbs, folder, tmp_path) -> None:
        backed_up(verbs, folder)
        rows_before = rows(verbs.database)
        verbs.push("acme/later", seed=9)
        later = weights_of(verbs, "later")
        with verbs.database.write() as catalogue:
            verbs.blobs.set_aside.set_mark(catalogue.stores.advance(STORE, after=0))
        there = rows(verbs.database)
        settings = Settings(data=verbs.blobs.folder.parent)
        verbs.database.close()
        self.refused(settings, folder, Conflict, "--replace")
        done = restore(settings, folder, replace=True, progress=silent)
        with closing(Database(storage.sqlite_url(done.replaced))) as replaced:
            assert rows(replaced) == there
        with closing(Database(settings.database)) as database:
            assert rows(database) == rows_before
        report = started(settings)
        assert (report.older, report.moved, report.deleted) == (True, 1, 0)
        assert [name[-64:] for name in verbs.blobs.set_aside.names()] == [later[7:]]

    def test_what_is_there_is_kept_on_another_file_system_too(self, verbs, folder, monkeypatch) -> None:
        backed_up(verbs, folder)
        rows_before = rows(verbs.database)
        settings = Settings(data=verbs.blobs.folder.parent)
        verbs.database.close()
        monkeypatch.setattr(os, "link", failing(errno.EXDEV))
        done = restore(settings, folder, replace=True, progress=silent)
        with closing(Database(storage.sqlite_url(done.replaced))) as replaced:
            assert rows(replaced) == rows_before

    def test_a_database_of_a_later_version_is_refused(self, verbs, folder, tmp_path, postgres) -> None:
        backed_up(verbs, folder)
        settings = Settings(data=tmp_path / "other", database_url=postgres.url())
        with closing(Database(settings.database)) as database, database.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
        self.refused(settings, folder, Unavailable, "'9999'", replace=True)
        postgres.drop(settings.database)

    def test_a_server_that_runs_keeps_its_folder(self, verbs, folder) -> None:
        backed_up(verbs, folder)
        data = verbs.blobs.folder.parent
        with storage.owned(data):
            self.refused(Settings(data=data), folder, Unavailable, "in use by another server", replace=True)

    def test_one_that_is_cut_off_is_finished_by_the_next(self, verbs, folder, tmp_path) -> None:
        backed_up(verbs, folder)
        settings = Settings(data=tmp_path / "other")

        with pytest.raises(KeyboardInterrupt):
            restore(settings, folder, replace=False, progress=cut_off("new", after=2))
        assert len(list(LocalBlobs(settings.blobs_dir).digests())) == 2
        with pytest.raises(Unavailable, match="holds 2"):
            self._start_new(settings)
        (settings.data / "soup.db").unlink()
        for name in ("soup.db.restoring", "soup.db.restoring-wal", "soup.db-wal"):  # what a kill or a person left
            (settings.data / name).write_bytes(b"half")
        restore(settings, folder, replace=False, progress=silent)
        assert started(settings).missing == 0
        assert [path.read_bytes() for path in (settings.data / "backups").iterdir()] == [b"half"]
        with closing(Database(settings.database)) as database:
            rows_after = rows(database)
        del rows_after["stores"]
        assert rows_after == {name: value for name, value in rows(verbs.database).items() if name != "stores"}

    def _start_new(self, settings: Settings) -> None:
        with closing(Database(settings.database)) as database:
            storage.migrate(database, backups=settings.data / "backups")
        started(settings)

    def test_a_damaged_database_is_replaced_and_kept(self, verbs, folder, tmp_path) -> None:
        backed_up(verbs, folder)
        settings = Settings(data=tmp_path / "other")
        settings.data.mkdir()
        (settings.data / "soup.db").write_bytes(b"no database at all" * 999)
        replaced = restore(settings, folder, replace=True, progress=silent).replaced
        assert replaced.read_bytes() == b"no database at all" * 999
        assert started(settings).missing == 0

    def test_a_database_that_is_not_all_in_its_file_is_not_put_in_place(self, tmp_path) -> None:
        new = tmp_path / "new.db"
        new.write_bytes(b"")
        (tmp_path / "new.db-wal").write_bytes(b"log")
        with pytest.raises(Unavailable, match="could not write"):
            storage.replace_sqlite(new, tmp_path / "soup.db", backups=tmp_path)
        assert not (tmp_path / "soup.db").exists()

    def test_the_mark_is_the_databases_and_a_link_in_place_of_the_manifest_is_not_followed(
        self, verbs, folder, tmp_path
    ) -> None:
        backed_up(verbs, folder)
        settings = restored(folder, tmp_path / "other")
        assert LocalBlobs(settings.blobs_dir).set_aside.mark() == StoreMark(store=STORE, generation=1)
        (folder / "backup.json").rename(tmp_path / "elsewhere")
        (folder / "backup.json").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(OSError, match="symbolic links"):
            restore(Settings(data=tmp_path / "another"), folder, replace=False, progress=silent)
