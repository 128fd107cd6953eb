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
from benchmarks.papers.verdicts import CLAIMS, PAPERS, Cells, Estimate, Judged, combined, judge
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
    """The text of a block: claims of one paper, scores of variants, averages on SST-2, or a count of verdicts."""
    path = folder / "papers.json"
    result = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"rows": []}
    if view == "scores":
        return [*_scores(Cells(result["rows"])), "", *(sources({"papers": result}) if result["rows"] else [])]
    if view == "sst2":
        return _on_sst2(Cells(result["rows"]))
    claims = judge(result["rows"], folder)
    if view is None:
        return [_count([judged for judged in claims if judged.claim.paper in PAPERS])]
    return _claims([judged for judged in claims if judged.claim.paper == view], view)


def _count(claims: list[Judged]) -> str:
    counts = Counter(judged.verdict for judged in claims)
    soups = sum(judged.verdict == "disagrees" and judged.claim.paper == "adaptersoup" for judged in claims)
    undecided, not_run = counts["undecided"], counts["not run yet"]
    verdicts = [
        f"{counts['agrees']} agree with our measurements",
        f"{counts['disagrees']} disagree ({soups} of them about AdapterSoup)",
        f"{undecided} {'is' if undecided == 1 else 'are'} undecided",
        *([f"{not_run} are not run yet"] if not_run else []),
    ]
    return (
        f"Of {len(claims)} claims of the four papers, most of them tested with a small encoder and few examples, "
        f"{', '.join(verdicts[:-1])}, and {verdicts[-1]}."
    )


def _claims(claims: list[Judged], paper: str) -> list[str]:
    picture = f"{FOLDER.name}/papers_{paper}.svg"
    rows = [
        (
            str(number),
            judged.claim.says,
            f"{judged.claim.source}: {judged.claim.figure}",
            _ours(judged),
            f"{judged.claim.margin:g}",
            f"*{judged.verdict}*" + (f" ({judged.note})" if judged.note else ""),
        )
        for number, judged in enumerate(claims, start=1)
    ]
    has_picture = paper in PAPERS and _intervals(claims)
    picture_lines = [f"![Claims of {PAPERS[paper]} with intervals]({picture})", ""] if has_picture else []
    source = "library" if paper == "parity" else "the paper"
    return [
        *picture_lines,
        *table(("", "claim tested here", source, "ours (95 % interval)", "margin", "verdict"), rows),
    ]


def _on_sst2(cells: Cells) -> list[str]:
    """The differences on SST-2 alone, for the claims on an average of several sets."""
    rows = [
        (
            claim.says.removesuffix("on the average of four sets").rstrip(" ,"),
            PAPERS[claim.paper],
            _with_interval(combined([cells.contrast(claim, "sst2")])),
        )
        for claim in CLAIMS
        if len(claim.on) > 1 and not cells.missing(claim)
    ]
    return table(("claim", "paper", "ours on SST-2 alone (95 % interval)"), rows)


def _ours(judged: Judged) -> str:
    return "" if judged.estimate is None else _with_interval(judged.estimate)


def _with_interval(estimate: Estimate) -> str:
    low, high = estimate.interval
    return f"{estimate.value:+.1f} ({low:+.1f} to {high:+.1f})"


def _intervals(claims: list[Judged]) -> list[Interval]:
    return [
        Interval(
            f"{number}  {judged.claim.name.replace('_', ' ')}",
            judged.estimate.value,
            *judged.estimate.interval,
            chosen=judged.verdict == "agrees",
            text=judged.verdict,
        )
        for number, judged in enumerate(claims, start=1)
        if judged.estimate is not None
    ]


def pictures(results: Path) -> dict[Path, str]:
    """A picture for each paper with a claim that has been measured, by its path from the project's root."""
    path = results / "papers.json"
    claims = judge(json.loads(path.read_text(encoding="utf-8"))["rows"] if path.is_file() else [], results)
    drawn = {}
    for paper, name in PAPERS.items():
        rows = _intervals([judged for judged in claims if judged.claim.paper == paper])
        unit = "percent of perplexity" if paper == "adaptersoup" else "points"
        if rows:
            panel = Panel(f"Difference in {unit}; higher favours the claim. Numbers are rows of the table", rows)
            drawn[FOLDER / f"papers_{paper}.svg"] = to_svg(panels(name, [], [panel]))
    return drawn


def _scores(cells: Cells) -> list[str]:
    """Mean scores of variants by set, with their numbers of seeds; without sets that have no cell."""
    sets = {task: name for task, name in SETS.items() if any(cells.at_rate(task, variant) for variant in VARIANTS)}
    scores = []
    for name, variant in VARIANTS.items():
        rows: Mapping[str, list[Any]] = {task: cells.at_rate(task, name) for task in sets}
        cells_of_all = [row for of_task in rows.values() for row in of_task]
        if cells_of_all:
            size = next((f"{row['parameters']:,}" for row in cells_of_all if row["parameters"]), "")
            schedule = PLAN["setting"]["schedules"][variant.schedule]
            data = f"{schedule['rows']} x {schedule['epochs']}"
            scores.append((f"`{name}`", size, data, *(_mean(of_task) for of_task in rows.values())))
    if not scores:
        return ["No cell has been run yet."]
    return table(("variant", "trained parameters", "examples x epochs", *sets.values()), scores)


def _mean(rows: list[Any]) -> str:
    scores = [row["scores"]["score"] for row in rows]
    return f"{np.mean(scores):z.1f} ({len(scores)})" if scores else ""
