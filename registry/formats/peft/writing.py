"""Write the `adapter_config.json` of a LoRA or a prefix, short and readable; `lora` reads equal values back.

Called by `directory`. `soup export` changes these files for an engine (`adapters.lora_ranks.uniform`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeGuard

from registry.formats.peft.prefix import peft_prefix
from registry.spec import AdapterConfig, BaseShape, LoraConfig, LoraModule, PrefixConfig

CONV1D_FAMILIES = frozenset({"gpt2", "openai-gpt", "imagegpt", "decision_transformer"})
"""Families of transformers whose linear modules are Conv1D, which stores its weight as (inputs, outputs)."""


PeftConfig = LoraConfig | PrefixConfig


def is_peft_config(config: AdapterConfig) -> TypeGuard[PeftConfig]:
    """Return True if PEFT has a configuration for this adapter: a LoRA that is not pruned, or a prefix."""
    return isinstance(config, LoraConfig | PrefixConfig) and not config.prunings()


def peft_config(config: PeftConfig, *, shape: BaseShape | None = None, base_name: str | None = None) -> dict[str, Any]:
    """PEFT's configuration of an adapter.

    With the base's `shape` modules have short names where these match no other linear module; without it every module
    is named in full. `base_name` is PEFT's base_model_name_or_path.
    """
    if isinstance(config, PrefixConfig):
        return peft_prefix(config, shape=shape, base_name=base_name)
    modules = config.modules()
    short = _short_names(modules, () if shape is None else shape.linears)
    rank = _most_common(module.rank for module in modules.values())
    alpha = _most_common(module.alpha for module in modules.values())
    return {
        "peft_type": "LORA",
        "task_type": "FEATURE_EXTRACTION" if shape is not None and shape.kind == "encoder" else "CAUSAL_LM",
        "base_model_name_or_path": base_name,
        "inference_mode": True,
        "r": rank,
        "lora_alpha": _plain(alpha),
        "target_modules": sorted({short.get(path, path) for path in modules}),
        "rank_pattern": _pattern(modules, lambda module: module.rank, usual=rank),
        "alpha_pattern": _pattern(modules, lambda module: _plain(module.alpha), usual=_plain(alpha)),
        "use_rslora": config.rslora,
        "fan_in_fan_out": shape is not None and shape.model_type in CONV1D_FAMILIES,
        "bias": "none",
        "lora_dropout": 0.0,
        "init_lora_weights": True,
    }


def _leaf(path: str) -> str:
    return path.rpartition(".")[2]


def _short_names(modules: Collection[str], linears: Collection[str]) -> dict[str, str]:
    """The last segment of each path of the LoRA where no other linear module has it."""
    ambiguous = {_leaf(path) for path in linears if path not in modules}
    paths = set(linears)
    return {path: _leaf(path) for path in modules if path in paths and _leaf(path) not in ambiguous}


def _most_common(values: Any) -> Any:
    """The most frequent value; the smallest of several."""
    counted = Counter(values)
    return min(counted, key=lambda value: (-counted[value], value))


def _plain(number: float) -> float:
    return int(number) if number == int(number) else number


def _pattern(
    modules: Mapping[str, LoraModule], value_of: Callable[[LoraModule], float], *, usual: float
) -> dict[str, float]:
    """`rank_pattern` or `alpha_pattern`: values that are not `usual`, by last segment where all its modules agree."""
    by_leaf: dict[str, set[float]] = defaultdict(set)
    for path, module in modules.items():
        by_leaf[_leaf(path)].add(value_of(module))
    pattern = {}
    for path, module in modules.items():
        value = value_of(module)
        if value != usual:
            agree = len(by_leaf[_leaf(path)]) == 1
            pattern[_leaf(path) if agree else "^" + path.replace(".", r"\.")] = value
    return pattern
