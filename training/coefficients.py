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
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from registry.adapters import attached
from registry.adapters.loadable import Tensors
from registry.adapters.weighted import WeightedAdapter
from registry.base_model import LoadedBase
from registry.progress import Progress, silent
from registry.spec import ByLosses, Screened, StoredAdapter, Unseen, Weighing, WeighingRequest
from training.by_losses import LEAST, Candidate, Singles, by_losses
from training.known import Known, key_of, name_of
from training.passages import Rows, parted, rows_of, slope, steps_of, tokens_of
from training.tasks.language import passage_scores

Load = Callable[[StoredAdapter], Tensors]


def weigh(
    base: LoadedBase, request: WeighingRequest, load: Load, *, known: Known | None = None, progress: Progress = silent
) -> Weighing:
    """Screen the candidates, give the best of them coefficients, and where asked to score some by themselves.

    The base is as it was afterwards. What is `known` of real adapters, by the same owner's requests about the same
    passages, is taken from there.

    Raises InvalidSample for texts without a token to predict, Incompatible for candidates of another base, and what
    `load` and `progress` raise.
    """
    own = {name_of(one) for one in request.candidates}
    beside = [one for one in request.beside if name_of(one) not in own]
    rows = [row for row in rows_of(base, request.texts, max_tokens=request.max_tokens) if row]
    known = Known(0) if known is None or request.noise else known
    work = _Work(base, request, (*request.candidates, *beside), load, progress, known)
    drawn = np.random.default_rng(request.seed).permutation(len(rows))
    looked_at = [rows[at] for at in drawn[: request.screened]]
    scores, screened = work.screen(looked_at)
    best = sorted(range(len(scores)), key=lambda at: (-scores[at].score, at))
    kept = request.most_that_fit([at for at in best if scores[at].score > 0])
    bank, losses, seen = work.learn(kept, [scores[at].score for at in kept], rows) if kept else (None, [], 0)
    alone = best[: request.alone]
    losses_say, scored = work.by_losses(alone, rows) if alone else (None, 0)
    return Weighing(
        screened=tuple(scores),
        kept=kept,
        coefficients=() if bank is None else _by_site(bank),
        losses=tuple(losses),
        screen_tokens=screened,
        step_tokens=seen,
        alone_tokens=scored,
        by_losses=losses_say,
        unseen=work.on_unseen(bank) if request.unseen else None,
    )


@dataclass(frozen=True)
class _Work:
    base: LoadedBase
    request: WeighingRequest
    stored: Sequence[StoredAdapter]
    """The candidates, and then those beside them."""
    load: Load
    progress: Progress
    known: Known

    def screen(self, rows: Rows) -> tuple[list[Screened], int]:
        """The fall of the mean NLL per token by each candidate, with its standard error over parts of the rows.

        And the tokens that this took; what is known of a part is not computed again.
        """
        parts = parted(rows, self.request.parts)
        falls, seen = self._falls(parts)
        tokens = np.array([tokens_of(part) for part in parts], dtype=float)
        scores = (tokens @ falls / tokens.sum()).tolist()
        errors = (falls.std(0, ddof=1) / len(parts) ** 0.5).tolist() if len(parts) > 1 else [None] * len(scores)
        both = zip(scores, errors, strict=True)
        return [Screened(score=score, standard_error=error) for score, error in both], seen

    def _falls(self, parts: Sequence[Rows]) -> tuple[np.ndarray, int]:
        """The fall of each part's mean NLL by each candidate, to first order: (parts, candidates); tokens it took.

        All that are screened together stand in an order of their own: who is ranked where changes no bit.
        """
        names = [name_of(one) for one in self.stored]
        order = sorted(range(len(names)), key=lambda at: names[at])
        keys = [key_of(self.request.owner, "falls", [names[at] for at in order], part) for part in parts]
        found = [self.known.get(key) for key in keys]
        missing = [number for number, one in enumerate(found) if one is None]
        bank = self._bank(order) if missing else None
        with nullcontext() if bank is None else attached(self.base.model, bank):
            for number in missing:
                assert bank is not None
                self._say(number, f"screening {len(order)} adapters")
                slope(self.base, parts[number], before=bank.apply_coefficients)
                assert bank.coefficients.grad is not None
                found[number] = falls = -bank.coefficients.grad.sum(0).double().cpu().numpy()
                bank.coefficients.grad = None
                self.known.keep(keys[number], falls)
        falls = np.array(found, dtype=float)
        places = np.argsort(order)[: len(self.request.candidates)]
        return falls[:, places], sum(tokens_of(parts[number]) for number in missing)

    def learn(
        self, kept: Sequence[int], scores: Sequence[float], rows: Rows
    ) -> tuple[WeightedAdapter, list[float], int]:
        """The kept candidates with their coefficients, the loss before each step, and the tokens of all steps.

        They start evenly, or in the proportions of their scores.
        """
        request, bank = self.request, self._bank(kept)
        starts = torch.full((len(kept),), request.start)
        if request.by_screen:
            starts = torch.tensor(scores) / sum(scores) * min(1.0, request.start * len(kept))
        with torch.no_grad():
            bank.coefficients.copy_(starts.expand_as(bank.coefficients))
        steps = torch.optim.Adam([bank.coefficients], lr=request.rate, betas=(0.9, 0.95))
        falling = torch.optim.lr_scheduler.LinearLR(steps, 1.0, 0.0, total_iters=request.steps)
        draw = np.random.default_rng([request.seed, 1])
        batched = steps_of(rows, batch=request.batch, steps=request.steps, draw=draw)
        losses: list[float] = []
        seen = 0
        with attached(self.base.model, bank):
            for number, batch in enumerate(batched):
                self._say(self.request.parts + number, f"weighing {len(kept)} adapters")
                losses.append(slope(self.base, batch, before=bank.apply_coefficients))
                seen += tokens_of(batch)
                steps.step()
                falling.step()
                steps.zero_grad()
                with torch.no_grad():
                    bank.coefficients.clamp_(min=0)
        with torch.no_grad():
            bank.coefficients[bank.coefficients < LEAST] = 0
        return bank, losses, seen

    def by_losses(self, which: Sequence[int], rows: Rows) -> tuple[ByLosses, int]:
        """What these candidates' losses say, each by itself; and the tokens that they were scored on for it."""
        request, done = self.request, self.request.parts + self.request.steps
        singles = Singles(self.base, rows, request.parts, request.owner, self.known)
        found = by_losses(
            singles, request.candidates, which, self._loaded, fits=request.fits,
            say=lambda number, message: self._say(done + number, message),
        )  # fmt: skip
        return found, singles.tokens

    def on_unseen(self, bank: WeightedAdapter | None) -> Unseen:
        """The texts that had no part in it, under the coefficients; without any under the base."""
        if bank is not None:
            bank.apply_coefficients()
        with nullcontext() if bank is None else attached(self.base.model, bank):
            scores = passage_scores(self.base, self.request.unseen, block=self.base.shape.context)
        return Unseen(nll=tuple(one.nll for one in scores), tokens=tuple(one.tokens for one in scores))

    def _bank(self, which: Sequence[int]) -> WeightedAdapter:
        configs, loaded = zip(*map(self._loaded, which), strict=True)
        return WeightedAdapter(configs, loaded, self.base.shape, device=self.base.model.device)

    def _loaded(self, number: int) -> Candidate:
        stored = self.stored[number]
        tensors = self.load(stored)
        if self.request.noise:
            tensors = noise_like(tensors, np.random.default_rng([self.request.seed, 2, number]))
        return stored.config, tensors

    def _say(self, done: int, message: str) -> None:
        alone = self.request.alone
        self.progress(done, self.request.parts + self.request.steps + (alone + 2 if alone else 0), message)


def noise_like(tensors: Tensors, draw: np.random.Generator) -> dict[str, Tensor]:
    """Tensors of the same shapes, dtypes, means and standard deviations that know nothing."""
    found = {}
    for name in sorted(tensors):
        like = tensors[name].double()
        drawn = torch.from_numpy(draw.standard_normal(tuple(like.shape)))
        found[name] = (like.mean() + drawn * like.std(correction=0)).to(tensors[name].dtype)
    return found


def _by_site(bank: WeightedAdapter) -> tuple[dict[str, float], ...]:
    found = bank.coefficients.detach().double().cpu()
    return tuple(dict(zip(bank.sites, column.tolist(), strict=True)) for column in found.T)
