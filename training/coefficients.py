"""Weighing: which of some adapters help on a text, and by how much at each site, found by gradients.

Let the base with candidates side by side add sum_i w_li f_i(x) at site l. The screen is the gradient at w = 0: how
much each candidate, alone and to first order, takes off the mean NLL per token. The best of them are then given
coefficients w >= 0 by a few steps of Adam on the exact mixture, whose sum is free. What is found is weights of a
recipe: adapters are mixed by them as by any others, and no tensor is learnt. The method is ours
(docs/explanation/methods.md#weighing); LoraHub (Huang et al., COLM 2024) looks for one weight an adapter, without
gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from registry.adapters import attached
from registry.adapters.loadable import Tensors
from registry.adapters.weighted import WeightedAdapter
from registry.base_model import LoadedBase
from registry.progress import Progress, silent
from registry.spec import Screened, StoredAdapter, Weighing, WeighingRequest
from training.passages import Rows, rows_of, slope, steps_of, tokens_of

PARTS = 5
"""Of the screened texts, whose scores' spread is the screen's standard error."""
LEAST = 0.01
"""A coefficient below it is 0."""
Load = Callable[[StoredAdapter], Tensors]


def weigh(base: LoadedBase, request: WeighingRequest, load: Load, *, progress: Progress = silent) -> Weighing:
    """Screen the candidates and give the best of them coefficients; the base is as it was afterwards.

    Raises InvalidSample for texts without a token to predict, Incompatible for candidates of another base, and what
    `load` and `progress` raise.
    """
    rows = [row for row in rows_of(base, request.texts, max_tokens=request.max_tokens) if row]
    work = _Work(base, request, load, progress)
    drawn = np.random.default_rng(request.seed).permutation(len(rows))
    looked_at = [rows[at] for at in drawn[: request.screened]]
    scores = work.screen(looked_at)
    best = sorted(range(len(scores)), key=lambda at: (-scores[at].score, at))
    kept = tuple(at for at in best[: request.keep] if scores[at].score > 0)
    bank, losses, seen = work.learn(kept, rows) if kept else (None, [], 0)
    return Weighing(
        screened=tuple(scores),
        kept=kept,
        coefficients=() if bank is None else _by_site(bank),
        losses=tuple(losses),
        screen_tokens=tokens_of(looked_at),
        step_tokens=seen,
    )


@dataclass(frozen=True)
class _Work:
    base: LoadedBase
    request: WeighingRequest
    load: Load
    progress: Progress

    def screen(self, rows: Rows) -> list[Screened]:
        """The fall of the mean NLL per token by each candidate, with its standard error over parts of the rows."""
        bank = self._bank(range(len(self.request.candidates)))
        parts = [rows[number::PARTS] for number in range(min(PARTS, len(rows)))]
        found: list[Tensor] = []
        with attached(self.base.model, bank):
            for number, part in enumerate(parts):
                self._say(number, f"screening {len(self.request.candidates)} adapters")
                slope(self.base, part, before=bank.apply_coefficients)
                assert bank.coefficients.grad is not None
                found.append(-bank.coefficients.grad.sum(0).double())
                bank.coefficients.grad = None
        falls = torch.stack(found)  # (parts, candidates)
        tokens = torch.tensor([tokens_of(part) for part in parts], dtype=torch.float64, device=falls.device)
        scores = (tokens @ falls / tokens.sum()).tolist()
        errors = (falls.std(0) / len(parts) ** 0.5).tolist() if len(parts) > 1 else [None] * len(scores)
        return [Screened(score=score, standard_error=error) for score, error in zip(scores, errors, strict=True)]

    def learn(self, kept: Sequence[int], rows: Rows) -> tuple[WeightedAdapter, list[float], int]:
        """The kept candidates with their coefficients, the loss before each step, and the tokens of all steps."""
        request, bank = self.request, self._bank(kept)
        with torch.no_grad():
            bank.coefficients.fill_(request.start)
        steps = torch.optim.Adam([bank.coefficients], lr=request.rate, betas=(0.9, 0.95))
        falling = torch.optim.lr_scheduler.LinearLR(steps, 1.0, 0.0, total_iters=request.steps)
        draw = np.random.default_rng([request.seed, 1])
        batched = steps_of(rows, batch=request.batch, steps=request.steps, draw=draw)
        losses: list[float] = []
        seen = 0
        with attached(self.base.model, bank):
            for number, batch in enumerate(batched):
                self._say(PARTS + number, f"weighing {len(kept)} adapters")
                losses.append(slope(self.base, batch, before=bank.apply_coefficients))
                seen += tokens_of(batch)
                steps.step()
                falling.step()
                steps.zero_grad()
                with torch.no_grad():
                    bank.coefficients.clamp_(min=0)
        return bank, losses, seen

    def _bank(self, which: Sequence[int]) -> WeightedAdapter:
        chosen = [self.request.candidates[at] for at in which]
        loaded = [self.load(one) for one in chosen]
        device = self.base.model.device
        return WeightedAdapter([one.config for one in chosen], loaded, self.base.shape, device=device)

    def _say(self, done: int, message: str) -> None:
        self.progress(done, PARTS + self.request.steps, message)


def _by_site(bank: WeightedAdapter) -> tuple[dict[str, float], ...]:
    found = bank.coefficients.detach().double().cpu()
    found = torch.where(found < LEAST, torch.zeros_like(found), found)
    return tuple(dict(zip(bank.sites, column.tolist(), strict=True)) for column in found.T)
