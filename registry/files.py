"""Files and what stands in them: durable writes, strict JSON, JSON lines, TOML. Standard library only.

Used by whatever keeps state in files (the blobs, the checkpoints of a training, the file of the admin key) and by
whoever reads JSON and JSON lines that came from people.
"""

from __future__ import annotations

import errno
import json
import math
import os
import stat
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Any

from registry.errors import Invalid, InvalidManifest, InvalidParameter, InvalidSample

MOUNTS = Path("/proc/self/mountinfo")
LOCAL = frozenset({"btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "ramfs", "tmpfs", "xfs", "zfs"})
"""File systems of this machine: any other may be on the disk of another one."""


def replace_file(path: Path, data: bytes, *, beside: Path, mode: int = 0o666) -> None:
    """Make `path` hold `data`: after any crash it is the old file or the whole new one.

    The bytes are written to `beside`, a path in the same folder that nobody else writes to; what a crash left there
    is removed. `mode` is the file's from the start, less the umask. Raises OSError, and `path` is as it was unless
    only its folder could not be synced.
    """
    beside.unlink(missing_ok=True)
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    sync_directory(path.parent)


def open_regular(path: Path) -> BufferedReader:
    """A file to read; raises OSError for a link, a folder, a pipe or a device."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def sync_directory(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(folder: Path) -> None:
    """Make a folder and those above it that are missing, all their names durable."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in reversed(missing):
        sync_directory(path.parent)


# --- JSON ------------------------------------------------------------------------------------------

COUNTED_AT_ONCE = 64 * 1024
"""Bytes of a text whose parts are held at once while it is counted."""


class JsonCount:
    """How many values and containers a JSON text holds at most, counted piece by piece before anything parses it.

    A value costs many times the memory of its two bytes, and a parser makes all of them before anybody can look. What
    is counted are the brackets and commas outside of strings: exact for a text that is JSON, and up to the first error
    for one that is not, where a parser stops.
    """

    def __init__(self) -> None:
        self.containers = 0
        """Lists and objects."""
        self._commas = self._quotes = 0
        self._inside = self._escaped = False

    @property
    def values(self) -> int:
        """Texts, numbers, lists and objects, at most; never below what quotes alone show (two strings a value)."""
        return max(self._commas + self.containers + 1, self._quotes // 4)

    def add(self, piece: bytes | bytearray) -> None:
        """Count one piece more of the text."""
        for start in range(0, len(piece), COUNTED_AT_ONCE):
            self._add(piece[start : start + COUNTED_AT_ONCE])

    def _add(self, piece: bytes | bytearray) -> None:
        if self._escaped and piece[:1] in (b'"', b"\\"):  # the last backslash of the piece before stood in front of it
            piece = piece[1:]
        self._escaped = False
        if b"\\" in piece:  # most texts hold none, and to look for one byte is cheap
            piece = piece.replace(b"\\\\", b"")
            self._escaped = piece.endswith(b"\\")
            piece = piece.replace(b'\\"', b"")
        parts = piece.split(b'"')
        outside = b"".join(parts[self._inside :: 2])
        self._quotes += len(parts) - 1
        self._inside ^= len(parts) % 2 == 0
        self._commas += outside.count(b",")
        self.containers += outside.count(b"[") + outside.count(b"{")


def loads_strict(
    text: str | bytes | bytearray,
    *,
    what: str = "The JSON",
    error: type[Invalid] = InvalidManifest,
    max_keys: int | None = None,
) -> Any:
    """A JSON value; raises `error` for duplicate keys, NaN, numbers beyond what a double holds, bad UTF-8, lone
    surrogates, objects of more than `max_keys` keys, absurd depth or broken syntax. Messages begin with `what`."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if max_keys is not None and len(pairs) > max_keys:
            raise error(f"{what} holds an object with {len(pairs)} keys; at most {max_keys} are taken.")
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise error(f"{what} has the key {key[:80]!r} twice in one object.")
            found[key] = value
        return found

    def finite(number: str) -> float:
        value = float(number)
        if math.isinf(value):
            raise error(f"{what} holds the number {number[:40]}, which is larger than any that can be kept.")
        return value

    def no_constant(name: str) -> Any:
        raise error(f"{what} holds {name}, which is not JSON.")

    try:
        decoded = text if isinstance(text, str) else text.decode("utf-8")
        value = json.loads(decoded, object_pairs_hook=unique, parse_float=finite, parse_constant=no_constant)
        if "\\u" in decoded:  # an escaped half of a surrogate pair is a string no UTF-8 can hold
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError as problem:
        raise error(f"{what} is not valid UTF-8 at byte {problem.start}.") from None
    except UnicodeEncodeError:
        raise error(f"{what} holds half of a surrogate pair, which is no text.") from None
    except RecursionError:
        raise error(f"{what} is nested too deeply.") from None
    except json.JSONDecodeError as problem:
        raise error(f"{what} is broken at line {problem.lineno}, column {problem.colno}: {problem.msg}.") from None
    except ValueError:  # the interpreter's limit on the digits of an integer
        raise error(f"{what} holds a number of thousands of digits, which cannot be read.") from None
    return value


# --- JSON lines ------------------------------------------------------------------------------------


def encode_lines(texts: Iterable[str]) -> bytes:
    """JSON lines of {"text"}, the form of a sample on disk, on the wire and as a blob.

    Raises InvalidSample for half of a surrogate pair, which no UTF-8 can hold.
    """
    try:
        return b"".join(json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n" for text in texts)
    except UnicodeEncodeError as error:
        raise InvalidSample(
            f"A text of the sample is not valid Unicode (a lone surrogate at position {error.start}).", param="sample"
        ) from None


def decode_lines(data: bytes | str, *, name: Callable[[int], str] = "Line {} of the sample".format) -> list[str]:
    """The texts of JSON lines of {"text"}; raises InvalidSample, which calls the wrong line `name(its number)`."""
    texts = []
    for number, value in parse_lines(data, name=name, error=_invalid_sample):
        if not isinstance(value, dict) or not isinstance(value.get("text"), str):
            raise _invalid_sample(f'{name(number)} is not an object with a string "text".')
        texts.append(value["text"])
    return texts


def _invalid_sample(message: str) -> InvalidSample:
    return InvalidSample(message, param="sample")


def parse_lines(
    data: bytes | str, *, name: Callable[[int], str], error: Callable[[str], Invalid]
) -> Iterator[tuple[int, Any]]:
    """(number, JSON value) of each line that is not blank, from 1; raises what `error` makes of a sentence about the
    first line that is not JSON, which calls it `name(its number)`."""
    lines: Sequence[bytes | str] = data.split(b"\n") if isinstance(data, bytes) else data.split("\n")
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                raise error(f"{name(number)} is not JSON.") from None
            yield number, value


def read_toml(path: Path, *, what: str, param: str) -> dict[str, Any]:
    """A TOML file of the operator's; raises InvalidParameter, which calls it by `what` it is, where it is none."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        raise InvalidParameter(f"The {what} {path} cannot be read: {problem}.", param=param) from None


def is_local(device: int, *, mounts: Path | None = None) -> bool:
    """Whether a device (`st_dev`) is a file system of this machine's, by what Linux says of its mounts.

    False where that cannot be told, as of a volume of btrfs, whose files have a device that no mount has.
    """
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = (mounts or MOUNTS).read_text(errors="surrogateescape").splitlines()
    except OSError:
        return False
    for line in lines:
        about, _, kind = line.partition(" - ")
        if about.split()[2:3] == [number]:
            return kind.split()[:1] != [] and kind.split()[0] in LOCAL
    return False
