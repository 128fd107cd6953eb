"""The `adapters` library (AdapterHub): a bottleneck of its own for each row of a batch, by BatchSplit.

Its bottleneck with a LayerNorm before it, on the feed-forward module's output, has the parameters of a Bapna-Firat
adapter of the same size; they are drawn here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any


def versions() -> dict[str, str]:
    """Versions of the relevant packages."""
    return {name: version(name) for name in ("adapters", "transformers", "torch")}


def start(
    *, folder: str, dtype: str, rows: int, hidden: int, bottleneck: int, parameters: int
) -> Callable[..., list[list[int]]]:
    """Load the model with `rows` adapters; raises ValueError where one of them has not as many `parameters`."""
    import adapters
    import torch
    from adapters.composition import BatchSplit
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder)
    saved = json.loads((Path(folder) / "config.json").read_text())
    if "rope_parameters" in saved:  # transformers 5 writes it here, the version that adapters needs reads another field
        config.rope_theta = saved["rope_parameters"]["rope_theta"]
    model: Any = AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=getattr(torch, dtype))
    adapters.init(model)
    form = adapters.SeqBnConfig(
        reduction_factor=hidden / bottleneck,
        non_linearity="relu",
        ln_before=True,
        original_ln_before=False,
        original_ln_after=False,
        residual_before_ln=False,
        adapter_residual_before_ln=False,
    )
    names = [f"adapter{number}" for number in range(rows)]
    for number, name in enumerate(names):
        torch.manual_seed(number)
        model.add_adapter(name, config=form)
        tensors = [tensor for path, tensor in model.named_parameters() if f".{name}." in path]
        if sum(tensor.numel() for tensor in tensors) != parameters:
            raise ValueError(
                f"an adapter has {sum(tensor.numel() for tensor in tensors)} parameters, ours {parameters}"
            )
        for tensor in tensors:
            if tensor.ndim == 2:
                torch.nn.init.normal_(tensor, std=0.1)
    model.set_active_adapters(BatchSplit(*names, batch_sizes=[1] * rows))
    model.to(getattr(torch, dtype)).eval()

    def write(prompts: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
        ids = torch.tensor(prompts)
        with torch.inference_mode():
            written = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                pad_token_id=0,
            )
        rows_written: list[list[int]] = written[:, ids.shape[1] :].tolist()
        return rows_written

    return write
