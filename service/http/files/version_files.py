"""The files of a version: those of an adapter directory, made from its row or stored as blobs, by name.

Called by the files route and by the routes of the hub API. Names are looked up here and never opened: what a client
asks for is one of these, or is not there. The same row gives the same bytes every time.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from registry.blobs import BlobStore
from registry.catalogue.rows import AdapterRow, ListedRow
from registry.formats import CARD_FILE, SAMPLES_FILE, WEIGHTS_FILE, DirectoryNotes, directory_files, format_card
from registry.formats.card import Relation
from registry.formats.usage import usage_of
from registry.names import sha256_digest
from registry.spec import BaseShape
from service.parts import Services


@dataclass(frozen=True)
class VersionFile:
    """One file; `data` is None for a stored blob, which is streamed from where it is kept."""

    name: str
    digest: str
    blobs: BlobStore
    data: bytes | None = None

    @property
    def size(self) -> int:
        """Its bytes; of a blob looked up, which raises DamagedBlob where it is missing."""
        return self.blobs.size_unverified(self.digest) if self.data is None else len(self.data)

    def size_for(self, method: str) -> int:
        """The same for the answer to a method: where bytes follow, they are verified before it begins."""
        return self.blobs.size(self.digest) if self.data is None and method != "HEAD" else self.size

    def open(self) -> BinaryIO:
        """Its bytes, to be read and closed; raises DamagedBlob."""
        return self.blobs.open(self.digest) if self.data is None else io.BytesIO(self.data)


def files_of(row: AdapterRow, services: Services) -> dict[str, VersionFile]:
    """The files of a version by name, made ones first. No blob is looked at yet."""
    blobs = services.registry.blobs
    made = {
        name: VersionFile(name, sha256_digest(data), blobs, data) for name, data in made_files(row, services).items()
    }
    return made | {name: VersionFile(name, digest, blobs) for name, digest in stored_files(row).items()}


def made_files(row: AdapterRow, services: Services) -> dict[str, bytes]:
    """The files that are made from the row."""
    notes = DirectoryNotes(
        domain=row.domain, base_model=row.base_model, base_fingerprint=row.base_fingerprint, provenance=row.provenance
    )
    shape, name = _shape(row, services), base_name(row, services)
    usage = usage_of(row.config, name=row.name, base=name, revision=_base_revision(row, services), shape=shape)
    card = format_card(row.card, base_model=name, relation=relation_of(row), usage=usage)
    return {**directory_files(row.config, notes, shape=shape, base_name=name), CARD_FILE: card.encode()}


def stored_files(row: ListedRow) -> dict[str, str]:
    """The digests of the files that are blobs."""
    files = {WEIGHTS_FILE: row.weights_blob}
    if row.sample is not None and row.sample.has_text:
        files[SAMPLES_FILE] = row.sample.digest
    return files


def relation_of(row: ListedRow) -> Relation:
    """How a version came from its base model."""
    return "merge" if row.kind == "soup" else "adapter"


def base_name(row: ListedRow, services: Services) -> str:
    """The base model as others know it: a hub's repository, or its id here where it is a folder of the server."""
    if row.base_model not in services.bases:  # it is no longer served
        return row.base_model
    source = services.bases[row.base_model].entry.source
    return row.base_model if Path(source).is_absolute() else source


def _base_revision(row: AdapterRow, services: Services) -> str | None:
    """The pinned revision of a base model of a hub; None where it is a folder of the server, or no longer served."""
    if row.base_model not in services.bases:
        return None
    entry = services.bases[row.base_model].entry
    return None if Path(entry.source).is_absolute() else entry.revision


def _shape(row: AdapterRow, services: Services) -> BaseShape | None:
    if row.base_model not in services.bases:
        return None
    return services.bases[row.base_model].shape
