"""For which request memory is being saved up. Of the scheduler, under the engine's lock; knows no tensors.

A long text needs more memory at once than ever is free where many short ones come and go, also those of other base
models. When it has been refused for long, nobody else takes memory until it has its own.
"""

from __future__ import annotations

from service.engine.steps import Work
from service.engine.waiting import PATIENCE


class Saving:
    """Refusals by request, and the `one` request that is saved for, if any."""

    def __init__(self) -> None:
        self._refused: dict[Work, int] = {}
        self.one: Work | None = None

    def refused(self, work: Work, *, waited: bool) -> None:
        """There was no memory for a request in this step; `waited` says that it has waited long already."""
        self._refused[work] = self._refused.get(work, PATIENCE if waited else 0) + 1
        if self.one is None and self._refused[work] > PATIENCE:
            self.one = work

    def allows(self, work: Work) -> bool:
        """Whether a request may take memory now."""
        return self.one is None or self.one is work

    def takes(self, work: Work) -> bool:
        """Whether it was saved for so long that a request takes memory from those that came after it."""
        return self.one is work and self._refused[work] > 2 * PATIENCE

    def pause(self) -> None:
        """It cannot start now, so that nobody is to wait for it; its next refusal counts on."""
        self.one = None

    def done(self, work: Work) -> None:
        """A request has got memory, or ended."""
        self._refused.pop(work, None)
        if self.one is work:
            self.one = None
