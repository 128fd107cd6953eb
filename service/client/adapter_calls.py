"""What a client asks of blobs and adapters: upload, push, list, show, change, retire, download."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from registry.errors import Busy, DigestMismatch, InvalidParameter
from registry.files import encode_lines
from registry.names import DigestRef, NameRef, file_digest, parse_ref, sha256_digest
from registry.progress import Progress, silent
from registry.spec import Card, Manifest, SampleSource
from service.client.connection import Connection, Json, given, object_of, part
from service.client.parts import BINARY, is_there, send_in_parts

CREATED = 201
LONGEST_WAIT = 3600
"""Seconds that one of many adapters is kept back for where a server is full."""


class AdapterCalls:
    """The calls of `SoupClient` about blobs and adapters."""

    _http: Connection
    inline_bytes: int
    """Texts and files of at most so many bytes travel inside of a request, larger ones as blobs."""
    part_bytes: int
    """Blobs of at most so many bytes are sent in one request, larger ones in parts of so many."""

    def upload(self, source: bytes | Path, *, progress: Progress | None = None) -> str:
        """Make sure the server has these bytes, and give their digest; nothing is sent that is there already.

        What is large goes in parts, and goes on where it ended: after a connection that broke, and after a process that
        was killed, here or there.
        """
        size = len(source) if isinstance(source, bytes) else source.stat().st_size
        digest = sha256_digest(source) if isinstance(source, bytes) else file_digest(source)
        name, tell = "" if isinstance(source, bytes) else source.name, progress or silent
        if is_there(self._http, digest):
            tell(size, size, name)
        elif size > self.part_bytes:
            send_in_parts(
                self._http, source, digest=digest, size=size, part_bytes=self.part_bytes,
                progress=lambda done: tell(done, size, name),
            )  # fmt: skip
        else:
            self._http.send(
                "PUT", f"/v1/blobs/{digest}",
                body=source if isinstance(source, bytes) else source.read_bytes(), headers=BINARY,
            )  # fmt: skip
            tell(size, size, name)
        return digest

    def has_blob(self, digest: str) -> bool:
        """Whether the server has a blob, whole, and this key sees it."""
        return is_there(self._http, digest)

    def push(self, manifest: Manifest) -> Json:
        """Push an adapter by its manifest (201, or 200 if known): an Adapter object with `job` and `warnings`."""
        return self._http.json("POST", "/v1/adapters", json=manifest.model_dump(mode="json", exclude_none=True))

    def push_patiently(self, manifest: Manifest, *, progress: Progress | None = None) -> tuple[Json, bool]:
        """As `push`, waiting where the server is full for as long as it takes: the Adapter, and whether it is new.

        `progress` is told each second of waiting, and may raise to end it. Raises Busy after an hour of it.
        """
        body, waited, tell = manifest.model_dump(mode="json", exclude_none=True), 0, progress or silent
        while True:
            try:
                answer = self._http.send("POST", "/v1/adapters", json=body, repeat=False)
            except Busy as error:
                pause = max(1, error.retry_after)  # of a server that says 0 too
                waited += pause
                if waited > LONGEST_WAIT:
                    raise
                for _ in range(pause):
                    tell(0, 0, "the server is full: waiting")
                    self._http.pause(1.0)
            else:
                return object_of(answer), answer.status_code == CREATED

    def sample(self, texts: Sequence[str]) -> SampleSource:
        """Texts as a sample: inside of the request, or as an uploaded blob where they are large."""
        data = encode_lines(texts)
        if len(data) <= self.inline_bytes:
            return SampleSource(texts=tuple(texts))
        return SampleSource(blob=self.upload(data))

    def adapters(self, *, limit: int | None = None, **filters: str | Sequence[str] | None) -> Iterator[Json]:
        """Adapters the key sees, newest first, without provenance.

        Filters are base_model, method, domain, namespace, name, tag (one, or several that all hold), kind, tuned_on,
        and q: words that are there, or begin one that is, in name, domain, tags and card.
        """
        return self._http.pages("/v1/adapters", filters, limit)

    def adapter(self, ref: str) -> Json:
        """One adapter, by name or digest. Raises NotFound or Retired."""
        return self._http.json("GET", _adapter_path(ref))

    def update_adapter(
        self, ref: str, *, card: Card | None = None, domain: str | None = None, if_match: str | None = None
    ) -> Json:
        """Change card or domain; with `if_match` (an etag) only if nobody else has meanwhile."""
        body = {"card": None if card is None else card.model_dump(mode="json"), "domain": domain}
        return self._http.json(
            "PATCH", _adapter_path(ref), json=given(body), headers={"if-match": if_match} if if_match else None
        )

    def aliases(self, ref: str) -> list[Json]:
        """Every alias of a name, and the version it points at."""
        return list(self._http.json("GET", f"{self._named_path(ref)}/aliases")["data"])

    def put_alias(self, name: str, alias: str, version: int, *, if_match: str | None = None) -> Json:
        """Point an alias of `namespace/name` at a version; with `if_match` only if that is its etag: an Alias."""
        headers = {"if-match": if_match} if if_match else None
        path = f"{_adapter_path(name)}/aliases/{part(alias)}"
        return self._http.json("PUT", path, json={"version": version}, headers=headers)

    def delete_alias(self, name: str, alias: str) -> None:
        """Remove an alias of `namespace/name`."""
        self._http.send("DELETE", f"{_adapter_path(name)}/aliases/{part(alias)}")

    def delete_adapter(self, ref: str) -> list[Json]:
        """Retire an adapter: all live versions of a name, or the one that `@version` names; what was retired."""
        return list(self._http.json("DELETE", self._named_path(ref))["data"])

    def restore(self, ref: str, *, if_match: str | None = None) -> Json:
        """Bring a retired version back, `namespace/name@version`; with `if_match` only if that is its etag."""
        headers = {"if-match": if_match} if if_match else None
        return self._http.json("POST", f"{_adapter_path(ref)}/restore", headers=headers)

    def purge(self, ref: str) -> Json:
        """Remove a version for good, `namespace/name@version`: a Purge object. Needs scope admin."""
        return self._http.json("POST", f"{_adapter_path(ref)}/purge")

    def collect(self, *, dry_run: bool = False) -> Json:
        """Take away what is due by the server's settings, or only say what: a Collection. Needs an all-seeing admin."""
        return self._http.json("POST", "/v1/collect", json={"dry_run": dry_run})

    def lineage(self, ref: str) -> Json:
        """The recipe, parents, children and evidence of an adapter."""
        return self._http.json("GET", f"{self._named_path(ref)}/lineage")

    def files(self, ref: str) -> list[Json]:
        """The files of an adapter: name, size, digest."""
        return list(self._http.json("GET", f"{self._named_path(ref)}/files")["data"])

    def download(self, ref: str, file: str, target: Path, *, digest: str, progress: Progress | None = None) -> None:
        """Write one file of an adapter to `target`; raises DigestMismatch if its bytes are not those of `digest`."""
        seen, done, tell = hashlib.sha256(), 0, progress or silent
        path = f"{self._named_path(ref)}/files/{part(file)}"
        with self._http.open("GET", path) as response, target.open("wb") as out:
            total = int(response.headers.get("content-length", 0))
            for chunk in response.iter_bytes():
                seen.update(chunk)
                out.write(chunk)
                done += len(chunk)
                tell(done, total, file)
        if f"sha256:{seen.hexdigest()}" != digest:
            raise DigestMismatch(f"{file} of {ref} arrived damaged ({done} bytes of other content); pull it again.")

    def _named_path(self, ref: str) -> str:
        """The path under which a ref has sub-resources; a digest is looked up first."""
        if isinstance(parse_ref(ref), DigestRef):
            ref = str(self.adapter(ref)["ref"])
        return _adapter_path(ref)


def _adapter_path(ref: str) -> str:
    """The path of an adapter; raises InvalidName, and InvalidParameter for a base model."""
    parsed = parse_ref(ref)
    if isinstance(parsed, DigestRef):
        return f"/v1/adapters/{parsed.digest}"
    if not isinstance(parsed, NameRef):
        raise InvalidParameter(f"{ref} is a base model; give an adapter as namespace/name.", param="ref")
    return f"/v1/adapters/{parsed}"
