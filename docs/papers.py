"""The claims of the papers with our estimates, as docs/explanation/papers.md and README.md show them.

Called by `docs.figures` for the blocks `<!-- figures:papers -->` (the number of claims by verdict) and `<!--
figures:papers:VIEW -->`, and by `docs.generate` for the pictures. Claims and verdicts are those of `benchmarks.papers`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.papers.variants import PLAN, VARIANTS
from benchmarks.papers.verdicts import PAPERS, Cells, Judged, judge
from docs.markdown import table
from docs.soups import FOLDER
from docs.summaries import sources
from plots.charts import Interval, Panel, panels
from plots.style import to_svg

SETS = {
    "cola": "CoLA",
    "sst2": "SST-2",
    "mrpc": "MRPC",
    "rte": "RTE",
    "squad": "SQuAD",
    "sst2_smollm2": "SST-2, SmolLM2",
}


def lines(folder: Path, view: str | None) -> list[str]:
    """The text of a block: the verdicts of all papers or of one, the scores of variants, or the number of verdicts."""
    path = folder / "papers.json"
    result = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"rows": []}
    if view == "scores":
        return [*_scores(Cells(result["rows"])), "", *(sources({"papers": result}) if result["rows"] else [])]
    judged = judge(result["rows"], folder)
    if view is None:
        return [_count([one for one in judged if one.claim.paper in PAPERS])]
    return _claims([one for one in judged if one.claim.paper == view], view)


def _count(judged: list[Judged]) -> str:
    counts = Counter(one.verdict for one in judged)
    undecided, not_run = counts["undecided"], counts["not run yet"]
    verdicts = [
        f"{counts['agrees']} agree with our measurements",
        f"{counts['disagrees']} disagree",
        f"{undecided} {'is' if undecided == 1 else 'are'} undecided",
        *([f"{not_run} are not run yet"] if not_run else []),
    ]
    return (
        f"Of {len(judged)} claims of the four papers, most of them tested with a small encoder and few examples, "
        f"{', '.join(verdicts[:-1])}, and {verdicts[-1]}."
    )


def _claims(judged: list[Judged], paper: str) -> list[str]:
    picture = f"{FOLDER.name}/papers_{paper}.svg"
    rows = [
        (
            str(number),
            one.claim.says,
            f"{one.claim.source}: {one.claim.figure}",
            _ours(one),
            f"*{one.verdict}*" + (f" ({one.note})" if one.note else ""),
        )
        for number, one in enumerate(judged, start=1)
    ]
    has_picture = paper in PAPERS and _rows(judged)
    shown = [f"![Claims of {PAPERS[paper]} with intervals]({picture})", ""] if has_picture else []
    return [*shown, *table(("", "claim tested here", "the paper", "ours (95 % interval)", "verdict"), rows)]


def _ours(one: Judged) -> str:
    if one.estimate is None:
        return ""
    low, high = one.estimate.interval
    return f"{one.estimate.value:+.1f} ({low:+.1f} to {high:+.1f})"


def _rows(judged: list[Judged]) -> list[Interval]:
    return [
        Interval(
            f"{number}  {one.claim.name.replace('_', ' ')}",
            one.estimate.value,
            *one.estimate.interval,
            chosen=one.verdict == "agrees",
            text=one.verdict,
        )
        for number, one in enumerate(judged, start=1)
        if one.estimate is not None
    ]


def pictures(results: Path) -> dict[Path, str]:
    """A picture for each paper with a claim that has been measured, by its path from the project's root."""
    path = results / "papers.json"
    judged = judge(json.loads(path.read_text(encoding="utf-8"))["rows"] if path.is_file() else [], results)
    found = {}
    for paper, name in PAPERS.items():
        rows = _rows([one for one in judged if one.claim.paper == paper])
        unit = "percent of perplexity" if paper == "adaptersoup" else "points"
        if rows:
            panel = Panel(f"Difference in {unit}; to the right of 0 supports a claim", rows)
            found[FOLDER / f"papers_{paper}.svg"] = to_svg(panels(name, [], [panel]))
    return found


def _scores(cells: Cells) -> list[str]:
    """Mean scores of variants by set, with their numbers of seeds; without sets that have no cell."""
    sets = {task: name for task, name in SETS.items() if any(cells.at_rate(task, variant) for variant in VARIANTS)}
    shown = []
    for name, variant in VARIANTS.items():
        rows: Mapping[str, list[Any]] = {task: cells.at_rate(task, name) for task in sets}
        every = [row for of_task in rows.values() for row in of_task]
        if every:
            size = next((f"{row['parameters']:,}" for row in every if row["parameters"]), "")
            schedule = PLAN["setting"]["schedules"][variant.schedule]
            data = f"{schedule['rows']} x {schedule['epochs']}"
            shown.append((f"`{name}`", size, data, *(_mean(of_task) for of_task in rows.values())))
    if not shown:
        return ["No cell has been run yet."]
    return table(("variant", "trained numbers", "examples x epochs", *sets.values()), shown)


def _mean(rows: list[Any]) -> str:
    scores = [row["scores"]["score"] for row in rows]
    return f"{np.mean(scores):.1f} ({len(scores)})" if scores else ""
