"""Tuning: train a soup on the sample it was cooked for, for as long as held-out passages improve.

Training starts at the soup (docs/explanation/methods.md#tuning): all its tensors are trained, the base is not. The
passages of a fold are held out of its training, and scored at the start and after each pass. The trainings of all folds
go forward together, and end after the first pass without gain. The number of passes with the lowest NLL over all folds
is the best; 0 is the start. The result is a last training on all passages, for as many passes.
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
from registry.spec import MIN_TUNING_TOKENS, StoredAdapter, Tuned, TuningRequest
from training.passages import CELLS, Rows, add_gradients, draw_batches, rows_of, tokens_of

WARMUP, CLIP = 0.1, 1.0
Load = Callable[[StoredAdapter], Tensors]
Keep = Callable[[Mapping[str, Tensor]], str]
"""Stores tensors and returns the digest of their blob."""


def tune(base: LoadedBase, request: TuningRequest, load: Load, keep: Keep, *, progress: Progress = silent) -> Tuned:
    """Train a soup on texts and store the result with `keep`; leaves the base unchanged.

    Raises InvalidSample for texts of fewer than 400 tokens to predict, and InvalidParameter for a pruned start or a
    loss that is not finite. Raises Incompatible for an adapter of another base, and what `load`, `keep` and
    `progress` raise.
    """
    if request.start.config.prunings():
        raise InvalidParameter("A pruned adapter cannot be tuned, because its masks would be lost.", param="effort")
    max_tokens = min(request.max_tokens, base.shape.context - request.start.config.prefix_length)
    rows = rows_of(base, request.texts, max_tokens=max_tokens)
    if tokens_of(rows) < MIN_TUNING_TOKENS:
        raise InvalidSample(
            f"The sample has {tokens_of(rows)} tokens to train on with 'max_tokens' {request.max_tokens}, and tuning "
            f"needs {MIN_TUNING_TOKENS}: send more text. Effort 'quick' needs less.",
            param="sample",
        )
    if any(not any(row.scored for number, row in enumerate(rows) if number not in fold) for fold in request.folds):
        raise InvalidSample("All passages with text would be held out: there is nothing to train on.", param="sample")
    held_out = [number for fold in request.folds for number in fold if rows[number].scored]
    if not held_out:
        raise InvalidSample("No passage that is held out has a token to score: send others.", param="sample")
    run = _TuningRun(base, request, load(request.start), rows, progress)
    began = time.perf_counter()
    base_nll = run.score(held_out)
    base_seconds = time.perf_counter() - began
    nll_after: list[dict[int, float]] = []
    """For each pass, the NLL of every held-out text by its number."""
    for adapters in zip(*run.trainings(), strict=True):
        nll_after.append({})
        for adapter, fold in zip(adapters, request.folds, strict=True):
            with attached(base.model, adapter):
                nll_after[-1] |= run.score([number for number in fold if rows[number].scored])
        if len(nll_after) - 1 > _best_pass(nll_after):  # later passes seldom help again
            break
    best, blob = _best_pass(nll_after), None
    if best:
        *_, adapter = run.passes(len(request.folds), range(len(rows)), until=best)
        blob = keep({name: tensor.detach().cpu() for name, tensor in adapter.state_dict().items()})
    return Tuned(
        held_out=tuple(held_out),
        tokens=tuple(rows[number].scored for number in held_out),
        base_nll=tuple(base_nll[number] for number in held_out),
        nll=tuple(tuple(by_text[number] for number in held_out) for by_text in nll_after),
        trained_nll=tuple(nll / tokens for nll, tokens in run.by_pass[: len(nll_after) - 1]),
        best_pass=best,
        blob=blob,
        trained_tokens=run.trained,
        base_seconds=base_seconds,
    )


def _best_pass(nll_after: Sequence[dict[int, float]]) -> int:
    """The pass with the lowest NLL over all held-out texts, of equal ones the first."""
    totals = [sum(by_text.values()) for by_text in nll_after]
    return totals.index(min(totals))


@dataclass
class _TuningRun:
    """A request on its base model; `rows` are the texts' tokens, `steps` and `trained` count steps and their tokens.

    `by_pass` holds for each pass the NLL and the tokens of the training texts, over all trainings that reach it.
    """

    base: LoadedBase
    request: TuningRequest
    start: Tensors
    rows: Rows
    progress: Progress
    steps: int = 0
    trained: int = 0
    by_pass: list[tuple[float, int]] = field(default_factory=list)

    def score(self, numbers: Sequence[int]) -> dict[int, float]:
        """NLL in nats of texts by their numbers, under the base with whatever adapter is attached.

        Raises InvalidParameter if it is not finite.
        """
        nlls = score_windows(self.base.model, [self.rows[number] for number in numbers], max_tokens=CELLS, pad_id=0)
        self._check_finite(sum(nlls), "of held-out passages")
        return dict(zip(numbers, nlls, strict=True))

    def trainings(self) -> list[Iterator[AdapterModule]]:
        """The training without each fold, as `passes`."""
        texts = range(len(self.rows))
        return [
            self.passes(turn, [number for number in texts if number not in fold])
            for turn, fold in enumerate(self.request.folds)
        ]

    def passes(self, turn: int, numbers: Sequence[int], *, until: int | None = None) -> Iterator[AdapterModule]:
        """Train on these texts; yields the adapter at the start and after each pass, up to pass `until`."""
        request = self.request
        rows = [self.rows[number] for number in numbers if self.rows[number].scored]
        pass_steps = math.ceil(len(rows) / request.batch)
        steps = pass_steps * request.passes
        adapter = from_tensors(request.start.config, self.base.shape, dict(self.start)).to(self.base.model.device)
        trained = [value.requires_grad_() for value in adapter.parameters()]
        optimiser = torch.optim.AdamW(trained, lr=float(request.rate), weight_decay=0.0)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: _rate_factor(step, steps))
        draw = np.random.default_rng([request.seed, turn])
        batches = draw_batches(rows, batch=request.batch, steps=steps, draw=draw)
        yield adapter
        for number in range(until or request.passes):
            with attached(self.base.model, adapter):
                for batch in batches[number * pass_steps : (number + 1) * pass_steps]:
                    self.progress(self.steps, steps * (len(request.folds) + 1), "tuning the soup on the sample")
                    loss = add_gradients(self.base, batch)
                    self._check_finite(loss, "of a training step")
                    nn.utils.clip_grad_norm_(trained, CLIP)
                    optimiser.step()
                    schedule.step()
                    optimiser.zero_grad()
                    self._count(number, loss, tokens_of(batch))
            yield adapter

    def _check_finite(self, loss: float, where: str) -> None:
        if not math.isfinite(loss):
            advice = "a lower rate may help" if self.steps else "an adapter or the base model overflows"
            raise InvalidParameter(
                f"The loss {where} is {loss} after {self.steps} steps of tuning: {advice}. Effort 'quick' leaves out "
                "adapters that overflow.",
                param="effort",
            )

    def _count(self, number: int, loss: float, tokens: int) -> None:
        """Count a step of pass `number` whose mean NLL per token was `loss`."""
        self.steps += 1
        self.trained += tokens
        if number == len(self.by_pass):
            self.by_pass.append((0.0, 0))
        nll, count = self.by_pass[number]
        self.by_pass[number] = (nll + loss * tokens, count + tokens)


def _rate_factor(step: int, steps: int) -> float:
    """The factor of the rate at a step: rises over the first tenth of all steps and falls to zero over the rest."""
    rising = max(1, round(WARMUP * steps))
    return min((step + 1) / rising, (steps - step) / max(1, steps - rising + 1))
