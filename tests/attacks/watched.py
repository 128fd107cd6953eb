"""Record of what a process does while an attack is under way, by the interpreter's own audit events.

The server under attack runs in this process, so that whatever it opens, unpickles, starts or connects to raises an
event here. Nothing is replaced by a double: what an attack reaches would be noticed after it was really reached.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

CANARY = "canary-that-nobody-may-open"
"""Part of the path of everything that attacks name."""
NEVER = frozenset(
    {
        "pickle.find_class",
        "subprocess.Popen",
        "os.system",
        "os.exec",
        "os.posix_spawn",
        "os.fork",
        "os.forkpty",
        "urllib.Request",
        "shutil.unpack_archive",
    }
)
"""What no request makes a server do."""
ON_PATHS = frozenset({"open", "os.listdir", "os.scandir", "os.remove", "os.rename", "os.mkdir", "os.truncate"})
LOOPBACK = ("127.0.0.1", "::1", "localhost")

_watchers: list[list[str]] = []
_installed = False


@contextmanager
def watched() -> Iterator[list[str]]:
    """Events that no attack may bring about, as text; the list fills while the block runs."""
    global _installed
    if not _installed:  # a hook stays as long as the process does
        sys.addaudithook(_audit_hook)
        _installed = True
    events: list[str] = []
    _watchers.append(events)
    try:
        yield events
    finally:
        _watchers.remove(events)


def _audit_hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _watchers and (event_text := _forbidden(event, arguments)):
        for events in _watchers:
            events.append(event_text)


def _forbidden(event: str, arguments: tuple[Any, ...]) -> str | None:
    if event in NEVER:
        return event
    if event in ON_PATHS and any(CANARY in str(argument) for argument in arguments):
        return f"{event} {arguments[0]}"
    if event == "socket.getaddrinfo" and arguments[0] not in (*LOOPBACK, None):
        return f"{event} {arguments[0]}"
    if event == "socket.connect" and isinstance(arguments[1], tuple) and arguments[1][0] not in LOOPBACK:
        return f"{event} {arguments[1]}"
    return None
