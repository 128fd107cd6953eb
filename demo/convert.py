"""Adapters in the neutral form of ../shared/adapters to adapter directories of ours.

Neutral: `<domain>/adapter.safetensors` with `layers.<i>.{norm,down,up}.{weight,bias}` and `<domain>/adapter.json`
with the recipe; `initial.safetensors` beside them holds the tensors all of them started from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from registry.adapters.weights import init_hash, load_tensors, save_tensors
from registry.errors import InvalidManifest, InvalidWeights, NotFound
from registry.formats import AdapterContents, AdapterDirectory, write_directory
from registry.spec import BottleneckConfig, Card, Provenance

INITIAL = "initial.safetensors"
_NEUTRAL = re.compile(r"layers\.(\d+)\.(norm|down|up)\.(weight|bias)")


def neutral_domains(folder: Path) -> list[str]:
    """The names of the adapters in a neutral folder; raises NotFound where there is none."""
    found = sorted(path.parent.name for path in folder.glob("*/adapter.safetensors"))
    if not found:
        raise NotFound(f"{folder} holds no <domain>/adapter.safetensors: it is not a folder of neutral adapters.")
    return found


def canonical(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors under the canonical names of a Bapna-Firat adapter; raises InvalidWeights for any other name."""
    renamed = {}
    for name, tensor in tensors.items():
        match = _NEUTRAL.fullmatch(name)
        if match is None:
            raise InvalidWeights(f"Tensor {name[:80]!r} is not one of the neutral form's.", param="weights")
        renamed[f"layers.{match[1]}.ffn.{match[2]}.{match[3]}"] = tensor
    return renamed


def convert(
    source: Path, domain: str, target: Path, *, base_model: str, base_fingerprint: str, texts: Sequence[str] | None
) -> AdapterDirectory:
    """Write one neutral adapter as a directory of ours, with `texts` as its sample.

    `init_hash` is computed from `initial.safetensors`; where that is missing, the initialisation is unknown.
    """
    about = _about(source / domain / "adapter.json")
    tensors = _neutral_tensors(source / domain / "adapter.safetensors")
    return write_directory(
        target,
        AdapterContents(
            config=BottleneckConfig(
                structure="bapna_firat", bottleneck=int(about["bottleneck"]), activation=about.get("activation", "relu")
            ),
            domain=domain,
            weights=save_tensors(tensors),
            base_model=base_model,
            base_fingerprint=base_fingerprint,
            provenance=_provenance(source, about),
            texts=texts,
            card=Card(description=f"Converted from the neutral adapter {source.name}/{domain}."),
        ),
        replace=True,
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as problem:
        raise NotFound(f"{path} cannot be read: {problem.strerror}.") from None


def _neutral_tensors(path: Path) -> dict[str, Tensor]:
    return canonical(load_tensors(_read(path)))


def initial_tensors(source: Path) -> dict[str, Tensor]:
    """The tensors that the adapters of a neutral folder started from, under the canonical names; raises NotFound."""
    return _neutral_tensors(source / INITIAL)


def _about(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(_read(path))
    except ValueError as problem:
        raise InvalidManifest(f"{path} is not JSON: {problem}.") from None
    if not isinstance(value, dict) or value.get("structure") != "bapna_firat":
        raise InvalidManifest(f"{path} does not describe a Bapna-Firat adapter, the only neutral structure.")
    return value


def _provenance(source: Path, about: Mapping[str, Any]) -> Provenance:
    if not (source / INITIAL).is_file():
        return Provenance(training=dict(about))
    return Provenance(
        init_hash=init_hash(initial_tensors(source)),
        init_source="declared",
        init_seed=about.get("init_seed"),
        training=dict(about),
    )
