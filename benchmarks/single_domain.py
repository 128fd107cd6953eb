"""The single-domain half of AdapterSoup: `make reproduce-single` (Chronopoulou et al., 2023, section 4.3, Table 3).

One domain, 5 learning rates x 3 orders of the data from one initialisation, trained by `soup train sweep`. All 455
triples are ranked on some validation text, and finalists are scored on more. The chosen triples are scored on test
text, in the domain and on three held-out domains. They are compared with soups by learning rate, the uniform soup, the
best single adapters, logit ensembles, and an oracle that chooses on test text. Then mixing curves L(a A + (1 - a) B)
for three initialisations.

Cells are trained two at a time with one thread each. All adapters and scores are stored under `.reproduce/single`, so
the same command continues an interrupted run. With `--on ray=HOST:PORT` the grids' cells are trained on a cluster; all
else is computed here. It trains on 5.8 million tokens and scores 15 million, an hour on two slow cores.

`--long` trains five times as many steps and holds out ten domains: some hours. Training is in bf16 where the CPU has
instructions for it; every score is fp32.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports transformers
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from benchmarks.lm.cost import relative_cost
from benchmarks.report import Result, options
from benchmarks.single import making, table
from benchmarks.single.choosing import Chosen, choose
from benchmarks.single.scoring import Scorer, worker_pool
from benchmarks.single.setting import LONG, SHORT, Setting, setting
from demo.results import Figure, best_dtype
from demo.talk import Talk
from registry.adapters import expected_tensors, paper_config
from registry.base_model import shape_of

HOME = Path(".reproduce/single")
SHARED = Path("../shared")
STAGES = 4


def run(found: Setting, *, processes: int, talk: Talk, on: str | None = None) -> Result:
    """The whole experiment; what was made or scored before is used again."""
    result = Result("single_domain")
    rates, orders = making.MAIN.rates, making.MAIN.orders
    talk.stage(f"train: {len(rates)} learning rates x {len(orders)} orders on {found.sizes.domain}, and the curves'")
    making.train_grids(found, processes=processes, say=talk.line, on=on)
    grid = {(rate, order): making.cell(found, making.MAIN, rate, order) for rate in rates for order in orders}
    with worker_pool(found.base, block=found.sizes.block, processes=processes) as pool:
        scorer = Scorer(found.base, found.home.parent / "scores", pool, block=found.sizes.block)
        talk.stage("choose: every triple on validation text")
        with talk.bar("ranking") as told:
            chosen = choose(
                scorer, list(grid.values()), found.choosing, finalists=found.sizes.finalists, told=told
            )  # fmt: skip
        talk.stage("score: test text")
        with talk.bar("scoring") as told:
            _tell_table(result, found, table.measure(scorer, found, grid, chosen, told), grid, chosen)
        talk.stage("mixing curves")
        with talk.bar("scoring") as told:
            curves = table.measure_curves(
                scorer, making.pairs(found), found.testing.curve, points=found.sizes.curve_points, told=told
            )
        result.rows += [*table.curve_rows(curves), *table.curve_claims(curves)]
    return result


def _tell_table(result: Result, found: Setting, measured: table.Found, grid: table.Grid, chosen: Chosen) -> None:
    shape = shape_of(found.base, found.home.parent / "cache")
    config = paper_config("bapna_firat", bottleneck=making.BOTTLENECK)
    sizes = expected_tensors(config, shape).values()
    parameters = sum(math.prod(size) for size in sizes)
    result.rows += table.rows(measured, grid, parameters=parameters, cost=relative_cost(config, shape))
    result.rows += table.claims(measured, grid)
    result.figures |= {
        "adapters": Figure(len(grid), "adapters"),
        "triples_ranked": Figure(chosen.triples, "triples", goal=455),
        "steps": Figure(found.sizes.steps, "steps"),
    }
    for method in (
        "base", "best_single", "best_single_outside", "soup_uniform", "soup_inside", "soup_outside", "ensemble_all"
    ):  # fmt: skip
        cell = measured.cells[method][found.sizes.domain]
        result.figures[f"perplexity_in_domain_{method}"] = Figure(cell.perplexity, "perplexity")


def main() -> None:
    """The command line."""
    parser = options(__doc__)
    parser.add_argument("--long", action="store_true", help="five times the steps, ten domains held out (hours)")
    parser.add_argument("--processes", type=int, default=2, help="cells at once, one thread each")
    parser.add_argument("--on", metavar="ray[=HOST:PORT]", help="train the grids' cells on a Ray cluster")
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), default="auto", help="of the grid")
    parser.add_argument("--base", type=Path, default=SHARED / "base-lm", help="folder of the base model")
    parser.add_argument("--data", type=Path, default=SHARED / "corpora", help="folder with train/ and novel/")
    given = parser.parse_args()
    dtype = best_dtype() if given.dtype == "auto" else given.dtype
    sizes = LONG if given.long else SHORT
    found = setting(sizes, base=given.base, data=given.data, home=HOME, dtype=dtype)
    run(found, processes=given.processes, talk=Talk(STAGES), on=given.on).finish(given.out)


if __name__ == "__main__":
    main()
