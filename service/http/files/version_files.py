"""The files of a version by name, as in an adapter directory: generated from its row, or stored as blobs.

Called by the files route and by the routes of the hub API. A client's file name is looked up here and never opened as
a path. The same row gives the same bytes every time. If the operator enables it, downloads of weights are redirected to
the object store.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from fastapi import Request
from fastapi.responses import RedirectResponse, Response

from registry.blobs import BlobStore
from registry.catalogue.rows import AdapterRow, ListedRow
from registry.formats import CARD_FILE, SAMPLES_FILE, WEIGHTS_FILE, DirectoryNotes, directory_files, format_card
from registry.formats.card import Relation
from registry.formats.loading_text import loading_text_of
from registry.names import sha256_digest
from service.http.files.ranges import BYTES, names_etag
from service.services import Services

FILE_BYTES: dict[int | str, dict[str, Any]] = {
    **BYTES,
    307: {"description": "Weights, where the server sends to its store"},
}
"""`responses` of a GET route that answers with a file of a version."""


@dataclass(frozen=True)
class VersionFile:
    """One file; `data` is None for a stored blob, which is streamed from the store."""

    name: str
    digest: str
    blobs: BlobStore
    data: bytes | None = None

    @property
    def size(self) -> int:
        """The number of bytes; raises DamagedBlob for a missing blob."""
        return self.blobs.size_unverified(self.digest) if self.data is None else len(self.data)

    def size_for(self, method: str) -> int:
        """Return the size for the answer to an HTTP method; for GET a blob is verified first."""
        return self.blobs.size(self.digest) if self.data is None and method != "HEAD" else self.size

    def open(self) -> BinaryIO:
        """Open the file for reading; raises DamagedBlob."""
        return self.blobs.open(self.digest) if self.data is None else io.BytesIO(self.data)


def files_of(row: AdapterRow, services: Services) -> dict[str, VersionFile]:
    """Return the files of a version by name, generated ones first, without access to the blobs."""
    blobs = services.registry.blobs
    generated = {
        name: VersionFile(name, sha256_digest(data), blobs, data)
        for name, data in generated_files(row, services).items()
    }
    return generated | {name: VersionFile(name, digest, blobs) for name, digest in stored_files(row).items()}


def generated_files(row: AdapterRow, services: Services) -> dict[str, bytes]:
    """Return the content of the files that are generated from the row, by name."""
    notes = DirectoryNotes(
        domain=row.domain, base_model=row.base_model, base_fingerprint=row.base_fingerprint, provenance=row.provenance
    )
    base, name = services.bases.get(row.base_model), base_name(row, services)  # None: no longer served
    shape = None if base is None else base.shape
    revision = None if base is None or Path(base.entry.source).is_absolute() else base.entry.revision
    loading_text = loading_text_of(row.config, name=row.name, base=name, revision=revision, shape=shape)
    card = format_card(row.card, base_model=name, relation=relation_of(row), loading_text=loading_text)
    return {**directory_files(row.config, notes, shape=shape, base_name=name), CARD_FILE: card.encode()}


def stored_files(row: ListedRow) -> dict[str, str]:
    """Return the digests of the files that are blobs, by name."""
    files = {WEIGHTS_FILE: row.weights_blob}
    if row.sample is not None and row.sample.has_text:
        files[SAMPLES_FILE] = row.sample.digest
    return files


def relation_of(row: ListedRow) -> Relation:
    """Return the relation of a version to its base model, in the words of model cards."""
    return "merge" if row.kind == "soup" else "adapter"


def base_name(row: ListedRow, services: Services) -> str:
    """Return the hub repository of the base model, or its id on this server if it is a local folder."""
    if row.base_model not in services.bases:  # no longer served
        return row.base_model
    source = services.bases[row.base_model].entry.source
    return row.base_model if Path(source).is_absolute() else source


def store_redirect(request: Request, services: Services, file: VersionFile, *, etag: str) -> Response | None:
    """Return a redirect to the store, by a signed URL, for a GET of weights; None if this server is to answer.

    Called after the key was checked. The URL works for anybody who has it, and samples are private text: only weights
    are redirected. The store's bytes may never have been verified by this server, so the client has to verify the
    digest, which it knows. Raises DamagedBlob if the blob is missing or known to be damaged.
    """
    if services.signed_url is None or request.method != "GET" or file.name != WEIGHTS_FILE or file.data is not None:
        return None
    if names_etag(request.headers.get("if-none-match"), f'"{etag}"'):
        return None
    services.registry.blobs.size_unverified(file.digest)  # raises for a missing blob
    headers = {"cache-control": "no-store", "etag": f'"{etag}"', "referrer-policy": "no-referrer"}
    return RedirectResponse(services.signed_url(file.digest), status_code=307, headers=headers)
