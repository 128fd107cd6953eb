"""A file that is replaced is the old one or the whole new one, whatever fails; JSON is read strictly."""

from __future__ import annotations

import errno
import json
import os
import stat
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.errors import InvalidManifest
from registry.files import JsonCount, loads_strict, make_directory, replace_file
from tests.registry.refusing_disk import failing


def test_the_bytes_are_synced_before_they_have_the_name_and_the_name_after(tmp_path: Path, synced: list[str]) -> None:
    folder = tmp_path / "state"
    folder.mkdir()
    (folder / "a").write_bytes(b"old")
    replace_file(folder / "a", b"new", temporary=folder / "a.new")
    assert synced == ["sync a.new", "rename a.new a", "sync state"]
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"a": b"new"}


def test_what_a_crash_left_beside_is_not_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "a.new").write_bytes(b"half of one, and longer than what comes now")
    replace_file(tmp_path / "a", b"new", temporary=tmp_path / "a.new")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"new"}


def test_a_link_beside_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"somebody's")
    (tmp_path / "a.new").symlink_to(tmp_path / "other")
    replace_file(tmp_path / "a", b"new", temporary=tmp_path / "a.new")
    assert (tmp_path / "other").read_bytes() == b"somebody's"
    assert (tmp_path / "a").read_bytes() == b"new"
    assert not (tmp_path / "a").is_symlink()


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_disk_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    (tmp_path / "a").write_bytes(b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os if step == "fsync" else Path, step, failing(errno.ENOSPC))
        with pytest.raises(OSError, match="space"):
            replace_file(tmp_path / "a", b"new", temporary=tmp_path / "a.new")
    assert (tmp_path / "a").read_bytes() == b"old"
    replace_file(tmp_path / "a", b"new", temporary=tmp_path / "a.new")
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
        replace_file(tmp_path / "a", b"secret", temporary=tmp_path / "a.new", mode=0o600)
    finally:
        os.umask(old)
    assert modes[0] == 0o600
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600


def test_folders_are_made_with_durable_names(tmp_path: Path, synced: list[str]) -> None:
    make_directory(tmp_path / "a" / "b")
    make_directory(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    assert synced == [f"sync {tmp_path.name}", "sync a"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"a": 1, "a": 1}', "'a' twice"),
        ('[{"x": {"b": 1, "b": 2}}]', "'b' twice"),
        ("NaN", "NaN"),
        ("[1e999]", "number 1e999, which is too large"),
        ("-2e400", "number -2e400, which is too large"),
        ('{"a": -Infinity}', "-Infinity"),
        ("[" * 200_000, "deep"),
        ('{"a": }', "line 1, column 7"),
        ("", "line 1"),
        (b'"\xff"', "byte 1"),
        ("9" * 5000, "too long"),
    ],
    ids=lambda value: str(value)[:16],
)
def test_json_that_is_refused(text: str | bytes, says: str) -> None:
    with pytest.raises(InvalidManifest, match=says):
        loads_strict(text)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=4), inner),
        max_leaves=10,
    )
)
def test_reads_what_json_writes(value: Any) -> None:
    assert loads_strict(json.dumps(value)) == value
    assert loads_strict(json.dumps(value).encode()) == value


# --- counting before parsing ------------------------------------------------------------------------


def counted(text: bytes, *cuts: int) -> tuple[int, int]:
    """Values and containers of a text that comes in pieces."""
    count = JsonCount()
    edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    for start, end in pairwise(edges):
        count.add(text[start:end])
    return count.values, count.containers


def size_of(value: Any) -> tuple[int, int]:
    """Values and containers of a value; an empty container may hold one."""
    if not isinstance(value, (list, dict)):
        return 1, 0
    inner = [size_of(child) for child in (value.values() if isinstance(value, dict) else value)]
    return 1 + max(sum(values for values, _ in inner), 1), 1 + sum(containers for _, containers in inner)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text('\\",[{:x\u00e9', max_size=8),
        lambda inner: st.lists(inner) | st.dictionaries(st.text('\\",[{}', max_size=4), inner),
        max_leaves=20,
    ),
    st.lists(st.integers(0, 1000), max_size=6),
)
def test_values_are_counted_exactly_however_the_text_is_cut(value: Any, cuts: list[int]) -> None:
    for ascii_only in (True, False):
        assert counted(json.dumps(value, ensure_ascii=ascii_only).encode(), *cuts) == size_of(value)


@given(st.binary(), st.lists(st.integers(0, 1000), max_size=6))
def test_counting_takes_any_bytes_and_cuts_change_nothing(text: bytes, cuts: list[int]) -> None:
    assert counted(text, *cuts) == counted(text)


def test_quotes_alone_count_as_values() -> None:
    assert counted(b'"' * 4000) == (1000, 0)
