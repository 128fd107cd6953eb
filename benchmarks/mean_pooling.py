"""The base model as an encoder in a benchmark's own process: mean-pooled states, as the server computes them.

Used by `benchmarks.selector_choice` and `benchmarks.soups.domain_map`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from registry.base_model import LoadedBase
from registry.encoders import MeanPoolEncoder
from registry.encoders.contract import EmbeddedText
from registry.likelihood import hidden_states, windows


def encoder_of(base: LoadedBase) -> MeanPoolEncoder:
    """The encoder `base`, run on this base model."""
    return MeanPoolEncoder(
        base.shape.fingerprint, base.shape.hidden_size, lambda texts, **_options: mean_pooled(base, texts)
    )


def mean_pooled(base: LoadedBase, texts: Sequence[str]) -> list[EmbeddedText]:
    """The mean of each text's last hidden states in its first window, without BOS; one text at a time."""
    found = []
    for text in texts:
        cut = windows(base.tokenize(text, bos=False), context=base.shape.context, bos_id=base.bos_id)
        ids = torch.tensor([list(cut[0])])
        with torch.inference_mode():
            states = hidden_states(base.model, ids, torch.ones_like(ids))[0, 1:]
        found.append(EmbeddedText(states.mean(dim=0).float().numpy(), None, len(cut[0]), len(cut) > 1))
    return found
