"""Trainings on the sample instead of a soup: a LoRA of PEFT's, and full fine-tuning of the base model.

Called by `ladder` in a process of its own, and by `benchmarks.questions`. Both are trained on the whole sample, one
passage per step, at a constant rate after a warm-up (as in QLoRA, Dettmers et al. 2023). So the state after each pass
equals that of a training with this number of passes. Rate and passes are chosen on further passages, which other ways
and users of a sample do not have.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace

import numpy as np
import peft
import torch
from torch import Tensor, nn

from benchmarks.full_fine_tuning import unfrozen
from registry.base_model import LoadedBase
from registry.base_model.likelihood import Window, score_windows, scored_tokens, windows
from registry.spec import Passage
from training.passages import add_gradients, draw_batches, rows_of

PASSES = 3
RANK, ALPHA = 16, 32
WARMUP, CLIP = 0.1, 1.0
"""The share of the first pass until the rate is reached, and the largest norm of a step's gradient."""


@dataclass(frozen=True)
class Passages:
    """The sample, the passages that settings are chosen on, and those that figures come from."""

    sample: tuple[str, ...]
    held_out: tuple[str, ...]
    test: tuple[str, ...]


@dataclass(frozen=True)
class Rung:
    """A use of the sample: the NLL in nats of each test passage, seconds of preparing it, passes and rate of training.

    `held_out` is the mean NLL per token by which settings are chosen, 0 where there is nothing to choose. The seconds
    of a training are its own, without other rates and without scoring.
    """

    nll: tuple[float, ...]
    seconds: float
    held_out: float = 0.0
    passes: int = 0
    rate: float = 0.0


@contextmanager
def lora(base: LoadedBase) -> Iterator[LoadedBase]:
    """The base with a new LoRA of PEFT's on all linear layers, which alone is trained; removed at the end."""
    transposed = base.shape.model_type == "gpt2"
    config = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear", fan_in_fan_out=transposed)
    wrapped = peft.get_peft_model(base.model, config)
    try:
        yield base
    finally:
        wrapped.unload()


@contextmanager
def full(base: LoadedBase) -> Iterator[LoadedBase]:
    """A copy of the base with weights in fp32, all of which are trained; a base in bf16 computes in bf16."""
    mixed = base.entry.dtype != "float32"
    computing = torch.autocast("cpu", dtype=torch.bfloat16) if mixed else nullcontext()
    with computing:
        yield replace(base, model=unfrozen(base.model, "all"))


Trainable = Callable[[LoadedBase], AbstractContextManager[LoadedBase]]


def rungs(trainable: Trainable, base: LoadedBase, passages: Passages, rates: Sequence[float]) -> list[Rung]:
    """The base itself, then for each number of passes the training at the best of the rates on held-out passages.

    A rate continues to the next pass while its held-out loss falls. Only trainings in the result are scored on the test
    passages.
    """
    rungs = [Rung(nll_of(base, passages.test), 0.0, mean_nll(base, passages.held_out))]
    best: dict[int, tuple[Rung, dict[str, Tensor]]] = {}
    for rate in rates:
        last = rungs[0].held_out
        with trainable(base) as trained:
            for number, seconds in enumerate(train_by_passes(trained, passages.sample, rate), start=1):
                held_out = mean_nll(trained, passages.held_out)
                if not held_out < last:  # nor where it is no number
                    break
                last = held_out
                if number not in best or held_out < best[number][0].held_out:
                    state = {name: value.detach().clone() for name, value in _trained(trained.model)}
                    best[number] = Rung((), seconds, held_out, number, rate), state
    for number in sorted(best):
        rung, state = best[number]
        with trainable(base) as trained, torch.no_grad():
            for name, value in _trained(trained.model):
                value.copy_(state[name])
            rungs.append(replace(rung, nll=nll_of(trained, passages.test)))
    return rungs


def _trained(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, value) for name, value in model.named_parameters() if value.requires_grad]


def train_by_passes(
    base: LoadedBase, sample: Sequence[Passage], rate: float, *, passes: int = PASSES
) -> Iterator[float]:
    """Train what asks for gradients on the sample; yields the seconds of training so far after each pass."""
    began, seconds = time.perf_counter(), 0.0
    rows = [row for row in rows_of(base, sample, max_tokens=base.shape.context) if row.scored]
    parameters = [value for _, value in _trained(base.model)]
    optimiser = torch.optim.AdamW(parameters, lr=rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: min(1.0, (step + 1) / (WARMUP * len(rows))))
    batches = draw_batches(rows, batch=1, steps=passes * len(rows), draw=np.random.default_rng(0))
    for step, batch in enumerate(batches, start=1):
        add_gradients(base, batch)
        nn.utils.clip_grad_norm_(parameters, CLIP)
        optimiser.step()
        schedule.step()
        optimiser.zero_grad()
        if step % len(rows) == 0:
            seconds += time.perf_counter() - began
            yield seconds
            began = time.perf_counter()


def nll_of(base: LoadedBase, texts: Sequence[str]) -> tuple[float, ...]:
    """NLL of each text, cut into windows as a server cuts it; after a training that diverged no number."""
    most = base.shape.context
    return tuple(sum(score_windows(base.model, cut, max_tokens=most, pad_id=0)) for cut in windows_of(base, texts))


def mean_nll(base: LoadedBase, texts: Sequence[str]) -> float:
    """Mean NLL per token of texts."""
    return sum(nll_of(base, texts)) / sum(scored_tokens(cut) for cut in windows_of(base, texts))


def windows_of(base: LoadedBase, texts: Sequence[str]) -> list[list[Window]]:
    """The windows of each text."""
    bos_id = base.bos_id if base.entry.bos else None
    return [windows(base.tokenize(text, bos=False), context=base.shape.context, bos_id=bos_id) for text in texts]
