"""Stability of a choice: the share of bootstrap draws of the sample's units in which an adapter is chosen.

A candidate's score is a mean over units, so scores by unit are computed once and averaged again for each draw. Units of
one passage are alike and drawn independently, so the shares are upper bounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

DRAWS = 200
SEED = 0
COMPETITORS = 256
"""The number of candidates, those ranked best on the whole sample, that are ranked again in each draw."""


@dataclass(frozen=True)
class UnitScores:
    """Scores by unit of the first `COMPETITORS` ranked candidates.

    A candidate's score is the mean over units of `scores` (units, candidates); it passes with at least `least`. Equal
    scores are ordered by the means of `ties` (units, candidates), if any, then by `order` (candidates,).
    """

    scores: npt.NDArray[np.float64]
    least: float
    order: npt.NDArray[np.int64]
    ties: npt.NDArray[np.float64] | None = None

    def chosen(
        self, allowed: npt.NDArray[np.bool_], *, most: int, best_anyway: bool, least: float | None = None
    ) -> npt.NDArray[np.float64]:
        """The share of draws (candidates,) in which each is among the `most` best of the `allowed` that pass.

        With `best_anyway` the best of them is chosen where none passes; `least` overrides the selector's threshold.
        """
        units = len(self.scores)
        draw = np.random.default_rng(SEED)
        times = draw.multinomial(units, np.full(units, 1.0 / units), size=DRAWS).astype(np.float64)
        scores = np.where(allowed, times @ self.scores / units, -np.inf)  # (draws, candidates)
        ties = None if self.ties is None else times @ self.ties
        chosen = (scores >= (self.least if least is None else least)) & self._best(scores, ties, most) & allowed
        if best_anyway:
            chosen |= self._best(scores, ties, 1) & allowed & ~chosen.any(axis=1, keepdims=True)
        return np.asarray(chosen.mean(axis=0))

    def _best(
        self, scores: npt.NDArray[np.float64], ties: npt.NDArray[np.float64] | None, most: int
    ) -> npt.NDArray[np.bool_]:
        """A mask (draws, candidates) of the `most` best candidates of each draw.

        Only draws with a tie at the cut are sorted, which takes ten times as long as partitioning.
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
