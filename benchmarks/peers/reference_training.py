"""Trains an adapter with a library that users know, in a plain loop, for `benchmarks.papers.references`.

    python -P reference_training.py LIBRARY BASE FOLDER

LIBRARY is `peft` or `adapters`, whose interpreter runs this: it imports none of this project. FOLDER has the adapter's
initial values in the library's format in `start`, and in `data.npz` the initial head, the rows, the order of the
training rows by step, and the learning rate of each step. A row is a label, where the second text begins, and the
tokens with -1 behind them. `result.npz` gets the lowest validation loss, the number of trained parameters, and the
logits of the test rows in that state.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, parameters_to_vector, vector_to_parameters

AT_ONCE = 16
"""Rows of a forward pass without gradients."""


def adapted(library: str, base: str, start: str) -> nn.Module:
    """The base model with the adapter, whose parameters alone ask for gradients; without dropout."""
    from transformers import AutoModel

    model: Any = AutoModel.from_pretrained(base)
    if library == "peft":
        import peft

        model = peft.PeftModel.from_pretrained(model, start, is_trainable=True)
    else:
        import adapters

        adapters.init(model)
        model.train_adapter(model.load_adapter(start, use_safetensors=True))
    module: nn.Module = model.eval()
    return module


class Classifier(nn.Module):
    """A linear layer on the last hidden state of the first token."""

    def __init__(self, model: nn.Module, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.model, self.weight, self.bias = model, nn.Parameter(weight), nn.Parameter(bias)

    def forward(self, rows: Tensor) -> Tensor:
        """Logits (batch, labels) of rows (batch, width)."""
        ids = rows[:, 2 : 2 + int((rows[:, 2:] >= 0).sum(1).max())]
        mask = (ids >= 0).long()
        second = (torch.arange(ids.shape[1]) >= rows[:, 1, None]).long() * mask
        hidden = self.model(ids.clamp(min=0), attention_mask=mask, token_type_ids=second).last_hidden_state
        return nn.functional.linear(hidden[:, 0], self.weight, self.bias)

    @torch.no_grad()
    def logits(self, rows: Tensor) -> Tensor:
        """Logits of rows, chunk by chunk and without gradients."""
        return torch.cat([self(chunk) for chunk in torch.split(rows, AT_ONCE)])


def main(library: str, base: str, folder: Path) -> None:
    """Train, and leave the result in `folder`."""
    torch.set_num_threads(1)
    data = {name: torch.from_numpy(value) for name, value in np.load(folder / "data.npz").items()}
    model = Classifier(adapted(library, base, str(folder / "start")), data["weight"], data["bias"])
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(trained, weight_decay=0.0)
    loss_of = nn.functional.cross_entropy
    best, state = math.inf, parameters_to_vector(trained)
    for step in range(len(data["order"]) + 1):
        if step:
            rows = data["train"][data["order"][step - 1]]
            optimiser.param_groups[0]["lr"] = float(data["rates"][step - 1])
            optimiser.zero_grad()
            loss_of(model(rows), rows[:, 0]).backward()  # type: ignore[no-untyped-call]
            clip_grad_norm_(trained, float(data["clip"]))
            optimiser.step()
        if step in data["evaluated_at"]:
            loss = float(loss_of(model.logits(data["valid"]), data["valid"][:, 0]))
            if loss < best:
                best, state = loss, parameters_to_vector(trained).detach()
    vector_to_parameters(state, trained)
    logits = model.logits(data["test"]).numpy()
    np.savez(folder / "result.npz", valid_loss=best, parameters=len(state), logits=logits)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
