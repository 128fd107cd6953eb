"""Read and write the configuration of PEFT's prefixes (PREFIX_TUNING).

Read as by PEFT 0.21 (`peft/tuners/prefix_tuning`): one tensor `prompt_embeddings` of shape (virtual tokens, layers * 2
* key and value size). PEFT stores the output of a prefix's projection, so that prefixes with and without one are read
alike. Called by `lora` and `writing`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from registry.errors import InvalidManifest
from registry.formats.refusal import peft_refusal, unsupported_fields
from registry.spec import BaseShape, PrefixConfig
from registry.spec.wording import describe_error

PREFIX_TUNING = "PREFIX_TUNING"
MAX_COUNT = 10**6
_TENSOR = "prompt_embeddings"
_SUPPORTED = {
    "peft_type",
    "task_type",
    "num_virtual_tokens",
    "token_dim",
    "num_layers",
    "num_attention_heads",
    "num_transformer_submodules",
    "prefix_projection",
    "encoder_hidden_size",
    "init_weights",
    "auto_mapping",
    "peft_version",
    "base_model_name_or_path",
    "revision",
    "inference_mode",
}
_REFUSED = {"modules_to_save": "trained copies of whole modules"}


def prefix_config(peft: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]]) -> PrefixConfig:
    """The configuration of a PEFT prefix; arguments and errors are those of `lora.adapter_config`."""
    unsupported = unsupported_fields(peft, refused=_REFUSED, supported=_SUPPORTED)
    if peft.get("task_type") not in (None, "CAUSAL_LM"):
        unsupported.append(f"task_type {str(peft['task_type'])[:40]!r} is not supported; CAUSAL_LM is.")
    if peft.get("num_transformer_submodules") not in (None, 1):
        unsupported.append("num_transformer_submodules is not 1: a prefix of an encoder-decoder is not supported.")
    problems = _tensor_problems(peft, tensors)
    if unsupported or problems:
        raise peft_refusal(unsupported, problems)
    try:
        return PrefixConfig(length=tensors[_TENSOR][0])
    except ValidationError as error:
        raise InvalidManifest(
            f"The prefix cannot be taken: {describe_error(error.errors()[0])}.", param="peft_config"
        ) from None


def _tensor_problems(peft: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]]) -> list[str]:
    """One sentence for every fault of the tensors, and every disagreement with the configuration."""
    problems = [f"Tensor {name[:160]!r} is not expected in a prefix." for name in tensors if name != _TENSOR]
    shape = tensors.get(_TENSOR)
    if shape is None or len(shape) != 2:
        state = "missing" if shape is None else f"of shape {list(shape)}"
        return [*problems, f"Tensor {_TENSOR!r} is {state}; a prefix has one of (virtual tokens, layers * 2 * sizes)."]
    counts = {name: peft.get(name) for name in ("num_virtual_tokens", "num_layers", "token_dim", "num_attention_heads")}
    wrong = [name for name, value in counts.items() if value is not None and not _is_count(value)]
    if wrong:
        return [
            *problems,
            *(f"{name} is {str(counts[name])[:40]!r}, not a whole number from 1 to {MAX_COUNT}." for name in wrong),
        ]
    tokens, layers, size, heads = counts.values()
    if tokens not in (None, shape[0]):
        problems.append(f"The prefix has {shape[0]} virtual tokens in the weights and {tokens} in the configuration.")
    if layers is not None and size is not None and layers * 2 * size != shape[1]:
        problems.append(
            f"{layers} layers of keys and values of {size} are {layers * 2 * size} columns, not {shape[1]}."
        )
    if heads is not None and size is not None and size % heads:
        problems.append(f"token_dim {size} is no multiple of {heads} heads.")
    return problems


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_COUNT


def peft_prefix(
    config: PrefixConfig, *, shape: BaseShape | None = None, base_name: str | None = None
) -> dict[str, Any]:
    """PEFT's configuration of a prefix; without `shape` it has no sizes, which PEFT then reads from the base."""
    heads, size = (None, None) if shape is None or shape.kv is None else shape.kv
    return {
        "peft_type": PREFIX_TUNING,
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_name,
        "inference_mode": True,
        "num_virtual_tokens": config.length,
        "num_layers": None if shape is None else shape.num_layers,
        "num_attention_heads": heads,
        "token_dim": None if heads is None or size is None else heads * size,
        "num_transformer_submodules": 1,
        "prefix_projection": False,
    }
