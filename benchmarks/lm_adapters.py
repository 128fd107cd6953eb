"""Tests the claims of Houlsby et al., AdaMix and SparseAdapter by perplexity, where small differences are measurable.

`python -m benchmarks.lm_adapters` (--base DIR --data DIR) trains all variants of the three papers on two domains with
three seeds (listed in `benchmarks.lm.plan`). Then it scores test text, and gives a verdict for each claim
(`benchmarks.claims`). Learning rates and best states are chosen on validation text. Results of cells are stored in
`--folder`: the same call continues an interrupted run. `--on ray=HOST:PORT` runs them on a cluster. `--long` is a
larger grid.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.lm import findings, plan, runner
from benchmarks.lm.cells import Cell
from benchmarks.lm.plan import Given, Size
from benchmarks.lm.runner import Place, Runner
from benchmarks.report import Result, options
from demo.results import best_dtype
from registry.base_model import shape_of
from registry.errors import SoupError
from registry.tasks.run import open_pool

FOLDER = Path(".reproduce") / "lm"
SHARED = Path("../shared")
HERE = 2
"""Cells at once on this machine, by default."""


@dataclass
class Experiment:
    """All stages, one after another; `cells` and `records` are what has been run so far."""

    runner: Runner
    given: Given
    cells: list[Cell] = field(default_factory=list)
    records: dict[str, Any] = field(default_factory=dict)

    def stage(self, what: str, cells: Sequence[Cell]) -> Sequence[Cell]:
        """Run the cells that have no stored result."""
        self.records |= self.runner.run(cells, what=what)
        self.cells += cells
        return cells

    def run(self) -> Result:
        """Everything."""
        given, size = self.given, self.given.size
        families = [family for family in plan.RATES if family != "fusion"]
        rates = self._rates(plan.rate_cells(given, families))
        chosen = {family: findings.best_rate(losses) for family, losses in rates.items()}
        trained = self.stage("variants", [*plan.base_cells(given), *plan.variant_cells(given, chosen)])
        members = plan.members_among(trained, size)
        rates |= self._rates(plan.rate_cells(given, ["fusion"], members))
        self.stage("fusions", plan.fusion_cells(given, findings.best_rate(rates["fusion"]), members))
        variants = [*plan.variants(size, given.shape), *plan.fusions()]
        run = findings.Run(size, given.shape.num_layers, variants, self.cells, self.records)
        return findings.result_of(run, rates)

    def _rates(self, cells: Sequence[Cell]) -> dict[str, dict[float, float]]:
        return findings.chosen_rates(self.stage("learning rates", cells), self.records)


def main(arguments: Sequence[str] | None = None, *, size: Size | None = None) -> int:
    """Run it; gives the exit code. `size` is for tests."""
    parser = options(__doc__)
    parser.add_argument("--base", type=Path, default=SHARED / "base-lm", help="folder of the base model")
    parser.add_argument("--data", type=Path, default=SHARED / "corpora", help="folder with train/<domain>/")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where results of cells are kept")
    parser.add_argument("--parallel", type=int, help=f"cells at once, each with one thread ({HERE} here)")
    parser.add_argument("--on", metavar="ray[=HOST:PORT]", help="run the cells on a Ray cluster, or on one made here")
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), default="auto", help="of training")
    parser.add_argument("--long", action="store_true", help="more seeds, steps, passages, sizes and scales")
    asked = parser.parse_args(arguments)
    chosen = size or (plan.LONG if asked.long else plan.NORMAL)
    try:
        place = Place(asked.base, asked.data / "train", asked.folder, chosen)
        shape = shape_of(runner.entry(place))
        dtype = best_dtype() if asked.dtype == "auto" else asked.dtype
        given = Given(chosen, shape, runner.all_data(place), dtype)
        at_once = asked.parallel or (HERE if asked.on is None else None)
        with open_pool(asked.on, at_once=at_once) as pool:
            result = Experiment(Runner(place, pool), given).run()
        result.finish(asked.out)
    except SoupError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; what is done is kept, the same call goes on from there.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
