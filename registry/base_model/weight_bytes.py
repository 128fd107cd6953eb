"""How much memory a base model's weights take, before any of them is read; the runtime, which has a budget, asks."""

from __future__ import annotations

import math
from pathlib import Path

from safetensors import SafetensorError, safe_open

from registry.base_model.fingerprint import weight_files
from registry.base_model.loading import source_folder
from registry.errors import Unavailable
from registry.spec import BaseEntry

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def weight_bytes(entry: BaseEntry) -> int:
    """Bytes of the weights in the dtype the entry loads them in, from the headers of its files.

    Raises Unavailable where files are missing or not safetensors.
    """
    return _BYTES[entry.dtype] * sum(_numbers(file, entry) for file in weight_files(source_folder(entry)))


def _numbers(file: Path, entry: BaseEntry) -> int:
    """How many numbers the tensors of a weights file hold together."""
    try:
        with safe_open(file, framework="pt") as tensors:
            return sum(math.prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118
    except (OSError, SafetensorError) as problem:
        raise Unavailable(f"Base model {entry.id!r}: {file.name} cannot be read as safetensors.") from problem
