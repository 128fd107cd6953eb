"""An engine whose requests are computed elsewhere: in a process of its own, or by replicas on Ray.

It follows each request until that has ended, calls its listeners, and sets its result or error once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from itertools import count

from registry.errors import SoupError
from service.engine.progress import RequestProgress
from service.engine.request import Delta, GenerateRequest, Generation, Request, Scores
from service.engine.steps import SequenceGroup
from service.engine.text_calls import BaseSource, EngineCalls

Outcome = Generation | Scores | SoupError
"""The result or error of a request."""


class RemoteEngine(EngineCalls):
    """Base of the engines that send requests elsewhere; `source` has the tokenizers and shapes of their base models."""

    def __init__(self, source: BaseSource) -> None:
        super().__init__(source)
        self._changed = threading.Condition()  # guards the requests; notified of ended ones
        self._ids = count()
        self._remote: dict[int, RemoteRequest] = {}
        """The requests that have not ended, by number."""

    def _add(self, requests: Sequence[Request]) -> list[RemoteRequest]:
        """Number requests and follow them from now on; under the lock."""
        added = [RemoteRequest(SequenceGroup.of(request, self._ids), next(self._ids)) for request in requests]
        self._remote |= {remote.number: remote for remote in added}
        return added

    def _end(self, remote: RemoteRequest, outcome: Outcome, counts: tuple[int, int] | None = None) -> None:
        """Set the result or error of a request, unless it has ended before; None counts the tokens known here."""
        ticket = remote.ticket
        with self._changed:
            if self._remote.pop(remote.number, None) is None:
                return
            status = "failed" if isinstance(outcome, SoupError) else "finished"
            if ticket.cancelled():
                status = "cancelled"
            self._ended_counts[status] += 1
        timeline = remote.report_end(remote.group, status, counts or remote.token_counts)
        self.adapter_metrics.add(remote.request, timeline)
        if ticket.set_running_or_notify_cancel():
            if isinstance(outcome, SoupError):
                ticket.set_exception(outcome)
            else:
                ticket.set_result(outcome)
        with self._changed:
            self._changed.notify_all()


class RemoteRequest(RequestProgress):
    """Progress of a request that is computed elsewhere: it starts when it is known to be admitted there."""

    def __init__(self, group: SequenceGroup, number: int) -> None:
        super().__init__()
        self.group, self.number = group, number
        self.request, self.ticket = group.request, group.ticket
        self.tokens = 0

    @property
    def token_counts(self) -> tuple[int, int]:
        """Tokens read and generated as far as known here; a request that has started has read its prompt."""
        if self.started_at is None:
            return 0, 0
        texts = (self.request.prompt,) if isinstance(self.request, GenerateRequest) else self.request.windows
        return sum(map(len, texts)), self.tokens

    def add_tokens(self, deltas: Iterable[Delta]) -> None:
        """Count new tokens and pass them to `on_token`."""
        assert isinstance(self.request, GenerateRequest)
        for delta in deltas:
            self.tokens += 1
            self.first_token_at = self.first_token_at or time.monotonic()
            if self.request.on_token is not None:
                self.request.on_token(delta)
