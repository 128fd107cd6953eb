"""Read and write checkpoints of AdapterHub's library `adapters` (Poth et al., EMNLP 2023).

A checkpoint is a folder with `adapter_config.json` and `pytorch_adapter.bin` or `adapter.safetensors`. On models
whose layers normalise before their sub-modules, with f the output of the feed-forward module and r the residual
stream before its norm, its layers compute (adapters 1.3, methods/modeling.py):

- Pfeiffer (`seq_bn`): f + r + U g(D (f + r)), here `input="residual"`; without `original_ln_before`
  f + r + U g(D f), here `input="module"`; with `ln_before` a LayerNorm before D: Bapna-Firat.
- Houlsby (`double_seq_bn`): the second form after both sub-layers, the base's norms untouched: `trained_norms=False`.
- parallel (`par_bn`): f + r + s U g(D r), here `input="residual"`.

On BERT and its kin, whose layers normalise after their sub-modules (LN(f + r)):

- Pfeiffer: LN(f + r + U g(D LN(f + r))), here `input="residual"`; without `original_ln_before`
  LN(f + r + U g(D f)), here `input="module"`; Houlsby the latter twice.
- parallel: LN(f + r + s U g(D r)), here `input="module"`: r is the feed-forward module's argument.

Width and number of layers are read from the tensors.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from registry.adapters.weights import load_tensors, save_tensors
from registry.errors import Incompatible, InvalidManifest, InvalidParameter, NotFound, TooLarge, UnknownMethod
from registry.files import loads_strict
from registry.formats.adapterhub.options import VERSION, read_options, write_options
from registry.formats.adapterhub.tensors import FAMILIES, Family, Layout, from_canonical, to_canonical
from registry.formats.adapterhub.torch_file import read_torch_file
from registry.formats.atomic_directory import CONFIG_FILE
from registry.spec import AdapterConfig, BottleneckConfig

WEIGHTS_FILE = "pytorch_adapter.bin"
SAFE_WEIGHTS_FILE = "adapter.safetensors"
MAX_CONFIG_BYTES = 2**20
MAX_WEIGHTS_BYTES = 2**31

_HEADS = ("head_config.json", "pytorch_model_head.bin", "model_head.safetensors")
_FUSION = ("adapter_fusion_config.json", "pytorch_model_adapter_fusion.bin", "model_adapter_fusion.safetensors")
_INTERFACE = "adapter_interface.json"
_NAME = re.compile(r"[\w-]{1,100}", re.ASCII)


@dataclass(frozen=True)
class Checkpoint:
    """The adapter of an AdapterHub checkpoint; `tensors` have canonical names and their stored dtype.

    `model_name` is the checkpoint's name of its base model; `ignored_files` are heads and fusion layers beside the
    adapter.
    """

    config: BottleneckConfig
    tensors: dict[str, Tensor]
    name: str
    model_type: str
    model_name: str | None
    version: str | None
    ignored_files: tuple[str, ...]


def is_checkpoint(folder: Path) -> bool:
    """Return True if a folder holds files that only AdapterHub's library writes."""
    return any((folder / name).is_file() for name in (WEIGHTS_FILE, SAFE_WEIGHTS_FILE, *_HEADS, *_FUSION))


def read_checkpoint(folder: Path) -> Checkpoint:
    """The adapter of a checkpoint folder; safetensors are preferred to a pickle.

    Raises NotFound for missing files (a head without its adapter), and InvalidManifest for a broken configuration.
    Raises UnknownMethod for options, methods and families without a counterpart, and InvalidWeights or TooLarge for the
    tensors. `problems` has all of them.
    """
    weights = _weights_file(folder)
    table = _table(folder)
    family = _family(table["model_type"])
    options = read_options(table.get("config"), versioned="version" in table, post_norm=family.post_norm)
    if (folder / _INTERFACE).is_file():
        raise UnknownMethod(f"{folder} was made through {_INTERFACE}, which is not supported.")
    layout = Layout(family, table["name"], options)
    width, tensors = to_canonical(_tensors(weights), layout, hidden_size=table["hidden_size"])
    model_name, version = table.get("model_name"), table.get("version")
    return Checkpoint(
        config=options.config(width),
        tensors=tensors,
        name=table["name"],
        model_type=table["model_type"],
        model_name=model_name[:1000] if isinstance(model_name, str) else None,
        version=version[:100] if isinstance(version, str) else None,
        ignored_files=_ignored_files(folder),
    )


def _ignored_files(folder: Path) -> tuple[str, ...]:
    """The names of files in a checkpoint that are not the adapter's."""
    return tuple(name for name in (*_HEADS, *_FUSION) if (folder / name).is_file())


def _weights_file(folder: Path) -> Path:
    if not folder.is_dir():
        raise NotFound(f"{folder} is not a directory: give the folder that `save_adapter` wrote.")
    for name in (SAFE_WEIGHTS_FILE, WEIGHTS_FILE):
        if (folder / name).is_file():
            return folder / name
    ignored = _ignored_files(folder)
    only = f"; {' and '.join(ignored)} {'is' if len(ignored) == 1 else 'are'} no adapter" if ignored else ""
    raise NotFound(f"{folder} has neither {WEIGHTS_FILE} nor {SAFE_WEIGHTS_FILE}{only}: save the adapter itself.")


def _table(folder: Path) -> dict[str, Any]:
    """The values of adapter_config.json, with name, model_type and hidden_size checked."""
    file = folder / CONFIG_FILE
    if not file.is_file():
        raise NotFound(
            f"{folder} has no {CONFIG_FILE}, so it is no checkpoint of `save_adapter`. To push an adapter of another "
            "format, write an adapter directory yourself."
        )
    if file.stat().st_size > MAX_CONFIG_BYTES:
        raise TooLarge(f"{file} has {file.stat().st_size} bytes and the limit is {MAX_CONFIG_BYTES}.")
    try:
        table = loads_strict(file.read_bytes())
    except InvalidManifest as error:
        raise InvalidManifest(f"{file}: {error.message}", param=CONFIG_FILE) from None
    if not isinstance(table, dict):
        raise InvalidManifest(f"{file} is no table.", param=CONFIG_FILE)
    if problems := _problems(table):
        raise InvalidManifest(f"{CONFIG_FILE}: {problems[0]}", param=CONFIG_FILE, problems=problems)
    return table


def _problems(table: Mapping[str, Any]) -> list[str]:
    name, model_type, hidden = table.get("name"), table.get("model_type"), table.get("hidden_size")
    problems = []
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        problems.append(f"'name' is {str(name)[:60]!r}; letters, digits, '_' and '-' are needed.")
    if not isinstance(hidden, int) or isinstance(hidden, bool) or not 1 <= hidden <= 2**20:
        problems.append(f"'hidden_size' is {str(hidden)[:60]!r}, not a size.")
    if not isinstance(model_type, str):
        problems.append("'model_type' is missing: it names the family of the base model.")
    return problems


def _family(model_type: str) -> Family:
    if model_type not in FAMILIES:
        raise UnknownMethod(
            f"AdapterHub checkpoints for base models of family {model_type[:60]!r} are not converted; families known "
            f"here: {', '.join(FAMILIES)}.",
            param="model_type",
        )
    return FAMILIES[model_type]


def _tensors(file: Path) -> dict[str, Tensor]:
    if file.stat().st_size > MAX_WEIGHTS_BYTES:
        raise TooLarge(f"{file} has {file.stat().st_size} bytes and the limit is {MAX_WEIGHTS_BYTES}.")
    data = file.read_bytes()
    return load_tensors(data) if file.name == SAFE_WEIGHTS_FILE else read_torch_file(data)


def checkpoint_files(
    config: AdapterConfig,
    tensors: Mapping[str, Tensor],
    *,
    name: str,
    model_type: str,
    model_name: str | None = None,
    safetensors: bool = False,
) -> dict[str, bytes]:
    """The files of a checkpoint for `load_adapter`, by name; weights in the dtype of `tensors`.

    With `safetensors` the weights are adapter.safetensors, which is read with `load_adapter(use_safetensors=True)`
    only. Raises UnknownMethod for other methods and families, Incompatible for what the library cannot express.
    """
    if not isinstance(config, BottleneckConfig):
        raise UnknownMethod(f"Adapters of method {config.method!r} are not written for AdapterHub.", param="config")
    if config.pruned is not None:
        raise Incompatible(
            "A checkpoint of AdapterHub has no place for the masks of a pruned adapter: it would train as a dense one.",
            param="config",
        )
    if not _NAME.fullmatch(name):
        raise InvalidParameter(f"Name {name[:60]!r}: letters, digits, '_' and '-' are needed.", param="name")
    hidden_size = next((int(t.shape[0]) for n, t in tensors.items() if n.endswith(".up.weight")), 1)
    family = _family(model_type)
    options = write_options(config, hidden_size=hidden_size, post_norm=family.post_norm)
    layout = Layout(family, name, read_options(options, versioned=True, post_norm=family.post_norm))
    checkpoint = from_canonical(tensors, layout, width=config.bottleneck, hidden_size=hidden_size)
    table = {
        "config": options,
        "hidden_size": hidden_size,
        "model_class": family.model_class,
        "model_name": model_name,
        "model_type": model_type,
        "name": name,
        "version": VERSION,
    }
    files = {CONFIG_FILE: json.dumps(table, indent=2, sort_keys=True).encode() + b"\n"}
    if safetensors:
        return {**files, SAFE_WEIGHTS_FILE: save_tensors(checkpoint)}
    buffer = io.BytesIO()
    torch.save(checkpoint, buffer)
    return {**files, WEIGHTS_FILE: buffer.getvalue()}
