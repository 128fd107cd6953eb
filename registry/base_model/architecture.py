"""What a base model is, from its configuration alone: which are refused, the sizes, and the linear modules.

The model is built on torch's meta device to see its modules: no memory, some milliseconds, its weights not read.
Called by `loading`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_MAPPING_NAMES
from transformers.pytorch_utils import Conv1D

from registry.base_model.building import BUILDING
from registry.errors import Unavailable
from registry.names import Digest
from registry.spec import BaseShape

_SIZES = ("hidden_size", "num_hidden_layers", "max_position_embeddings", "vocab_size")
_UNUSABLE = (ValueError, TypeError, KeyError, AttributeError, ArithmeticError)
"""What transformers raises for numbers that make no model."""


def causal_config(folder: Path, base_id: str) -> Any:
    """The configuration in `folder`; raises Unavailable, with every reason, where it is no usable causal LM.

    Code that comes with a model is never run: a family that transformers does not know is refused.
    """
    try:
        config: Any = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (*_UNUSABLE, OSError, StrictDataclassError) as problem:
        raise Unavailable(f"Base model {base_id!r}: its configuration cannot be used: {problem}") from problem
    problems = _problems(config)
    if problems:
        raise Unavailable(f"Base model {base_id!r}: {'; '.join(problems)}.", problems=problems)
    return config


def _problems(config: Any) -> list[str]:
    """Why a model of this configuration cannot be a base model."""
    kind, saved = str(config.model_type), list(getattr(config, "architectures", None) or [])
    named = f"a {saved[0]} (family {kind!r})" if saved else f"of family {kind!r}"
    if getattr(config, "is_encoder_decoder", False):
        return [f"it is {named}, an encoder-decoder, and not a causal language model"]
    causal = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind)
    if causal is None or (saved and not {causal, MODEL_MAPPING_NAMES.get(kind)} & set(saved)):
        return [f"it is {named}, and not a causal language model"]
    if config.get_text_config() is not config:
        return [f"it is {named}, which takes more than text, and only models of text alone are served"]
    problems = [
        f"its configuration (family {kind!r}) has no number {name!r}, which says how adapters and texts must fit"
        for name in _SIZES
        if type(getattr(config, name, None)) is not int
    ]
    if getattr(config, "quantization_config", None) is not None:
        problems.append("its weights are quantised, and adapters are put on float32, bfloat16 and float16 ones")
    if kind == "opt" and not config.do_layer_norm_before:
        problems.append("it is an OPT whose norms come after the sub-layers (do_layer_norm_before is false)")
    if kind == "opt" and config.word_embed_proj_dim != getattr(config, "hidden_size", None):
        problems.append("it is an OPT whose embeddings are projected (word_embed_proj_dim is not hidden_size)")
    return problems


def shape_from(config: Any, fingerprint: Digest, base_id: str) -> BaseShape:
    """What adapters must fit; raises Unavailable where transformers cannot build the model from `config`."""
    return BaseShape(
        fingerprint=fingerprint,
        model_type=config.model_type,
        hidden_size=config.hidden_size,
        num_layers=config.num_hidden_layers,
        context=config.max_position_embeddings,
        vocab_size=config.vocab_size,
        linears=_linears(config, base_id),
    )


def _linears(config: Any, base_id: str) -> dict[str, tuple[int, int]]:
    """(inputs, outputs) of every linear module by its path, in the model's order."""
    try:
        with BUILDING, torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(config, trust_remote_code=False)  # type: ignore[no-untyped-call]
    except (*_UNUSABLE, RuntimeError, ImportError) as problem:
        raise Unavailable(
            f"Base model {base_id!r}: no model can be built from its configuration: {problem}"
        ) from problem
    found: dict[str, tuple[int, int]] = {}
    for path, module in model.named_modules():
        if isinstance(module, nn.Linear):
            found[path] = (module.in_features, module.out_features)
        elif isinstance(module, Conv1D):
            found[path] = (module.nx, module.nf)
    return found
