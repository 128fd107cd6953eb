"""Processes of this machine as a place of work."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from registry.errors import Unavailable
from registry.pieces import Piece, Processes
from tests.pieces import work
from tests.pieces.contract import Build, WorkplaceTests, assert_gone

pytestmark = pytest.mark.slow


class TestProcesses(WorkplaceTests):
    @pytest.fixture
    def build(self) -> Iterator[Build]:
        with ExitStack() as stack:
            yield lambda **given: stack.enter_context(Processes(**{"grace": 30.0, **given}))


def test_a_process_that_cannot_be_started_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def popen(*_: object, **__: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", popen)
    with pytest.raises(Unavailable, match="could not be started: Resource temporarily unavailable"):
        list(Processes(1).run([Piece("one", work.squared, 1)]))


def test_a_process_is_kept_for_the_next_piece() -> None:
    with Processes(1) as place:
        found = {one.value() for n in range(4) for one in place.run([Piece(f"{n}", work.whose, None)])}
    (pid,) = found
    assert_gone(pid)
