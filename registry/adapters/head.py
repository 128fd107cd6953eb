"""Heads of task adapters: a linear layer on the base's last hidden states, whose outputs are labels or span scores.

A head changes nothing in the base model: training and evaluation compute its logits after the forward pass. For
encoders it follows Devlin et al. (NAACL 2019, section 4): [CLS] for sequences, a start and an end vector for spans. A
causal model has read the whole sequence at its last token (Radford et al., 2018). Called by the tasks of `training`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from registry.adapters.attach import AdapterModule, Edit
from registry.adapters.initial import Init, Shapes, seeded, truncated_normal
from registry.spec import BaseShape, HeadConfig

HEAD_STD = 0.02
"""Standard deviation of the initial weights, BERT's `initializer_range`."""


class HeadModule(AdapterModule):
    """A head without values: built on torch's meta device and filled by its maker."""

    config: HeadConfig

    def __init__(self, config: HeadConfig, shape: BaseShape) -> None:
        super().__init__()
        self.config = config
        self._shape = shape
        self.out = nn.Linear(shape.hidden_size, len(config.labels), device="meta")

    def edits(self, _model: nn.Module) -> Iterator[tuple[nn.Module, Edit]]:
        """None: a head edits nothing."""
        return iter(())

    def logits(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """The logits of last hidden states (batch, time, hidden), whose tokens `mask` (batch, time) marks.

        Classification: (batch, labels), of the first token of an encoder and the last of a causal model, for padding on
        either side. Question answering: (batch, time, 2), the scores of a span's start and end; the caller leaves out
        positions where no answer can be. In the head's own dtype (fp32 as built).
        """
        states = hidden if self.config.task == "question_answering" else self._read(hidden, mask)
        return cast(Tensor, self.out(states.to(self.out.weight.dtype)))

    def _read(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """(batch, hidden): the states of the token that stands for its sequence."""
        tokens = mask.to(torch.int64)
        is_causal = self._shape.kind == "causal"
        position = mask.shape[1] - 1 - tokens.flip(1).argmax(1) if is_causal else tokens.argmax(1)
        return hidden[torch.arange(len(hidden), device=hidden.device), position]


def head_module(adapter: AdapterModule) -> HeadModule | None:
    """The head of an adapter: itself, or a member of a union; None where it has none."""
    return next((module for module in adapter.modules() if isinstance(module, HeadModule)), None)


def initial_head(_config: HeadConfig, shapes: Shapes, *, seed: int, init: Init, **_unused: object) -> dict[str, Tensor]:
    """fp32 tensors for `shapes`: weights N(0, 0.02) truncated at two standard deviations, biases zero.

    `init`, which applies to adapters inside the base, changes nothing. Drawn with NumPy's PCG64, like
    `initial.initial_tensors`. Raises InvalidParameter for an unknown `init` or a negative seed.
    """
    rng = seeded(seed, init)
    return {
        name: torch.from_numpy((HEAD_STD * truncated_normal(rng, shape)).astype(np.float32))
        if name.endswith("weight")
        else torch.zeros(shape)
        for name, shape in shapes.items()
    }
