"""Soups worth having: every effort beside the paper's modes, oracles and trainings, on a bank of adapters.

For each novel domain a sample is drawn from `valid`, every figure comes from `test`. Perplexities are geometric means
over domains, as ratios over the base's (or, with `--over control`, over the control adapter's), standard errors paired
over passages. Everything goes over HTTP to a server with the bank (`benchmarks.soups`), as people would ask for it; a
run that was stopped goes on where it was. Greedy searches need no server: they run in processes of their own, or with
`--on ray` on a cluster. Draws and sizes are options: a shorter run says so in its results.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.report import Result, options
from benchmarks.soups import ALONE, EFFORTS
from benchmarks.soups.cells import FRESH_RATES, TWICE, Answer, Answers, fresh, mixed
from benchmarks.soups.greedy import searched
from benchmarks.soups.run import Run, Search
from benchmarks.soups.setting import HOSTILE, LARGEST, TEST, Lengths, Setting, opened
from registry.tasks.run import open_pool

PAPER = ("uniform", "similarity", "clustering")
PARTS = ("hostile", "thorough")
"""What a shorter run may leave out."""


def tables(run: Run) -> None:
    """The paper's modes and efforts on the largest sample, efforts on fewer passages."""
    for way in (*PAPER, *run.efforts):
        found = run.of(way, draws=run.draws)
        name = {"tune": "tune_pass"}.get(way, way)
        note = f"{run.draws} draws of {run.full} passages; {run.arithmetic(found):.4f} of arithmetic means"
        run.add(f"{name}_{run.suffix}", run.ratio(found), goal=run.goal(way), note=note)
    run.add(f"tune_twice_{run.suffix}", run.ratio(run.of(TWICE)), note="two passes, one draw")
    for size in run.sizes:
        for way in run.efforts:
            goal = run.goal(f"{way}_{size}")
            run.add(f"{way}_{size}_{run.suffix}", run.ratio(run.of(way, size)), goal=goal, note="one draw")


def oracles(run: Run) -> None:
    """Those that saw the test passages: the best single adapter, and the average that greedy search finds on them."""
    best: dict[str, np.ndarray] = {}
    alone: dict[str, dict[str, np.ndarray]] = {}
    for domain in run.domains:
        singles = {name: run.single(domain, name) for name in run.bank}
        ranked = sorted(singles, key=lambda name: float(singles[name].sum()))
        best[domain] = singles[ranked[0]]
        alone[domain] = {name: singles[name] for name in ranked[: run.greedy]}
    found = run.search(run.setting, alone)
    greedy = {domain: min(run.base(domain), found[domain], key=lambda one: float(one.sum())) for domain in run.domains}
    quick = {domain: run.nll(run.answer("quick", domain)) for domain in run.domains}
    run.add(
        f"oracle_single_{run.suffix}", run.ratio({domain: [one] for domain, one in best.items()}), note="saw the test"
    )
    note = "saw it too" + ("" if run.greedy is None else f", of the {run.greedy} best by themselves")
    run.add(f"oracle_greedy_{run.suffix}", run.ratio({domain: [one] for domain, one in greedy.items()}), note=note)
    wins = [run.against(quick[domain], best[domain], domain) for domain in run.domains]
    run.add(
        "quick_beats_oracle_single", sum(one.difference < -one.standard_error for one in wins), "domains", 8,
        f"of {len(wins)}, by more than one standard error",
    )  # fmt: skip
    over = [run.against(quick[domain], greedy[domain], domain).difference for domain in run.domains]
    goal = run.goal("greedy") if run.greedy is None else None
    run.add("quick_vs_oracle_greedy", math.exp(float(np.mean(over))), goal=goal)


def beside_fresh(run: Run) -> None:
    """The tuned soup beside a fresh adapter: domains in which it is better, less those in which it is worse."""
    for size in (*run.sizes, run.full):
        better = worse = 0
        for domain in run.domains:
            tuned, other = run.answer("tune", domain, size), _fresh(run, domain, size)
            found = run.against(run.nll(tuned), run.nll(other), domain)
            better += found.difference < -found.standard_error
            worse += found.difference > found.standard_error
        twice = " or over two passes" if size == run.full else ""
        note = f"{better} better, {worse} worse by more than one standard error, than a fresh adapter, at the best of "
        note += f"two rates over its default passes{twice}"
        run.add(f"tune_vs_fresh_{size}", better - worse, "domains", run.goal(f"fresh_{size}"), note)


def _fresh(run: Run, domain: str, size: int) -> Answer:
    """The fresh adapter's answer that is best on passages it held out; on the largest sample also over two passes."""
    passes = (None, 2) if size == run.full else (None,)
    tried = [run.answer(fresh(rate, passes=one), domain, size) for one in passes for rate in FRESH_RATES]
    return min(tried, key=lambda one: 0.0 if one.abstained or one.held_out is None else one.held_out)


def kept_when_narrow(run: Run) -> None:
    """The share of what quick's exact mixture takes off that the same, recompressed, takes off."""
    wide: list[float] = []
    narrow: list[float] = []
    for domain in run.domains:
        answer = run.answer("quick", domain)
        if answer.abstained or answer.recipe is None or answer.recipe["ingredients"][0].get("layers") is None:
            continue
        for method, into in (("concat", wide), ("recompress", narrow)):
            one = mixed(run.setting, answer, method)
            into.append(run.against(run.nll(one), run.zero(domain), domain).difference)
    if wide:
        run.add(
            "recompressed_kept", sum(narrow) / sum(wide), "share", run.goal("kept"),
            f"on test passages of {len(wide)} domains whose quick soup is weighed",
        )  # fmt: skip


def nothing_claimed(run: Run) -> None:
    """How often an answer is worse than the base by more than a standard error: novel domains and hostile sets."""
    asked = [(domain, size) for domain in run.domains for size in (run.full, *run.sizes)]
    asked += [(domain, run.full) for domain in run.hostile]
    worse: list[str] = []
    claims = 0
    for domain, size in asked:
        for way in run.efforts:
            answer = run.answer(way, domain, size)
            found = run.against(run.nll(answer), run.base(domain), domain)
            if found.difference > found.standard_error:
                worse.append(f"{way} {domain} {size}")
            claims += domain in HOSTILE and not answer.abstained
    note = f"domains and sizes, hostile sets; {claims} soups for hostile sets" if run.hostile else "domains and sizes"
    run.add("worse_than_base", len(worse), "answers", 0, "; ".join([note, *worse]))


def wall(run: Run) -> None:
    """Seconds of a whole answer over one pass of the base over the sample."""
    for way in (one for one in run.efforts if one != "instant"):
        found = [(one := run.answer(way, domain)).seconds / one.forward for domain in run.domains]
        name = "tune_pass" if way == "tune" else f"cook_{way}"
        note = "with choosing and verifying; the first of them starts the process for gradients"
        run.add(f"{name}_vs_forward", median(found), "F", run.goal(f"{way}_vs_forward"), note)


def rows(run: Run) -> None:
    """Every answer about these domains, with the difference that the test passages show."""
    known = {cell: one for cell, one in run.answers.known.items() if cell.domain in (*run.domains, *run.hostile)}
    commits = sorted({answer.commit or "unknown" for answer in known.values()})
    run.add("answers", len(known), "answers", note="of the servers of " + ", ".join(commits))
    for cell, answer in sorted(known.items(), key=lambda one: repr(one[0])):
        nll = run.nll(answer)
        found = run.against(nll, run.base(cell.domain), cell.domain)
        over = run.against(nll, run.zero(cell.domain), cell.domain)
        run.result.rows.append({
            "domain": cell.domain, "way": cell.way, "passages": cell.size, "draw": cell.draw,
            "hostile": cell.domain in HOSTILE, "difference": found.difference, "standard_error": found.standard_error,
            "over": over.difference, "over_error": over.standard_error, "abstained": answer.abstained,
            "bits_per_byte": run.bits_per_byte(nll, cell.domain),
            "width": answer.width, "wall_s": answer.seconds, "forward_s": answer.forward, "refused": answer.refused,
        })  # fmt: skip


def singles(run: Run) -> None:
    """Every adapter of the bank by itself, on every domain."""
    for domain in run.domains:
        for name in run.setting.job.pushed:
            found = run.against(run.single(domain, name), run.base(domain), domain)
            run.result.rows.append({
                "domain": domain, "way": ALONE, "adapter": name, "passages": 0, "hostile": False,
                "difference": found.difference, "standard_error": found.standard_error,
            })  # fmt: skip


def run(
    setting: Setting, home: Path, *, search: Search, over: str, draws: int, sizes: Sequence[int], name: str,
    without: Sequence[str] = (), greedy: int | None = None,
) -> Result:  # fmt: skip
    """Everything but what it goes `without`; `over` is `base` or `control`, `search` is how greedy search is made."""
    efforts = tuple(way for way in EFFORTS if way not in without)
    hostile = () if "hostile" in without else HOSTILE
    work = Run(
        setting, Answers(home / "answers"), over, draws, sizes, Result(name), efforts, greedy, hostile, search=search
    )  # fmt: skip
    for part in (tables, oracles, wall, kept_when_narrow, nothing_claimed, beside_fresh, rows, singles):
        part(work)
    return work.result


def main() -> None:
    """The command line."""
    parser = options(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="train/, novel/ and general/ of domains' text")
    parser.add_argument("--base", required=True, help="the base model's folder")
    parser.add_argument("--adapters", type=Path, required=True, help="the bank, in the neutral form")
    parser.add_argument("--over", choices=("base", "control"), default="base", help="what ratios are over")
    parser.add_argument("--draws", type=int, default=3, help="draws of a sample")
    parser.add_argument("--sizes", type=int, nargs="*", default=[5, 15, 30], help="passages of smaller samples")
    parser.add_argument("--passages", type=int, default=TEST, help="test passages of a domain")
    parser.add_argument("--longest", type=int, help="characters that passages are cut to; by default as in the demo")
    parser.add_argument("--home", type=Path, default=Path(".reproduce/adaptersoup"), help="what is kept between runs")
    parser.add_argument("--largest", type=int, default=LARGEST, help="passages of the largest sample")
    parser.add_argument("--domains", nargs="*", help="the novel ones to look at; by default all")
    parser.add_argument("--without", nargs="*", choices=PARTS, default=[], help="what is left out")
    parser.add_argument("--greedy", type=int, help="adapters that greedy search may take, the best by themselves")
    parser.add_argument("--parallel", type=int, help="greedy searches at once: by default 1, on Ray what has room")
    parser.add_argument("--on", metavar="ray[=HOST:PORT]", help="search greedily on a Ray cluster, or on one made here")
    parser.add_argument("--cores", type=int, help="with --on ray: processor cores, and threads, of each search")
    given = parser.parse_args()
    name = "adaptersoup" if given.out is None else given.out.stem
    lengths = Lengths(given.passages, given.largest, given.longest)
    with (
        open_pool(given.on, at_once=given.parallel, cores=given.cores) as pool,
        opened(given.data, given.base, given.adapters, given.home, lengths, domains=given.domains) as setting,
    ):
        found = run(
            setting, given.home, search=partial(searched, pool), over=given.over, draws=given.draws,
            sizes=given.sizes, name=name, without=given.without, greedy=given.greedy,
        )  # fmt: skip
    found.finish(given.out)


if __name__ == "__main__":
    main()
