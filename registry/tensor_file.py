"""The safetensors container, read strictly and written deterministically. No torch.

`parse` runs before any library reads a client's bytes. It refuses header bombs, too many tensors, duplicate keys, and
offsets that overlap, leave gaps or exceed the file. Its message says if the file is a pickle or an archive. Called by
`adapters.weights` and `embeddings_file`, and by `formats` for the names and shapes in a PEFT directory.
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
    **dict.fromkeys(("F64", "I64", "U64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("I8", "U8", "BOOL"), 1),
}
MAX_HEADER_BYTES = 8 * 2**20
MAX_TENSORS = 16_384
"""The maximum number of tensors: nine times that of the largest adapter of one method, a LoRA on every linear layer of
a model of 126 layers (126 x 7 x 2). Unions and fusions have several adapters. Each tensor takes some 100 microseconds
to read."""
MAX_DIMENSIONS = 8
MAX_SIZE = 2**48
MAX_PROBLEMS = 100
PREFIX_BYTES = 8
CONTAINERS_PER_TENSOR = 3
"""JSON containers of a tensor in the header: its object, its shape and its offsets."""
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
    """The header of a safetensors file; `entries` are by name, in the order of their bytes."""

    entries: dict[str, Entry]
    metadata: dict[str, str]


def refuse(file: str, problems: Sequence[str], *, error: type[Invalid] = InvalidWeights) -> Invalid:
    """The error for a file with these problems; its message has the first, its list at most MAX_PROBLEMS."""
    more = more_problems(len(problems))
    listed = list(problems[:MAX_PROBLEMS])
    if len(problems) > MAX_PROBLEMS:
        listed.append(f"... and {len(problems) - MAX_PROBLEMS} more.")
    return error(f"The {file} cannot be taken: {problems[0].rstrip('.')}{more}.", param=file, problems=listed)


def parse(
    data: bytes | memoryview, *, max_bytes: int, file: str = "weights", error: type[Invalid] = InvalidWeights
) -> Header:
    """The header of a safetensors file; raises TooLarge beyond `max_bytes`, or `error` with all problems.

    `file` is what messages call it, and their `param`.
    """
    total = len(data)
    if total > max_bytes:
        raise TooLarge(f"The {file} file has {total} bytes and the limit is {max_bytes}.", param=file)
    try:
        raw, start = _header_bytes(data)
        table = _json_object(raw)
    except ValueError as problem:
        raise refuse(file, [str(problem)], error=error) from None
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
        raise refuse(file, problems, error=error)
    return Header(entries=entries, metadata=metadata)


def header_of(path: Path) -> Header:
    """The header of a file on disk, without reading its tensors; raises InvalidWeights."""
    with path.open("rb") as file:
        size = path.stat().st_size
        if size == 0:  # an empty file cannot be mapped
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
    """Raise ValueError if a header lists more than MAX_TENSORS tensors, before it is parsed."""
    count = JsonCount()
    count.add(raw)
    if count.containers > MAX_TENSORS * CONTAINERS_PER_TENSOR + 2:  # the table, and its metadata
        raise _too_many()


def _too_many() -> ValueError:
    return ValueError(f"its header lists more than {MAX_TENSORS} tensors, the most that are read")


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_SIZE


def _entry(name: str, value: object, start: int) -> Entry | str:
    """An entry of the header's table, or a sentence that describes what is wrong with it."""
    label = repr(name[:80])
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        return f"Tensor {label} needs exactly dtype, shape and data_offsets."
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        return f"Tensor {label} has unknown dtype {str(dtype)[:20]!r}."
    if not isinstance(shape, list) or len(shape) > MAX_DIMENSIONS or not all(map(_is_size, shape)):
        return f"Tensor {label} has a shape that is not a short list of sizes."
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_size, offsets)):
        return f"Tensor {label} has data_offsets that are not two positions."
    begin, end = offsets
    needed = math.prod(shape) * DTYPE_BYTES[dtype]
    if end - begin != needed:
        return f"Tensor {label} of {dtype} {shape} needs {needed} bytes and its data_offsets give {end - begin}."
    return Entry(dtype=dtype, shape=tuple(shape), begin=start + begin, end=start + end)


def _layout_problems(entries: Mapping[str, Entry], start: int, total: int) -> list[str]:
    """Sentences that describe gaps and overlaps of the tensors, given in the order of their bytes."""
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
    """The bytes of a safetensors file with these tensors (name, dtype, shape, bytes), in their order; deterministic."""
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
    """Names of tensors sorted by layer, which is the first number in a name, then by name; names without it first."""
    return sorted(names, key=_layer_and_name)


def _layer_and_name(name: str) -> tuple[int, str]:
    match = _LAYER.search(name)
    return (int(match.group(1)) if match else -1, name)
