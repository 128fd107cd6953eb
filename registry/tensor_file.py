"""The safetensors container, read strictly and written deterministically. No torch.

`parse` runs before any library sees a byte that people sent: it refuses header bombs, absurdly many tensors, duplicate
keys, and offsets that overlap, leave gaps or leave the file, and it names pickles and archives for what they are.
Called by `adapters.weights` and `embeddings_file`, and by `formats` for the names and shapes in a PEFT directory.
"""

from __future__ import annotations

import json
import math
import mmap
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from registry.errors import Invalid, InvalidManifest, InvalidWeights, TooLarge, more_problems
from registry.files import JsonCount, loads_strict

DTYPE_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2,
    "U8": 1, "BOOL": 1,
}  # fmt: skip
MAX_HEADER_BYTES = 8 * 2**20
MAX_TENSORS = 16_384
"""Nine times those of a LoRA on every linear layer of a model of 126 layers (126 x 7 x 2), the most that adapters of
one kind come to; unions and fusions hold several adapters. Each tensor costs some 100 microseconds to read."""
MAX_DIMENSIONS = 8
MAX_SIZE = 2**48
MAX_PROBLEMS = 100
PREFIX_BYTES = 8
LISTS_OF_A_TENSOR = 3
"""Its object in the header, its shape and its offsets."""
_LAYER = re.compile(r"(?:^|\.)(\d{1,9})\.", re.ASCII)

_MAGIC = (
    (b"PK\x03\x04", "a zip archive (what torch.save writes)"),
    (b"PK\x05\x06", "an empty zip archive"),
    (b"\x1f\x8b", "a gzip file"),
    (b"BZh", "a bzip2 file"),
    (b"\xfd7zXZ", "an xz file"),
    (b"\x89HDF", "an HDF5 file"),
    (b"GGUF", "a GGUF file"),
    (b"\x93NUMPY", "a NumPy file"),
    *((bytes((0x80, protocol)), "a Python pickle") for protocol in range(2, 6)),
)


@dataclass(frozen=True)
class Entry:
    """One tensor of a file: its bytes are `data[begin:end]`, counted from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Header:
    """What a safetensors file says of its tensors, `entries` by name in the order of their bytes."""

    entries: dict[str, Entry]
    metadata: dict[str, str]


def refuse(what: str, problems: Sequence[str], *, error: type[Invalid] = InvalidWeights) -> Invalid:
    """The error that says all `problems` of a file; the message has the first, the list at most MAX_PROBLEMS."""
    more = more_problems(len(problems))
    shown = list(problems[:MAX_PROBLEMS])
    if len(problems) > MAX_PROBLEMS:
        shown.append(f"... and {len(problems) - MAX_PROBLEMS} more.")
    return error(f"The {what} cannot be taken: {problems[0].rstrip('.')}{more}.", param=what, problems=shown)


def parse(
    data: bytes | memoryview, *, max_bytes: int, what: str = "weights", error: type[Invalid] = InvalidWeights
) -> Header:
    """The header of a safetensors file; raises TooLarge beyond `max_bytes`, else `error` with every problem found."""
    total = len(data)
    if total > max_bytes:
        raise TooLarge(f"The {what} file has {total} bytes and the limit is {max_bytes}.", param=what)
    try:
        raw, start = _header_bytes(data)
        table = _json_object(raw)
    except ValueError as problem:
        raise refuse(what, [str(problem)], error=error) from None
    metadata = table.pop("__metadata__", {})
    is_table = isinstance(metadata, dict) and all(isinstance(value, str) for value in metadata.values())
    problems = [] if is_table else ["Its __metadata__ is not a table of texts."]
    entries: dict[str, Entry] = {}
    for name, value in table.items():
        entry = _entry(name, value, start)
        if isinstance(entry, Entry):
            entries[name] = entry
        else:
            problems.append(entry)
    if not problems:  # offsets of a partial table would look like gaps
        entries = dict(sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)))
        problems = _layout_problems(entries, start, total)
    if problems:
        raise refuse(what, problems, error=error)
    return Header(entries=entries, metadata=metadata)


def header_of(path: Path) -> Header:
    """The header of a file on disk, whose tensors are not read; raises InvalidWeights."""
    with path.open("rb") as file:
        size = path.stat().st_size
        if size == 0:  # which cannot be mapped
            return parse(b"", max_bytes=0)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data, memoryview(data) as view:
            return parse(view, max_bytes=size)


def _header_bytes(data: bytes | memoryview) -> tuple[bytes, int]:
    """The header's JSON bytes and where the tensors' bytes start; raises ValueError with one sentence."""
    total = len(data)
    beginning = bytes(data[:PREFIX_BYTES])
    if bytes(data[PREFIX_BYTES : PREFIX_BYTES + 1]) != b"{":  # a header of 1152 bytes also begins like a pickle
        for magic, name in _MAGIC:
            if beginning.startswith(magic):
                raise ValueError(f"it is {name}; only safetensors files are read")
    if total < PREFIX_BYTES + 2:
        raise ValueError(f"it has {total} bytes, too few for a safetensors file")
    (length,) = struct.unpack("<Q", beginning)
    if length > MAX_HEADER_BYTES:
        raise ValueError(
            f"its first 8 bytes announce a header of {length} bytes, beyond the limit of {MAX_HEADER_BYTES}: "
            "it may be no safetensors file"
        )
    if PREFIX_BYTES + length > total:
        raise ValueError(f"its header of {length} bytes does not fit into the file of {total}: it is cut off")
    return bytes(data[PREFIX_BYTES : PREFIX_BYTES + length]), PREFIX_BYTES + length


def _json_object(raw: bytes) -> dict[str, Any]:
    """The header's table; raises ValueError with one sentence."""
    if not raw.startswith(b"{"):
        raise ValueError("its header does not begin with '{'")
    _check_size(raw)
    try:
        table = loads_strict(raw)
    except InvalidManifest as problem:
        raise ValueError(f"in its header, {problem.message[0].lower()}{problem.message[1:]}") from None
    if not isinstance(table, dict):
        raise ValueError("its header is not a JSON object")
    if len(table) > MAX_TENSORS + 1:  # and its metadata
        raise _too_many()
    return table


def _check_size(raw: bytes) -> None:
    """Raises ValueError where a header lists more than MAX_TENSORS tensors, before it is parsed."""
    count = JsonCount()
    count.add(raw)
    if count.containers > MAX_TENSORS * LISTS_OF_A_TENSOR + 2:  # the table, and its metadata
        raise _too_many()


def _too_many() -> ValueError:
    return ValueError(f"its header lists more than {MAX_TENSORS} tensors, the most that are read")


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_SIZE


def _entry(name: str, value: object, start: int) -> Entry | str:
    """One entry of the table, or the sentence that says what is wrong with it."""
    shown = repr(name[:80])
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        return f"Tensor {shown} needs exactly dtype, shape and data_offsets."
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        return f"Tensor {shown} has unknown dtype {str(dtype)[:20]!r}."
    if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS or not all(map(_is_size, shape)):
        return f"Tensor {shown} has a shape that is not a short list of sizes."
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_size, offsets)):
        return f"Tensor {shown} has data_offsets that are not two positions."
    begin, end = offsets
    needed = math.prod(shape) * DTYPE_BYTES[dtype]
    if end - begin != needed:
        return f"Tensor {shown} of {dtype} {shape} needs {needed} bytes and its data_offsets give {end - begin}."
    return Entry(dtype=dtype, shape=tuple(shape), begin=start + begin, end=start + end)


def _layout_problems(entries: Mapping[str, Entry], start: int, total: int) -> list[str]:
    """What keeps the tensors, in the order of their bytes, from covering the file exactly once."""
    problems = []
    position = start
    for name, entry in entries.items():
        if entry.end > total:
            problems.append(f"Tensor {name[:80]!r} ends at byte {entry.end} of {total}: the file is cut off.")
        elif entry.begin < position:
            problems.append(f"Tensor {name[:80]!r} overlaps the one before it.")
        elif entry.begin > position:
            problems.append(f"There is a gap of {entry.begin - position} bytes before tensor {name[:80]!r}.")
        position = max(position, entry.end)
    if position < total:
        problems.append(f"{total - position} bytes after the last tensor belong to none.")
    return problems


def write(
    tensors: Iterable[tuple[str, str, tuple[int, ...], bytes]], metadata: Mapping[str, str] | None = None
) -> bytes:
    """A safetensors file of (name, dtype, shape, bytes), in the given order: the same input, the same bytes."""
    table: dict[str, Any] = {}
    if metadata:
        table["__metadata__"] = dict(sorted(metadata.items()))
    chunks = []
    position = 0
    for name, dtype, shape, chunk in tensors:
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + len(chunk)]}
        position += len(chunk)
        chunks.append(chunk)
    header = json.dumps(table, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    header += b" " * (-len(header) % 8)
    return b"".join((struct.pack("<Q", len(header)), header, *chunks))


def canonical_order(names: Iterable[str]) -> list[str]:
    """`names` of tensors by (layer number, name), the layer being a name's first number; names without come first."""

    def key(name: str) -> tuple[int, str]:
        match = _LAYER.search(name)
        return (int(match.group(1)) if match else -1, name)

    return sorted(names, key=key)
