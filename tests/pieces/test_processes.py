"""Processes of this machine as a place of work."""

from __future__ import annotations

import subprocess
from functools import partial
from pathlib import Path

import pytest

from registry.errors import Unavailable
from registry.pieces import Piece, Processes
from tests.pieces import work
from tests.pieces.contract import Build, WorkplaceTests

pytestmark = pytest.mark.slow


class TestProcesses(WorkplaceTests):
    @pytest.fixture
    def build(self) -> Build:
        return partial(Processes, grace=30.0)


def test_a_process_that_cannot_be_started_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def popen(*_: object, **__: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", popen)
    with pytest.raises(Unavailable, match="could not be started: Resource temporarily unavailable"):
        list(Processes(1).run([Piece("one", work.squared, 1)]))


def test_a_process_is_kept_for_the_next_piece(tmp_path: Path) -> None:
    pieces = [Piece(f"{n}", work.whose, None) for n in range(4)]
    assert len({one.value() for one in Processes(1).run(pieces)}) == 1
