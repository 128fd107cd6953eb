"""What the page about soups quotes from the results of `benchmarks.ensembles`: other uses of a sample, and the map.

Called by `docs.figures` for the blocks `<!-- figures:ensembles:VIEW -->`, and by `docs.generate` for the picture.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from docs.markdown import table
from docs.papers import FOLDER
from docs.soups import change, error
from service.pictures import domain_map

Result = Mapping[str, Any]
Row = Mapping[str, Any]
NAME = "ensembles"
LINES = 3
"""Adapters that a novel domain has lines to."""


def others(result: Result, _name: str) -> list[str]:
    """Every way, the best first."""
    found: dict[str, list[Row]] = {}
    for row in result["rows"]:
        if row.get("way", "base") != "base":
            same = {**row, "over": row["difference"], "over_error": row["standard_error"]}
            found.setdefault(row["way"], []).append(same)
    ordered = sorted((change(rows), way, rows) for way, rows in found.items())
    cells = [
        (way, f"{fall:+.1f} ± {error(rows):.1f}", str(sum(row["difference"] < 0 for row in rows)), str(len(rows)))
        for fall, way, rows in ordered
    ]
    return table(("way", "change of perplexity, %", "domains below the base", "domains"), cells)


def _places(result: Result, kind: str) -> dict[str, Row]:
    return {row["domain"]: row for row in result["rows"] if row.get("map") == kind}


def the_map(result: Result, name: str) -> list[str]:
    """The picture, and behind it what is near each novel domain, and the coordinates."""
    new, known = _places(result, "novel"), _places(result, "training")
    near = [(domain, *_near(row["nearest"])) for domain, row in new.items()]
    head = ("novel domain", *(f"adapter {number + 1}, its posterior" for number in range(LINES)))
    cells = [
        (domain, kind, f"{row['x']:+.3f}", f"{row['y']:+.3f}")
        for kind, rows in (("novel", new), ("training", known)) for domain, row in rows.items()
    ]  # fmt: skip
    places = table(("domain", "kind", "first component", "second component"), cells)
    share = 100 * result["figures"]["map_variance"]["value"]
    return [
        f"The two components have {share:.0f} % of the variance of the training domains' passages.", "",
        f"![Map of training domains and novel samples]({FOLDER.name}/{name}_map.svg)", "", *table(head, near), "",
        "<details><summary>The coordinates</summary>", "", *places, "", "</details>",
    ]  # fmt: skip


def _near(nearest: Mapping[str, float]) -> Sequence[str]:
    said = [f"{domain} {posterior:.2f}" for domain, posterior in list(nearest.items())[:LINES]]
    return [*said, *[""] * (LINES - len(said))]


def draw_map(result: Result) -> str:
    """Training domains and novel samples, each of these with lines to the adapters that are taken for it."""
    new, known = _places(result, "novel"), _places(result, "training")
    lines = {
        (domain, adapter): posterior
        for domain, row in new.items()
        for adapter, posterior in list(row["nearest"].items())[:LINES]
    }
    return domain_map(
        "Domains as the selector sees them",
        known={domain: (row["x"], row["y"]) for domain, row in known.items()},
        new={domain: (row["x"], row["y"]) for domain, row in new.items()}, lines=lines,
        named=("training domain", "novel sample"), across="first principal component", up="second principal component",
    )  # fmt: skip


VIEWS: dict[str, Callable[[Result, str], list[str]]] = {"others": others, "map": the_map}
"""Views of a results file, as `<!-- figures:NAME:VIEW -->` names them."""


def pictures(results: Path) -> dict[Path, str]:
    """The map, where its result is there, by its path from the project's root."""
    path = results / f"{NAME}.json"
    if not path.is_file():
        return {}
    return {FOLDER / f"{NAME}_map.svg": draw_map(json.loads(path.read_text(encoding="utf-8")))}
