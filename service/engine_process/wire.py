"""Messages between a server and an engine in another process: requests, tokens as they are generated, results.

A stored adapter travels as its digest and the blob of its weights. Errors are sent as values, so that a request is
refused with the same message and status as in the server's process.
"""

from __future__ import annotations

from concurrent.futures import CancelledError
from dataclasses import dataclass, replace

from registry.adapters.loadable import Tensors
from registry.errors import Internal, SoupError, Unavailable
from service.engine import Delta, GenerateRequest, Ticket
from service.engine.remote import Outcome
from service.engine.request import Request

STOPPED = "The engine stopped before the answer was complete; send the request again."


@dataclass(frozen=True)
class SentRequest:
    """A request without callbacks, and its adapter without the function that loads it."""

    request: Request
    fingerprint: str
    """Of the base model: an engine refuses requests for another one."""


@dataclass(frozen=True)
class Ended:
    """The end of a request: its result or error, and its tokens."""

    outcome: Outcome
    prompt_tokens: int = 0
    generated_tokens: int = 0
    started_at: float | None = None
    """When the first step computed some of it, in monotonic seconds of the machine, as `first_token_at`."""
    first_token_at: float | None = None

    @classmethod
    def of(cls, ticket: Ticket) -> Ended:
        """The end of a request whose ticket is done."""
        outcome: Outcome
        try:
            outcome = ticket.result(0)
        except CancelledError:
            outcome = Unavailable(STOPPED)
        except SoupError as error:
            outcome = error
        timeline = ticket.timeline
        if timeline is None:
            return cls(outcome)
        counts = timeline.prompt_tokens, timeline.generated_tokens
        return cls(outcome, *counts, timeline.started_at, timeline.first_token_at)


ReplicaMessage = list[Delta] | Ended
"""Message of a replica: an empty list once the request is admitted, then new tokens, then the end."""


def sent_request(request: Request, fingerprint: str) -> SentRequest:
    """Return a request as it is sent."""
    adapter = None if request.adapter is None else replace(request.adapter, load=_not_loadable)
    if isinstance(request, GenerateRequest):
        request = replace(request, on_token=None)
    return SentRequest(replace(request, adapter=adapter, on_step=None, on_end=None), fingerprint)


def _not_loadable() -> Tensors:
    raise Internal("an adapter was loaded that was only sent")


def can_generate_elsewhere(request: Request) -> bool:
    """Return True for a generation without an adapter or with a stored one."""
    return isinstance(request, GenerateRequest) and (request.adapter is None or request.adapter.stored is not None)
