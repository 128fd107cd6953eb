"""Blobs set aside in a folder, `<folder>/set-aside/<day>/<64 hex>`, and the folder's mark, `store.json`.

A start sets aside the blobs that its database does not refer to; they are no longer stored blobs.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import suppress
from datetime import date

from pydantic import ValidationError

from registry.blobs.contract import hex_of
from registry.blobs.folder import ASIDE, MARK, BlobFolder, blob_path, read_mark, sync_blob_name
from registry.errors import Unavailable
from registry.files import replace_file, sync_directory
from registry.spec import StoreMark


class SetAsideFiles:
    """A SetAsideBlobs over a folder of blobs."""

    def __init__(self, state: BlobFolder) -> None:
        self._state = state
        self.folder = state.path / ASIDE

    @property
    def location(self) -> str:
        """The path of the folder."""
        return str(self.folder)

    def put(self, digest: str, day: date) -> None:
        """Set a stored blob aside."""
        target = self.folder / day.isoformat() / hex_of(digest)
        self._state.make_folder(self.folder)
        self._state.make_folder(target.parent)
        sync_directory(self._state.path)
        blob_path(self._state.path, hex_of(digest)).replace(target)
        sync_blob_name(target)

    def restore(self, digest: str) -> bool:
        """Make a set-aside blob a stored one again; returns False if it is not set aside."""
        name = hex_of(digest)
        for path in self.folder.glob(f"*/{name}"):
            target = blob_path(self._state.path, name)
            self._state.make_folder(target.parent)
            with suppress(FileNotFoundError):  # another server was faster
                path.replace(target)
            sync_blob_name(target)
            return True
        return False

    def names(self) -> Iterator[str]:
        """Names of the set-aside blobs, `<day>/<64 hex>`; other files are ignored."""
        for path in sorted(self.folder.glob("????-??-??/*")):
            if re.fullmatch("[0-9a-f]{64}", path.name):
                yield f"{path.parent.name}/{path.name}"

    def mark(self) -> StoreMark | None:
        """The folder's mark, None without one; raises Unavailable if it cannot be read."""
        path = self._state.path / MARK
        try:
            return read_mark(self._state.path)
        except (OSError, ValidationError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not what a server wrote"
            raise Unavailable(
                f"{path}, which says which database these blobs belong to, cannot be read ({reason}). Restore a "
                "copy, or delete it if the database is the right one.",
                param="blobs",
            ) from error

    def set_mark(self, mark: StoreMark) -> None:
        """Replace the mark, which later checks expect; durable when this returns."""
        path = self._state.path / MARK
        temporary = path.with_name(f"{MARK}.{secrets.token_hex(8)}")  # containers share process numbers
        data = mark.model_dump_json().encode() + b"\n"
        replace_file(path, data, temporary=temporary, mode=self._state.new_file_mode)
        self._state.store = mark.store
