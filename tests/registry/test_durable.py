"""A file that is replaced is the old one or the whole new one, whatever fails."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from registry.durable import replace_file


def test_the_bytes_are_synced_before_they_have_the_name_and_the_name_after(tmp_path: Path, synced: list[str]) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    (folder / "a").write_bytes(b"old")
    replace_file(folder / "a", b"new", beside=folder / "a.new")
    assert synced == ["sync a.new", "rename a.new a", "sync state"]
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"a": b"new"}


def test_what_a_crash_left_beside_is_not_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "a.new").write_bytes(b"half of one, and longer than what comes now")
    replace_file(tmp_path / "a", b"new", beside=tmp_path / "a.new")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"new"}


def test_a_link_beside_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"somebody's")
    (tmp_path / "a.new").symlink_to(tmp_path / "other")
    replace_file(tmp_path / "a", b"new", beside=tmp_path / "a.new")
    assert (tmp_path / "other").read_bytes() == b"somebody's"
    assert (tmp_path / "a").read_bytes() == b"new"
    assert not (tmp_path / "a").is_symlink()


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_disk_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "a").write_bytes(b"old")
    with monkeypatch.context() as patch:
        patch.setattr(*((os, "fsync", fail) if step == "fsync" else (Path, "replace", fail)))
        with pytest.raises(OSError, match="space"):
            replace_file(tmp_path / "a", b"new", beside=tmp_path / "a.new")
    assert (tmp_path / "a").read_bytes() == b"old"
    replace_file(tmp_path / "a", b"new", beside=tmp_path / "a.new")
    assert (tmp_path / "a").read_bytes() == b"new"


def test_the_mode_is_the_files_from_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[int] = []
    real = os.fsync

    def sync(descriptor: int) -> None:
        modes.append(stat.S_IMODE(os.fstat(descriptor).st_mode))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    old = os.umask(0)
    try:
        replace_file(tmp_path / "a", b"secret", beside=tmp_path / "a.new", mode=0o600)
    finally:
        os.umask(old)
    assert modes[0] == 0o600
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600
