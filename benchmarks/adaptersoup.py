"""Soups of a bank of adapters compared with the alternatives, on samples of several sizes.

For each novel domain a sample is drawn from `valid`; all figures come from `test`. Compared are the paper's methods,
all efforts, oracles that saw the test, and the ladder (`benchmarks.soups.ladder`). The ladder has the sample in the
prompt, kNN-LM, a LoRA trained by PEFT, and full fine-tuning.

Figures that end in `over_control` are ratios of perplexity to the control adapter's, as geometric means over domains.
They are for the largest sample, or for the number of passages in their name; standard errors are paired over passages.

The efforts are requests over HTTP to a server with the bank. The ladder and greedy searches run in separate processes,
or with `--on ray` on a cluster. A run resumes after an interruption.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.report import Result
from benchmarks.soups import ALONE, BASE, EFFORTS, GREEDY, LADDER, PAPER, SINGLE, VARIANTS
from benchmarks.soups.cells import Answers, Cell
from benchmarks.soups.ensemble import clustering_ensemble
from benchmarks.soups.greedy import searched
from benchmarks.soups.ladder import Ladder, Rates
from benchmarks.soups.ratio import over_control
from benchmarks.soups.run import GOALS, Plan, Run
from benchmarks.soups.setting import HOSTILE, LONGEST, TEST, Lengths, bank_options, opened
from registry.tasks.run import open_pool
from service.settings import Settings

RECOMMENDED: str = Settings.model_fields["default_effort"].default
"""The effort of a cook that names none."""
ALL_WAYS = (*PAPER, *VARIANTS, *EFFORTS, *LADDER)
WITHOUT = ("oracles", "hostile", *ALL_WAYS)
"""Parts that a shorter run may leave out."""


def rows(run: Run) -> None:
    """Every cell, model that no sample made, and adapter alone, with its differences on the test passages."""
    for domain in (*run.domains, *run.plan.hostile):
        for cell in run.cells(domain):
            if cell.way != BASE:
                run.add_row(cell, run.nll(cell), **run.about(cell))
    for way, by_domain in run.references.items():
        for domain, nll in by_domain.items():
            run.add_row(Cell(way, domain, 0, run.plan.full), nll)
    for domain in run.domains if run.plan.greedy else ():
        for name in run.setting.job.pushed:
            run.add_row(Cell(ALONE, domain, 0, 0), run.single(domain, name), adapter=name)


def qualities(run: Run) -> None:
    """Ratios of perplexity to the control's by strategy and sample size, and of models that do not depend on a
    sample.
    """
    for way in (*run.references, *run.plan.ways):
        for size in run.plan.sizes:
            if rows := run.rows(way, size):
                ratio, error = over_control(rows)
                name = {SINGLE: "single", GREEDY: "greedy"}.get(way, way)
                run.add(f"{name}_over_control", ratio, "ratio", f"± {error:.4f}", size=size)


def seconds(run: Run) -> None:
    """Median seconds of every way on the largest sample, of the efforts also in passes of the base over it."""
    for way in (way for way in run.plan.ways if way not in VARIANTS):
        rows = run.rows(way, run.plan.full)
        note = "of the chosen training alone" if way in LADDER[2:] else ""
        run.add(f"{way}_s", median(row["wall_s"] for row in rows), "s", note)
        if way in EFFORTS:
            passes = median(row["wall_s"] / row["forward_s"] for row in rows)
            run.add(f"{way}_vs_forward", passes, "F", "the first starts the process for gradients")


def beside_peft(run: Run) -> None:
    """Domains in which tuning is better than PEFT's training, less those in which it is worse, by sample size."""
    limits = {"tune_vs_peft": "made in as many passes of the base", "tune_vs_peft_best": "at any number of passes"}
    for size in run.plan.sizes if {"tune", "peft"} <= set(run.plan.ways) else ():
        for name, limit in limits.items():
            signs = [run.sign(Cell("tune", domain, 0, size), any_time=name.endswith("best")) for domain in run.domains]
            note = (
                f"{signs.count(1)} better, {signs.count(-1)} worse by over one standard error than PEFT's best {limit}"
            )
            run.add(f"{name}_{size}", sum(signs), "domains", note)


def worse_than_base(run: Run) -> None:
    """Answers of efforts that are worse than the base by more than a standard error, on hostile sets too."""
    rows = [row for row in run.result.rows if row["way"] in EFFORTS]
    worse = [row for row in rows if row["difference"] > row["standard_error"]]
    names = (f"{row['way']} {row['domain']} {row['passages']}" for row in worse)
    run.add("worse_than_base", len(worse), "answers", "; ".join([f"of {len(rows)}", *names]))


def recommended(run: Run) -> None:
    """Share of domains in which the default effort is within one standard error of the best way."""
    for size in run.plan.sizes if RECOMMENDED in run.plan.ways else ():
        within = 0
        for domain in run.domains:
            nll = {way: run.nll(Cell(way, domain, 0, size)) for way in run.plan.ways if way not in VARIANTS}
            best = min(nll.values(), key=lambda passages: float(passages.sum()))
            difference = run.against(nll[RECOMMENDED], best, domain)
            within += difference.difference <= difference.standard_error
        run.add("recommended_within_1se", within / len(run.domains), "share", RECOMMENDED, size=size)


def measure(run: Run) -> Result:
    """Compute every cell, then all rows and figures."""
    run.fill()
    for figures in (rows, qualities, seconds, beside_peft, worse_than_base, recommended):
        figures(run)
    return run.result


def main() -> None:
    """The command line."""
    parser = bank_options(__doc__, home=Path(".reproduce/adaptersoup"))
    parser.add_argument("bank", choices=list(GOALS), help="the bank's name; its goals, folder and results are its own")
    parser.add_argument("--sizes", type=int, nargs="+", default=[5, 15, 30, 100], help="passages of samples")
    parser.add_argument("--draws", type=int, default=1, help="draws of a sample")
    parser.add_argument("--passages", type=int, default=TEST, help="test passages of a domain")
    parser.add_argument("--longest", type=int, default=LONGEST, help="characters that passages are cut to")
    parser.add_argument("--domains", nargs="*", help="the novel ones to look at; by default all")
    parser.add_argument("--without", nargs="*", choices=WITHOUT, default=[], help="what is left out")
    parser.add_argument("--greedy", type=int, default=6, help="adapters of greedy search; 1: the best single one only")
    parser.add_argument("--peft-rates", type=float, nargs="+", default=Rates.peft, help="rates for PEFT, rising")
    parser.add_argument("--full-rates", type=float, nargs="+", default=Rates.full, help="rates for full, rising")
    parser.add_argument("--on", metavar="ray[=HOST:PORT]", help="use a Ray cluster, or one made here, not processes")
    parser.add_argument("--parallel", type=int, help="greedy searches at once: by default 1, on Ray what has room")
    parser.add_argument("--cores", type=int, help="with --on ray: processor cores, and threads, of each task")
    arguments = parser.parse_args()
    plan = Plan(
        arguments.bank,
        tuple(sorted(arguments.sizes)),
        arguments.draws,
        ways=tuple(way for way in ALL_WAYS if way not in arguments.without),
        hostile=() if "hostile" in arguments.without else HOSTILE,
        greedy=0 if "oracles" in arguments.without else arguments.greedy,
    )
    lengths = Lengths(arguments.passages, plan.full, arguments.longest)
    home = arguments.home / plan.bank
    with (
        open_pool(arguments.on, at_once=arguments.parallel, cores=arguments.cores) as pool,
        opened(arguments.data, arguments.base, arguments.adapters, home, lengths, domains=arguments.domains) as setting,
    ):
        ladder = Ladder(arguments.home / "ladder", pool, Rates(arguments.peft_rates, arguments.full_rates))
        run = Run(setting, plan, Answers(home / "answers"), ladder, partial(searched, pool), clustering_ensemble)
        measure(run).finish(arguments.out)


if __name__ == "__main__":
    main()
