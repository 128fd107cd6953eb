"""Folders of tests are in memory where the machine has room there, and nowhere else."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.temporary import ROOM, ROOT, keep_in_memory


@pytest.mark.parametrize(
    ("room", "flags", "kept"), [(ROOM, 0, True), (ROOM - 1, 0, False), (ROOM, getattr(os, "ST_NOEXEC", 8), False)]
)
def test_a_folder_is_used_that_has_room_and_runs_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int, flags: int, kept: bool
) -> None:
    monkeypatch.delenv(ROOT, raising=False)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=room, f_frsize=1, f_flag=flags))
    keep_in_memory(tmp_path)
    assert os.environ.get(ROOT) == (str(tmp_path) if kept else None)
    monkeypatch.delenv(ROOT, raising=False)


def test_a_machine_without_it_and_a_folder_that_was_named_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ROOT, "named")
    keep_in_memory(tmp_path)
    keep_in_memory(tmp_path / "none")
    assert os.environ[ROOT] == "named"
