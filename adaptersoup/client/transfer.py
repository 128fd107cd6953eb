"""Pushes of many adapter directories, for the command line.

Small files are sent inside the manifest, large ones as blobs, which are sent only if the server does not have them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from adaptersoup.client.additions import Additions, manifest_of, texts_of
from adaptersoup.client.answers import Json
from adaptersoup.client.client import SoupClient
from registry.errors import DamagedBlob
from registry.formats import AdapterDirectory, EmbeddingsNote
from registry.names import file_digest, sha256_digest
from registry.progress import Progress
from registry.samples.draw import draw
from registry.spec import AdapterConfig, Card, Manifest, Passage, Provenance, scored_text
from registry.spec.passage import encode_lines

PushStatus = Literal["pushed", "sent again", "owner changed", "there already"]
"""Outcome of a push; `sent again` are bytes of a stored version, which repairs damaged ones."""


@dataclass(frozen=True)
class Pushed:
    """The server's Adapter object for a push, and its status."""

    adapter: Json
    status: PushStatus


def send_folder(
    client: SoupClient,
    folder: AdapterDirectory,
    *,
    name: str,
    more: Additions,
    progress: Progress | None = None,
    anew: bool = False,
) -> Pushed:
    """Push one of many directories, unless the server has it already: a stored version is found by its digests.

    Blobs that the server reports as missing or damaged are sent, which repairs them. With `anew` all blobs are sent,
    because a server on an object store only notices damage in blobs that it has read. A new owner is set also on a
    stored version. Waits while the queue of jobs is full. `progress` may raise to end the push.
    """
    manifest = manifest_of(folder, name, more)
    stored = find_stored(client, manifest, file_digest(folder.weights), texts_of(folder, more))
    has_new_owner = stored is not None and manifest.owner not in (None, stored.adapter.get("owner"))
    if stored is not None and stored.is_described_alike and not anew:
        anew = not all(client.has_blob(digest) for digest in stored.blobs)
        if not anew and has_new_owner:
            return Pushed(client.update_adapter(str(stored.adapter["ref"]), owner=manifest.owner), "owner changed")
        if not anew:
            return Pushed(stored.adapter, "there already")
    try:
        sent = client.with_files(folder, manifest, more, progress, anew=anew)
        adapter, created = client.push_patiently(sent, progress=progress)
    except DamagedBlob:  # of a blob that `has_blob` reported without reading it: the right bytes repair it
        anew = True
        sent = client.with_files(folder, manifest, more, progress, anew=True)
        adapter, created = client.push_patiently(sent, progress=progress)
    if created:
        return Pushed(adapter, "pushed")
    return Pushed(adapter, "sent again" if anew else "owner changed" if has_new_owner else "there already")


_CONFIG: TypeAdapter[AdapterConfig] = TypeAdapter(AdapterConfig)


@dataclass(frozen=True)
class StoredVersion:
    """A stored version with the bytes of a push; `is_described_alike` if domain, config, card and provenance are equal.

    `blobs` are the digests of its weights, and of its sample if the push has one.
    """

    adapter: Json
    is_described_alike: bool
    blobs: tuple[str, ...]


def find_stored(
    client: SoupClient, manifest: Manifest, weights: str, texts: Sequence[Passage] | EmbeddingsNote | None
) -> StoredVersion | None:
    """The live version of this name that has the bytes of a push; None if no version is known to have them.

    `weights` is the digest of the file. A version that is described differently has to be pushed again, for the server
    warns about fields that stay as they are stored. The comparison ignores the owner, which can be changed without the
    bytes, and the versions and threads that the same bytes were trained with.
    """
    for row in client.adapters(name=manifest.name, kind="adapter"):
        if row.get("weights_blob") == weights and _has_sample(row, texts):
            adapter = client.adapter(str(row["ref"]))
            sample = () if texts is None else (str(row["sample"]["digest"]),)
            return StoredVersion(adapter, _is_described_alike(adapter, manifest), (weights, *sample))
    return None


def _has_sample(row: Json, texts: Sequence[Passage] | EmbeddingsNote | None) -> bool:
    """Return True if a push with these texts would leave the stored sample as it is."""
    if texts is None:
        return True
    if isinstance(texts, EmbeddingsNote) or row.get("sample_state") not in ("ready", "pending"):
        return False
    stored = row.get("sample") or {}
    passages = list(dict.fromkeys(text for text in texts if scored_text(text).strip()))
    drawn, _ = draw(passages, int(stored.get("kept") or len(passages)))  # as many as the server drew, if it did
    return stored.get("digest") == sha256_digest(encode_lines(drawn))


def _is_described_alike(row: Json, manifest: Manifest) -> bool:
    try:
        stored: dict[str, Any] = {
            "domain": row["domain"],
            "config": _CONFIG.validate_python(row["config"]),
            "card": Card.model_validate(row["card"]),
            "provenance": Provenance.model_validate(row["provenance"]).compared,
        }
    except (KeyError, ValidationError):  # of another version of the server
        return False
    pushed = manifest.model_copy(update={"provenance": manifest.provenance.compared})
    return (
        all(getattr(pushed, name) == value for name, value in stored.items())
        and manifest.base_model in (None, row["base_model"])
        and manifest.base_fingerprint in (None, row["base_fingerprint"])
    )
