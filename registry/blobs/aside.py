"""Blobs that are set aside: what a start found that its database does not name, kept beside the others.

`<folder>/set-aside/<day>/<64 hex>`; nothing here is a stored blob. Beside it lies the folder's mark, `store.json`.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import suppress
from datetime import date

from pydantic import ValidationError

from registry.blobs.contract import hex_of
from registry.blobs.folder import ASIDE, MARK, BlobFolder, place_in, read_mark, sync_place
from registry.errors import Unavailable
from registry.files import make_directory, replace_file
from registry.spec import StoreMark


class Aside:
    """A SetAside of a folder of blobs: what is set aside of it, and the folder's mark."""

    def __init__(self, state: BlobFolder) -> None:
        self._state = state
        self.folder = state.path / ASIDE

    @property
    def where(self) -> str:
        """The folder."""
        return str(self.folder)

    def put(self, digest: str, day: date) -> None:
        """Move a stored blob here."""
        target = self.folder / day.isoformat() / hex_of(digest)
        make_directory(target.parent)
        place_in(self._state.path, hex_of(digest)).replace(target)
        sync_place(target)

    def take(self, digest: str) -> bool:
        """Store a blob again that is here; whether it was."""
        name = hex_of(digest)
        for found in self.folder.glob(f"*/{name}"):
            target = place_in(self._state.path, name)
            target.parent.mkdir(exist_ok=True)
            with suppress(FileNotFoundError):  # another server was quicker
                found.replace(target)
            sync_place(target)
            return True
        return False

    def names(self) -> Iterator[str]:
        """Everything that is here, `<day>/<64 hex>`; a file of somebody else's is not."""
        for path in sorted(self.folder.glob("????-??-??/*")):
            if re.fullmatch("[0-9a-f]{64}", path.name):
                yield f"{path.parent.name}/{path.name}"

    def beginning(self, name: str, size: int) -> bytes:
        """The first bytes of a file that is here; raises OSError."""
        with (self.folder / name).open("rb") as file:
            return file.read(size)

    def remove(self, name: str) -> None:
        """Delete a file that is here."""
        (self.folder / name).unlink(missing_ok=True)

    def mark(self) -> StoreMark | None:
        """What this folder says; raises Unavailable where that cannot be read."""
        path = self._state.path / MARK
        try:
            return read_mark(self._state.path)
        except (OSError, ValidationError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not what a server wrote"
            raise Unavailable(
                f"{path} cannot be read ({why}): it says which database these blobs belong to. Put back a copy, or "
                "delete it where the database is the right one.",
                param="blobs",
            ) from error

    def set_mark(self, mark: StoreMark) -> None:
        """Replace the mark, which the folder then has to keep; durable when this returns."""
        path = self._state.path / MARK
        beside = path.with_name(f"{MARK}.{secrets.token_hex(8)}")  # containers share process numbers
        replace_file(path, mark.model_dump_json().encode() + b"\n", beside=beside)
        self._state.store = mark.store
