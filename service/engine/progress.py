"""The progress of a request in this process or another: when it arrived, started and ended, and its error."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from registry.errors import Internal, SoupError
from service.engine.request import RequestTimeline, timeline_observer
from service.engine.steps import SequenceGroup

log = logging.getLogger("soup.engine")


class RequestProgress:
    """When a request arrived, started and gave its first token, in monotonic seconds, and who observes its end."""

    def __init__(self) -> None:
        self.arrived_at = time.monotonic()
        self.started_at: float | None = None
        self.first_token_at: float | None = None
        self._observer = timeline_observer.get()

    def mark_started(self) -> bool:
        """Record that a step computes some of the request; return True for the first one."""
        if self.started_at is not None:
            return False
        self.started_at = time.monotonic()
        return True

    def report_end(self, group: SequenceGroup, status: str, token_counts: tuple[int, int]) -> RequestTimeline:
        """Call `on_end` and the observer, and return the timeline; `token_counts` are tokens read and generated."""
        timeline = group.ticket.timeline = RequestTimeline(
            group.base_id,
            group.digest,
            status,
            self.arrived_at,
            self.started_at,
            self.first_token_at,
            time.monotonic(),
            *token_counts,
        )
        _call(group.request.on_end, *token_counts)
        _call(self._observer, timeline)
        return timeline


def _call(listener: Callable[..., None] | None, *arguments: object) -> None:
    """Call a listener to the end of a request; its error is logged only, as other requests have to end too."""
    try:
        if listener is not None:
            listener(*arguments)
    except Exception:
        log.exception("the end of a request could not be reported")


def as_soup_error(error: Exception) -> SoupError:
    """Return a SoupError as it is; log any other error, and return one without its details."""
    if isinstance(error, SoupError):
        return error
    log.error("a batch failed", exc_info=error)
    wrapped = Internal("The engine failed on this request; the server's log says why.")
    wrapped.__cause__ = error
    return wrapped


def without_frames(error: SoupError) -> SoupError:
    """Remove the tracebacks of an error and its causes: they would keep the base model in memory."""
    cause: BaseException | None = error
    while cause is not None:
        cause.__traceback__ = None
        cause = cause.__cause__ or cause.__context__
    return error
