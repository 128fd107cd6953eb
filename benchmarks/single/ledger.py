"""Which commit made what the experiment keeps: a line for each training and score, beside them.

Called by `making` and `scoring` in the process of the experiment. Files of before this was written have no line; what
is counted as kept is what was there when this run first looked.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Literal

from benchmarks.kept import kept_figure
from demo.results import Figure, commit

Kind = Literal["trainings", "scores"]


class Ledger:
    """Keys are digests: an adapter's of its tensors, a score's of the model and the text."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._commit = path, commit()
        self._written = _read(path)
        self._kept: dict[tuple[Kind, str], str | None] = {}
        self._made: set[tuple[Kind, str]] = set()

    def keeps(self, kind: Kind, key: str) -> None:
        """It is there, of this run or an earlier one."""
        if (kind, key) not in self._made:
            self._kept[kind, key] = self._written.get(key)

    def made(self, kind: Kind, key: str) -> None:
        """This run made it now."""
        self._made.add((kind, key))
        with self._path.open("a", encoding="utf-8") as file:
            file.write("\n" + json.dumps({"key": key, "commit": self._commit}))  # what was cut off ends here

    def figures(self) -> dict[str, Figure]:
        """`trainings_kept` and `scores_kept`: how many of all, and by which commits."""
        total = Counter(kind for kind, _ in {*self._kept, *self._made})
        kinds: tuple[Kind, ...] = ("trainings", "scores")
        return {
            f"{kind}_kept": kept_figure(
                (name for (of, _), name in self._kept.items() if of == kind), of=total[kind], unit=kind
            )
            for kind in kinds
        }


def _read(path: Path) -> dict[str, str | None]:
    """The commit of each key; a line that was cut off says nothing."""
    found: dict[str, str | None] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        try:
            value = json.loads(line)
            found[value["key"]] = value["commit"]
        except (ValueError, KeyError, TypeError):
            continue
    return found
