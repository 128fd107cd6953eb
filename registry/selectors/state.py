"""A selector's state as bytes: its arrays as safetensors, its JSON in the metadata. Never pickle.

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
_NOTHING = "nothing"
_DTYPES = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "U8": "|u1"}
"""Of arrays that selectors store."""
State = bytes | mmap.mmap
LARGE = 32 * 2**20
"""Bytes of a state beyond which its file is mapped and not read: of cosine's over some 3,000 adapters."""


def dump_state(arrays: Arrays, meta: Mapping[str, Any]) -> bytes:
    """The bytes of what `to_state` gave."""
    stored = {name: np.ascontiguousarray(array) for name, array in sorted(arrays.items())}
    data: bytes = save(stored or {_NOTHING: np.zeros(1, np.uint8)}, metadata={KEY: canonical_json(meta).decode()})
    return data


def place_of(file: BinaryIO) -> str | None:
    """Which file a large state is in, as it is now, so that it may be mapped; None for one that is read instead.

    That is one that may be on the disk of another machine: where that goes away or loses the file, to look at what is
    mapped of it would end the process (SIGBUS). Another file in its place, or one that was written to, is another: what
    is mapped of it is not used any more.
    """
    try:
        about = os.fstat(file.fileno())
    except io.UnsupportedOperation:  # of a store that keeps no files
        return None
    if about.st_size <= LARGE or not is_local(about.st_dev):
        return None
    return f"{about.st_dev}-{about.st_ino}-{about.st_mtime_ns}-{about.st_size}"


def mapped(file: BinaryIO) -> mmap.mmap:
    """The bytes of a file, mapped into memory: they are read as they are looked at, and shared with other processes."""
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def header_size(data: State) -> int:
    """The bytes of a state before its arrays, which are read whatever is asked of it."""
    (length,) = struct.unpack("<Q", data[:8])
    return 8 + int(length)


def load_state(data: State) -> tuple[Arrays, dict[str, Any]]:
    """What `from_state` takes, with arrays that are views of `data` and cannot be written to.

    Raises Internal where the bytes are not a selector's state.
    """
    try:
        begin = header_size(data)
        header = json.loads(data[8:begin])
        described = header.pop("__metadata__", {})
        arrays = {name: _view(data, begin, entry) for name, entry in header.items()}
        if begin + max(entry["data_offsets"][1] for entry in header.values()) != len(data):
            raise ValueError("bytes that belong to no array")
    except (struct.error, ValueError, RecursionError, KeyError, TypeError, AttributeError) as problem:
        raise Internal(f"A stored selector cannot be read ({type(problem).__name__}): fit it again.") from problem
    try:
        meta: dict[str, Any] = json.loads(described[KEY])
    except (KeyError, ValueError):
        raise Internal("A stored selector has no description: fit it again.") from None
    arrays.pop(_NOTHING, None)
    return arrays, meta


def _view(data: State, begin: int, entry: Mapping[str, Any]) -> npt.NDArray[Any]:
    """An array in the bytes of a state, whose arrays begin at `begin`; raises ValueError where it is not all there."""
    (first, last), dtype = entry["data_offsets"], np.dtype(_DTYPES[entry["dtype"]])
    count = math.prod(entry["shape"])
    if last - first != count * dtype.itemsize:
        raise ValueError("an array of another size than its shape")
    view = np.frombuffer(data, dtype, count, offset=begin + first).reshape(entry["shape"])
    view.flags.writeable = False
    return view
