"""Tests that `make quick` leaves out: they need a server, PostgreSQL or another process, or take long.

A test that uses the fixtures of those, or runs on PostgreSQL or an object store, is marked `slow` by itself, others
say so. In a run without slow tests nothing can start a process or listen: a test that should have said so fails with
this sentence.
"""

from __future__ import annotations

import multiprocessing.util
import sys
from typing import Any, NoReturn

import pytest

FIXTURES = frozenset({"world", "target", "postgres", "database_server", "object_store"})
KINDS = frozenset({"postgresql", "objects"})
"""Parameters of tests that run on one of several things, of which these are servers."""
REFUSED = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "socket.bind"})
SENTENCE = "Quick tests start no process and no server: mark the test `slow`, or do without."


def mark(items: list[pytest.Item]) -> None:
    """Mark as `slow` what needs a server or PostgreSQL by what it uses."""
    for item in items:
        parameters = getattr(getattr(item, "callspec", None), "params", {}).values()
        kinds = {parameter for parameter in parameters if isinstance(parameter, str)}
        if FIXTURES & set(getattr(item, "fixturenames", ())) or KINDS & kinds:
            item.add_marker(pytest.mark.slow)


def refuse_processes() -> None:
    """Refuse to start a process or to listen, from now on until this process ends."""
    sys.addaudithook(_refuse)
    multiprocessing.util.spawnv_passfds = _refused  # it raises no event


def _refuse(event: str, _arguments: Any) -> None:
    if event in REFUSED:
        _refused()


def _refused(*_: Any) -> NoReturn:
    raise RuntimeError(SENTENCE)
