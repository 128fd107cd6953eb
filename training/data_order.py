"""The order in which training blocks come, as something that can be stopped and taken up again.

Called by the loop. Epoch after epoch, each in an order drawn from one seed, so that every block comes once an epoch.
"""

from __future__ import annotations

from typing import Any

import numpy as np


class DataOrder:
    """Indices of the blocks of each step: `take` of `blocks`, or all of them where there are fewer."""

    def __init__(self, blocks: int, *, take: int, seed: int) -> None:
        self._blocks = blocks
        self.size = min(take, blocks)
        self._rng = np.random.default_rng(seed)
        self._ahead = np.empty(0, dtype=np.int64)

    def next(self) -> np.ndarray:
        """int64 (size,): the blocks of the next step."""
        while len(self._ahead) < self.size:
            self._ahead = np.concatenate([self._ahead, self._rng.permutation(self._blocks)])
        taken, self._ahead = self._ahead[: self.size], self._ahead[self.size :]
        return taken

    def state(self) -> tuple[dict[str, Any], np.ndarray]:
        """The generator's state as JSON, and the indices drawn and not yet taken."""
        return dict(self._rng.bit_generator.state), self._ahead.copy()

    def restore(self, generator: dict[str, Any], ahead: np.ndarray) -> None:
        """Go on where `state` was taken; raises ValueError for the state of another generator."""
        self._rng.bit_generator.state = generator
        self._ahead = ahead.astype(np.int64, copy=True)
