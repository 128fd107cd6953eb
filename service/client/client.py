"""The Python client: every call of the HTTP API as a method, errors as `registry.errors`, no torch.

Used by the command line, the demo and people's scripts. Bodies are values of `registry.spec`; answers are the JSON
objects of the API (docs/reference). Adapter directories go up and come down with `service.client.transfer`.

    with SoupClient("http://127.0.0.1:8000", api_key="sk-soup-...") as soup:
        push_folder(soup, Path("adapters/law"), name="team/law")  # service.transfer
        cooked = soup.cook(CookRequest(sample=SampleSource(texts=texts)))
        soup.perplexity(cooked["model"], other_texts, baseline="base/small")
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import quote

import httpx2

from registry.errors import (
    BY_CODE,
    Cancelled,
    DigestMismatch,
    InvalidParameter,
    NotFound,
    SoupError,
    Unavailable,
    rebuild,
)
from registry.files import encode_lines
from registry.names import DigestRef, NameRef, parse_ref, sha256_digest
from registry.spec import (
    Card,
    CookRequest,
    Manifest,
    PoolRequest,
    SampleSource,
    SelectOptions,
    SelectorSpec,
)
from service.client.connection import Connection, Json, read_chunks
from training.request import TrainingRequest

INLINE_BYTES = 1024 * 1024
MAX_FITS = 5
DONE = frozenset({"succeeded", "failed", "cancelled"})
Progress = Callable[[int, int, str], object]
"""(done, total, message); total 0 where nobody knows."""


class SoupClient:
    """A client of one server. `transport` replaces the network, `pause` the waiting, in tests."""

    def __init__(
        self,
        base_url: str = "http://127.0.0.1:8000",
        api_key: str | None = None,
        *,
        transport: httpx2.BaseTransport | None = None,
        timeout: float = 600.0,
        pause: Callable[[float], object] = time.sleep,
        inline_bytes: int = INLINE_BYTES,
    ) -> None:
        self._http = Connection(base_url, api_key, transport=transport, timeout=timeout, pause=pause)
        self.inline_bytes = inline_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection."""
        self._http.close()

    @property
    def base_url(self) -> str:
        """The server's address."""
        return self._http.base_url

    # --- blobs and adapters -----------------------------------------------------------------------

    def upload(self, source: bytes | Path, *, progress: Progress | None = None) -> str:
        """Make sure the server has these bytes, and give their digest; nothing is sent that is there already."""
        size = len(source) if isinstance(source, bytes) else source.stat().st_size
        digest = sha256_digest(source) if isinstance(source, bytes) else _file_digest(source)
        try:
            self._http.send("HEAD", f"/v1/blobs/{digest}")
        except NotFound:
            self._http.send(
                "PUT",
                f"/v1/blobs/{digest}",
                body=lambda: _told(source, size, progress),
                headers={"content-length": str(size), "content-type": "application/octet-stream"},
            )
        return digest

    def push(self, manifest: Manifest) -> Json:
        """Push an adapter by its manifest (201, or 200 if known): an Adapter object with `job` and `warnings`."""
        return self._http.json("POST", "/v1/adapters", json=manifest.model_dump(mode="json", exclude_none=True))

    def sample(self, texts: Sequence[str]) -> SampleSource:
        """Texts as a sample: inside of the request, or as an uploaded blob where they are large."""
        data = encode_lines(texts)
        if len(data) <= self.inline_bytes:
            return SampleSource(texts=tuple(texts))
        return SampleSource(blob=self.upload(data))

    def adapters(self, *, limit: int | None = None, **filters: str | None) -> Iterator[Json]:
        """Adapters the key sees, newest first, page by page; filters base_model, method, domain, tag, kind and q."""
        return self._pages("/v1/adapters", filters, limit)

    def adapter(self, ref: str) -> Json:
        """One adapter, by name or digest. Raises NotFound or Retired."""
        return self._http.json("GET", _adapter_path(ref))

    def update_adapter(
        self, ref: str, *, card: Card | None = None, domain: str | None = None, if_match: str | None = None
    ) -> Json:
        """Change card or domain; with `if_match` (an etag) only if nobody else has meanwhile."""
        body = {"card": None if card is None else card.model_dump(mode="json"), "domain": domain}
        return self._http.json(
            "PATCH", _adapter_path(ref), json=_given(body), headers={"if-match": if_match} if if_match else None
        )

    def delete_adapter(self, ref: str) -> list[Json]:
        """Retire an adapter: all live versions of a name, or the one that `@version` names; what was retired."""
        return list(self._http.json("DELETE", self._named_path(ref))["data"])

    def lineage(self, ref: str) -> Json:
        """The recipe, parents, children and evidence of an adapter."""
        return self._http.json("GET", f"{self._named_path(ref)}/lineage")

    def files(self, ref: str) -> list[Json]:
        """The files of an adapter: name, size, digest."""
        return list(self._http.json("GET", f"{self._named_path(ref)}/files")["data"])

    def download(self, ref: str, file: str, target: Path, *, digest: str, progress: Progress | None = None) -> None:
        """Write one file of an adapter to `target`; raises DigestMismatch if its bytes are not those of `digest`."""
        seen = hashlib.sha256()
        done = 0
        path = f"{self._named_path(ref)}/files/{quote(file, safe='')}"
        with self._http.open("GET", path) as response, target.open("wb") as out:
            total = int(response.headers.get("content-length", 0))
            for chunk in response.iter_bytes():
                seen.update(chunk)
                out.write(chunk)
                done += len(chunk)
                if progress is not None:
                    progress(done, total, file)
        if f"sha256:{seen.hexdigest()}" != digest:
            raise DigestMismatch(f"{file} of {ref} arrived damaged ({done} bytes of other content); pull it again.")

    def _named_path(self, ref: str) -> str:
        """The path under which a ref has sub-resources; a digest is looked up first."""
        if isinstance(parse_ref(ref), DigestRef):
            ref = str(self.adapter(ref)["ref"])
        return _adapter_path(ref)

    # --- selectors and soups ------------------------------------------------------------------------

    def fit(
        self, selector: SelectorSpec, *, pool: PoolRequest | None = None, wait: bool = True,
        progress: Progress | None = None,
    ) -> Json:  # fmt: skip
        """Fit a selector over a pool: a Selector; a Job where `wait` is False and it is not done."""
        body = _given({"selector": _dump(selector), "pool": _dump(pool), "wait": 0})
        answer = self._http.json("POST", "/v1/selectors", json=body)
        if answer["object"] != "job" or not wait:
            return answer
        return self.selector(str(self.result_of(answer, progress)["selector"]))

    def selector(self, selector_id: str) -> Json:
        """One fitted selector."""
        return self._http.json("GET", f"/v1/selectors/{quote(selector_id, safe='')}")

    def selectors(self, *, limit: int | None = None) -> Iterator[Json]:
        """Fitted selectors, newest first."""
        return self._pages("/v1/selectors", {}, limit)

    def select(
        self, sample: SampleSource, *, selector: SelectorSpec | None = None, options: SelectOptions | None = None,
        pool: PoolRequest | None = None, progress: Progress | None = None,
    ) -> Json:  # fmt: skip
        """Which adapters a selector would take for a sample, and why; a pool never fitted is fitted first."""
        body = _given({
            "sample": _dump(sample), "selector": _dump(selector), "options": _dump(options), "pool": _dump(pool),
            "wait": 0,
        })  # fmt: skip
        for _ in range(MAX_FITS):
            answer = self._http.json("POST", "/v1/select", json=body)
            if answer["object"] != "job":
                return answer
            self.result_of(answer, progress)
        raise Unavailable("The pool changes faster than its selector can be fitted; try again when pushing is over.")

    def cook(self, request: CookRequest, *, wait: bool = True, progress: Progress | None = None) -> Json:
        """Cook a soup, or abstain: a Soup; a Job where `wait` is False and it is not done."""
        body = {**request.model_dump(mode="json", exclude_none=True), "wait": 0}
        answer = self._http.json("POST", "/v1/soups", json=body)
        return answer if answer["object"] != "job" or not wait else self.result_of(answer, progress)

    def train(self, request: TrainingRequest, *, wait: bool = True, progress: Progress | None = None) -> Json:
        """Train an adapter on uploaded data: what the job gave (`adapter`, its name and version, and `digest`).

        A Job where `wait` is False. The same request again gives the same, and goes on where one was stopped.
        """
        job = self._http.json("POST", "/v1/trainings", json=request.model_dump(mode="json", exclude_none=True))
        return self.result_of(job, progress) if wait else job

    def result_of(self, job: Json, progress: Progress | None = None) -> Json:
        """What a job came to, once it has succeeded; raises as `wait_job`."""
        result = self.wait_job(str(job["id"]), progress=progress).get("result")
        if not isinstance(result, dict):
            raise Unavailable(f"Job {job['id']} left no result; `soup jobs show {job['id']}` shows it.")
        return dict(result)

    # --- inference ----------------------------------------------------------------------------------

    def models(self) -> list[Json]:
        """What `model` may be: base models and adapters, in OpenAI's list."""
        return list(self._http.json("GET", "/v1/models")["data"])

    def perplexity(self, model: str, texts: Sequence[str], *, baseline: str | None = None) -> Json:
        """Perplexity of texts under a model, beside a baseline's with the paired standard error."""
        body = {"model": model, "texts": list(texts), "baseline": baseline}
        return self._http.json("POST", "/v1/perplexity", json=_given(body))

    def complete(self, model: str, prompt: str, **sampling: Any) -> Json:
        """A text completion, in OpenAI's shape; `sampling` holds max_tokens, temperature, top_p, n, stop, seed ..."""
        return self._http.json("POST", "/v1/completions", json={"model": model, "prompt": prompt, **_given(sampling)})

    def stream(self, model: str, prompt: str, **sampling: Any) -> Iterator[Json]:
        """A text completion in chunks, as they are generated."""
        body = {"model": model, "prompt": prompt, **_given(sampling), "stream": True}
        return (value for _, value in self._http.events("POST", "/v1/completions", json=body))

    # --- jobs ---------------------------------------------------------------------------------------

    def jobs(self, *, limit: int | None = None, **filters: str | None) -> Iterator[Json]:
        """Jobs the key sees, newest first."""
        return self._pages("/v1/jobs", filters, limit)

    def job(self, job_id: str) -> Json:
        """One job."""
        return self._http.json("GET", f"/v1/jobs/{quote(job_id, safe='')}")

    def cancel_job(self, job_id: str) -> Json:
        """Ask a job to stop."""
        return self._http.json("POST", f"/v1/jobs/{quote(job_id, safe='')}/cancel")

    def wait_job(self, job_id: str, *, progress: Progress | None = None, patience: int = 30) -> Json:
        """The job once it has succeeded, following its events; a server that restarts is waited for.

        Raises the error a failed job names, Cancelled for a cancelled one, and Unavailable after `patience` seconds
        without a server.
        """
        silent = 0
        while True:
            try:
                self._follow(job_id, progress)
                job = self.job(job_id)
                silent = 0
            except Unavailable:
                silent += 1
                if silent >= patience:
                    raise
                job = {}
            if job.get("state") in DONE:
                return _succeeded(job)
            self._http.pause(1.0)

    def _follow(self, job_id: str, progress: Progress | None) -> None:
        for name, value in self._http.events("GET", f"/v1/jobs/{quote(job_id, safe='')}/events"):
            found = value.get("progress", value) if isinstance(value, dict) else None
            if progress is not None and isinstance(found, dict) and "done" in found:
                progress(int(found["done"]), int(found.get("total") or 0), str(found.get("message") or ""))
            if name == "done":
                return

    # --- keys and health ----------------------------------------------------------------------------

    def create_key(
        self, name: str, *, scopes: Sequence[Literal["read", "write", "infer", "admin"]],
        namespaces: Sequence[str] | None = None,
    ) -> Json:  # fmt: skip
        """Make a key; `secret` is in this answer and nowhere else. `namespaces` None sees all of them."""
        body = {"name": name, "scopes": list(scopes), "namespaces": None if namespaces is None else list(namespaces)}
        return self._http.json("POST", "/v1/keys", json=body, repeat=False)

    def keys(self) -> list[Json]:
        """Every key, without secrets."""
        return list(self._http.json("GET", "/v1/keys")["data"])

    def revoke_key(self, key_id: str) -> Json:
        """Revoke a key, from the next request on."""
        return self._http.json("DELETE", f"/v1/keys/{quote(key_id, safe='')}")

    def ready(self) -> Json:
        """What /readyz says; raises Unavailable while the server is not ready."""
        return self._http.json("GET", "/readyz")

    # --- paging -------------------------------------------------------------------------------------

    def _pages(self, path: str, filters: Mapping[str, str | None], limit: int | None) -> Iterator[Json]:
        """Every row of a list, one page at a time, up to `limit` rows."""
        cursor: str | None = None
        left = limit
        while left is None or left > 0:
            size = None if left is None else min(left, 100)
            page = self._http.json("GET", path, params={**filters, "limit": size, "cursor": cursor})
            yield from page["data"]
            left = None if left is None else left - len(page["data"])
            cursor = page.get("next_cursor")
            if not cursor:
                return


def _adapter_path(ref: str) -> str:
    """The path of an adapter; raises InvalidName, and InvalidParameter for a base model."""
    parsed = parse_ref(ref)
    if isinstance(parsed, DigestRef):
        return f"/v1/adapters/{parsed.digest}"
    if not isinstance(parsed, NameRef):
        raise InvalidParameter(f"{ref} is a base model; give an adapter as namespace/name.", param="ref")
    return f"/v1/adapters/{parsed}"


def _succeeded(job: Json) -> Json:
    """`job`, or the error it ended with."""
    if job["state"] == "succeeded":
        return job
    if job["state"] == "cancelled":
        raise Cancelled(f"Job {job['id']} was cancelled.")
    error = job.get("error") or {}
    message = str(error.get("message") or f"Job {job['id']} failed; the server's log says why.")
    code = error.get("code")
    raise rebuild(
        code if code in BY_CODE else SoupError.code,
        message,
        param=error.get("param"),
        problems=error.get("problems") or (),
    )


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def _told(source: bytes | Path, size: int, progress: Progress | None) -> Iterator[bytes]:
    """The bytes of a source in chunks, telling how far it is."""
    if isinstance(source, bytes):
        yield source
        return
    done = 0
    with source.open("rb") as file:
        for chunk in read_chunks(file):
            yield chunk
            done += len(chunk)
            if progress is not None:
                progress(done, size, source.name)


def _dump(value: Any) -> Json | None:
    return None if value is None else value.model_dump(mode="json", exclude_none=True)


def _given(values: Mapping[str, Any]) -> Json:
    return {name: value for name, value in values.items() if value is not None}
