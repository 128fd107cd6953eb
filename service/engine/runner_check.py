"""Checks, when a base model is loaded, that the runner computes on it what the model computes without the runner.

Sequences of different lengths join, generate together with other prompts, and leave. A model whose attention bypasses
transformers' interface cannot be packed: it is then run sequence by sequence. Models with other state than keys and
values of their tokens (recurrent states, as of Mamba, RWKV and hybrids) would give wrong answers of the right form.
"""

from __future__ import annotations

import logging
import math

import torch
from torch import Tensor

from registry.base_model import LoadedBase
from registry.base_model.likelihood import hidden_states
from registry.errors import Unavailable
from service.engine.llama import FAMILIES
from service.engine.onednn_linear import prepare_linears
from service.engine.runner import ForwardTask, Runner

log = logging.getLogger("soup.engine")

LENGTHS = (7, 2, 4)
"""Tokens of the prompts: the first two start together, the third joins, then the first leaves."""

MASKED_WINDOWS = ("phimoe", "qwen2_moe")
"""Families whose sliding window is in the attention mask alone. A packed pass has no mask, and the prompts of this
check are too short to show it."""

TOLERANCE = {torch.float32: 1e-4, torch.float16: 0.1, torch.bfloat16: 0.2}
"""Largest error relative to the largest logit, by dtype: rounding stays below it (also where it changes the choice of
an expert), wrong computations exceed it."""


def checked_runner(base: LoadedBase) -> Runner:
    """Reorder a loaded base model's linear layers, and return its runner: packed if that computes the same.

    Raises Unavailable, naming the family, if running it sequence by sequence does not compute the same either.
    """
    prepare_linears(base.model, fuse=base.shape.model_type in FAMILIES)
    reason = _why_not_packed(base)
    if reason is None:
        return Runner(base)
    log.warning("base model %s runs sequence by sequence, for it cannot be packed: %s", base.entry.id, reason)
    _check_one_by_one(base)
    return Runner(base, packed=False)


def _why_not_packed(base: LoadedBase) -> str | None:
    config = base.model.config
    if config.model_type in MASKED_WINDOWS and 0 < (config.sliding_window or 0) < base.shape.context:
        return "its attention has its window in the mask, and a packed pass has no mask"
    try:
        error = _largest_error(Runner(base))
    except Exception as problem:  # a model's own code may raise anything
        return str(problem)
    return None if error <= _tolerance(base) else f"values are up to {error:.2g} of the largest away"


def _check_one_by_one(base: LoadedBase) -> None:
    family = base.model.config.model_type
    try:
        error = _largest_error(Runner(base, packed=False))
    except Exception as problem:  # a model's own code may raise anything
        raise Unavailable(
            f"Base model {base.entry.id!r} (family {family!r}) cannot generate here: its cache is not one of "
            f"keys and values ({type(problem).__name__})."
        ) from problem
    if math.isnan(error):
        raise Unavailable(
            f"Base model {base.entry.id!r} computes values that are not finite numbers: look at its weights."
        )
    if error > _tolerance(base):
        raise Unavailable(
            f"Base model {base.entry.id!r} (family {family!r}) cannot generate here: its logits in a batch "
            f"differ from those of a single row by {error:.2g} of the largest logit."
        )


def _tolerance(base: LoadedBase) -> float:
    return TOLERANCE.get(base.model.dtype, TOLERANCE[torch.float32])


@torch.inference_mode()
def _largest_error(runner: Runner) -> float:
    """Largest difference between runner and model, relative to the largest logit, for encoders to the largest sum."""
    errors = _encoder_errors(runner) if runner.base.shape.kind == "encoder" else _logit_errors(runner)
    return max(errors, key=lambda error: (math.isnan(error), error))


def _logit_errors(runner: Runner) -> list[float]:
    """Errors of the logits of each pass, relative to the largest."""
    vocabulary = runner.base.shape.vocab_size
    ids_by_sequence = [
        [(13 * sequence + 7 * position + 1) % vocabulary for position in range(length)]
        for sequence, length in enumerate(LENGTHS)
    ]
    started: set[int] = set()
    errors = []
    for batch in ([0, 1], [0, 1, 2], [0, 1, 2], [1, 2], [1, 2]):
        runner.retain(batch)
        for sequence in started.intersection(batch):
            ids = ids_by_sequence[sequence]
            ids.append((11 * sequence + len(ids)) % vocabulary)
        tasks = []
        for sequence in batch:
            ids = ids_by_sequence[sequence]
            start = len(ids) - 1 if sequence in started else 0
            tasks.append(ForwardTask(ids[start:], start, sequence=sequence, needs_logits=True, reserve=len(ids)))
        started.update(batch)
        logits = [result.logits for result in runner.run(tasks) if result.logits is not None]
        expected = [_logits_alone(runner.base, ids_by_sequence[sequence]) for sequence in batch]
        errors.append(_relative_error(torch.stack(logits), torch.stack(expected)))
    return errors


def _logits_alone(base: LoadedBase, ids: list[int]) -> Tensor:
    output = base.model(input_ids=torch.tensor([ids], device=base.model.device), use_cache=False)
    logits: Tensor = output.logits[0, -1].float()
    return logits


def _encoder_errors(runner: Runner) -> list[float]:
    """Errors of the summed states of each text, relative to the largest."""
    base = runner.base
    texts = [[3 + (7 * position + 5 * number) % 200 for position in range(n)] for number, n in enumerate(LENGTHS)]
    results = runner.run([ForwardTask(text, 0, needs_pooled=True) for text in texts])
    errors = []
    for text, result in zip(texts, results, strict=True):
        ids = torch.tensor([text], device=base.model.device)
        expected = hidden_states(base.model, ids, torch.ones_like(ids))[0].float().sum(dim=0).cpu()
        errors.append(_relative_error(torch.from_numpy(result.pooled), expected))
    return errors


def _relative_error(values: Tensor, expected: Tensor) -> float:
    return float((expected - values).abs().max() / expected.abs().max())
