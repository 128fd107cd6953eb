"""Reads and writes embeddings: a safetensors file with one tensor `embeddings` (units, dimensions). No torch.

Called by the verbs that store vectors and by `push` for vectors from clients, so reading is strict.
"""

from __future__ import annotations

import numpy as np

from registry.errors import InvalidSample
from registry.tensor_file import parse, refuse, write

NAME = "embeddings"
_DTYPES = {"F32": "<f4", "F16": "<f2"}


def read_embeddings(data: bytes, *, max_bytes: int) -> np.ndarray:
    """The array (units, dimensions) of a file, float32 and finite; raises InvalidSample or TooLarge."""
    header = parse(data, max_bytes=max_bytes, file=NAME, error=InvalidSample)
    if set(header.entries) != {NAME}:
        names = ", ".join(sorted(name[:40] for name in header.entries)[:5]) or "none"
        raise refuse(NAME, [f"one tensor named 'embeddings' is needed, found {names}"], error=InvalidSample)
    entry = header.entries[NAME]
    if entry.dtype not in _DTYPES:
        raise refuse(NAME, [f"they are {entry.dtype}; F32 and F16 are read"], error=InvalidSample)
    if len(entry.shape) != 2 or 0 in entry.shape:
        raise refuse(
            NAME, [f"their shape {list(entry.shape)} is not (units, dimensions), both above zero"], error=InvalidSample
        )
    stored = np.frombuffer(data[entry.begin : entry.end], dtype=_DTYPES[entry.dtype])
    array: np.ndarray = stored.astype(np.float32).reshape(entry.shape)
    not_finite = int((~np.isfinite(array)).sum())
    if not_finite:
        raise refuse(NAME, [f"{not_finite} of their values are NaN or infinite"], error=InvalidSample)
    return array


def save_embeddings(array: np.ndarray) -> bytes:
    """The bytes of an array (units, dimensions) as an F32 file, determined by the values; raises InvalidSample."""
    if array.ndim != 2 or 0 in array.shape:
        raise InvalidSample(f"Embeddings have shape (units, dimensions), not {array.shape}.", param=NAME)
    values = np.ascontiguousarray(array, dtype="<f4")
    return write([(NAME, "F32", tuple(int(n) for n in values.shape), values.tobytes())])
