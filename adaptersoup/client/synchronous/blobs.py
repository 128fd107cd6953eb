"""Blobs: upload whole or in parts, download with the digest checked.

No state is stored on this machine: the server lists the key's unfinished uploads by digest, so a second `soup push` of
a file continues an interrupted one. Two that send the same file at once take turns.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from adaptersoup.client.answers import path_segment
from adaptersoup.client.paths import adapter_path
from adaptersoup.client.synchronous.connection import Connection
from adaptersoup.client.uploading import BINARY, PASSING, TRIES, UPLOADS, Upload, pause_after
from adaptersoup.client.waiting import directly
from registry.errors import DigestMismatch, Internal, NotFound
from registry.files import sync_file
from registry.names import file_digest, sha256_digest
from registry.progress import Progress, silent
from registry.spec import Passage, SampleSource
from registry.spec.passage import encode_lines


class Blobs(Connection):
    """The calls that move files."""

    def has_blob(self, digest: str) -> bool:
        """Return True if the server has the blob, whole, and this key sees it. Sending a damaged one repairs it."""
        try:
            response = self.send("HEAD", f"/v1/blobs/{digest}")
        except (NotFound, Internal):
            return False
        return digest in response.headers.get("etag", "")  # else it is the page of a proxy, or unknown

    def upload(
        self,
        source: bytes | Path,
        *,
        part_bytes: int | None = None,
        progress: Progress | None = None,
        anew: bool = False,
    ) -> str:
        """Make sure the server has these bytes, and return their digest; sends them only if it does not.

        With `anew` they are sent in any case, which repairs a damaged copy. More than `part_bytes` (by default the
        client's) are sent in parts. If the connection breaks, or the client or the server is killed, the upload
        continues at the last acknowledged byte.
        """
        part_bytes, report = part_bytes or self.part_bytes, progress or silent
        if isinstance(source, bytes):
            size, digest, name = len(source), sha256_digest(source), ""
        else:
            size, digest, name = (
                (directly(source.stat)).st_size,
                directly(file_digest, source),
                source.name,
            )
        if anew or not self.has_blob(digest):
            if size > part_bytes:
                upload = Upload(digest, size, part_bytes, lambda done: report(done, size, name))
                self._send_in_parts(source, upload, anew=anew)
                return digest
            body = source if isinstance(source, bytes) else directly(source.read_bytes)
            self.json("PUT", f"/v1/blobs/{digest}", body=body, headers=BINARY)
        report(size, size, name)
        return digest

    def sample(self, texts: Sequence[Passage], *, anew: bool = False) -> SampleSource:
        """Passages as a sample of a request: inline, or as an uploaded blob (see `upload`) if they are large."""
        data = encode_lines(texts)
        if len(data) <= self.inline_bytes:
            return SampleSource(texts=tuple(texts))
        return SampleSource(blob=self.upload(data, anew=anew))

    def download(self, ref: str, file: str, target: Path, *, digest: str, progress: Progress | None = None) -> None:
        """Write one file of an adapter to `target`, synced; raises DigestMismatch if its digest is not `digest`."""
        path = self.named_path(ref)
        with self.fetched(f"{path}/files/{path_segment(file)}") as response:
            size, total = 0, int(response.headers.get("content-length", 0))
            with target.open("wb") as out:
                for piece in response.iter_bytes():
                    directly(out.write, piece)
                    size = out.tell()
                    (progress or silent)(size, total, file)
        if directly(file_digest, target) != digest:
            raise DigestMismatch(
                f"{file} of {ref} arrived damaged ({size} bytes with another digest): pull it again. If it is "
                "damaged again, push the adapter again with --anew."
            )
        directly(sync_file, target)

    def named_path(self, ref: str) -> str:
        """The path of an adapter by its name, under which its sub-resources are; a digest is looked up first."""
        if ref.startswith("sha256:"):
            ref = str((self.json("GET", adapter_path(ref)))["ref"])
        return adapter_path(ref)

    def _send_in_parts(self, source: bytes | Path, upload: Upload, *, anew: bool) -> None:
        """Send a large blob; retry after the errors of PASSING, up to TRIES times in a row without progress.

        With `anew` the blob that the server has after an error is not trusted: it may be the damaged one.
        """
        name = "The data" if isinstance(source, bytes) else str(source)
        tries = furthest = 0
        while True:
            try:
                with BytesIO(source) if isinstance(source, bytes) else directly(source.open, "rb") as file:
                    self._send_rest(file, upload, name)
                return
            except PASSING as error:
                tries = 1 if upload.offset > furthest else tries + 1
                furthest = max(furthest, upload.offset)
                if tries >= TRIES:
                    raise
                self.pause(pause_after(error, tries))
            with suppress(*PASSING):  # the answer was lost, or another client has sent the same
                if not anew and self.has_blob(upload.digest):
                    upload.progress(upload.size)
                    return

    def _send_rest(self, file: BinaryIO, upload: Upload, name: str) -> None:
        """Send the bytes that the server does not have yet, and finish the upload; raises SoupError or OSError."""
        path = self._open_upload(upload)
        while upload.offset < upload.size:
            file.seek(upload.offset)
            chunk = directly(file.read, min(upload.part_bytes, upload.size - upload.offset))
            if not chunk:
                raise DigestMismatch(f"{name} became shorter while it was sent: send it again.")
            span = f"{upload.offset}-{upload.offset + len(chunk) - 1}"
            self.json("PATCH", path, body=chunk, headers={**BINARY, "content-range": span}, repeat=False)
            upload.offset += len(chunk)
            upload.progress(upload.offset)
        self.json("PUT", path, params={"digest": upload.digest}, repeat=False)

    def _open_upload(self, upload: Upload) -> str:
        """The path of the unfinished upload with the most bytes, or of a new one; sets `upload.offset`."""
        unfinished = self.data("GET", UPLOADS, params={"digest": upload.digest})
        candidates = [row for row in unfinished if row.get("size") in (None, upload.size)]
        row = max(candidates, key=lambda row: int(row["offset"]), default=None)
        if row is None:
            row = self.json("POST", UPLOADS, json={"digest": upload.digest, "size": upload.size}, repeat=False)
        upload.offset = int(row["offset"])
        upload.progress(upload.offset)
        return f"{UPLOADS}/{path_segment(str(row['id']))}"
