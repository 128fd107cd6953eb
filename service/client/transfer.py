"""Adapter directories over the wire: push one, pull one.

Used by `soup push` and `soup pull`, and as steps (`pushing`, `pulling`) by the clients of programs. Small files travel
inside of the manifest, large ones as blobs that are sent only if they are not there yet.
"""

from __future__ import annotations

import base64
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from registry.errors import DamagedBlob, InvalidManifest, Unavailable
from registry.formats import (
    CARD_FILE,
    CONFIG_FILE,
    SAMPLES_FILE,
    SOUP_FILE,
    WEIGHTS_FILE,
    AdapterDirectory,
    EmbeddingsNote,
    check_place,
    move_into_place,
    new_directory_beside,
    read_directory,
)
from registry.names import file_digest
from registry.progress import Progress
from registry.spec import Card, EmbeddingSource, FileSource, Manifest, SampleSource
from service.client import adapter_calls
from service.client.client import SoupClient
from service.client.known import same_there
from service.client.samples import read_texts
from service.client.steps import Aside, Json, Sizes, Steps

PULLED = (CONFIG_FILE, SOUP_FILE, WEIGHTS_FILE, SAMPLES_FILE, CARD_FILE)
"""What is pulled: nothing else a server may name is ever written to disk."""


@dataclass(frozen=True, kw_only=True)
class Additions:
    """What is said of an adapter beside its directory: tags and metadata join those of its card, the rest replaces."""

    domain: str | None = None
    base: str | None = None
    """A base model's id."""
    owner: str | None = None
    """Who answers for the name, which keeps the one it has where this is None; an empty one is refused."""
    texts: Sequence[str] | None = None
    tags: Sequence[str] = ()
    metadata: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)
    license: str | None = None
    description: str | None = None

    def card(self, card: Card) -> Card:
        """A directory's card with these in it."""
        values = card.model_dump()
        values["tags"] = tuple(dict.fromkeys([*values["tags"], *self.tags]))
        values["metadata"] = {**values["metadata"], **self.metadata}
        values |= {name: said for name in ("license", "description") if (said := getattr(self, name)) is not None}
        return Card.model_validate(values)


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
    return client.run(pushing(folder, name=name, more=more, progress=progress, anew=anew))


def pushing(
    folder: Path | AdapterDirectory, *, name: str, more: Additions, progress: Progress | None = None, anew: bool = False
) -> Steps[Json]:
    """The steps of `push_folder`."""
    local = folder if isinstance(folder, AdapterDirectory) else (yield from _directory(folder))
    manifest = described(local, name, more)
    try:
        sent = yield from _sent(local, manifest, more, progress, anew=anew)
        return (yield from adapter_calls.push(sent))
    except DamagedBlob:  # a server that was asked whether it is there has not read it: the right bytes repair it
        sent = yield from _sent(local, manifest, more, progress, anew=True)
        return (yield from adapter_calls.push(sent))


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
    there = same_there(client, manifest, file_digest(folder.weights), _texts(folder, more))
    new_owner = there is not None and manifest.owner not in (None, there.adapter.get("owner"))
    if there is not None and there.is_said_alike and not anew:
        anew = not all(client.has_blob(digest) for digest in there.blobs)
        if not anew and new_owner:
            return Pushed(client.update_adapter(str(there.adapter["ref"]), owner=manifest.owner), "owner changed")
        if not anew:
            return Pushed(there.adapter, "there already")
    try:
        sent = client.run(_sent(folder, manifest, more, progress, anew=anew))
        adapter, created = client.push_patiently(sent, progress=progress)
    except DamagedBlob:  # as in `pushing`
        anew = True
        sent = client.run(_sent(folder, manifest, more, progress, anew=True))
        adapter, created = client.push_patiently(sent, progress=progress)
    known: Became = "sent again" if anew else "owner changed" if new_owner else "there already"
    return Pushed(adapter, "pushed" if created else known)


def described(local: AdapterDirectory, name: str, more: Additions) -> Manifest:
    """The manifest of a directory, still without its files and its sample.

    Raises InvalidManifest without a domain, and for an empty owner.
    """
    if more.owner == "":
        raise InvalidManifest(
            f"An empty owner names nobody, and a push takes none away: `soup edit {name} --set-owner ''` does.",
            param="owner",
        )
    domain = more.domain or local.domain
    if domain is None:
        raise InvalidManifest(
            f"{local.path} does not say which domain the adapter is of: give --domain.", param="domain"
        )
    return Manifest(
        name=name,
        domain=domain,
        base_model=more.base or local.base_model,
        base_fingerprint=local.base_fingerprint,
        recorded_base=local.recorded_base,
        config=local.config,
        files={},
        owner=more.owner,
        card=more.card(local.card),
        provenance=local.provenance,
    )


def _sent(
    local: AdapterDirectory, manifest: Manifest, more: Additions, progress: Progress | None, *, anew: bool = False
) -> Steps[Manifest]:
    """The manifest with its files and its sample, which are uploaded where they are large; `anew` as of `upload`."""
    files = {WEIGHTS_FILE: (yield from _file(local.weights, progress, anew=anew))}
    sample = yield from _sample(local, more, anew=anew)
    return manifest.model_copy(update={"files": files, "sample": sample})


def pull_folder(
    client: SoupClient, ref: str, target: Path, *, replace: bool = False, progress: Progress | None = None
) -> AdapterDirectory:
    """Write an adapter to the directory `target`, whole or not at all; every file's digest is checked.

    Raises Conflict as `registry.formats.check_place` does, NotFound, Retired, DigestMismatch.
    """
    return client.run(pulling(ref, target, replace=replace, progress=progress))


def pulling(
    ref: str, target: Path, *, replace: bool = False, progress: Progress | None = None
) -> Steps[AdapterDirectory]:
    """The steps of `pull_folder`."""
    yield Aside(lambda: check_place(target, replace=replace, how="replace it with --force"))
    row = yield from adapter_calls.adapter(ref)
    pinned = str(row["ref"])  # the version this name means now, whatever is pushed meanwhile
    files = {str(file["name"]): str(file["digest"]) for file in (yield from adapter_calls.files(pinned))}
    missing = [name for name in (CONFIG_FILE, WEIGHTS_FILE) if name not in files]
    if missing:
        raise Unavailable(f"The server offers no {missing[0]} for {pinned}; it may be another kind of server.")
    beside = new_directory_beside(target)
    try:
        for name in PULLED:
            if name in files:
                yield from adapter_calls.download(pinned, name, beside / name, digest=files[name], progress=progress)
        yield from _directory(beside)
        move_into_place(beside, target, replace=replace)  # not aside: one that is cancelled would remove what is moved
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return (yield from _directory(target))


def _directory(path: Path) -> Steps[AdapterDirectory]:
    found: AdapterDirectory = yield Aside(lambda: read_directory(path))
    return found


def name_of(path: Path) -> str:
    """The name of an adapter for which a folder gives its own: lower case, other characters as `-`."""
    return re.sub(r"[^a-z0-9._-]+", "-", path.resolve().name.lower()).lstrip("._-")[:64] or "adapter"


def _texts(local: AdapterDirectory, more: Additions) -> Sequence[str] | EmbeddingsNote | None:
    """The sample's texts, None where there is no sample; of a sample of embeddings what made them."""
    if more.texts is not None:
        return more.texts
    if local.embeddings_note is not None:
        return local.embeddings_note
    return None if local.sample is None else read_texts(local.sample)


def _sample(local: AdapterDirectory, more: Additions, *, anew: bool) -> Steps[SampleSource | None]:
    texts = yield Aside(lambda: _texts(local, more))
    if isinstance(texts, EmbeddingsNote):
        assert local.embeddings is not None
        file = yield from _file(local.embeddings, None, anew=anew)
        return SampleSource(embeddings=(EmbeddingSource(encoder=texts.encoder, unit=texts.unit, file=file),))
    return None if texts is None else (yield from adapter_calls.sample(texts, anew=anew))


def _inline(path: Path, most: int) -> str | None:
    """The bytes of a file as base64; None for one of more than `most`."""
    return None if path.stat().st_size > most else base64.b64encode(path.read_bytes()).decode()


def _file(path: Path, progress: Progress | None, *, anew: bool) -> Steps[FileSource]:
    sizes: Sizes = yield Sizes()
    inline: str | None = yield Aside(lambda: _inline(path, sizes.inline))
    if inline is not None:
        return FileSource(base64=inline)
    return FileSource(digest=(yield from adapter_calls.upload(path, progress=progress, anew=anew)))
