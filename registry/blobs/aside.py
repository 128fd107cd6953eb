"""Blobs that are set aside: what a start found that its database does not name, kept for a while beside the others.

`<folder>/set-aside/<day>/<64 hex>`; nothing here is a stored blob. Beside it lies the folder's mark, `store.json`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import date
from pathlib import Path

from pydantic import ValidationError

from registry.blobs.contract import hex_of
from registry.blobs.local import LocalBlobs, sync_place
from registry.errors import Unavailable
from registry.files import replace_file
from registry.spec import StoreMark

ASIDE, MARK = "set-aside", "store.json"


class Aside:
    """What is set aside of a folder of blobs, and the folder's mark."""

    def __init__(self, blobs: LocalBlobs) -> None:
        self._blobs = blobs
        self.folder = blobs.folder / ASIDE

    def put(self, digest: str, day: date) -> None:
        """Move a stored blob here."""
        target = self.folder / day.isoformat() / hex_of(digest)
        target.parent.mkdir(parents=True, exist_ok=True)
        self._blobs.place(digest).replace(target)
        sync_place(target)

    def take(self, digest: str) -> bool:
        """Store a blob again that is here; whether it was."""
        name = hex_of(digest)
        for found in self.folder.glob(f"*/{name}"):
            target = self._blobs.place(digest)
            target.parent.mkdir(exist_ok=True)
            found.replace(target)
            sync_place(target)
            return True
        return False

    def forget(self, before: date) -> int:
        """Delete what was set aside before a day; returns how many blobs went."""
        count = 0
        for folder in self._days():
            if date.fromisoformat(folder.name) < before:
                for path in folder.iterdir():
                    path.unlink(missing_ok=True)
                    count += 1
                folder.rmdir()
        return count

    def _days(self) -> Iterator[Path]:
        """The folders of days; a folder of somebody else's is none."""
        for folder in sorted(self.folder.glob("????-??-??")):
            try:
                date.fromisoformat(folder.name)
            except ValueError:
                continue
            yield folder

    def mark(self) -> StoreMark | None:
        """What this folder says; raises Unavailable where that cannot be read."""
        path = self._blobs.folder / MARK
        try:
            return StoreMark.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not what a server wrote"
            raise Unavailable(
                f"{path} cannot be read ({why}): it says which database these blobs belong to. Put back a copy, or "
                "delete it where the database is the right one.",
                param="blobs",
            ) from error

    def set_mark(self, mark: StoreMark) -> None:
        """Replace the mark; durable when this returns."""
        path = self._blobs.folder / MARK
        replace_file(path, mark.model_dump_json().encode() + b"\n", beside=path.with_name(f"{MARK}.{os.getpid()}"))
