"""How fast the registry stores and finds: a large catalogue, uploads, pushes at once, refits, and a start.

- `list_ms_p95`, `filter_ms_p95`, `search_ms_p95`: a page of 50 out of 100,000 adapters over HTTP, on PostgreSQL, for a
  key that sees all of them; `sqlite_...` on SQLite. The rows have those of a key that sees three namespaces of 200.
- `page_models_ms_p95`: the page of models over 10,000 adapters on SQLite, from the first byte sent to the last
  received; `page_slowest_ms_p95` the slowest of ten pages, which its note names.
- `upload_vs_hash`: the speed of one request that uploads 500 MB, over that of hashing them (SHA-256) alone;
  `dropped_vs_hash` with a server that keeps nothing, `written_vs_hash` without one: the file copied and synced.
- `push_many`: pushes a second by 8 clients at once; `push_many_vs_one` over those of one client.
- `refit_backlog`: fits that are to do after 1,000 pushes in a row into a pool that has a selector.
- `help_s`: `soup --help`, a whole process; `serve_ready_cpu_s`: CPU time of a server until `/readyz` answers.

The results file is written after each part, so that one that was stopped has the parts before it. With `--only` the
parts that are named take the place of their own in the file that is there, and say themselves when they were measured.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from benchmarks.cold_start import GOALS, PROGRAMS, READY_CPU_GOAL, SMALL_BASE, process, server_start
from benchmarks.faults.server import killable, postgresql
from benchmarks.report import Result, interleaved, options, repeated, run_parts
from benchmarks.shelf import lists, pushes, site, uploads
from demo.results import Figure

ADAPTERS, REQUESTS, MEGABYTES, CLIENTS, EACH, IN_A_ROW = 100_000, 200, 500, 8, 20, 1_000
PAGE_GOAL, SITE_GOAL, UPLOAD_GOAL, BACKLOG_GOAL = 30.0, 200.0, 0.5, 2


def measure_lists(result: Result, *, adapters: int, requests: int) -> None:
    """Both databases."""
    for name in ("postgresql", "sqlite"):
        database = postgresql() if name == "postgresql" else nullcontext(None)
        with database as url, tempfile.TemporaryDirectory() as folder, killable(Path(folder), url) as server:
            lists.stock(server, adapters)
            found = list(lists.timed(server, adapters, requests=requests, kinds=lists.LISTED))
        result.rows += [{"adapters": adapters, **one.row(name)} for one in found]
        for one in (one for one in found if one.sees == "everything" and one.kind != "nothing"):
            prefix, goal = ("", PAGE_GOAL) if name == "postgresql" else ("sqlite_", None)
            note = f"{name}, {adapters:,} adapters, {requests} requests"
            result.figures[f"{prefix}{one.kind}_ms_p95"] = Figure(one.p95, "ms", goal, note=note)


def measure_pages(result: Result, *, adapters: int, requests: int) -> None:
    """The pages over a catalogue of their own."""
    with tempfile.TemporaryDirectory() as folder, killable(Path(folder), None) as server:
        lists.stock(server, adapters)
        found = list(site.timed(server, adapters, requests=requests))
    result.rows += [one.row("sqlite", "pages") for one in found]
    slowest = max(found, key=lambda one: one.p95)
    note = f"sqlite, {adapters:,} adapters, {requests} requests of each"
    result.figures["page_models_ms_p95"] = Figure(found[0].p95, "ms", SITE_GOAL, note=note)
    result.figures["page_slowest_ms_p95"] = Figure(slowest.p95, "ms", SITE_GOAL, note=f"{slowest.kind}; {note}")


def measure_uploads(result: Result, *, megabytes: int, repeats: int) -> None:
    """A file, again and again."""
    with tempfile.TemporaryDirectory() as folder, killable(Path(folder), None) as server:
        rows = uploads.uploads(server, Path(folder), megabytes=megabytes, repeats=repeats)
    result.rows += rows
    note = f"{megabytes} MB in one request"
    result.figures["upload_vs_hash"] = repeated(
        [row["put_vs_hash"] for row in rows], "ratio", goal=UPLOAD_GOAL, note=note
    )
    note = "SoupClient.upload, which hashes first and sends in parts"
    result.figures["client_upload_vs_hash"] = repeated([row["client_vs_hash"] for row in rows], "ratio", note=note)
    note = "the same request to uvicorn with an application that keeps nothing"
    result.figures["dropped_vs_hash"] = repeated([row["dropped_vs_hash"] for row in rows], "ratio", note=note)
    note = "the same file written and synced, without a server"
    result.figures["written_vs_hash"] = repeated([row["written_vs_hash"] for row in rows], "ratio", note=note)


def measure_pushes(result: Result, *, each: int, repeats: int) -> None:
    """One client, and several, in turn."""
    one, many = [], []
    with tempfile.TemporaryDirectory() as folder, killable(Path(folder), None) as server:
        for repeat in range(repeats):
            seed = 100_000 * (repeat + 1)
            one.append(pushes.rate(server, clients=1, each=each, seed=seed))
            many.append(pushes.rate(server, clients=CLIENTS, each=each, seed=seed + each))
    result.figures["push_many"] = repeated(many, "pushes/s", note=f"{CLIENTS} clients at once, SQLite")
    ratios = [several / alone for several, alone in zip(many, one, strict=True)]
    result.figures["push_many_vs_one"] = repeated(ratios, "ratio", note="over one client")
    result.rows.append({"part": "pushes", "clients": CLIENTS, "each": each, "one_per_s": one, "many_per_s": many})


def measure_backlog(result: Result, *, in_a_row: int) -> None:
    """Pushes in a row."""
    with tempfile.TemporaryDirectory() as folder, killable(Path(folder), None) as server:
        found = pushes.backlog(server, pushes=in_a_row)
    result.rows.append({"part": "backlog", **vars(found)})
    note = f"after {in_a_row} pushes in {found.seconds:.0f} s, {found.done} done meanwhile"
    result.figures["refit_backlog"] = Figure(found.to_do, "fits", BACKLOG_GOAL, note=note)


def measure_start(result: Result, *, repeats: int) -> None:
    """A command, and a server."""
    found = interleaved({"help": process(PROGRAMS["soup_help"])}, repeats=repeats)
    result.figures["help_s"] = repeated(found["help"], "s", goal=GOALS["soup_help"])
    server_start(SMALL_BASE)
    starts = [server_start(SMALL_BASE).cpu_s for _ in range(repeats)]
    result.figures["serve_ready_cpu_s"] = repeated(starts, "CPU s", goal=READY_CPU_GOAL)
    result.rows.append({"part": "start", "help_s": found["help"], "ready_cpu_s": starts})


def parts(given: argparse.Namespace) -> dict[str, Callable[[Result], None]]:
    """What is measured, in the order of the cheapest first."""
    return {
        "start": lambda result: measure_start(result, repeats=given.repeats),
        "pushes": lambda result: measure_pushes(result, each=given.each, repeats=given.repeats),
        "backlog": lambda result: measure_backlog(result, in_a_row=given.in_a_row),
        "uploads": lambda result: measure_uploads(result, megabytes=given.megabytes, repeats=given.repeats),
        "pages": lambda result: measure_pages(result, adapters=given.adapters // 10, requests=given.requests // 4),
        "lists": lambda result: measure_lists(result, adapters=given.adapters, requests=given.requests),
    }


def main() -> None:
    """The command line."""
    parser = options(__doc__)
    parser.add_argument("--adapters", type=int, default=ADAPTERS, help="adapters of the catalogue that is listed")
    parser.add_argument("--requests", type=int, default=REQUESTS, help="requests of each kind that are timed")
    parser.add_argument("--megabytes", type=int, default=MEGABYTES, help="size of the file that is uploaded")
    parser.add_argument("--each", type=int, default=EACH, help="pushes of each client")
    parser.add_argument("--in-a-row", type=int, default=IN_A_ROW, help="pushes before the fits are counted")
    names = ("start", "pushes", "backlog", "uploads", "pages", "lists")
    parser.add_argument("--only", nargs="+", choices=names, help="these parts; the others stay in the file")
    given = parser.parse_args()
    run_parts("registry", parts(given), only=given.only, out=given.out)


if __name__ == "__main__":
    main()
