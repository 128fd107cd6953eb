"""Draws the passages of a sample where more were sent than its maximum.

Called by the registry for each sample, and by the client, to tell whether a server has the resulting sample already.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from registry.spec import Passage

DRAW_SEED = 0


def draw(texts: Sequence[Passage], maximum: int) -> tuple[list[Passage], int | None]:
    """At most `maximum` texts, in their order, and the seed of the draw (None where all are drawn)."""
    if len(texts) <= maximum:
        return list(texts), None
    drawn = sorted(random.Random(DRAW_SEED).sample(range(len(texts)), maximum))  # noqa: S311 - a sample, no secret
    return [texts[i] for i in drawn], DRAW_SEED
