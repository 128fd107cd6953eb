"""A selector's state as bytes: its arrays as safetensors, its JSON in the metadata. Never pickle.

Called by the verbs `fit` and `select`; the same state gives the same bytes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from registry.errors import Internal
from registry.names import canonical_json
from registry.selectors.contract import Arrays

KEY = "selector"
_NOTHING = "nothing"


def dump_state(arrays: Arrays, meta: Mapping[str, Any]) -> bytes:
    """The bytes of what `to_state` gave."""
    stored = {name: np.ascontiguousarray(array) for name, array in sorted(arrays.items())}
    data: bytes = save(stored or {_NOTHING: np.zeros(1, np.uint8)}, metadata={KEY: canonical_json(meta).decode()})
    return data


def load_state(data: bytes) -> tuple[Arrays, dict[str, Any]]:
    """What `from_state` takes; raises Internal where the bytes are not a selector's state."""
    try:
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        arrays = load(data)
    except (struct.error, ValueError, RecursionError, SafetensorError) as problem:
        raise Internal(f"A stored selector cannot be read ({type(problem).__name__}): fit it again.") from problem
    try:
        meta: dict[str, Any] = json.loads(header["__metadata__"][KEY])
    except (KeyError, ValueError):
        raise Internal("A stored selector has no description: fit it again.") from None
    arrays.pop(_NOTHING, None)
    return arrays, meta
