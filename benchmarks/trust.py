"""Counts how a server withstands kills, faults, floods, concurrent writers and malicious files.

- `kills_survived`: of servers that were killed (kill -9) in the middle of pushes, uploads, fits, cooks, trainings,
  purges and collections, on SQLite and PostgreSQL, those after which all that was acknowledged was there and whole
  (`benchmarks.faults.kills`).
- `faults_survived`: databases stopped, held and removed, disks full, folders gone, files damaged and migrations killed
  under a running server, after which it continued without data loss (`benchmarks.faults.outages`).
- `lost_updates`: marks that writers at once put on one card with `if_match`, and that are not there in the end.
- `mutated_headers`: headers of safetensors files changed at random that were read or refused; `header_crashes`: the
  rest of them.
- `schemathesis_cases`: requests made of the OpenAPI document, following its links (`benchmarks.faults.schemas`);
  `schemathesis_5xx`: answers above 499 among them.
- `tenant_wait`: while one key floods the server, the time that another key's small completion or recipe takes, over
  what it takes alone; the worst of all floods (`benchmarks.faults.tenants`).

The results file is written after each part, so that an interrupted run keeps earlier parts. With `--only` the named
parts replace their results in the existing file, and record their own date.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.faults import headers, kills, outages, schemas, tenants, updates
from benchmarks.faults.server import DATABASES, database, temporary_server
from benchmarks.report import Part, Result, options, run_parts
from demo.results import Figure

KILLS, HEADERS, WRITERS, UPDATES, REQUESTS = 15, 200_000, 8, 25, 9
CASES = 10_000
WAIT_GOAL, KILLS_GOAL = 5.0, 200
SHOWN = 20
"""Failures that a row shows."""


def measure_kills(result: Result, *, each: int) -> None:
    """Every series on both databases."""
    outcomes = []
    for name in DATABASES:
        for kind in kills.SERIES:
            with database(name) as postgres:
                outcomes.append(kills.run_series(kind, postgres, kills=each))
            outcome = outcomes[-1]
            result.rows.append(
                {
                    "part": "kills",
                    "series": outcome.series,
                    "database": outcome.database,
                    "kills": outcome.kills,
                    "acknowledged": outcome.acknowledged,
                    "failures": outcome.failures[:SHOWN],
                    "failed": len(outcome.failures),
                }
            )
    failed = sum(len(outcome.failures) for outcome in outcomes)
    survived = sum(outcome.survived for outcome in outcomes)
    acknowledged = sum(outcome.acknowledged for outcome in outcomes)
    note = f"{acknowledged} pieces of work acknowledged; {failed} lost, not whole or failed"
    result.figures["kills_survived"] = Figure(survived, "kills", KILLS_GOAL, note=note)


def measure_faults(result: Result) -> None:
    """Every fault on both databases."""
    outcomes = [outcome for name in DATABASES for outcome in outages.run_faults(name)]
    result.rows += [
        {"part": "faults", "fault": outcome.fault, "database": outcome.database, "failures": outcome.failures[:SHOWN]}
        for outcome in outcomes
    ]
    survived = sum(not outcome.failures for outcome in outcomes)
    result.figures["faults_survived"] = Figure(survived, "faults", note=f"of {len(outcomes)} that were tried")


def measure_updates(result: Result, *, writers: int, each: int) -> None:
    """Writers of one card."""
    with temporary_server() as server:
        lost = updates.lost_updates(server, writers=writers, each=each)
    note = f"of {writers * each} by {writers} writers"
    result.figures["lost_updates"] = Figure(lost, "updates", 0, note=note)


def measure_headers(result: Result, *, amount: int) -> None:
    """Changed headers."""
    counts = headers.run_headers(amount)
    result.rows.append({"part": "headers", "read": counts.read, "refused": counts.refused, "crashes": counts.crashes})
    note = f"{counts.read} were read, {counts.refused} refused"
    result.figures["mutated_headers"] = Figure(counts.read + counts.refused, "files", 200_000, note=note)
    result.figures["header_crashes"] = Figure(len(counts.crashes), "files", 0)


def measure_tenants(result: Result, *, requests: int) -> None:
    """Floods."""
    with temporary_server() as server:
        rows = tenants.waits(server, requests=requests)
    result.rows += [{"part": "tenants", **row} for row in rows]
    worst = max(rows, key=lambda row: row["ratio"])
    note = f"{worst['request']} beside {worst['flood']}; medians of {requests} requests"
    result.figures["tenant_wait"] = Figure(worst["ratio"], "ratio", WAIT_GOAL, note=note)


def measure_schemathesis(result: Result, *, cases: int) -> None:
    """Requests of the OpenAPI document."""
    with temporary_server(None, **schemas.QUIET) as server:
        sent = schemas.measured(server, cases=cases)
    result.rows.append(
        {
            "part": "schemathesis",
            "statuses": {str(status): sent.statuses[status] for status in sorted(sent.statuses)},
            "calls": dict(sorted(sent.calls.items())),
            "failures": sent.failures[:SHOWN],
        }
    )
    note = f"{sent.linked} of them followed a link, {len(sent.calls)} calls"
    result.figures["schemathesis_cases"] = Figure(sent.cases, "requests", 10_000, note=note)
    result.figures["schemathesis_5xx"] = Figure(len(sent.failures), "answers", 0)


PARTS: Mapping[str, Part] = {
    "headers": lambda result, arguments: measure_headers(result, amount=arguments.headers),
    "updates": lambda result, _: measure_updates(result, writers=WRITERS, each=UPDATES),
    "tenants": lambda result, _: measure_tenants(result, requests=REQUESTS),
    "faults": lambda result, _: measure_faults(result),
    "schemathesis": lambda result, arguments: measure_schemathesis(result, cases=arguments.cases),
    "kills": lambda result, arguments: measure_kills(result, each=arguments.kills),
}
"""The parts of the measurement, cheapest first."""


def main() -> None:
    """The command line."""
    parser = options(__doc__)
    parser.add_argument("--kills", type=int, default=KILLS, help="kills of each series on each database")
    parser.add_argument("--headers", type=int, default=HEADERS, help="headers that are changed")
    parser.add_argument("--cases", type=int, default=CASES, help="requests that schemathesis sends")
    run_parts(parser, PARTS)


if __name__ == "__main__":
    main()
