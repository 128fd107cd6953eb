"""The Python client: every call of the HTTP API as a method, errors as `registry.errors`, no torch.

Used by the command line, the demo and people's scripts. Bodies are values of `registry.spec`; answers are the JSON
objects of the API (docs/reference). Adapter directories go up and come down with `service.client.transfer`.

    with SoupClient("http://127.0.0.1:8000", api_key="sk-soup-...") as soup:
        push_folder(soup, Path("adapters/law"), name="team/law")  # service.client.transfer
        cooked = soup.cook(CookRequest(sample=SampleSource(texts=texts)))
        soup.perplexity(cooked["model"], other_texts, baseline="base/small")
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self

import httpx2

from registry.errors import InvalidParameter
from registry.names import KeyScope
from service.client.adapter_calls import AdapterCalls
from service.client.connection import Connection, Json, given, part
from service.client.job_calls import JobCalls

INLINE_BYTES = 1024 * 1024
PART_BYTES = 8 * 1024 * 1024


class SoupClient(AdapterCalls, JobCalls):
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
        part_bytes: int = PART_BYTES,
    ) -> None:
        self._http = Connection(base_url, api_key, transport=transport, timeout=timeout, pause=pause)
        self.inline_bytes = inline_bytes
        self.part_bytes = part_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection."""
        self._http.close()

    def pause(self, seconds: float) -> None:
        """Wait, as this client does between two requests."""
        self._http.pause(seconds)

    @property
    def base_url(self) -> str:
        """The server's address."""
        return self._http.base_url

    # --- inference ----------------------------------------------------------------------------------

    def models(self) -> list[Json]:
        """What `model` may be: base models and adapters, in OpenAI's list."""
        return list(self._http.json("GET", "/v1/models")["data"])

    def perplexity(self, model: str, texts: Sequence[str], *, baseline: str | None = None) -> Json:
        """Perplexity of texts under a model, beside a baseline's with the paired standard error."""
        body = {"model": model, "texts": list(texts), "baseline": baseline}
        return self._http.json("POST", "/v1/perplexity", json=given(body))

    def complete(self, model: str, prompt: str, **sampling: Any) -> Json:
        """A text completion, in OpenAI's shape; `sampling` holds max_tokens, temperature, top_p, n, stop, seed ..."""
        return self._http.json("POST", "/v1/completions", json={"model": model, "prompt": prompt, **given(sampling)})

    def stream(self, model: str, prompt: str, **sampling: Any) -> Iterator[Json]:
        """A text completion in chunks, as they are generated."""
        body = {"model": model, "prompt": prompt, **given(sampling), "stream": True}
        return (value for _, value in self._http.events("POST", "/v1/completions", json=body))

    def chat(self, model: str, messages: Sequence[Mapping[str, str]], **sampling: Any) -> Json:
        """A chat completion, in OpenAI's shape; `messages` are {role, content}, the last one is answered."""
        body = {"model": model, "messages": list(messages), **given(sampling)}
        return self._http.json("POST", "/v1/chat/completions", json=body)

    def stream_chat(self, model: str, messages: Sequence[Mapping[str, str]], **sampling: Any) -> Generator[Json]:
        """A chat completion in chunks, as they are generated; closing it ends it on the server too."""
        body = {"model": model, "messages": list(messages), **given(sampling), "stream": True}
        for _, value in self._http.events("POST", "/v1/chat/completions", json=body):
            yield value

    def embed(self, model: str, texts: Sequence[str]) -> Json:
        """The vectors of texts, as samples are embedded: of a base model, in OpenAI's shape."""
        return self._http.json("POST", "/v1/embeddings", json={"model": model, "input": list(texts)})

    # --- keys, namespaces and health ----------------------------------------------------------------------------

    def create_key(
        self,
        name: str,
        *,
        scopes: Sequence[KeyScope],
        namespaces: Sequence[str] | None = None,
        expires_at: datetime | None = None,
    ) -> Json:
        """Make a key; `secret` is in this answer and nowhere else. `namespaces` None sees all of them.

        `expires_at` knows its time zone; None never expires.
        """
        body: Json = {"name": name, "scopes": list(scopes)}
        body["namespaces"] = None if namespaces is None else list(namespaces)
        if expires_at is not None:
            body["expires_at"] = expires_at.isoformat()
        return self._http.json("POST", "/v1/keys", json=body, repeat=False)

    def keys(self) -> list[Json]:
        """Every key, without secrets."""
        return list(self._http.json("GET", "/v1/keys")["data"])

    def change_key(self, key_id: str, **changes: str | Sequence[str] | datetime | None) -> Json:
        """Change a key: name, scopes, namespaces (None: all), expires_at (None: never); what is not named stays."""
        body = {name: one.isoformat() if isinstance(one, datetime) else one for name, one in changes.items()}
        return self._http.json("PATCH", f"/v1/keys/{part(key_id)}", json=body)

    def rotate_key(self, key_id: str, *, grace_seconds: int = 0) -> Json:
        """Give a key another `secret`, which is in this answer and nowhere else; what it had ends after the grace."""
        body = {"grace_seconds": grace_seconds}
        return self._http.json("POST", f"/v1/keys/{part(key_id)}/rotate", json=body, repeat=False)

    def revoke_key(self, key_id: str) -> Json:
        """Revoke a key, from the next request on."""
        return self._http.json("DELETE", f"/v1/keys/{part(key_id)}")

    def audit(
        self, *, since: datetime | None = None, until: datetime | None = None, limit: int | None = None,
        **filters: str | None,
    ) -> Iterator[Json]:  # fmt: skip
        """Who did what, newest first; filters action, subject, namespace and key_id. Moments know their time zone."""
        return self._http.pages("/v1/audit", {**filters, **_moments(since, until)}, limit)

    def audit_csv(self, *, since: datetime | None = None, until: datetime | None = None, **filters: str | None) -> str:
        """All of the same as CSV."""
        params = given({**filters, **_moments(since, until), "format": "csv"})
        return self._http.send("GET", "/v1/audit", params=params).text

    def namespace(self, namespace: str) -> Json:
        """The settings of a namespace, and their etag."""
        return self._http.json("GET", f"/v1/namespaces/{part(namespace)}")

    def change_namespace(
        self, namespace: str, *, if_match: str | None = None, **settings: str | int | list[str] | None
    ) -> Json:
        """Change settings of a namespace: tuning, protected_aliases, unnamed_soup_days; what is not named stays.

        With `if_match` (an etag) only if nobody else has changed them meanwhile.
        """
        headers = {"if-match": if_match} if if_match else None
        return self._http.json("PATCH", f"/v1/namespaces/{part(namespace)}", json=settings, headers=headers)

    def limits(self, *, key_id: str | None = None, namespace: str | None = None) -> Json:
        """The limits of a key (by its id) or of a namespace, those in force, and what is in use of its quotas."""
        return self._http.json("GET", _limits_path(key_id, namespace))

    def change_limits(self, *, key_id: str | None = None, namespace: str | None = None, **limits: int | None) -> Json:
        """Change limits: requests_per_minute, tokens_per_minute, stored_bytes, adapters, jobs.

        None leaves one to the server's default; what is not named stays.
        """
        return self._http.json("PATCH", _limits_path(key_id, namespace), json=limits)

    def usage(self, *, by: Sequence[str] = (), limit: int | None = None, **filters: str | None) -> Iterator[Json]:
        """Requests and tokens by day, key, namespace and model, or `by` some of these; last day first.

        Filters are since and until (days: 2030-01-31), key_id, namespace and model.
        """
        return self._http.pages("/v1/usage", {**filters, "by": by or None}, limit)

    def usage_csv(self, *, by: Sequence[str] = (), **filters: str | None) -> str:
        """All of the same as CSV."""
        params = {**filters, "by": by or None, "format": "csv"}
        return self._http.send("GET", "/v1/usage", params=params).text

    def ready(self) -> Json:
        """What /readyz says; raises Unavailable while the server is not ready."""
        return self._http.json("GET", "/readyz")


def _moments(since: datetime | None, until: datetime | None) -> dict[str, str | None]:
    return {
        "since": None if since is None else since.isoformat(), "until": None if until is None else until.isoformat()
    }  # fmt: skip


def _limits_path(key_id: str | None, namespace: str | None) -> str:
    if key_id is not None and namespace is None:
        return f"/v1/keys/{part(key_id)}/limits"
    if namespace is not None and key_id is None:
        return f"/v1/namespaces/{part(namespace)}/limits"
    raise InvalidParameter("Limits are those of a key or of a namespace: name one of them.", param="namespace")
