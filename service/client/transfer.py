"""Adapter directories over the wire: push one, pull one.

Used by `soup push` and `soup pull` and by people's scripts, on top of `SoupClient`. Small files travel inside of
the manifest, large ones as blobs that are sent only if they are not there yet.
"""

from __future__ import annotations

import base64
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from registry.errors import InvalidManifest, Unavailable
from registry.formats import (
    CARD_FILE,
    CONFIG_FILE,
    SAMPLES_FILE,
    SOUP_FILE,
    WEIGHTS_FILE,
    AdapterDirectory,
    check_place,
    move_into_place,
    new_directory_beside,
    read_directory,
)
from registry.progress import Progress
from registry.spec import Card, EmbeddingSource, FileSource, Manifest, SampleSource
from service.client.client import SoupClient
from service.client.connection import Json
from service.client.samples import read_texts

PULLED = (CONFIG_FILE, SOUP_FILE, WEIGHTS_FILE, SAMPLES_FILE, CARD_FILE)
"""What is pulled: nothing else a server may name is ever written to disk."""


def push_folder(
    client: SoupClient,
    folder: Path | AdapterDirectory,
    *,
    name: str,
    domain: str | None = None,
    base: str | None = None,
    texts: Sequence[str] | None = None,
    tags: Sequence[str] = (),
    metadata: Mapping[str, str | int | float | bool | None] | None = None,
    progress: Progress | None = None,
) -> Json:
    """Push an adapter directory as `name`, a PEFT directory of a LoRA as it is.

    `domain`, `base` (a base model's id) and `texts` replace what the directory says, tags and metadata join those of
    its card. Raises InvalidManifest where nobody says the domain.
    """
    local = folder if isinstance(folder, AdapterDirectory) else read_directory(folder)
    domain = domain or local.domain
    if domain is None:
        raise InvalidManifest(
            f"{local.path} does not say which domain the adapter is of: give --domain.", param="domain"
        )
    card = local.card.model_dump()
    card["tags"] = tuple(dict.fromkeys([*card["tags"], *tags]))
    card["metadata"] = {**card["metadata"], **(metadata or {})}
    manifest = Manifest(
        name=name,
        domain=domain,
        base_model=base or local.base_model,
        base_fingerprint=local.base_fingerprint,
        recorded_base=local.recorded_base,
        config=local.config,
        files={WEIGHTS_FILE: _file(client, local.weights, progress)},
        sample=_sample(client, local, texts),
        card=Card.model_validate(card),
        provenance=local.provenance,
    )
    return client.push(manifest)


def pull_folder(
    client: SoupClient, ref: str, target: Path, *, replace: bool = False, progress: Progress | None = None
) -> AdapterDirectory:
    """Write an adapter to the directory `target`, whole or not at all; every file's digest is checked.

    Raises Conflict as `registry.formats.check_place` does, NotFound, Retired, DigestMismatch.
    """
    check_place(target, replace=replace, how="replace it with --force")
    row = client.adapter(ref)
    pinned = str(row["ref"])  # the version this name means now, whatever is pushed meanwhile
    files = {str(file["name"]): str(file["digest"]) for file in client.files(pinned)}
    missing = [name for name in (CONFIG_FILE, WEIGHTS_FILE) if name not in files]
    if missing:
        raise Unavailable(f"The server offers no {missing[0]} for {pinned}; it may be another kind of server.")
    beside = new_directory_beside(target)
    try:
        for name in PULLED:
            if name in files:
                client.download(pinned, name, beside / name, digest=files[name], progress=progress)
        read_directory(beside)
        move_into_place(beside, target, replace=replace)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return read_directory(target)


def name_of(path: Path) -> str:
    """The name of an adapter for which a folder gives its own: lower case, other characters as `-`."""
    return re.sub(r"[^a-z0-9._-]+", "-", path.resolve().name.lower()).lstrip("._-")[:64] or "adapter"


def _sample(client: SoupClient, folder: AdapterDirectory, texts: Sequence[str] | None) -> SampleSource | None:
    if texts is not None:
        return client.sample(texts)
    if folder.embeddings is not None and folder.embeddings_note is not None:
        note = folder.embeddings_note
        file = _file(client, folder.embeddings, None)
        return SampleSource(embeddings=(EmbeddingSource(encoder=note.encoder, unit=note.unit, file=file),))
    return None if folder.sample is None else client.sample(read_texts(folder.sample))


def _file(client: SoupClient, path: Path, progress: Progress | None) -> FileSource:
    if path.stat().st_size <= client.inline_bytes:
        return FileSource(base64=base64.b64encode(path.read_bytes()).decode())
    return FileSource(digest=client.upload(path, progress=progress))
