"""Which texts of a sample are kept where more were sent than an adapter's sample has. Standard library only.

Called by the registry for each sample, and by the client, which asks whether a server would keep what it has already.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

DRAW_SEED = 0


def draw(texts: Sequence[str], maximum: int) -> tuple[list[str], int | None]:
    """At most `maximum` texts, in their order, and the seed of the draw (None when nothing was left out)."""
    if len(texts) <= maximum:
        return list(texts), None
    chosen = sorted(random.Random(DRAW_SEED).sample(range(len(texts)), maximum))  # noqa: S311 - a sample, no secret
    return [texts[i] for i in chosen], DRAW_SEED
