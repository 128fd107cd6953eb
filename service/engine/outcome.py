"""How a request ends for whoever waits for it: its ticket gets the answer, or an error that names no details.

Used by the engine's thread, outside of its lock: what waits for a ticket may submit again.
"""

from __future__ import annotations

import logging
import time

from registry.errors import Internal, SoupError
from service.engine.draft import Draft
from service.engine.life import Life
from service.engine.request import State
from service.engine.steps import Work

log = logging.getLogger(__name__)


def answer(work: Work, draft: Draft) -> None:
    """Give an ended request's ticket its answer or error; a cancelled one has none. What it took is told before."""
    counted = draft.counted()
    if work.request.on_end is not None:
        work.request.on_end(*counted)
    if draft.told is not None:
        (base_id, adapter), (read, written) = work.key, counted
        ended = time.monotonic()
        draft.told(Life(base_id, adapter, work.state.value, draft.came, draft.began, draft.first, ended, read, written))
    if not work.ticket.set_running_or_notify_cancel():
        return
    if work.state is not State.FINISHED:
        work.ticket.set_exception(work.error)
        return
    try:
        work.ticket.set_result(draft.result())
    except Exception as error:
        work.ticket.set_exception(as_soup(error))


def as_soup(error: Exception) -> SoupError:
    """An error of ours as it is; any other is logged, and the caller hears of it without its details."""
    if isinstance(error, SoupError):
        return error
    log.error("a batch failed", exc_info=error)
    wrapped = Internal("The engine failed on this request; the server's log says why.")
    wrapped.__cause__ = error
    return wrapped


def without_frames(error: SoupError) -> SoupError:
    """The error without its tracebacks: they would keep the base model in memory for as long as somebody has it."""
    one: BaseException | None = error
    while one is not None:
        one.__traceback__ = None
        one = one.__cause__ or one.__context__
    return error
