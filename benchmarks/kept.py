"""Which cells of a result were kept from earlier runs, and which commits made them. Torch-free.

Called by both experiments: the commit of a results file is that of the run that put it together, not of every cell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from demo.results import Figure

UNKNOWN = "not recorded"


def kept_figure(commits: Iterable[str | None], *, of: int, unit: str) -> Figure:
    """How many of all were kept, with the commits that made them and how many each; None is one nobody wrote down."""
    counted = Counter(UNKNOWN if one is None else one for one in commits)
    made = ", ".join(f"{count} by {_said(name)}" for name, count in counted.most_common())
    return Figure(counted.total(), unit, note=f"of {of} are of earlier runs" + (f": {made}" if made else ""))


def _said(name: str) -> str:
    if name == UNKNOWN:
        return f"a commit that was {UNKNOWN}"
    head, _, dirty = name.partition("-")
    return f"commit {head[:12]}" + ("-dirty" if dirty else "")
