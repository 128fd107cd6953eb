"""Checks of a base model that was just loaded, by a forward pass over a few tokens.

Weights missing from the files would be random numbers. Logits computed in another way would give wrong perplexities. A
model that reads ahead is not a language model. The shape of the answers shows none of these.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from registry.base_model.chat_template import is_special
from registry.base_model.likelihood import hidden_states, lm_logits
from registry.errors import Unavailable
from registry.spec import BaseEntry

_TOKENS = 6
_TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""Largest difference between equal computations, as a share of the largest logit or state."""


def check_loaded(
    model: Any, tokenizer: Any, *, needed: tuple[int | None, ...], missing: list[str], entry: BaseEntry
) -> None:
    """Raises Unavailable where tensors are `missing`, token ids do not fit, or the forward pass is not as expected.

    Special tokens may lack an embedding, such as the token for images of a Gemma 3 that reads text alone, but not those
    `needed`.
    """
    base_id = entry.id
    if missing:
        raise Unavailable(
            f"Base model {base_id!r}: its weights lack {len(missing)} of the model's tensors, such as {missing[0]}.",
            problems=[f"Tensor {name} is missing." for name in missing],
        )
    rows = int(model.get_input_embeddings().weight.shape[0])
    if any(token in needed or not is_special(tokenizer, token) for token in range(rows, len(tokenizer))):
        raise Unavailable(
            f"Base model {base_id!r}: its tokenizer has {len(tokenizer)} tokens, but its embeddings have {rows} rows."
        )
    try:
        problem = (_states_problem if entry.kind == "encoder" else _forward_problem)(model, rows)
    except (AttributeError, TypeError, ValueError, RuntimeError) as broken:
        raise Unavailable(f"Base model {base_id!r} cannot be run on a text: {broken}") from broken
    if problem is not None:
        raise Unavailable(f"Base model {base_id!r} (family {model.config.model_type!r}) {problem}.")


@torch.inference_mode()
def _forward_problem(model: Any, vocabulary: int) -> str | None:
    """The fault of the logits of a few tokens, as the end of a sentence; None where they are right."""
    ids = torch.arange(_TOKENS, device=model.device)[None] * 7 % vocabulary  # (1, tokens)
    mask = torch.ones_like(ids)
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    if not bool(logits.isfinite().all()):
        return f"gives logits that are not finite in {str(logits.dtype).removeprefix('torch.')}"
    changed = ids.clone()
    changed[0, -1] = (ids[0, -1] + 1) % vocabulary
    if not _is_close(logits[:, :-1], model(input_ids=changed, attention_mask=mask, use_cache=False).logits[:, :-1]):
        return "is not a causal language model: what follows a token changes what is predicted for it"
    if not _is_close(logits, lm_logits(model, hidden_states(model, ids, mask))):
        return "makes its logits in another way than by an output layer on the last hidden state"
    return None


@torch.inference_mode()
def _states_problem(model: Any, vocabulary: int) -> str | None:
    """The fault of the hidden states of a few tokens, as the end of a sentence; None where they are right."""
    ids = torch.arange(3, 3 + _TOKENS, device=model.device)[None] * 7 % vocabulary  # (1, tokens)
    mask = torch.ones_like(ids)
    states = hidden_states(model, ids, mask)
    if not bool(states.isfinite().all()):
        return f"gives hidden states that are not finite in {str(states.dtype).removeprefix('torch.')}"
    changed = torch.cat([ids[:, :1], (ids[:, 1:] + 1) % vocabulary], dim=1)
    if torch.equal(hidden_states(model, changed, mask)[:, 0], states[:, 0]):
        return "is not an encoder: what follows a token changes nothing of what it is read as"
    padded, marks = torch.cat([ids, ids[:, :2]], dim=1), torch.cat([mask, torch.zeros_like(mask[:, :2])], dim=1)
    if not _is_close(states, hidden_states(model, padded, marks)[:, :_TOKENS]):
        return "reads padding: what is masked changes the hidden states"
    return None


def _is_close(actual: Tensor, expected: Tensor) -> bool:
    """Return True if two tensors of logits, or of states, agree to the tolerance of their dtype."""
    allowed = _TOLERANCE.get(actual.dtype, _TOLERANCE[torch.float32]) * float(actual.abs().max())
    return actual.shape == expected.shape and float((actual.float() - expected.float()).abs().max()) <= allowed
