"""Base models that are encoders (BERT and its kin): which are served, how they are built, how long their texts are.

An encoder is loaded without any head or pooler: adapters read the last hidden states.
"""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    MODEL_MAPPING,
)


def encoder_problems(config: Any, named: str) -> list[str]:
    """The reasons why the model of this configuration, described by `named`, cannot be a base of kind 'encoder'."""
    kind, saved = str(config.model_type), set(getattr(config, "architectures", None) or [])
    if getattr(config, "is_encoder_decoder", False):
        return [f"it is {named}, an encoder-decoder, and not an encoder"]
    if kind not in MODEL_FOR_MASKED_LM_MAPPING_NAMES or type(config) not in MODEL_MAPPING:
        causal = kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        reason = ", which reads from left to right: leave out kind = 'encoder'" if causal else ", and not an encoder"
        return [f"it is {named}{reason}"]
    if getattr(config, "is_decoder", False) or MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind) in saved:
        return [f"it is {named} made to be a decoder (is_decoder), and not an encoder"]
    return []


def without_pooler(config: Any) -> dict[str, Any]:
    """The options with which transformers builds the encoder alone."""
    model: Any = MODEL_MAPPING[type(config)]
    return {"add_pooling_layer": False} if "add_pooling_layer" in inspect.signature(model).parameters else {}


def longest_text(model: nn.Module, config: Any) -> int:
    """The most tokens an encoder reads at once.

    RoBERTa's positions start after that of padding: of its 514, the first two belong to no token.
    """
    positions = int(config.max_position_embeddings)
    for path, module in model.named_modules():
        if path.endswith("position_embeddings") and isinstance(module, nn.Embedding) and module.padding_idx is not None:
            return positions - module.padding_idx - 1
    return positions


def tokenizer_problem(tokenizer: Any) -> str | None:
    """The tokens that an encoder's tokenizer lacks, as the end of a sentence; None where it has them."""
    lacking = [name for name in ("cls_token_id", "sep_token_id") if getattr(tokenizer, name, None) is None]
    return f"has a tokenizer without {' and '.join(lacking)}, which begin and end its texts" if lacking else None
