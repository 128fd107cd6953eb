"""Messages between a server and a replica: a request, then tokens as they are generated, then the result.

Adapters are named by digest only. Errors are sent as values, so that a request is refused with the same message and
status by the server's own engine and by a replica's.
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
    """A GenerateRequest as it is sent: without callbacks, with its adapter as a digest and a stored file."""

    base_id: str
    fingerprint: str
    """Of the base model: a replica refuses requests for another one."""
    prompt: tuple[int, ...]
    params: SamplingParams
    namespace: str | None
    owner: str | None
    digest: str | None = None
    config: AdapterConfig | None = None
    stored: Stored | None = None
    size_bytes: int = 0
    schema: str | None = None
    """JSON schema of the answer."""


@dataclass(frozen=True)
class ReplicaResult:
    """The last message of an answer: its result or error, and its tokens."""

    prompt_tokens: int
    generated_tokens: int
    generation: Generation | None = None
    error: dict[str, Any] | None = None


ReplicaMessage = list[Delta] | ReplicaResult
"""Message of a replica: an empty list once the request is admitted, then new tokens, then the result."""


def replica_request(request: GenerateRequest, fingerprint: str) -> ReplicaRequest:
    """Return a request as it is sent; its adapter, if any, must be stored."""
    adapter = request.adapter
    sent = ReplicaRequest(
        request.base_id,
        fingerprint,
        request.prompt,
        request.params,
        request.namespace,
        request.owner,
        schema=None if request.grammar is None else request.grammar.schema,
    )
    if adapter is None:
        return sent
    return replace(
        sent, digest=adapter.digest, config=adapter.config, stored=adapter.stored, size_bytes=adapter.size_bytes
    )


def can_send(request: object) -> bool:
    """Return True for a generation without an adapter or with a stored one."""
    if not isinstance(request, GenerateRequest):
        return False
    adapter: LoadableAdapter | None = request.adapter
    return adapter is None or adapter.stored is not None


def sent_error(error: SoupError) -> dict[str, Any]:
    """Return an error as it is sent."""
    return {**as_dict(error), "retry_after": getattr(error, "retry_after", None)}


def received_error(sent: dict[str, Any]) -> SoupError:
    """Rebuild an error that was sent."""
    error = rebuild(sent["code"], sent["message"], param=sent["param"], problems=sent["problems"])
    if sent["retry_after"] is not None:
        error.retry_after = sent["retry_after"]  # type: ignore[attr-defined]
    return error


def result_or_error(result: ReplicaResult) -> Generation | SoupError:
    """The generation or error in the last message of an answer."""
    if result.error is not None:
        return received_error(result.error)
    return result.generation or Internal("A replica on Ray ended an answer with nothing in it.")
