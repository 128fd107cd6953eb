"""Files that a request names: bytes inline, or digests of blobs that the caller may see; never a path.

Called by the verbs `push` and `cook`, and by `samples`.
"""

from __future__ import annotations

import base64
import binascii

from registry.blobs import BlobStore
from registry.catalogue.database import Database
from registry.errors import InvalidManifest, NotFound, TooLarge
from registry.registry import Limits
from registry.spec import FileSource


class BlobReader:
    """Reads what a request names: inline bytes up to a limit, or blobs the caller may see."""

    def __init__(self, database: Database, blobs: BlobStore, scope: tuple[str, ...] | None, limits: Limits) -> None:
        self._database = database
        self._blobs = blobs
        self._scope = scope
        self.limits = limits

    def file(self, source: FileSource, what: str, max_bytes: int) -> bytes:
        """The bytes of one file of the manifest."""
        if source.digest is not None:
            return self.blob(source.digest, what, max_bytes)
        text = source.base64 or ""
        if len(text) * 3 // 4 > self.limits.inline_bytes:
            raise TooLarge(
                f"{what} is about {len(text) * 3 // 4} bytes inline and the limit is {self.limits.inline_bytes}: "
                "upload it as a blob and give its digest.",
                param=what,
            )
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise InvalidManifest(f"{what} is not valid base64.", param=what) from None

    def blob(self, digest: str, what: str, max_bytes: int) -> bytes:
        """The bytes of a visible blob; unknown and foreign are the same NotFound."""
        with self._database.read() as catalogue:
            visible = catalogue.blobs.visible(self._scope, digest)
        if not visible or not self._blobs.has(digest):
            raise NotFound(f"Blob {digest} is not known: upload it first with PUT /v1/blobs/{digest}.", param=what)
        size = self._blobs.size(digest)
        if size > max_bytes:
            raise TooLarge(f"{what} has {size} bytes and the limit is {max_bytes}.", param=what)
        return self._blobs.read(digest)
