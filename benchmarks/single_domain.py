"""The single-domain half of AdapterSoup: `make reproduce-single` (Chronopoulou et al., 2023, section 4.3, Table 3).

One domain, 5 learning rates x 3 orders of the data from one initialisation, trained by `soup train sweep`. All 455
triples are ranked on some validation text, finalists scored on much; what they choose is scored on test text, in the
domain and on three that were held out, beside soups by learning rate, the uniform soup, the best single adapters,
logit ensembles, and the best on test as the oracle. Then mixing curves L(a A + (1 - a) B) for three initialisations,
and three adapters of a shared collection trained again from their recorded recipes.

Cells are trained two at a time with one thread each; every adapter and every score is kept under `.reproduce/single`,
so that the same command goes on where it was stopped, and `made_by.jsonl` there says which commit made each. With
`--on ray=HOST:PORT` the grids' cells are trained on a cluster; all else is computed here. What the short form costs,
in tokens:

- training: 22 cells (15, and 7 more for the curves) x 128 steps x 4 x 512 = 5.8 M; again 3 x 160 x 8 x 512 = 2.0 M:
  7.7 M, 32 minutes at 4,000 a second;
- scoring: validation while training 1.2 M; 455 triples on about 7,400 = 3.4 M; finalists and singles on the longer
  validation text 3.5 M; test text of about 100,000 for 36 models = 3.6 M, ensembles 2.1 M; curves 0.9 M;
  again 0.5 M: 15.2 M, 25 minutes at 10,000 a second.

`--long` trains five times as many steps and holds out ten domains: some hours. Training is in bf16 where the CPU has
instructions for it, the adapters that are made again in fp32 as recorded; every score is fp32.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports transformers
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from benchmarks.lm.cost import relative_cost
from benchmarks.report import Result, options
from benchmarks.single import making, table
from benchmarks.single.choosing import Chosen, choose
from benchmarks.single.ledger import Ledger
from benchmarks.single.scoring import Scorer, worker_pool
from benchmarks.single.setting import DRAW_SEED, LONG, SHORT, Setting, Texts, setting
from demo.job import Job
from demo.progress import Talk
from demo.results import Figure, best_dtype
from registry.adapters import expected_tensors, paper_config
from registry.base_model import shape_of
from training.data import draw

HOME = Path(".reproduce/single")
SHARED = Path("../shared")
STAGES = 5
RECORDED_ON = 80
"""Passages of a domain's validation text that the recorded perplexities are of, each scored by itself."""


def run(found: Setting, *, processes: int, talk: Talk, again: bool = True, on: str | None = None) -> Result:
    """The whole experiment; what was made or scored before is used again."""
    result = Result("single_domain")
    rates, orders = making.MAIN.rates, making.MAIN.orders
    talk.stage(f"train: {len(rates)} learning rates x {len(orders)} orders on {found.sizes.domain}, and the curves'")
    ledger = Ledger(found.home.parent / "made_by.jsonl")
    making.train_grids(found, processes=processes, say=talk.line, ledger=ledger, on=on)
    grid = {(rate, order): making.cell(found, making.MAIN, rate, order) for rate in rates for order in orders}
    with worker_pool(found.base, block=found.sizes.block, processes=processes) as pool:
        scorer = Scorer(found.base, found.home.parent / "cells.jsonl", pool, block=found.sizes.block, ledger=ledger)
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
            _tell_curves(result, found, scorer, told)
        if again:
            talk.stage(f"again: {', '.join(making.REPRODUCED)} from their recorded recipes")
            again_made = making.train_again(found, processes=processes, say=talk.line, ledger=ledger)
            _tell_again(result, found, scorer, again_made)
    result.figures |= ledger.figures()
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


def _tell_curves(result: Result, found: Setting, scorer: Scorer, told: table.Told) -> None:
    curves = table.measure_curves(
        scorer, making.pairs(found), found.testing.curve, points=found.sizes.curve_points, told=told
    )
    result.rows += table.curve_rows(curves)
    result.rows += table.curve_claims(curves)


def _tell_again(result: Result, found: Setting, scorer: Scorer, again: Sequence[making.Again]) -> None:
    job = Job("again", found.home, found.data, found.base, (), (), "", found.home)
    valid, test = (
        {one.domain: Texts(one.domain, _passages(job, one.domain, part, found)) for one in again}
        for part in ("valid", "test")
    )
    rows = list(table.again_rows(scorer, again, valid, test))
    result.rows += rows
    result.figures |= table.again_figures(rows)


def _passages(job: Job, domain: str, part: str, found: Setting) -> tuple[str, ...]:
    """The validation passages that records are of are the first ones; of test text some are drawn, as ever."""
    passages = job.texts("train", domain, part)
    return tuple(passages[:RECORDED_ON] if part == "valid" else draw(passages, found.sizes.test_out, seed=DRAW_SEED))


def main() -> None:
    """The command line."""
    parser = options(__doc__)
    parser.add_argument("--long", action="store_true", help="five times the steps, ten domains held out (hours)")
    parser.add_argument("--processes", type=int, default=2, help="cells at once, one thread each")
    parser.add_argument("--on", metavar="ray[=HOST:PORT]", help="train the grids' cells on a Ray cluster")
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), default="auto", help="of the grid")
    parser.add_argument("--base", type=Path, default=SHARED / "base-lm", help="folder of the base model")
    parser.add_argument("--data", type=Path, default=SHARED / "corpora", help="folder with train/ and novel/")
    parser.add_argument("--adapters", type=Path, default=SHARED / "adapters" / "main", help="the shared adapters")
    given = parser.parse_args()
    dtype = best_dtype() if given.dtype == "auto" else given.dtype
    sizes = LONG if given.long else SHORT
    found = setting(sizes, base=given.base, data=given.data, adapters=given.adapters, home=HOME, dtype=dtype)
    run(found, processes=given.processes, talk=Talk(STAGES), on=given.on).finish(given.out)


if __name__ == "__main__":
    main()
