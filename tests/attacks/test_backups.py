"""Backups that were changed between `soup backup` and `soup restore`: nothing of them is put in place."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from registry.blobs import LocalBlobs
from registry.progress import silent
from service.operations.backup import back_up
from service.operations.restore import restore
from service.settings import Settings
from tests.attacks.attack import Attack, Outcome, each
from tests.attacks.target import Target

MANIFEST = "backup.json"
Change = Callable[[Path, Path], None]
"""What is done to a backup, and where the folder is that nobody may open."""


def backup(name: str, tries: str, change: Change, *, status: int, code: str, says: str = "") -> Attack:
    """A backup of the target that is changed, and restored elsewhere."""

    def prepare(target: Target) -> Path:
        runtime, folder = target.world.runtime, Path(mkdtemp(dir=target.canary.parent)) / "backup"
        blobs = LocalBlobs(runtime.settings.blobs_dir, make=False)
        back_up(runtime.database, blobs, folder, admin_key=None, progress=silent)
        change(folder, target.canary)
        return folder

    def strike(target: Target) -> Outcome:
        settings = Settings(data=target.prepared.with_name("restored"))
        outcome = Outcome.by(lambda: restore(settings, target.prepared, replace=False, progress=silent))
        assert not (settings.data / "soup.db").exists()
        assert not settings.blobs_dir.exists()
        return outcome

    return Attack(name, tries, status, code, says, strike, prepare)


def manifest(**fields: Any) -> Change:
    """Other fields of the manifest."""

    def change(folder: Path, canary: Path) -> None:
        path = folder / MANIFEST
        resolved = {
            key: value.replace("CANARY", str(canary)) if isinstance(value, str) else value
            for key, value in fields.items()
        }
        path.write_text(json.dumps({**json.loads(path.read_text()), **resolved}))

    return change


def text(raw: bytes) -> Change:
    """Another manifest."""
    return lambda folder, _: (folder / MANIFEST).write_bytes(raw) and None


def linked(find: Callable[[Path], Path]) -> Change:
    """A file that is a link to one that nobody may open."""

    def change(folder: Path, canary: Path) -> None:
        path = find(folder)
        path.unlink()
        path.symlink_to(canary / "secret.txt")

    return change


def blob(folder: Path) -> Path:
    """The largest blob of a backup."""
    return max((path for path in (folder / "blobs").rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def flipped(find: Callable[[Path], Path]) -> Change:
    """A file with one bit changed."""

    def change(folder: Path, _: Path) -> None:
        data = bytearray(find(folder).read_bytes())
        data[len(data) // 2] ^= 1
        find(folder).write_bytes(data)

    return change


def database(folder: Path) -> Path:
    return next(folder.glob("soup-*.db"))


ATTACKS = (
    backup(
        "manifest that is missing",
        "Has half of a backup taken for a whole one.",
        lambda folder, _: (folder / MANIFEST).unlink(),
        status=404,
        code="not_found",
        says="no whole backup",
    ),
    backup(
        "database by a path",
        "Has a file outside of the backup read as its database.",
        manifest(database="CANARY/secret.txt"),
        status=400,
        code="invalid_parameter",
    ),
    backup(
        "database that climbs",
        "Has a file above the backup read as its database.",
        manifest(database="../soup-0123456789abcdef.db"),
        status=400,
        code="invalid_parameter",
    ),
    backup(
        "field that is not ours",
        "Adds a field for a later version to act on.",
        manifest(run="id"),
        status=400,
        code="invalid_parameter",
    ),
    backup(
        "format of later",
        "Has a later format read as this one.",
        manifest(format=2),
        status=400,
        code="invalid_parameter",
    ),
    backup(
        "revision of nobody",
        "Has a revision looked for that no version knows.",
        manifest(revision="../../x"),
        status=503,
        code="unavailable",
        says="does not know",
    ),
    backup(
        "other digest of the database",
        "Says that another database is the right one.",
        manifest(database_digest="sha256:" + "0" * 64),
        status=503,
        code="unavailable",
        says="damaged",
    ),
    backup(
        "key that is not there",
        "Says that there is an admin key.",
        manifest(admin_key=True),
        status=404,
        code="not_found",
        says="admin.key",
    ),
    backup(
        "deep manifest",
        "Exhausts the stack of the parser.",
        text(b'{"a":' * 100_000),
        status=400,
        code="invalid_parameter",
    ),
    backup(
        "manifest that is a list", "Has a list read as a manifest.", text(b"[]"), status=400, code="invalid_parameter"
    ),
    backup(
        "changed database",
        "Adds a key of its own to the database.",
        flipped(database),
        status=503,
        code="unavailable",
        says="damaged",
    ),
    backup(
        "changed blob",
        "Puts other weights in the place of some.",
        flipped(blob),
        status=500,
        code="damaged_blob",
        says="nothing was restored",
    ),
    backup(
        "blob that is gone",
        "Takes weights away.",
        lambda folder, _: blob(folder).unlink(),
        status=500,
        code="damaged_blob",
        says="nothing was restored",
    ),
    backup(
        "blob that is a link",
        "Has a file of the machine stored as weights.",
        linked(blob),
        status=500,
        code="damaged_blob",
        says="nothing was restored",
    ),
)


@each(ATTACKS)
def test_nothing_is_restored(target: Target, attack: Attack) -> None:
    target.withstands(attack)
