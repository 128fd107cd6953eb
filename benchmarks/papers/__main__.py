"""Train the cells that the claims lack, one after the other, and print all verdicts (`make reproduce-papers`).

Each cell is stored in the results file, where the next run continues; `--minutes` ends a run. Claims are decided in the
order of `claims.toml`. A stored cell counts while its variant, its setting and `cells.VERSION` stay the same; it
records its commit.
"""

from __future__ import annotations

import json
import sys
import time
from functools import cache
from pathlib import Path

import torch

from benchmarks.papers.cells import BASE, Place, run_cell, setting_of
from benchmarks.papers.variants import PLAN, VARIANTS
from benchmarks.papers.verdicts import CLAIMS, PAPERS, Cells, Key, judge
from benchmarks.report import command, options, table
from demo.results import Figure, Row, commit, write
from registry.base_model import load_base
from registry.encoders import SentenceBertEncoder
from registry.spec import BaseEntry

RESULTS = Path(__file__).parents[1] / "results"
QUICK_MINUTES, QUICK_TASK = 20.0, "sst2"
QUICK = Path(".reproduce/papers_quick.json")
SMOLLM2 = Path(".demo/models/SmolLM2-135M-Instruct")


def stored(out: Path) -> list[Row]:
    """The stored cells of variants and settings that are still those of the plan."""
    rows = json.loads(out.read_text(encoding="utf-8"))["rows"] if out.is_file() else []
    return [
        row
        for row in rows
        if row["variant"] in VARIANTS and row["setting"] == setting_of(row["task"], VARIANTS[row["variant"]])
    ]


def next_cell(rows: list[Row], papers: list[str], tasks: list[str]) -> Key | None:
    """The first cell that a claim of these papers lacks, of these tasks; None if there is none."""
    cells = Cells(rows)
    claims = (claim for claim in CLAIMS if claim.paper in papers and claim.trained)
    return next((key for claim in claims for key in cells.missing(claim) if key[0] in tasks), None)


def store(out: Path, rows: list[Row]) -> None:
    """Write the cells, the numbers of the papers' claims and of those that are decided, and parity with libraries."""
    claims = judge(rows, RESULTS)
    verdicts = [judged.verdict for judged in claims if judged.claim.paper in PAPERS]
    figures = {
        "claims": Figure(len(verdicts), "claims", 36),
        "claims_decided": Figure(verdicts.count("agrees") + verdicts.count("disagrees"), "claims", 30),
    }
    for claim, estimate in ((judged.claim, judged.estimate) for judged in claims):
        if claim.paper == "parity" and estimate is not None:
            note = f"ours minus {claim.figure}, {claim.seeds} seeds, standard error {estimate.error:.3f}"
            figures[claim.name] = Figure(estimate.value, "points", note=note)
    figures["cells"] = Figure(len(rows), "trainings")
    figures["cells_cpu_s"] = Figure(sum(row["seconds"] for row in rows), "CPU s")
    write(
        out,
        name="papers",
        command=command(),
        rows=rows,
        figures={name: figure.as_json() for name, figure in figures.items()},
    )


def main() -> None:
    """The command line."""
    papers, tasks = list(dict.fromkeys(claim.paper for claim in CLAIMS if claim.trained)), list(PLAN["tasks"])
    parser = options(__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/corpora"), help="folder with glue/ and squad/")
    parser.add_argument("--smollm2", type=Path, default=SMOLLM2, help="folder of SmolLM2, for tasks that need it")
    parser.add_argument("--paper", choices=papers, nargs="+", default=papers, help="by default all")
    parser.add_argument("--task", choices=tasks, nargs="+", help=f"by default all, with --quick {QUICK_TASK}")
    parser.add_argument("--minutes", type=float, default=8 * 60, help="the run ends after so many")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_MINUTES:.0f} minutes, by default into {QUICK}")
    arguments = parser.parse_args()
    arguments.task = arguments.task or ([QUICK_TASK] if arguments.quick else tasks)
    out = arguments.out or (QUICK if arguments.quick else RESULTS / "papers.json")
    torch.set_num_threads(1)
    entries = {
        BASE: BaseEntry(id=BASE, source=str(SentenceBertEncoder().folder), kind="encoder"),
        "smollm2": BaseEntry(id="smollm2", source=str(arguments.smollm2.resolve())),
    }
    place = Place(cache(lambda name: load_base(entries[name])), arguments.data)
    end = time.monotonic() + 60 * (QUICK_MINUTES if arguments.quick else arguments.minutes)
    rows, made_with = stored(out), commit()
    while time.monotonic() < end and (key := next_cell(rows, arguments.paper, arguments.task)) is not None:
        task, name, rate, seed = key
        cell: Row = {"task": task, "variant": name, "learning_rate": rate, "seed": seed}
        cell |= run_cell(place, task, VARIANTS[name], rate, seed)
        rows.append({**cell, "setting": setting_of(task, VARIANTS[name]), "commit": made_with})
        store(out, rows)
        print(*key, cell["valid_loss"], cell["scores"]["score"], f"{cell['seconds']} s", file=sys.stderr)
    verdicts = [(judged.claim, judged.verdict) for judged in judge(rows, RESULTS)]
    print(table([{"paper": claim.paper, "claim": claim.name, "verdict": verdict} for claim, verdict in verdicts]))


if __name__ == "__main__":
    main()
