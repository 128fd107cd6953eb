"""Several servers behind `soup route`: whether answers are right, what the router costs, and what it saves.

- `wrong_digest`: of requests for adapters that each write something else, while servers are killed, stopped and
  started and aliases move, those that were answered by another adapter than was asked for: by `x-soup-digest`, or by
  a text that is not that adapter's. `not_answered` are those that were refused or lost.
- `router_overhead`: tokens per second of streams at once through the router, over the same from the server behind it.
- `affinity`: the share of requests that found their adapter held ready, over the same with servers drawn at random;
  adapters are asked for with frequencies 1/rank (Zipf 1.0), and the servers hold fewer than there are. Of
  `affinity_full` there are as many clients as all servers have places: the second choice then counts.
- `store_vs_folder_pushes`, `store_vs_folder_loads`: what a push and a cold load take with blobs in an object store,
  over the same in a folder, with the share of it that is the store's (`benchmarks.fleet.stores`).
- `kills_survived`: of servers, workers, the store's front and PostgreSQL, killed (kill -9) under pushes, cooks and
  streams, those after which all three came to their ends; none where anything that was acknowledged is not there at the
  end, right and once: `kills_lost` counts that (`benchmarks.fleet.kills`).

All processes are on this machine, and share its processors with the clients. The database is PostgreSQL.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.fleet.affinity import measure_affinity
from benchmarks.fleet.asking import CLIENTS
from benchmarks.fleet.canaries import measure_wrong
from benchmarks.fleet.kills import measure_kills
from benchmarks.fleet.overhead import measure_overhead
from benchmarks.fleet.stores import measure_stores
from benchmarks.replicas import FOLDER
from benchmarks.report import options, run_parts

REQUESTS, CANARIES, KILLS = 20_000, 500, 100
SLOTS, WANTED, DRAWN = 40, 200, 4_000
AFFINITY_GOAL, FULL = 1.3, 48
STREAMS, TOKENS = 32, 64
STORED = 40


def main() -> None:
    """The command line."""
    parser = options(__doc__)
    parts = ("stores", "wrong", "overhead", "affinity", "affinity_full", "kills")
    parser.add_argument("--only", nargs="+", choices=parts, help="these parts, in their own place in the file")
    parser.add_argument("--requests", type=int, default=REQUESTS, help="requests for canaries")
    parser.add_argument("--kills", type=int, default=KILLS, help="processes that are killed")
    parser.add_argument("--base-folder", type=Path, default=FOLDER, help="base model of the overhead's streams")
    given = parser.parse_args()
    run(given)


def run(given: argparse.Namespace) -> None:
    """Every part, or those that are named."""
    run_parts(
        "scale",
        {
            "stores": lambda result: measure_stores(result, adapters=STORED),
            "wrong": lambda result: measure_wrong(result, requests=given.requests, canaries=CANARIES),
            "overhead": lambda result: measure_overhead(
                result, streams=STREAMS, tokens=TOKENS, repeats=given.repeats, source=given.base_folder
            ),
            "affinity": lambda result: measure_affinity(
                result, "affinity", adapters=WANTED, slots=SLOTS, requests=DRAWN, clients=CLIENTS, goal=AFFINITY_GOAL
            ),
            "affinity_full": lambda result: measure_affinity(
                result, "affinity_full", adapters=WANTED, slots=SLOTS, requests=DRAWN, clients=FULL, goal=None
            ),
            "kills": lambda result: measure_kills(result, kills=given.kills),
        },
        only=given.only,
        out=given.out,
    )  # fmt: skip


if __name__ == "__main__":
    main()
