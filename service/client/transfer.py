"""Adapter directories over the wire, for the command line: push one, push one of many, pull one.

Small files travel inside of the manifest, large ones as blobs that are sent only if they are not there yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from registry.errors import DamagedBlob
from registry.formats import AdapterDirectory
from registry.names import file_digest
from registry.progress import Progress
from service.client.additions import Additions, described, texts_of
from service.client.answers import Json
from service.client.client import SoupClient
from service.client.known import same_there

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
    more = Additions(
        domain=domain, base=base, owner=owner, texts=texts, tags=tags, metadata=metadata or {}
    )  # fmt: skip
    return client.push_directory(folder, name=name, more=more, progress=progress, anew=anew)


def send_folder(
    client: SoupClient, folder: AdapterDirectory, *, name: str, more: Additions, progress: Progress | None = None,
    anew: bool = False,
) -> Pushed:  # fmt: skip
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
