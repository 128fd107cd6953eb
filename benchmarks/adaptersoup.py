"""Soups worth having: every effort beside the paper's modes, oracles and trainings, on a bank of adapters.

For each novel domain a sample is drawn from `valid`, every figure comes from `test`. Perplexities are geometric means
over domains, as ratios over the base's (or, with `--over control`, over the control adapter's), standard errors paired
over passages. Everything goes over HTTP to a server with the bank (`benchmarks.soups`), as people would ask for it; a
run that was stopped goes on where it was. Greedy searches need no server: they run in processes of their own, or with
`--on ray` on a cluster. Draws and sizes are options: a shorter run says so in its results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.report import Result, options
from benchmarks.soups import ALONE, EFFORTS, NOISE
from benchmarks.soups.cells import FRESH_RATES, TWICE, Answer, Answers, fresh, mixed, scored
from benchmarks.soups.greedy import searched
from benchmarks.soups.run import Run, Search
from benchmarks.soups.setting import HOSTILE, LARGEST, NAMESPACE, TEST, Lengths, Setting, opened
from registry.pieces.places import place_of_work
from registry.uncertainty import paired_difference

PAPER = ("uniform", "similarity", "clustering")
STARTS = ("tune uniform", "tune control")
PARTS = ("starts", "firsts", "noise", "hostile", "coverage", "best", "thorough")
"""What a shorter run may leave out; `best` is the clustering soup with the two best adapters added."""
HELD_OUT, INTERVALS = 20, 500


# --- the tables ------------------------------------------------------------------------------------


def tables(run: Run) -> None:
    """The paper's modes, efforts and starts on the largest sample; efforts on fewer passages."""
    suffix = run.suffix
    for way in (*PAPER, *_efforts(run)):
        found = run.of(way, draws=run.draws)
        goal = run.goal(way)
        name = {"tune": "tune_pass"}.get(way, way)
        note = f"{run.draws} draws of {run.full} passages; {run.arithmetic(found):.4f} of arithmetic means"
        run.add(f"{name}_{suffix}", run.ratio(found), goal=goal, note=note)
    run.add(f"tune_twice_{suffix}", run.ratio(run.of(TWICE)), note="two passes, one draw")
    for way in () if "firsts" in run.without else PAPER[1:]:
        best = {domain: [run.best(run.answer(way, domain))] for domain in run.domains}
        run.add(f"single_{way}_{suffix}", run.ratio(best), note="one draw")
    for way in () if "starts" in run.without else STARTS:
        run.add(f"{way.replace(' ', '_from_')}_{suffix}", run.ratio(run.of(way)), note="one draw")
    by_size(run)
    _oracles(run)


def _efforts(run: Run) -> list[str]:
    """The efforts that are looked at: all, or without the one that takes the longest."""
    return [way for way in EFFORTS if way not in run.without]


def by_size(run: Run) -> None:
    """Efforts on fewer passages."""
    for size in run.sizes:
        for way in _efforts(run):
            goal = run.goal(f"{way}_{size}")
            run.add(f"{way}_{size}_{run.suffix}", run.ratio(run.of(way, size)), goal=goal, note="one draw")


def smaller(run: Run) -> None:
    """All that is said of smaller samples."""
    by_size(run)
    _beside_fresh(run, run.sizes)
    _tuned_worst(run, run.sizes)


def _oracles(run: Run) -> None:
    """Those that saw the test passages: the best single adapter, and the average that greedy search finds on them."""
    best: dict[str, np.ndarray] = {}
    alone: dict[str, dict[str, np.ndarray]] = {}
    for domain in run.domains:
        singles = _singles(run, domain)
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
    run.add(
        "quick_vs_oracle_greedy",
        math.exp(float(np.mean(over))),
        goal=run.goal("greedy") if run.greedy is None else None,
    )


def _singles(run: Run, domain: str) -> dict[str, np.ndarray]:
    """NLL of the test passages under each adapter alone, and where ratios are over the control, under that too."""
    names = (*run.setting.job.training, *([run.setting.job.control] if run.over == "control" else []))
    return {name: run.single(domain, name) for name in names}


def with_best(run: Run) -> None:
    """The paper's "clustering + 2 best": the two adapters that are best by themselves join those that were chosen.

    All have equal weights, and the two, which saw the test passages, are the best of those that are not in it.
    """
    found = {}
    for domain in run.domains:
        singles, chosen = _singles(run, domain), run.answer("clustering", domain).ingredients
        ranked = sorted(singles, key=lambda name: float(singles[name].sum()))
        further = [ref for ref in (f"{NAMESPACE}/{name}" for name in ranked) if run.digest(ref) not in chosen]
        found[domain] = [run.averaged(domain, [*chosen, *further[:2]])]
    run.add(f"clustering_2_best_{run.suffix}", run.ratio(found), note="one draw; the two saw the test")


def beside_fresh(run: Run) -> None:
    """A fresh adapter at the best of its rates and passes, as held-out passages have it, beside the tuned soup."""
    _beside_fresh(run, (*run.sizes, run.full))
    same = "than a fresh adapter at the best of two rates, both over the default passes"
    _ahead(run, "tune_vs_fresh_as_often", "tune", run.full, partial(_fresh, twice=False), same)
    both = "over two passes, than a fresh adapter at the best of two rates over its default passes or two"
    _ahead(run, "tune_twice_vs_fresh", TWICE, run.full, _fresh, both)


def _beside_fresh(run: Run, sizes: Sequence[int]) -> None:
    for size in sizes:
        twice = " or over two passes" if size == run.full else ""
        against = f"than a fresh adapter, at the best of two rates over its default passes{twice}"
        _ahead(run, f"tune_vs_fresh_{size}", "tune", size, _fresh, against, run.goal(f"fresh_{size}"))


def _ahead(
    run: Run, name: str, way: str, size: int, other: Callable[[Run, str, int], Answer], against: str,
    goal: float | None = None,
) -> None:  # fmt: skip
    """Domains in which a way is better than the other, less those in which it is worse."""
    better = worse = 0
    for domain in run.domains:
        found = run.against(run.nll(run.answer(way, domain, size)), run.nll(other(run, domain, size)), domain)
        better += found.difference < -found.standard_error
        worse += found.difference > found.standard_error
    note = f"{better} better, {worse} worse by more than one standard error, {against}"
    run.add(name, better - worse, "domains", goal, note)


def _fresh(run: Run, domain: str, size: int, *, twice: bool = True) -> Answer:
    """The fresh adapter's best answer, as passages that it held out have it; of the largest sample `twice` as well."""
    ways = [fresh(rate) for rate in FRESH_RATES]
    if size == run.full and twice:
        ways += [fresh(rate, passes=2) for rate in FRESH_RATES]
    tried = [run.answer(way, domain, size) for way in ways]
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
    _claimed(run, (run.full, *run.sizes))


def _claimed(run: Run, sizes: Sequence[int]) -> None:
    """Of novel domains samples of these sizes, of hostile sets the largest."""
    worse: list[str] = []
    claims = 0
    for domain in (*(run.domains if sizes else ()), *run.hostile):
        for way in _efforts(run):
            for size in (run.full,) if domain in run.hostile else sizes:
                answer = run.answer(way, domain, size)
                found = run.against(run.nll(answer), run.base(domain), domain)
                if found.difference > found.standard_error:
                    worse.append(f"{way} {domain} {size}")
                claims += domain in HOSTILE and not answer.abstained
    what = ", ".join([*(["domains and sizes"] if sizes else []), *(["hostile sets"] if run.hostile else [])])
    what += f"; {claims} soups for hostile sets" if run.hostile else ""
    note = what + "".join(f"; {one}" for one in worse)
    run.add("worse_than_base", len(worse), "answers", 0, note)


def tuned_worst(run: Run) -> None:
    """How often the tuned soup is worse than quick's, or than a fresh adapter, by more than a standard error."""
    _tuned_worst(run, (run.full, *run.sizes))


def _tuned_worst(run: Run, sizes: Sequence[int]) -> None:
    worse = [
        f"{domain} {size} than {name}"
        for domain in run.domains
        for size in sizes
        for name, other in (("quick", run.answer("quick", domain, size)), ("fresh", _fresh(run, domain, size)))
        if _is_worse(run, run.answer("tune", domain, size), other)
    ]
    run.add("tune_worst", len(worse), "answers", 0, "; ".join(worse) or "none")


def beside_noise(run: Run) -> None:
    """What quick gets out of adapters of noise, and how far its soup is ahead of them, on its held-out passages."""
    found = [one.noise for domain in run.domains if (one := run.answer(NOISE, domain)).noise is not None]
    if found:
        note = f"mean of {len(found)} domains, nats a token on the held-out passages; below 0 is better"
        run.add("noise_difference", float(np.mean([one["difference"] for one in found])), "nats", note=note)
        run.add("quick_minus_noise", float(np.mean([one["ahead"] for one in found])), "nats", note=note)


def _is_worse(run: Run, one: Answer, other: Answer) -> bool:
    found = run.against(run.nll(one), run.nll(other), one.cell.domain)
    return found.difference > found.standard_error


def wall(run: Run) -> None:
    """Seconds of a whole answer over one pass of the base over the sample."""
    for way in ("quick", "thorough", "tune"):
        found = []
        for domain in run.domains:
            answer = run.answer(way, domain)
            found.append(answer.seconds / answer.forward)
        name = "tune_pass" if way == "tune" else f"cook_{way}"
        note = "with choosing and verifying; the first of them starts the process for gradients"
        run.add(f"{name}_vs_forward", median(found), "F", run.goal(f"{way}_vs_forward"), note)


def coverage(run: Run) -> None:
    """How often the interval of a held-out difference has the difference in it that all test passages show.

    For each domain's instant soup passages are drawn again and again, as many as a cook holds out of a hundred.
    """
    rng, inside, tried = np.random.default_rng(0), 0, 0
    for domain in run.domains:
        answer, texts = run.answer("instant", domain), run.setting.population(domain)
        if answer.abstained:
            continue
        soup, tokens = scored(run.setting, domain, answer.model, answer.digest, texts=texts)
        base, _ = scored(run.setting, domain, run.setting.base, None, texts=texts)
        truth = float((soup - base).sum() / tokens.sum())
        for _ in range(INTERVALS // len(run.domains)):
            drawn = rng.choice(len(texts), size=HELD_OUT, replace=True)
            found = paired_difference(soup[drawn], base[drawn], tokens[drawn])
            assert found.interval is not None
            inside += found.interval[0] <= truth <= found.interval[1]
            tried += 1
    if tried:
        note = f"of 90 % intervals of {HELD_OUT} passages, {tried} draws; the goal is 0.86 to 0.94"
        run.add("interval_coverage", inside / tried, "share", 0.86, note=note)


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
    control = [run.setting.job.control] if run.setting.job.control else []
    for domain in run.domains:
        for name in (*run.setting.job.training, *control):
            found = run.against(run.single(domain, name), run.base(domain), domain)
            run.result.rows.append({
                "domain": domain, "way": ALONE, "adapter": name, "passages": 0, "hostile": False,
                "difference": found.difference, "standard_error": found.standard_error,
            })  # fmt: skip


ALONE_TOO = {"best": with_best, "sizes": smaller}
ONLY = (*ALONE_TOO, "hostile", *HOSTILE)
"""What a run may be of alone, beside a results file that has the rest; each hostile set too."""


def run(
    setting: Setting, home: Path, *, search: Search, over: str, draws: int, sizes: Sequence[int], name: str,
    without: Sequence[str] = (), only: Sequence[str] = (), greedy: int | None = None,
) -> Result:  # fmt: skip
    """Everything but what it goes `without`, or what is named in `only`; `over` is `base` or `control`.

    `search` is how greedy search is made, which a run of parts in `only` does without.
    """
    hostile = _hostile(without, only)
    answers = Answers(home / "answers.jsonl")
    work = Run(setting, answers, over, draws, sizes, Result(name), without, greedy, hostile, search=search)
    further = {"noise": beside_noise, "coverage": coverage, "best": with_best}
    if only:
        parts: list[Callable[[Run], None]] = [part for name, part in ALONE_TOO.items() if name in only]
        smaller_too = sizes if "sizes" in only else ()
        parts += [*([partial(_claimed, sizes=smaller_too)] if smaller_too or hostile else []), rows]
    else:
        parts = [tables, wall, kept_when_narrow, tuned_worst, nothing_claimed, beside_fresh]
        parts += [*(part for name, part in further.items() if name not in without), rows, singles]
    for part in parts:
        part(work)
    return work.result


def _hostile(without: Sequence[str], only: Sequence[str]) -> tuple[str, ...]:
    """The hostile sets that are looked at: of `only` all or those that it names, else all or none."""
    every = "hostile" in only if only else "hostile" not in without
    return HOSTILE if every else tuple(name for name in HOSTILE if name in only)


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
    parser.add_argument("--only", nargs="*", choices=ONLY, default=[], help="look at these parts and at no others")
    parser.add_argument("--greedy", type=int, help="adapters that greedy search may take, the best by themselves")
    parser.add_argument("--parallel", type=int, help="greedy searches at once: by default 1, on Ray what has room")
    parser.add_argument("--on", metavar="ray[=HOST:PORT]", help="search greedily on a Ray cluster, or on one made here")
    parser.add_argument("--cores", type=int, help="with --on ray: processor cores, and threads, of each search")
    given = parser.parse_args()
    if given.only and set(given.without) - {"thorough"}:
        parser.error("--only is of parts that are named: --without leaves nothing but an effort out of them")
    name = "adaptersoup" if given.out is None else given.out.stem
    lengths = Lengths(given.passages, given.largest, given.longest)
    with (
        place_of_work(given.on, at_once=given.parallel, cores=given.cores) as place,
        opened(given.data, given.base, given.adapters, given.home, lengths, domains=given.domains) as setting,
    ):
        found = run(
            setting, given.home, search=partial(searched, place), over=given.over, draws=given.draws,
            sizes=given.sizes, name=name, without=given.without, only=given.only, greedy=given.greedy,
        )  # fmt: skip
    found.finish(given.out)


if __name__ == "__main__":
    main()
