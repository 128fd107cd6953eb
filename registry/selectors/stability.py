"""How stable a choice is: the share of bootstrap draws of the sample's units in which an adapter is chosen.

Scores are means over units, so what each unit says of each candidate is computed once and only averaged again for
every draw. Units of one passage are alike and are drawn apart, so the shares flatter the choice: an upper bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

DRAWS = 200
SEED = 0
COMPETITORS = 256
"""Of a larger pool only so many, those ranked best on the whole sample, are ranked again in every draw."""


@dataclass(frozen=True)
class UnitScores:
    """What every unit says of the first `COMPETITORS` ranked candidates.

    `scores` (units, candidates): their means over units are the candidates' scores. A candidate passes with `least`.
    Equal scores go by the means of `ties` (units, candidates), where there are any, then by `order` (candidates,).
    """

    scores: npt.NDArray[np.float64]
    least: float
    order: npt.NDArray[np.int64]
    ties: npt.NDArray[np.float64] | None = None

    def chosen(
        self, allowed: npt.NDArray[np.bool_], *, most: int, best_anyway: bool, least: float | None = None
    ) -> npt.NDArray[np.float64]:
        """The share of draws (candidates,) in which each is among the `most` best of the `allowed` that pass.

        With `best_anyway` the best of them is chosen where none passes; `least` stands for the selector's own.
        """
        units = len(self.scores)
        draw = np.random.default_rng(SEED)
        times = draw.multinomial(units, np.full(units, 1.0 / units), size=DRAWS).astype(np.float64)
        scores = np.where(allowed, times @ self.scores / units, -np.inf)  # (draws, candidates)
        ties = None if self.ties is None else times @ self.ties
        taken = (scores >= (self.least if least is None else least)) & self._best(scores, ties, most) & allowed
        if best_anyway:
            taken |= self._best(scores, ties, 1) & allowed & ~taken.any(axis=1, keepdims=True)
        return np.asarray(taken.mean(axis=0))

    def _best(
        self, scores: npt.NDArray[np.float64], ties: npt.NDArray[np.float64] | None, most: int
    ) -> npt.NDArray[np.bool_]:
        """Which of every draw's candidates (draws, candidates) are its `most` best.

        Draws are sorted only where the last of them is as good as the first that is not: a sort is ten times the work.
        """
        count = scores.shape[1]
        if most >= count:
            return np.ones(scores.shape, dtype=np.bool_)
        best = scores >= np.partition(scores, count - most, axis=1)[:, count - most, None]
        equal = np.flatnonzero(best.sum(axis=1) > most)
        if len(equal):
            by_ties = [] if ties is None else [-ties[equal]]
            keys = (np.broadcast_to(self.order, (len(equal), count)), *by_ties, -scores[equal])
            first = np.lexsort(keys, axis=-1)[:, :most]
            best[equal] = False
            best[equal[:, None], first] = True
        return best
