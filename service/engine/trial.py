"""Whether the runner computes on a base model what the model computes without it, tried when the model is loaded.

Models that keep anything but keys and values of their tokens (recurrent states, as Mamba, RWKV and hybrids do), or
that do not see padding as the runner makes it, would answer other texts than they are asked about. None of that
shows in an answer's form, so it is tried: rows of different lengths join, generate and leave.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from registry.base_model import LoadedBase
from registry.errors import Unavailable
from service.engine.runner import Runner

LENGTHS = (7, 2, 4)
"""Tokens of the prompts: the first two start together, the third joins them, then the first leaves."""

TOLERANCE = {torch.float32: 1e-4, torch.float16: 0.1, torch.bfloat16: 0.2}
"""Of the largest logit: equal computations differ by less (also where an expert is chosen by a hair), wrong ones by
more."""


def check_runs(base: LoadedBase) -> None:
    """Raises Unavailable, naming the family, where rows that generate together do not get what they get alone."""
    family = base.model.config.model_type
    try:
        error = _largest_error(base)
    except Exception as problem:  # whatever a model's own code raises when its cache is another one
        raise Unavailable(
            f"Base model {base.entry.id!r} (family {family!r}) cannot generate here: it keeps something else "
            f"than the keys and values of attention ({type(problem).__name__})."
        ) from problem
    if not error <= TOLERANCE.get(base.model.dtype, TOLERANCE[torch.float32]):
        raise Unavailable(
            f"Base model {base.entry.id!r} (family {family!r}) cannot generate here: rows that run together get "
            f"logits up to {error:.2g} of the largest away from those each gets alone."
        )


@torch.inference_mode()
def _largest_error(base: LoadedBase) -> float:
    """The largest difference between logits by the runner and by the model, relative to the largest logit."""
    runner, key, vocabulary = Runner(), (base.entry.id, None), base.shape.vocab_size
    rows = {row: [(13 * row + 7 * place + 1) % vocabulary for place in range(n)] for row, n in enumerate(LENGTHS)}
    errors = [_error(base, rows, [0, 1], runner.prefill(key, base, None, _some(rows, [0, 1]), scored={})[0])]
    errors.append(_error(base, rows, [2], runner.prefill(key, base, None, _some(rows, [2]), scored={})[0]))
    for together in ([0, 1, 2], [0, 1, 2], [1, 2], [1, 2]):
        runner.retain({key: together})
        for row in together:
            rows[row].append((11 * row + len(rows[row])) % vocabulary)
        logits = runner.decode(key, base, None, {row: rows[row][-1] for row in together})
        errors.append(_error(base, rows, together, logits))
    return max(errors, key=lambda error: (math.isnan(error), error))


def _some(rows: dict[int, list[int]], wanted: list[int]) -> dict[int, list[int]]:
    return {row: rows[row] for row in wanted}


def _error(base: LoadedBase, rows: dict[int, list[int]], asked: list[int], found: Tensor) -> float:
    """How far logits `found` (asked, vocabulary) are from those of each row alone."""
    alone = [base.model(input_ids=torch.tensor([rows[row]], device=found.device), use_cache=False) for row in asked]
    own = torch.stack([out.logits[0, -1].float() for out in alone])
    return float((own - found).abs().max() / own.abs().max())
