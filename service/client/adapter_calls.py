"""What a client asks of blobs and adapters: upload, push, list, show, change, retire, download.

Each is described once, as steps that any of the clients runs (`service.client.steps`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from registry.errors import Busy, DigestMismatch, InvalidParameter
from registry.files import encode_lines
from registry.names import DigestRef, NameRef, file_digest, parse_ref, sha256_digest
from registry.progress import Progress, silent
from registry.spec import Card, Manifest, SampleSource
from service.client.answers import given, object_of, part
from service.client.parts import BINARY, is_there, send_in_parts
from service.client.steps import (
    Aside,
    Fetch,
    Json,
    Listing,
    Pause,
    Sizes,
    Steps,
    data_of,
    json_of,
    listing,
    send,
)

CREATED = 201
LONGEST_WAIT = 3600
"""Seconds that one of many adapters is kept back for where a server is full."""


def upload(
    source: bytes | Path, *, part_bytes: int | None = None, progress: Progress | None = None, anew: bool = False
) -> Steps[str]:
    """Make sure the server has these bytes, and give their digest; nothing is sent that is there already.

    With `anew` all is sent all the same: what is stored was found to be damaged, which not every server knows yet.

    What has more than `part_bytes` (by default the client's) is sent in parts of so many, and goes on where it ended:
    after a connection that broke, and after a process that was killed, here or there.
    """
    sizes: Sizes = yield Sizes()
    part_bytes = part_bytes or sizes.part
    size = len(source) if isinstance(source, bytes) else source.stat().st_size
    digest: str = yield Aside(lambda: sha256_digest(source) if isinstance(source, bytes) else file_digest(source))
    name, tell = "" if isinstance(source, bytes) else source.name, progress or silent
    if not anew and (yield from is_there(digest)):
        tell(size, size, name)
    elif size > part_bytes:
        yield from send_in_parts(
            source, digest=digest, size=size, part_bytes=part_bytes, progress=lambda done: tell(done, size, name)
        )
    else:
        body: bytes = yield Aside(lambda: source if isinstance(source, bytes) else source.read_bytes())
        yield from send("PUT", f"/v1/blobs/{digest}", body=body, headers=BINARY)
        tell(size, size, name)
    return digest


def has_blob(digest: str) -> Steps[bool]:
    """Whether the server has a blob, whole, and this key sees it."""
    return (yield from is_there(digest))


def push(manifest: Manifest) -> Steps[Json]:
    """Push an adapter by its manifest (201, or 200 if known): an Adapter object with `job` and `warnings`."""
    return (yield from json_of("POST", "/v1/adapters", json=manifest.model_dump(mode="json", exclude_none=True)))


def push_patiently(manifest: Manifest, *, progress: Progress | None = None) -> Steps[tuple[Json, bool]]:
    """As `push`, waiting where the server is full for as long as it takes: the Adapter, and whether it is new.

    `progress` is told each second of waiting, and may raise to end it. Raises Busy after an hour of it.
    """
    body, waited, tell = manifest.model_dump(mode="json", exclude_none=True), 0, progress or silent
    while True:
        try:
            answer = yield from send("POST", "/v1/adapters", json=body, repeat=False)
        except Busy as error:
            pause = max(1, error.retry_after)  # of a server that says 0 too
            waited += pause
            if waited > LONGEST_WAIT:
                raise
            for _ in range(pause):
                tell(0, 0, "the server is full: waiting")
                yield Pause(1.0)
        else:
            return object_of(answer), answer.status_code == CREATED


def sample(texts: Sequence[str], *, anew: bool = False) -> Steps[SampleSource]:
    """Texts as a sample: inside of the request, or as an uploaded blob (see `upload`) where they are large."""
    sizes: Sizes = yield Sizes()
    data = encode_lines(texts)
    if len(data) <= sizes.inline:
        return SampleSource(texts=tuple(texts))
    return SampleSource(blob=(yield from upload(data, anew=anew)))


def adapters(*, limit: int | None = None, **filters: str | Sequence[str] | None) -> Listing[Json]:
    """Adapters the key sees, newest first, without provenance.

    Filters are base_model, method, domain, owner, namespace, name, tag (one, or several that all hold), kind,
    tuned_on, and q: words that are there, or begin one that is, in name, domain, tags and card.
    """
    return listing("/v1/adapters", filters, limit)


def adapter(ref: str) -> Steps[Json]:
    """One adapter, by name or digest. Raises NotFound or Retired."""
    return (yield from json_of("GET", _adapter_path(ref)))


def update_adapter(
    ref: str, *, card: Card | None = None, domain: str | None = None, owner: str | None = None,
    if_match: str | None = None,
) -> Steps[Json]:  # fmt: skip
    """Change card or domain, or the owner of all versions of the name, whom an empty text takes away.

    With `if_match` (an etag) only if nobody else has changed it meanwhile.
    """
    body = given({"card": None if card is None else card.model_dump(mode="json"), "domain": domain})
    body |= {} if owner is None else {"owner": owner or None}
    return (yield from json_of("PATCH", _adapter_path(ref), json=body, headers=matching(if_match)))


def aliases(ref: str) -> Steps[list[Json]]:
    """Every alias of a name, and the version it points at."""
    return (yield from data_of("GET", f"{(yield from _named_path(ref))}/aliases"))


def put_alias(name: str, alias: str, version: int, *, if_match: str | None = None) -> Steps[Json]:
    """Point an alias of `namespace/name` at a version; with `if_match` only if that is its etag: an Alias."""
    path = f"{_adapter_path(name)}/aliases/{part(alias)}"
    return (yield from json_of("PUT", path, json={"version": version}, headers=matching(if_match)))


def delete_alias(name: str, alias: str) -> Steps[None]:
    """Remove an alias of `namespace/name`."""
    yield from send("DELETE", f"{_adapter_path(name)}/aliases/{part(alias)}")


def delete_adapter(ref: str) -> Steps[list[Json]]:
    """Retire an adapter: all live versions of a name, or the one that `@version` names; what was retired."""
    return (yield from data_of("DELETE", (yield from _named_path(ref))))


def restore(ref: str, *, if_match: str | None = None) -> Steps[Json]:
    """Bring a retired version back, `namespace/name@version`; with `if_match` only if that is its etag."""
    return (yield from json_of("POST", f"{_adapter_path(ref)}/restore", headers=matching(if_match)))


def purge(ref: str) -> Steps[Json]:
    """Remove a version for good, `namespace/name@version`: a Purge object. Needs scope admin."""
    return (yield from json_of("POST", f"{_adapter_path(ref)}/purge"))


def collect(*, dry_run: bool = False) -> Steps[Json]:
    """Take away what is due by the server's settings, or only say what: a Collection. Needs an all-seeing admin."""
    return (yield from json_of("POST", "/v1/collect", json={"dry_run": dry_run}))


def lineage(ref: str) -> Steps[Json]:
    """The recipe, parents, children and evidence of an adapter."""
    return (yield from json_of("GET", f"{(yield from _named_path(ref))}/lineage"))


def files(ref: str) -> Steps[list[Json]]:
    """The files of an adapter: name, size, digest."""
    return (yield from data_of("GET", f"{(yield from _named_path(ref))}/files"))


def download(ref: str, file: str, target: Path, *, digest: str, progress: Progress | None = None) -> Steps[None]:
    """Write one file of an adapter to `target`; raises DigestMismatch if its bytes are not those of `digest`."""
    seen, done, tell = hashlib.sha256(), 0, progress or silent
    path = f"{(yield from _named_path(ref))}/files/{part(file)}"
    with target.open("wb") as out:

        def taken(piece: bytes, total: int) -> None:
            nonlocal done
            seen.update(piece)
            out.write(piece)
            done += len(piece)
            tell(done, total, file)

        yield Fetch(path, taken)
    if f"sha256:{seen.hexdigest()}" != digest:
        raise DigestMismatch(
            f"{file} of {ref} arrived damaged ({done} bytes of other content): pull it again, and where it arrives so "
            "again, have it pushed again with --anew."
        )


def matching(if_match: str | None) -> dict[str, str] | None:
    """The header of a change that is meant for what has this etag."""
    return {"if-match": if_match} if if_match else None


def _named_path(ref: str) -> Steps[str]:
    """The path under which a ref has sub-resources; a digest is looked up first."""
    if isinstance(parse_ref(ref), DigestRef):
        ref = str((yield from adapter(ref))["ref"])
    return _adapter_path(ref)


def _adapter_path(ref: str) -> str:
    """The path of an adapter; raises InvalidName, and InvalidParameter for a base model."""
    parsed = parse_ref(ref)
    if isinstance(parsed, DigestRef):
        return f"/v1/adapters/{parsed.digest}"
    if not isinstance(parsed, NameRef):
        raise InvalidParameter(f"{ref} is a base model; give an adapter as namespace/name.", param="ref")
    return f"/v1/adapters/{parsed}"
