"""Serialises a selector's state: its arrays as safetensors, its JSON in their metadata. Never pickle.

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
_PLACEHOLDER = "nothing"
"""The name of the array of a state without arrays: safetensors needs one."""


def dump_state(arrays: Arrays, meta: Mapping[str, Any]) -> bytes:
    """Serialise the arrays and the JSON value of `Selector.to_state`."""
    stored = {name: np.ascontiguousarray(array) for name, array in sorted(arrays.items())}
    data: bytes = save(stored or {_PLACEHOLDER: np.zeros(1, np.uint8)}, metadata={KEY: canonical_json(meta).decode()})
    return data


def load_state(data: bytes) -> tuple[Arrays, dict[str, Any]]:
    """The read-only arrays and the JSON value that `Selector.from_state` takes.

    Raises Internal for anything else than `dump_state` returns.
    """
    try:
        arrays = dict(load(data))
        (length,) = struct.unpack("<Q", data[:8])  # safetensors has the metadata only of files
        meta: dict[str, Any] = json.loads(json.loads(data[8 : 8 + length])["__metadata__"][KEY])
    except SafetensorError as problem:
        raise Internal(f"A stored selector cannot be read ({problem}): fit it again.") from problem
    except (KeyError, ValueError):
        raise Internal("A stored selector has no description: fit it again.") from None
    arrays.pop(_PLACEHOLDER, None)
    for array in arrays.values():
        array.flags.writeable = False
    return arrays, meta
