"""Logs: each record as one line of JSON on standard error, without what people sent.

An exception is logged with its class, errno and traceback, but without its message, which may quote values. An
`Internal` describes only the server's state, so its message is logged.
"""

from __future__ import annotations

import errno
import json
import logging
import traceback
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import IO, Any, TypeVar

from registry.errors import Internal

Begun = TypeVar("Begun")
request_id_now: ContextVar[str | None] = ContextVar("request_id", default=None)
"""The id of the current request; None outside of one."""


class JsonFormatter(logging.Formatter):
    """A log record as one line of JSON; extra values come from `extra={"fields": {...}}`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line. Exceptions appear as class and traceback, without their message."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if (request_id := request_id_now.get()) is not None:
            line["request_id"] = request_id
        line.update(getattr(record, "fields", {}))
        if record.exc_info and record.exc_info[1] is not None:
            line.update(describe(record.exc_info[1]))
        return json.dumps(line, ensure_ascii=False, default=str)


def describe(error: BaseException) -> dict[str, Any]:
    """Describe an exception without its message: its class, its cause's class, and the innermost 12 frames.

    `errno` and `cause_errno` are present if a system call failed (`ENOSPC`), `detail` is the message of an Internal.
    """
    frames = traceback.extract_tb(error.__traceback__)[-12:]
    fields: dict[str, Any] = {
        "error": type(error).__qualname__,
        "where": [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames],
        **_errno("errno", error),
    }
    if isinstance(error, Internal):
        fields["detail"] = error.message
    if error.__cause__ is not None:
        fields["cause"] = type(error.__cause__).__qualname__
        fields |= _errno("cause_errno", error.__cause__)
    return fields


def _errno(name: str, error: BaseException) -> dict[str, str]:
    if not isinstance(error, OSError) or error.errno is None:
        return {}
    return {name: errno.errorcode.get(error.errno, str(error.errno))}


def logged(begin: Callable[[dict[str, Any]], Begun]) -> Callable[[dict[str, Any]], Begun]:
    """Return `begin` of a child process, preceded by `configure_logging` with the level in its setup."""

    def begin_logged(setup: dict[str, Any]) -> Begun:
        configure_logging(setup["log_level"])
        return begin(setup)

    return begin_logged


def configure_logging(level: str, stream: IO[str] | None = None) -> None:
    """Send every log of this process as JSON lines to `stream` (by default stderr). Called by `soup serve`."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in ("uvicorn", "uvicorn.error"):
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
    logging.getLogger("uvicorn.access").disabled = True  # it logs raw paths; `http.observe` writes a line instead
