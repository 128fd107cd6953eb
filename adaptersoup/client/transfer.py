"""Adapter directories over the wire, for the command line: push one, push one of many, pull one.

Small files travel inside of the manifest, large ones as blobs that are sent only if they are not there yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from adaptersoup.client.additions import Additions, described, texts_of
from adaptersoup.client.answers import Json
from adaptersoup.client.client import SoupClient
from registry.errors import DamagedBlob
from registry.files import encode_lines
from registry.formats import AdapterDirectory, EmbeddingsNote
from registry.names import file_digest, sha256_digest
from registry.progress import Progress
from registry.samples.draw import draw
from registry.spec import AdapterConfig, Card, Manifest, Provenance

Became = Literal["pushed", "sent again", "owner changed", "there already"]
"""What a push of one of many came to; sent again are bytes of a version that is there, which repairs damaged ones."""


@dataclass(frozen=True)
class Pushed:
    """The Adapter object that a server gave, and what became of it there."""

    adapter: Json
    became: Became


def push_folder(
    client: SoupClient,
    folder: Path | AdapterDirectory,
    *,
    name: str,
    domain: str | None = None,
    base: str | None = None,
    owner: str | None = None,
    texts: Sequence[str] | None = None,
    tags: Sequence[str] = (),
    metadata: Mapping[str, str | int | float | bool | None] | None = None,
    progress: Progress | None = None,
    anew: bool = False,
) -> Json:
    """Push an adapter directory as `name`, a PEFT directory of a LoRA as it is.

    `domain`, `base` (a base model's id) and `texts` replace what the directory says, tags and metadata join those of
    its card; `owner` is who answers for the name. With `anew` all bytes are sent, also those that the server says it
    has. Raises InvalidManifest where nobody says the domain, and for an empty owner.
    """
    more = Additions(domain=domain, base=base, owner=owner, texts=texts, tags=tags, metadata=metadata or {})
    return client.push_directory(folder, name=name, more=more, progress=progress, anew=anew)


def send_folder(
    client: SoupClient,
    folder: AdapterDirectory,
    *,
    name: str,
    more: Additions,
    progress: Progress | None = None,
    anew: bool = False,
) -> Pushed:
    """As `push_folder`, for one of many: what the server has already is found by its digest and not sent again.

    Where the server says that its bytes are missing or damaged they are sent, which repairs them; with `anew` in any
    case, as a server on an object store says so only of what it has read. Another owner is said of it all the same. A
    full queue of jobs is waited for. `progress` may raise to end it.
    """
    manifest = described(folder, name, more)
    there = same_there(client, manifest, file_digest(folder.weights), texts_of(folder, more))
    new_owner = there is not None and manifest.owner not in (None, there.adapter.get("owner"))
    if there is not None and there.is_said_alike and not anew:
        anew = not all(client.has_blob(digest) for digest in there.blobs)
        if not anew and new_owner:
            return Pushed(client.update_adapter(str(there.adapter["ref"]), owner=manifest.owner), "owner changed")
        if not anew:
            return Pushed(there.adapter, "there already")
    try:
        sent = client.with_files(folder, manifest, more, progress, anew=anew)
        adapter, created = client.push_patiently(sent, progress=progress)
    except DamagedBlob:  # as in `push_directory`
        anew = True
        sent = client.with_files(folder, manifest, more, progress, anew=True)
        adapter, created = client.push_patiently(sent, progress=progress)
    known: Became = "sent again" if anew else "owner changed" if new_owner else "there already"
    return Pushed(adapter, "pushed" if created else known)


def pull_folder(
    client: SoupClient, ref: str, target: Path, *, replace: bool = False, progress: Progress | None = None
) -> AdapterDirectory:
    """Write an adapter to the directory `target`, whole or not at all; every file's digest is checked.

    Raises Conflict as `registry.formats.check_place` does, NotFound, Retired, DigestMismatch.
    """
    return client.pull_directory(ref, target, replace=replace, progress=progress)


_CONFIG: TypeAdapter[AdapterConfig] = TypeAdapter(AdapterConfig)


@dataclass(frozen=True)
class There:
    """A version that a server has: its Adapter object, and whether what a push says of it is what is stored.

    `blobs` are the digests of its weights and of its sample, where that is of the push.
    """

    adapter: Json
    is_said_alike: bool
    blobs: tuple[str, ...]


def same_there(
    client: SoupClient, manifest: Manifest, weights: str, texts: Sequence[str] | EmbeddingsNote | None
) -> There | None:
    """The live version of this name that has the bytes of a push; None where there may be none.

    `weights` is the digest of the file. Where what is said of the adapter is not the same, it has to be pushed, so that
    the server's warning about what stays as it is stored is heard; the owner, which can be changed without the bytes,
    is not looked at, nor is with which torch and on how many threads the same bytes were trained.
    """
    for row in client.adapters(name=manifest.name, kind="adapter"):
        if row.get("weights_blob") == weights and _same_sample(row, texts):
            whole = client.adapter(str(row["ref"]))
            sample = () if texts is None else (str(row["sample"]["digest"]),)
            return There(whole, _said_alike(whole, manifest), (weights, *sample))
    return None


def _same_sample(row: Json, texts: Sequence[str] | EmbeddingsNote | None) -> bool:
    """Whether a push with this sample would leave the stored one: texts are compared as the server keeps them."""
    if texts is None:
        return True
    if isinstance(texts, EmbeddingsNote) or row.get("sample_state") not in ("ready", "pending"):
        return False
    stored = row.get("sample") or {}
    filled = list(dict.fromkeys(text for text in texts if text.strip()))
    kept, _ = draw(filled, int(stored.get("kept") or len(filled)))  # as many as the server drew, if it did
    return stored.get("digest") == sha256_digest(encode_lines(kept))


def _said_alike(row: Json, manifest: Manifest) -> bool:
    try:
        stored: dict[str, Any] = {
            "domain": row["domain"],
            "config": _CONFIG.validate_python(row["config"]),
            "card": Card.model_validate(row["card"]),
            "provenance": Provenance.model_validate(row["provenance"]).compared,
        }
    except (KeyError, ValidationError):  # of another version of the server
        return False
    said = manifest.model_copy(update={"provenance": manifest.provenance.compared})
    alike = all(getattr(said, name) == value for name, value in stored.items())
    base = manifest.base_model in (None, row["base_model"])
    return alike and base and manifest.base_fingerprint in (None, row["base_fingerprint"])
