"""Write a LoRA as a GGUF file for llama.cpp: its metadata, its names of tensors and its order of rows.

Called by `soup export --llamacpp`; needs the extra `gguf`, whose tables map modules to llama.cpp's names. There
llama.cpp adds (alpha / rank) B A x with one alpha for the file and the rank of each tensor. If modules differ in alpha,
B includes the difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import gguf
import numpy as np
import torch
from torch import Tensor

from registry.adapters.loadable import Tensors
from registry.adapters.lora import LORA_A, LORA_B, PREFIX
from registry.errors import Incompatible
from registry.spec import LoraConfig

ARCHITECTURES: Mapping[str, gguf.MODEL_ARCH] = {
    "gpt2": gguf.MODEL_ARCH.GPT2,
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
}
"""llama.cpp's architecture by transformers' `model_type`, of families with the same modules in both.

GPT-NeoX is not among them: llama.cpp orders the rows of its fused projection by query, key and value, not by head.
"""
INTERLEAVED = frozenset({gguf.MODEL_ARCH.LLAMA})
"""Architectures whose rotary embedding rotates neighbouring rows of a head in llama.cpp.

transformers rotates rows that are half a head apart.
"""
ROTATED = (".q_proj", ".k_proj")
OUTPUT = "output"
"""llama.cpp's name of the output layer, which is missing where it is tied to the embedding."""


@dataclass(frozen=True)
class GgufBase:
    """The figures of a base model that its LoRAs' files need."""

    model_type: str
    layers: int
    head: int | None
    """The size of a head of queries and keys; None where heads differ in size."""


def gguf_file(config: LoraConfig, tensors: Tensors, base: GgufBase, *, name: str) -> bytes:
    """The GGUF file of a LoRA in fp32, with `name` in its metadata.

    Raises Incompatible for a family or a module that llama.cpp does not have, or not in the same form.
    """
    arch = _architecture(base)
    if arch in INTERLEAVED and base.head is None:
        raise Incompatible("llama.cpp orders queries and keys by heads of one size, and this base model's differ.")
    named = _llama_names(config, base, arch)
    alpha, factors = _one_alpha(config)
    with TemporaryDirectory(prefix="soup-gguf-") as folder:
        path = Path(folder) / "adapter.gguf"
        writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
        writer.add_type(gguf.GGUFType.ADAPTER)
        writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
        writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, alpha)
        writer.add_file_type(gguf.LlamaFileType.ALL_F32)
        writer.add_name(name)
        for key, values in _factors(tensors, named, factors, head=base.head if arch in INTERLEAVED else None):
            writer.add_tensor(key, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path.read_bytes()


def _architecture(base: GgufBase) -> gguf.MODEL_ARCH:
    try:
        return ARCHITECTURES[base.model_type]
    except KeyError:
        raise Incompatible(
            f"Only LoRAs for base models of the families {', '.join(ARCHITECTURES)} can be written for "
            f"llama.cpp, and this base model is of family {base.model_type!r}."
        ) from None


def _llama_names(config: LoraConfig, base: GgufBase, arch: gguf.MODEL_ARCH) -> dict[str, str]:
    """llama.cpp's name of each module of the LoRA by its path."""
    table = gguf.get_tensor_name_map(arch, base.layers)
    names = {path: table.get_name(path) for path in config.modules()}
    without = sorted(path for path, name in names.items() if name is None or name == OUTPUT)
    if without:
        raise Incompatible(
            "llama.cpp cannot load a LoRA on modules without a name of its own: "
            f"{', '.join(without[:3])}{f' and {len(without) - 3} more' if len(without) > 3 else ''}."
        )
    return {path: name for path, name in names.items() if name is not None}


def _one_alpha(config: LoraConfig) -> tuple[float, dict[str, float]]:
    """One alpha for all modules, and the factor of each module's B that makes up for it."""
    alphas = {  # in the file's precision
        path: float(np.float32(config.scaling(module) * module.rank)) for path, module in config.modules().items()
    }
    largest = max(alphas.values())
    return largest, {path: alpha / largest for path, alpha in alphas.items()}


def _factors(
    tensors: Tensors, named: Mapping[str, str], factors: Mapping[str, float], *, head: int | None
) -> Iterator[tuple[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]]:
    """llama.cpp's names and values of A (rank, inputs) and B (outputs, rank)."""
    for path, name in named.items():
        a, b = (tensors[f"{PREFIX}{path}{end}"].to(torch.float32) for end in (LORA_A, LORA_B))
        if head is not None and path.endswith(ROTATED):
            b = _interleaved(b, head)
        if factors[path] != 1:
            b = b * factors[path]
        yield f"{name}.weight.lora_a", a.contiguous().numpy()
        yield f"{name}.weight.lora_b", b.contiguous().numpy()


def _interleaved(rows: Tensor, head: int) -> Tensor:
    """Rows (heads x head, rank) with the two halves of each head interleaved: 0, head/2, 1, head/2 + 1, ..."""
    halves = rows.reshape(-1, 2, head // 2, rows.shape[1])  # (heads, 2, head/2, rank)
    return halves.transpose(1, 2).reshape(rows.shape)
