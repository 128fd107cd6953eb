"""Checks of a base model that was just loaded: a few tokens show whether it is what the registry takes it for.

Weights that are not in the files would be random numbers, logits that are not those of the model would be wrong
perplexities, and a model that reads ahead is no language model: none of them shows in the answers' form.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from registry.base_model.likelihood import hidden_states, lm_logits
from registry.errors import Unavailable
from registry.spec import BaseEntry

_TOKENS = 6
_TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""Of the largest logit or state; equal computations differ by less."""


def check_loaded(model: Any, tokenizer: Any, *, missing: list[str], entry: BaseEntry) -> None:
    """Raises Unavailable where tensors are `missing`, token ids do not fit, or the forward pass is not as expected."""
    base_id = entry.id
    if missing:
        raise Unavailable(
            f"Base model {base_id!r}: its weights lack {len(missing)} of the model's tensors, {missing[0]} for one.",
            problems=[f"Tensor {name} is missing." for name in missing],
        )
    rows = int(model.get_input_embeddings().weight.shape[0])
    if len(tokenizer) > rows:
        raise Unavailable(
            f"Base model {base_id!r}: its tokenizer has {len(tokenizer)} tokens, and its embeddings are of {rows}."
        )
    try:
        problem = (_states_problem if entry.kind == "encoder" else _forward_problem)(model, rows)
    except (AttributeError, TypeError, ValueError, RuntimeError) as broken:
        raise Unavailable(f"Base model {base_id!r} cannot be run on a text: {broken}") from broken
    if problem is not None:
        raise Unavailable(f"Base model {base_id!r} (family {model.config.model_type!r}) {problem}.")


@torch.inference_mode()
def _forward_problem(model: Any, vocabulary: int) -> str | None:
    """What is wrong with the logits of a few tokens, as the end of a sentence; None where nothing is."""
    ids = torch.arange(_TOKENS, device=model.device)[None] * 7 % vocabulary  # (1, tokens)
    mask = torch.ones_like(ids)
    own = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    if not bool(own.isfinite().all()):
        return f"gives logits that are not finite in {str(own.dtype).removeprefix('torch.')}"
    others = ids.clone()
    others[0, -1] = (ids[0, -1] + 1) % vocabulary
    if not _close(own[:, :-1], model(input_ids=others, attention_mask=mask, use_cache=False).logits[:, :-1]):
        return "is not a causal language model: what follows a token changes what is predicted for it"
    if not _close(own, lm_logits(model, hidden_states(model, ids, mask))):
        return "makes its logits in another way than by an output layer on the last hidden state"
    return None


@torch.inference_mode()
def _states_problem(model: Any, vocabulary: int) -> str | None:
    """What is wrong with the hidden states of a few tokens, as the end of a sentence; None where nothing is."""
    ids = torch.arange(3, 3 + _TOKENS, device=model.device)[None] * 7 % vocabulary  # (1, tokens)
    mask = torch.ones_like(ids)
    own = hidden_states(model, ids, mask)
    if not bool(own.isfinite().all()):
        return f"gives hidden states that are not finite in {str(own.dtype).removeprefix('torch.')}"
    others = torch.cat([ids[:, :1], (ids[:, 1:] + 1) % vocabulary], dim=1)
    if torch.equal(hidden_states(model, others, mask)[:, 0], own[:, 0]):
        return "is not an encoder: what follows a token changes nothing of what it is read as"
    padded, marks = torch.cat([ids, ids[:, :2]], dim=1), torch.cat([mask, torch.zeros_like(mask[:, :2])], dim=1)
    if not _close(own, hidden_states(model, padded, marks)[:, :_TOKENS]):
        return "reads padding: what is masked changes the hidden states"
    return None


def _close(own: Tensor, other: Tensor) -> bool:
    """Whether two tensors of logits, or of states, agree to the tolerance of their dtype."""
    allowed = _TOLERANCE.get(own.dtype, _TOLERANCE[torch.float32]) * float(own.abs().max())
    return own.shape == other.shape and float((own.float() - other.float()).abs().max()) <= allowed
