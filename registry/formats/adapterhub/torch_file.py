"""Read the tensors of a file that `torch.save` wrote, without running its code. The only module that reads pickles.

`torch.load(weights_only=True)` builds tensors and plain containers and refuses every other name in a pickle. This
module also refuses files that unpack to more than their size. It refuses tensors that claim more values than the file
has (a stride of zero), because copies of them would fill the memory.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from registry.errors import InvalidWeights

_NAME = re.compile(r"GLOBAL ([\w.]{1,80})")
_SHARED = 2  # AdapterHub stores a LayerNorm under two names and once in the file


def read_torch_file(data: bytes) -> dict[str, Tensor]:
    """The tensors of a state dict by name, on the CPU.

    Raises InvalidWeights for anything but a table of dense tensors: pickles that name code, archives that unpack to
    more than the file, broken bytes.
    """
    _check_archive(data)
    try:
        loaded = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as problem:  # hostile bytes end in any error an unpickler or a zip reader has
        raise InvalidWeights(_refusal(str(problem)), param="weights") from None
    return _dense(loaded, len(data))


def _check_archive(data: bytes) -> None:
    """Raises InvalidWeights for a zip archive that is larger unpacked than packed."""
    if not data.startswith(b"PK"):
        return
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, ValueError, OSError, RuntimeError):
        raise InvalidWeights("The weights file is a broken zip archive.", param="weights") from None
    if unpacked > len(data):
        raise InvalidWeights(
            f"The weights file of {len(data)} bytes unpacks to {unpacked}: torch.save compresses nothing.",
            param="weights",
        )


def _refusal(problem: str) -> str:
    named = _NAME.search(problem)
    if named:
        return (
            f"The weights file asks for {named[1]!r}, which is no tensor: it could run code and is not opened. "
            "Save the state dict of the adapter alone."
        )
    return "The weights file is not a table of tensors that torch.save wrote."


def _dense(loaded: Any, size: int) -> dict[str, Tensor]:
    if not isinstance(loaded, Mapping) or not loaded or not all(isinstance(name, str) for name in loaded):
        raise InvalidWeights("The weights file holds no table of tensors by name.", param="weights")
    problems = [
        f"{name[:80]!r} is no dense tensor on the CPU."
        for name, value in loaded.items()
        if not isinstance(value, Tensor) or value.layout != torch.strided or value.device.type != "cpu"
    ]
    if problems:
        raise InvalidWeights(f"The weights file holds more than tensors: {problems[0]}", problems=problems)
    claimed = sum(value.numel() * value.element_size() for value in loaded.values())
    if claimed > _SHARED * size:
        raise InvalidWeights(
            f"The tensors of the weights file claim {claimed} bytes, and the file has {size}.", param="weights"
        )
    return {name: value.detach() for name, value in loaded.items()}
