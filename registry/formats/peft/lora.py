"""Read the configuration of a PEFT LoRA from its `adapter_config.json` and the names and shapes of its tensors.

The tensors define modules and ranks, and the file has to agree; it is read as by PEFT 0.21
(`peft/tuners/lora/config.py`). Unsupported options (DoRA, trained biases, ...) are refused by name, all at once. Called
by `read_directory` on the client and by `push` for PEFT's configurations.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from registry.errors import InvalidManifest
from registry.formats.peft.expressions import UnsupportedPatternError
from registry.formats.peft.patterns import PeftFields
from registry.formats.peft.prefix import PREFIX_TUNING, prefix_config
from registry.formats.refusal import peft_refusal, unsupported_fields
from registry.spec import LoraConfig, LoraModule, PrefixConfig
from registry.spec.structures.lora import ModulePath
from registry.spec.wording import describe_error

_TENSOR = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight", re.ASCII)
_PATH: TypeAdapter[str] = TypeAdapter(ModulePath)

_READ = {
    "peft_type",
    "task_type",
    "r",
    "lora_alpha",
    "rank_pattern",
    "alpha_pattern",
    "use_rslora",
    "target_modules",
    "exclude_modules",
    "layers_to_transform",
    "layers_pattern",
    "bias",
    "init_lora_weights",
}
_WITHOUT_EFFECT = {
    "auto_mapping",
    "peft_version",
    "base_model_name_or_path",
    "revision",
    "inference_mode",
    "lora_dropout",
    "fan_in_fan_out",
    "megatron_core",
    "qalora_group_size",
    "runtime_config",
    "eva_config",
}
_REFUSED = {
    "use_dora": "DoRA",
    "lora_bias": "a bias on B",
    "modules_to_save": "trained copies of whole modules",
    "layer_replication": "replicated layers",
    "target_parameters": "LoRA on bare parameters",
    "trainable_token_indices": "trained token embeddings",
    "use_qalora": "QA-LoRA",
    "alora_invocation_tokens": "activated LoRA",
    "megatron_config": "Megatron's parallel layers",
    "loftq_config": "LoftQ, which changes the base model",
    "corda_config": "CorDA, which changes the base model",
    "lora_ga_config": "LoRA-GA, which changes the base model",
    "kasa_config": "KaSA",
    "monteclora_config": "MonteCLoRA",
    "velora_config": "VeLoRA",
    "use_bdlora": "block-diagonal LoRA",
    "arrow_config": "Arrow routing",
    "ensure_weight_tying": "tied adapters",
}
_HARMLESS_INITS = (None, True, False, "gaussian", "eva", "orthogonal", "mica")
_TENSOR_KINDS = {
    "lora_embedding_": "LoRA on embeddings is not supported",
    "lora_magnitude_vector": "it belongs to DoRA, which is not supported",
    "base_layer.": "it is a copy of the base model's own weights; save the adapter with save_embedding_layers=False",
    "modules_to_save": "trained copies of whole modules are not supported",
    ".lora_B.bias": "a bias on B is not supported",
}


def adapter_config(peft: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]]) -> LoraConfig | PrefixConfig:
    """The configuration of a PEFT adapter from its `adapter_config.json` and the shapes of its tensors by name.

    Raises UnknownMethod for unsupported options, else InvalidManifest; `problems` lists everything.
    """
    if peft.get("peft_type") == PREFIX_TUNING:
        return prefix_config(peft, tensors)
    return lora_config(peft, tensors)


def lora_config(peft: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]]) -> LoraConfig:
    """The configuration of a PEFT LoRA; arguments and errors are those of `adapter_config`."""
    unsupported = _unsupported(peft)
    ranks, problems = _ranks(tensors)
    fields = PeftFields(peft)
    problems = [*fields.problems, *problems]
    modules: dict[str, LoraModule] = {}
    try:
        for path, rank in ranks.items():
            configured, alpha = fields.module(path)
            modules[path] = LoraModule(rank, alpha)
            if configured is not None and configured != rank:
                problems.append(f"Module {path} has rank {rank} in the weights and {configured} in the configuration.")
            if not fields.targets(path):
                problems.append(f"The weights have a LoRA for module {path}, which the configuration does not target.")
    except UnsupportedPatternError:
        problems.append(f"Its regular expressions take too long on {len(ranks)} modules; name the modules.")
    if unsupported or problems:
        raise peft_refusal(unsupported, problems)
    try:
        return LoraConfig.of(modules, rslora=bool(peft.get("use_rslora")))
    except ValidationError as error:
        raise InvalidManifest(
            f"The LoRA cannot be taken: {describe_error(error.errors()[0])}.", param="peft_config"
        ) from None


def _unsupported(peft: Mapping[str, Any]) -> list[str]:
    """One sentence for everything in the configuration that is not plain LoRA."""
    kind = peft.get("peft_type")
    if kind is None:
        return ["peft_type is missing, which names PEFT's method; LORA and PREFIX_TUNING are supported."]
    if kind != "LORA":
        return [f"peft_type {str(kind)[:40]!r} is not supported; PEFT's LORA and PREFIX_TUNING are."]
    problems = []
    bias = peft.get("bias", "none")
    if bias not in ("none", None):
        problems.append(
            f"bias {str(bias)[:40]!r} is not supported, only 'none': the base model's biases stay as they are."
        )
    task = peft.get("task_type")
    if task not in (None, "CAUSAL_LM", "FEATURE_EXTRACTION"):
        problems.append(
            f"task_type {str(task)[:40]!r} is not supported; CAUSAL_LM is, and FEATURE_EXTRACTION for an encoder."
        )
    init = peft.get("init_lora_weights")
    if not any(init is harmless or (isinstance(init, str) and init == harmless) for harmless in _HARMLESS_INITS):
        problems.append(
            f"init_lora_weights {str(init)[:40]!r} is not supported: it changes the base model; have PEFT convert the "
            "adapter to plain LoRA (path_initial_model_for_weight_conversion)."
        )
    return [*unsupported_fields(peft, refused=_REFUSED, supported=_READ | _WITHOUT_EFFECT), *problems]


def _ranks(tensors: Mapping[str, tuple[int, ...]]) -> tuple[dict[str, int], list[str]]:
    """The rank of every module that has both of its tensors, and one sentence for each problem of the others."""
    factors: dict[str, dict[str, tuple[int, ...]]] = {}
    problems = []
    for name, shape in tensors.items():
        match = _TENSOR.fullmatch(name)
        if match is None or not _is_path(match[1]):
            problems.append(f"Tensor {name[:160]!r} cannot be taken: {_tensor_kind(name)}.")
        elif len(shape) != 2:
            problems.append(f"Tensor {name[:160]!r} has shape {list(shape)}; a LoRA on a linear module has two sizes.")
        else:
            factors.setdefault(match[1], {})[match[2]] = shape
    ranks = {}
    for path, pair in factors.items():
        if "A" not in pair or "B" not in pair:
            present, missing = ("A", "B") if "A" in pair else ("B", "A")
            problems.append(f"Module {path} has lora_{present} and no lora_{missing} in the weights.")
        elif pair["A"][0] != pair["B"][1]:
            problems.append(f"Module {path} has rank {pair['A'][0]} in lora_A and {pair['B'][1]} in lora_B.")
        else:
            ranks[path] = pair["A"][0]
    if not tensors:
        problems.append("The weights file holds no tensor.")
    return ranks, problems


def _is_path(text: str) -> bool:
    try:
        return "*" not in _PATH.validate_python(text)
    except ValidationError:
        return False


def _tensor_kind(name: str) -> str:
    kinds = (kind for infix, kind in _TENSOR_KINDS.items() if infix in name)
    return next(kinds, "a LoRA's are named base_model.model.<module>.lora_A.weight and .lora_B.weight")
