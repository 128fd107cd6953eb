"""Tuning: gradient steps on a soup over the sample that it was cooked for, kept only as far as held-out passages say.

The soup is where training starts (docs/explanation/methods.md#tuning): all its tensors are trained, the base is not.
Passages of a fold are held out of its training and scored at the start and after each pass; the pass with the lowest
NLL over all folds is the one whose state is kept, and pass 0 is the start. Where there are few passages every one is
in a fold, and the training that counts is a last one on all of them, for as many passes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from registry.adapters import AdapterModule, attached, from_tensors
from registry.adapters.loadable import Tensors
from registry.base_model import LoadedBase
from registry.base_model.likelihood import score_windows
from registry.errors import InvalidParameter, InvalidSample
from registry.progress import Progress, silent
from registry.spec import StoredAdapter, Tuned, TuningRequest
from training.passages import CELLS, Rows, rows_of, slope, steps_of, tokens_of

LEAST_TOKENS = 400
"""Of a sample that can be trained on."""
WARMUP, CLIP = 0.1, 1.0
PATIENCE = 3
"""Passes without a lower loss of the held-out passages, after which a training that is the only one ends."""

Load = Callable[[StoredAdapter], Tensors]
Keep = Callable[[Mapping[str, Tensor]], str]
"""Stores tensors, and gives the digest of their blob."""
State = dict[str, Tensor]


def tune(base: LoadedBase, request: TuningRequest, load: Load, keep: Keep, *, progress: Progress = silent) -> Tuned:
    """Train a soup on texts, and `keep` what came of it; the base is as it was afterwards.

    Raises InvalidSample for texts of fewer than 400 tokens to predict, InvalidParameter for a start that is pruned or
    a loss that is no number, Incompatible for an adapter of another base, and what `load`, `keep` and `progress` raise.
    """
    if request.start.config.pruned_parts():
        raise InvalidParameter("A pruned adapter is not tuned: its masks would not hold.", param="effort")
    most = min(request.max_tokens, base.shape.context - request.start.config.prefix_length)
    rows = rows_of(base, request.texts, max_tokens=most)
    if tokens_of(rows) < LEAST_TOKENS:
        raise InvalidSample(
            f"The sample has {tokens_of(rows)} tokens to train on with 'max_tokens' {request.max_tokens}, and tuning "
            f"needs {LEAST_TOKENS}: send more text, or choose effort 'quick'.",
            param="sample",
        )
    if any(not any(row for number, row in enumerate(rows) if number not in fold) for fold in request.folds):
        raise InvalidSample("All passages with text would be held out: there is nothing to train on.", param="sample")
    held_out = [number for fold in request.folds for number in fold if rows[number]]
    if not held_out:
        raise InvalidSample("No passage that is held out has a token to score: send others.", param="sample")
    work = _Work(base, request, load(request.start), rows, progress)
    began = time.perf_counter()
    alone = work.score(held_out)
    base_seconds = time.perf_counter() - began
    under: list[dict[int, float]] = []
    states: list[State] = []
    for turn, fold in enumerate(request.folds):
        scored = [number for number in fold if rows[number]]
        for reached, adapter in enumerate(work.passes(turn, [one for one in range(len(rows)) if one not in fold])):
            under += [{}] if reached == len(under) else []
            under[reached] |= work.score(scored)
            if not request.whole:
                states.append({name: tensor.detach().clone() for name, tensor in adapter.state_dict().items()})
                if reached - _lowest(under) >= PATIENCE:
                    break
    kept = _lowest(under)
    if kept and request.whole:
        *_, last = work.passes(len(request.folds), range(len(rows)), until=kept)
        states = [last.state_dict()] * (kept + 1)
    return Tuned(
        held_out=tuple(held_out),
        tokens=tuple(tokens_of([rows[number]]) for number in held_out),
        base_nll=tuple(alone[number] for number in held_out),
        nll=tuple(tuple(found[number] for number in held_out) for found in under),
        trained_nll=tuple(nll / tokens for nll, tokens in work.by_pass[: len(under) - 1]),
        kept=kept,
        blob=keep({name: tensor.detach().cpu() for name, tensor in states[kept].items()}) if kept else None,
        trained_tokens=work.trained,
        base_seconds=base_seconds,
    )


def _lowest(under: Sequence[dict[int, float]]) -> int:
    """The state with the lowest NLL over all passages, of equal ones the first."""
    totals = [sum(found.values()) for found in under]
    return totals.index(min(totals))


@dataclass
class _Work:
    """A request on its base model; `rows` are the texts' tokens, `trained` counts those that gradients went over.

    `by_pass` has for each pass, over all trainings, the NLL of what it trained on and its tokens.
    """

    base: LoadedBase
    request: TuningRequest
    start: Tensors
    rows: Rows
    progress: Progress
    trained: int = 0
    by_pass: list[tuple[float, int]] = field(default_factory=list)

    def score(self, numbers: Sequence[int]) -> dict[int, float]:
        """NLL in nats of texts by their numbers, cut as they are trained on, under the base with what is attached."""
        found = score_windows(self.base.model, [self.rows[number] for number in numbers], max_tokens=CELLS, pad_id=0)
        return dict(zip(numbers, found, strict=True))

    def passes(self, turn: int, on: Sequence[int], *, until: int | None = None) -> Iterator[AdapterModule]:
        """The adapter, attached, at the start and after each pass over these texts, up to pass `until`."""
        request = self.request
        rows = [self.rows[number] for number in on if self.rows[number]]
        a_pass = math.ceil(len(rows) / request.batch)
        steps = a_pass * request.passes
        adapter = from_tensors(request.start.config, self.base.shape, dict(self.start)).to(self.base.model.device)
        trained = [value.requires_grad_() for value in adapter.parameters()]
        optimiser = torch.optim.AdamW(trained, lr=float(request.rate), weight_decay=0.0)
        rate = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: _share(step, steps))
        draw = np.random.default_rng([request.seed, turn])
        with attached(self.base.model, adapter):
            yield adapter
            for number, some in enumerate(steps_of(rows, batch=request.batch, steps=steps, draw=draw)):
                self._say(turn, number, steps)
                loss = slope(self.base, some)
                if not math.isfinite(loss):
                    raise InvalidParameter(f"The loss is {loss} at step {number} of tuning: lower the rate.")
                nn.utils.clip_grad_norm_(trained, CLIP)
                optimiser.step()
                rate.step()
                optimiser.zero_grad()
                self._count(number // a_pass, loss, tokens_of(some))
                if (number + 1) % a_pass == 0:
                    yield adapter
                if number + 1 == a_pass * (until or request.passes):
                    return

    def _count(self, at: int, loss: float, tokens: int) -> None:
        """Add a step of pass `at`, whose mean NLL per token was `loss`."""
        self.trained += tokens
        if at == len(self.by_pass):
            self.by_pass.append((0.0, 0))
        nll, count = self.by_pass[at]
        self.by_pass[at] = (nll + loss * tokens, count + tokens)

    def _say(self, turn: int, number: int, steps: int) -> None:
        turns = len(self.request.folds) + self.request.whole
        self.progress(turn * steps + number, turns * steps, "tuning the soup on the sample")


def _share(step: int, steps: int) -> float:
    """Of the rate at a step: it rises over the first tenth of all steps and falls to zero over the others."""
    rising = max(1, round(WARMUP * steps))
    return min((step + 1) / rising, (steps - step) / max(1, steps - rising + 1))
