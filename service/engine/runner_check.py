"""Whether the runner computes on a base model what the model computes without it, tried when the model is loaded.

Sequences of different lengths join, generate together with others' prompts, and leave. A model whose attention does not
go through transformers' interface cannot be packed: it is then run sequence by sequence. Models that keep anything but
keys and values of their tokens (recurrent states, as Mamba, RWKV and hybrids do) would answer other texts than they are
asked about. None of that shows in an answer's form.
"""

from __future__ import annotations

import logging
import math

import torch
from torch import Tensor

from registry.base_model import LoadedBase
from registry.base_model.likelihood import hidden_states
from registry.errors import Unavailable
from service.engine.onednn_linear import reorder_linears
from service.engine.packing import check_packable
from service.engine.runner import ForwardTask, Runner

log = logging.getLogger(__name__)

LENGTHS = (7, 2, 4)
"""Tokens of the prompts: the first two start together, the third joins them, then the first leaves."""

TOLERANCE = {torch.float32: 1e-4, torch.float16: 0.1, torch.bfloat16: 0.2}
"""Of the largest logit: equal computations differ by less (also where an expert is chosen by a hair), wrong ones by
more."""


def checked_runner(base: LoadedBase) -> Runner:
    """The runner of a base model that was loaded: packed where sequences then get what each gets alone.

    Its linear layers are put into their form on the way.

    Raises Unavailable, naming the family, where they do not get it one after the other either.
    """
    reorder_linears(base.model)
    why = _why_not_packed(base)
    if why is None:
        return Runner(base)
    log.warning("base model %s runs sequence by sequence, for it cannot be packed: %s", base.entry.id, why)
    _check_one_by_one(base)
    return Runner(base, packed=False)


def _why_not_packed(base: LoadedBase) -> str | None:
    try:
        check_packable(base.model)
        error = _largest_error(Runner(base))
    except Exception as problem:  # whatever a model's own code raises for what it does not expect
        return str(problem)
    return None if error <= _tolerance(base) else f"values are up to {error:.2g} of the largest away"


def _check_one_by_one(base: LoadedBase) -> None:
    family = base.model.config.model_type
    try:
        error = _largest_error(Runner(base, packed=False))
    except Exception as problem:  # whatever a model's own code raises when its cache is another one
        raise Unavailable(
            f"Base model {base.entry.id!r} (family {family!r}) cannot generate here: it keeps something else "
            f"than the keys and values of attention ({type(problem).__name__})."
        ) from problem
    if math.isnan(error):
        raise Unavailable(
            f"Base model {base.entry.id!r} computes values that are not finite numbers: look at its weights."
        )
    if error > _tolerance(base):
        raise Unavailable(
            f"Base model {base.entry.id!r} (family {family!r}) cannot generate here: rows that run together get "
            f"logits up to {error:.2g} of the largest away from those each gets alone."
        )


def _tolerance(base: LoadedBase) -> float:
    return TOLERANCE.get(base.model.dtype, TOLERANCE[torch.float32])


@torch.inference_mode()
def _largest_error(runner: Runner) -> float:
    """How far runner and model are apart, relative to the largest logit, or of encoders to the largest state."""
    if runner.base.shape.kind == "encoder":
        return _error_of_states(runner)
    vocabulary = runner.base.shape.vocab_size
    rows = {row: [(13 * row + 7 * place + 1) % vocabulary for place in range(n)] for row, n in enumerate(LENGTHS)}
    begun: set[int] = set()
    errors = []
    for together in ([0, 1], [0, 1, 2], [0, 1, 2], [1, 2], [1, 2]):
        runner.retain(together)
        for row in begun.intersection(together):
            rows[row].append((11 * row + len(rows[row])) % vocabulary)
        tasks = []
        for row in together:
            start = len(rows[row]) - 1 if row in begun else 0
            tasks.append(ForwardTask(rows[row][start:], start, owner=row, logits=True, reserve=len(rows[row])))
        begun.update(together)
        logits = [found.logits for found in runner.run(tasks)]
        errors.append(_error(runner.base, [rows[row] for row in together], logits))
    return max(errors, key=lambda error: (math.isnan(error), error))


def _error(base: LoadedBase, rows: list[list[int]], found: list[Tensor | None]) -> float:
    """How far logits `found`, each (vocabulary,), are from those of each row alone."""
    alone = [base.model(input_ids=torch.tensor([row], device=base.model.device), use_cache=False) for row in rows]
    own = torch.stack([out.logits[0, -1].float() for out in alone])
    got = torch.stack([one for one in found if one is not None])
    return float((own - got).abs().max() / own.abs().max())


def _error_of_states(runner: Runner) -> float:
    """The same of the summed states of an encoder."""
    base = runner.base
    rows = [[3 + (7 * place + 5 * row) % 200 for place in range(n)] for row, n in enumerate(LENGTHS)]
    found = runner.run([ForwardTask(row, 0, pooled=True) for row in rows])
    errors = []
    for row, one in zip(rows, found, strict=True):
        ids = torch.tensor([row], device=base.model.device)
        own = hidden_states(base.model, ids, torch.ones_like(ids))[0].float().sum(dim=0).cpu()
        errors.append(float((own - torch.from_numpy(one.pooled)).abs().max() / own.abs().max()))
    return max(errors, key=lambda error: (math.isnan(error), error))
