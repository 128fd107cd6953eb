"""What a server and a replica say to each other: one request, then tokens as they come, then how it ended.

Everything that names an adapter is a digest. Errors travel as values, so that a request is refused with the same words
and status whether the server's own engine refuses it or a replica's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from registry.adapters.loadable import LoadableAdapter, Stored
from registry.errors import Internal, SoupError, as_dict, rebuild
from registry.spec import AdapterConfig
from service.engine import Delta, GenerateRequest, Generation, SamplingParams


@dataclass(frozen=True)
class ReplicaRequest:
    """A GenerateRequest without what stays at the server: its callbacks, and how its adapter is read there."""

    base_id: str
    fingerprint: str
    """Of the base model, so that a replica with another state of it refuses."""
    prompt: tuple[int, ...]
    params: SamplingParams
    namespace: str | None
    owner: str | None
    digest: str | None = None
    config: AdapterConfig | None = None
    stored: Stored | None = None
    size_bytes: int = 0
    schema: str | None = None
    """Of the JSON that is to be answered."""


@dataclass(frozen=True)
class ReplicaResult:
    """The last of an answer: what came of it or the error, and the tokens that were read and written."""

    read: int
    written: int
    generation: Generation | None = None
    error: dict[str, Any] | None = None


ReplicaMessage = list[Delta] | ReplicaResult
"""What a replica sends: an empty list once it has taken the request, then the tokens of some steps, then the end."""


def replica_request(request: GenerateRequest, fingerprint: str) -> ReplicaRequest:
    """What is sent of a request; its adapter, where it has one, is stored."""
    adapter = request.adapter
    found = ReplicaRequest(
        request.base_id, fingerprint, request.prompt, request.params, request.namespace, request.owner,
        schema=None if request.grammar is None else request.grammar.schema,
    )  # fmt: skip
    if adapter is None:
        return found
    return replace(
        found, digest=adapter.digest, config=adapter.config, stored=adapter.stored, size_bytes=adapter.size_bytes
    )


def can_send(request: object) -> bool:
    """Whether a replica can do this: it generates, with an adapter that lies in the store or with none."""
    if not isinstance(request, GenerateRequest):
        return False
    adapter: LoadableAdapter | None = request.adapter
    return adapter is None or adapter.stored is not None


def sent_error(error: SoupError) -> dict[str, Any]:
    """An error as it travels."""
    return {**as_dict(error), "retry_after": getattr(error, "retry_after", None)}


def received_error(sent: dict[str, Any]) -> SoupError:
    """The error that was sent."""
    error = rebuild(sent["code"], sent["message"], param=sent["param"], problems=sent["problems"])
    if sent["retry_after"] is not None:
        error.retry_after = sent["retry_after"]  # type: ignore[attr-defined]
    return error


def result_or_error(ended: ReplicaResult) -> Generation | SoupError:
    """What came of a request that was answered to its end."""
    if ended.error is not None:
        return received_error(ended.error)
    return ended.generation or Internal("A replica on Ray ended an answer with nothing in it.")
