"""Serialises a selector's state: its arrays as safetensors, its JSON in their metadata. Never pickle.

Called by the verbs `fit` and `select`; the same state gives the same bytes.
"""

from __future__ import annotations

import io
import json
import math
import mmap
import os
import struct
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from registry.errors import Internal
from registry.files import is_local
from registry.names import canonical_json
from registry.selectors.contract import Arrays

KEY = "selector"
_PLACEHOLDER = "nothing"
"""The name of the array of a state without arrays: safetensors needs one."""
_DTYPES = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "U8": "|u1"}
"""NumPy's names of the types that selectors store."""
State = bytes | mmap.mmap
LARGE = 32 * 2**20
"""Bytes of a state above which its file is mapped and not read: a cosine selector over some 3,000 adapters."""


def dump_state(arrays: Arrays, meta: Mapping[str, Any]) -> bytes:
    """Serialise the arrays and the JSON value of `Selector.to_state`."""
    stored = {name: np.ascontiguousarray(array) for name, array in sorted(arrays.items())}
    data: bytes = save(stored or {_PLACEHOLDER: np.zeros(1, np.uint8)}, metadata={KEY: canonical_json(meta).decode()})
    return data


def mappable_file_key(file: BinaryIO) -> str | None:
    """A key of this version of a large file that may be mapped; None for a file that should be read instead.

    Files that may be on another machine's disk are not mapped: where it loses the file, access would end the process
    (SIGBUS). The key changes when the file is replaced or written to.
    """
    try:
        stat = os.fstat(file.fileno())
    except io.UnsupportedOperation:  # of a store that keeps no files
        return None
    if stat.st_size <= LARGE or not is_local(stat.st_dev):
        return None
    return f"{stat.st_dev}-{stat.st_ino}-{stat.st_mtime_ns}-{stat.st_size}"


def map_file(file: BinaryIO) -> mmap.mmap:
    """Map a file into memory: pages are read on access and shared with other processes."""
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def header_size(data: State) -> int:
    """The number of bytes of a state before its arrays."""
    (length,) = struct.unpack("<Q", data[:8])
    return 8 + int(length)


def load_state(data: State) -> tuple[Arrays, dict[str, Any]]:
    """The arrays and the JSON value that `Selector.from_state` takes; the arrays are read-only views of `data`.

    Raises Internal where the bytes are not a selector's state.
    """
    try:
        begin = header_size(data)
        header = json.loads(data[8:begin])
        metadata = header.pop("__metadata__", {})
        arrays = {name: _view(data, begin, entry) for name, entry in header.items()}
        if begin + max(entry["data_offsets"][1] for entry in header.values()) != len(data):
            raise ValueError("bytes that belong to no array")
    except (struct.error, ValueError, RecursionError, KeyError, TypeError, AttributeError) as problem:
        raise Internal(f"A stored selector cannot be read ({type(problem).__name__}): fit it again.") from problem
    try:
        meta: dict[str, Any] = json.loads(metadata[KEY])
    except (KeyError, ValueError):
        raise Internal("A stored selector has no description: fit it again.") from None
    arrays.pop(_PLACEHOLDER, None)
    return arrays, meta


def _view(data: State, begin: int, entry: Mapping[str, Any]) -> npt.NDArray[Any]:
    """The array of a header entry, as a view of a state whose arrays begin at `begin`; raises ValueError."""
    (first, last), dtype = entry["data_offsets"], np.dtype(_DTYPES[entry["dtype"]])
    count = math.prod(entry["shape"])
    if last - first != count * dtype.itemsize:
        raise ValueError("an array of another size than its shape")
    view = np.frombuffer(data, dtype, count, offset=begin + first).reshape(entry["shape"])
    view.flags.writeable = False
    return view
