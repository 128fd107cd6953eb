"""Durable writes of files, and strict readers of JSON, JSON lines and TOML.

Used by modules that keep state in files (blobs, checkpoints of trainings, the file of the admin key), and by those that
read JSON and JSON lines from clients.
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
import tomllib
from collections.abc import Callable, Iterator, Sequence
from io import BufferedReader
from pathlib import Path
from typing import IO, Any

from registry.errors import Invalid, InvalidManifest, InvalidParameter

CHUNK = 1024 * 1024


def replace_file(path: Path, data: bytes, *, temporary: Path, mode: int = 0o666) -> None:
    """Replace a file atomically and durably: after any crash `path` is the old file or the whole new one.

    The bytes are written to `temporary` first, a path in the same folder that no other process writes to, where a crash
    may have left a file. The file is created with `mode`, less the umask. Raises OSError, and `path` is unchanged
    unless only the sync of its folder failed.
    """
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_directory(path.parent)


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file to read; raises OSError for a link, a folder, a pipe or a device."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def chunks_of(file: IO[bytes]) -> Iterator[bytes]:
    """The rest of a file in pieces of CHUNK bytes; raises OSError."""
    while chunk := file.read(CHUNK):
        yield chunk


def sync_file(path: Path) -> None:
    """Sync a file that another function has written, so that its bytes are durable."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_directory(folder: Path) -> None:
    """Sync a folder, so that the names in it are durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(folder: Path) -> None:
    """Create a folder and its missing parents, and sync their names."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in reversed(missing):
        sync_directory(path.parent)


# --- JSON ------------------------------------------------------------------------------------------

PIECE_BYTES = 64 * 1024
"""Bytes that are counted at a time, which bounds the memory for their copies."""


class JsonCount:
    """Counts the values and containers of a JSON text, piece by piece, before it is parsed.

    A parsed value takes many times the memory of its two bytes, and a parser creates all values before a limit could be
    checked. Brackets and commas outside of strings are counted: exact for JSON, and otherwise an upper bound up to the
    first error, where a parser stops.
    """

    def __init__(self) -> None:
        self.containers = 0
        """Number of lists and objects."""
        self._commas = self._quotes = 0
        self._inside = self._escaped = False

    @property
    def values(self) -> int:
        """Upper bound of texts, numbers, lists and objects; at least the quotes' share (two strings a value)."""
        return max(self._commas + self.containers + 1, self._quotes // 4)

    def add(self, piece: bytes | bytearray) -> None:
        """Count the next piece of the text."""
        for start in range(0, len(piece), PIECE_BYTES):
            self._add(piece[start : start + PIECE_BYTES])

    def _add(self, piece: bytes | bytearray) -> None:
        if self._escaped and piece[:1] in (b'"', b"\\"):  # escaped by the last byte of the previous piece
            piece = piece[1:]
        self._escaped = False
        if b"\\" in piece:  # most texts have none, and the search for one byte is fast
            piece = piece.replace(b"\\\\", b"")
            self._escaped = piece.endswith(b"\\")
            piece = piece.replace(b'\\"', b"")
        segments = piece.split(b'"')
        outside = b"".join(segments[self._inside :: 2])
        self._quotes += len(segments) - 1
        self._inside ^= len(segments) % 2 == 0
        self._commas += outside.count(b",")
        self.containers += outside.count(b"[") + outside.count(b"{")


def loads_strict(
    text: str | bytes | bytearray,
    *,
    subject: str = "The JSON",
    error: type[Invalid] = InvalidManifest,
    max_keys: int | None = None,
) -> Any:
    """Parse a JSON text strictly.

    Raises `error` for duplicate keys, NaN, numbers beyond a double's range, invalid UTF-8, lone surrogates, objects of
    more than `max_keys` keys, excessive depth or invalid syntax. Messages begin with `subject`.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if max_keys is not None and len(pairs) > max_keys:
            raise error(f"{subject} holds an object with {len(pairs)} keys; the maximum is {max_keys}.")
        items: dict[str, Any] = {}
        for key, value in pairs:
            if key in items:
                raise error(f"{subject} has the key {key[:80]!r} twice in one object.")
            items[key] = value
        return items

    def finite(number: str) -> float:
        value = float(number)
        if math.isinf(value):
            raise error(f"{subject} holds the number {number[:40]}, which is too large.")
        return value

    def no_constant(name: str) -> Any:
        raise error(f"{subject} holds {name}, which is not JSON.")

    try:
        decoded = text if isinstance(text, str) else text.decode("utf-8")
        value = json.loads(decoded, object_pairs_hook=unique, parse_float=finite, parse_constant=no_constant)
        if "\\u" in decoded:  # an escaped half of a surrogate pair is a string no UTF-8 can hold
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError as problem:
        raise error(f"{subject} is not valid UTF-8 at byte {problem.start}.") from None
    except UnicodeEncodeError:
        raise error(f"{subject} holds half of a surrogate pair, which is not valid text.") from None
    except RecursionError:
        raise error(f"{subject} is nested too deeply.") from None
    except json.JSONDecodeError as problem:
        raise error(f"{subject} is broken at line {problem.lineno}, column {problem.colno}: {problem.msg}.") from None
    except ValueError:  # the interpreter's limit on the digits of an integer
        raise error(f"{subject} holds a number with thousands of digits, which is too long.") from None
    return value


# --- JSON lines ------------------------------------------------------------------------------------


def parse_lines(
    data: bytes | str, *, name: Callable[[int], str], error: Callable[[str], Invalid]
) -> Iterator[tuple[int, Any]]:
    """Line number (from 1) and JSON value of each line that is not blank.

    Raises `error` of a message about the first line that is not JSON, which calls it `name(number)`.
    """
    lines: Sequence[bytes | str] = data.split(b"\n") if isinstance(data, bytes) else data.split("\n")
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                raise error(f"{name(number)} is not JSON.") from None
            yield number, value


def read_toml(path: Path, *, subject: str, param: str) -> dict[str, Any]:
    """Read a TOML file of the operator's; raises InvalidParameter, whose message calls it `subject`."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        raise InvalidParameter(f"The {subject} {path} cannot be read: {problem}.", param=param) from None
