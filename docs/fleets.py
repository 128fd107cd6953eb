"""What the page about scale reads off the queueing model of `benchmarks.fleet_model`: several servers, and many.

Called by `docs.figures` for the blocks `<!-- figures:working_set_...:VIEW -->`: what a request and a load take is
fitted to that results file, and everything else in a table is the model's; and for `<!-- figures:scale:affinity -->`,
which holds the model to what `benchmarks.scale` measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks import working_set
from benchmarks.fleet_model import Fleet, Prediction, Work, at_random, by_adapter, fitted, hits, most_busy, zipf
from docs.markdown import table
from service.settings import Settings

Result = Mapping[str, Any]

REPLICAS, SLOTS, ADAPTERS, EXPONENT = 3, 40, 200, 1.0
"""The fleet and the traffic of `affinity` in `benchmarks/scale.py`."""
CLIENTS = (8, 32, 48)
"""As many as that benchmark has, twice the places of one server, and the places of all."""
UNIT = Work(1.0, 1.0, 1)
"""Where no server is full, the share that finds its adapter does not depend on what requests take."""
LEADS = (1, 16)
NOT_MEASURED = "Not measured yet: `benchmarks/results/scale.json` has no part `affinity`."
OFF = 0.2
"""The part of a prediction by which what was measured may differ."""
DRAWS = 2
"""Rankings of the adapters' servers that a prediction is the mean of."""
FLEETS = (
    (3, 40, 200, 1.0), (10, 40, 200, 1.0), (10, 40, 10**7, 1.0), (100, 40, 10**7, 1.0), (1000, 40, 10**7, 1.0),
    (1000, 400, 10**7, 1.0), (1000, 40, 10**7, 0.8), (1000, 40, 10**7, 1.2),
)  # fmt: skip
"""Servers, adapters that each holds, adapters there are, Zipf's exponent."""


def work(result: Result, _name: str) -> list[str]:
    """The line through the measured points."""
    found = _work(result)
    cells = [
        (row["working_set"], f"{row['loads_a_request']:.3f}", f"{1000 * measured:.1f}", f"{1000 * line:.1f}",
         f"{round(100 * (line / measured - 1), 1) + 0:+.1f}")
        for row in result["rows"]
        for measured, line in [(found.tokens / row["tokens_per_s"], found.mean(1 - row["loads_a_request"]))]
    ]  # fmt: skip
    head = ("adapters asked for", "loads a request", "ms a request, measured", "by the line", "off, %")
    return [
        *table(head, cells), "",
        f"A request of {found.tokens} tokens takes {1000 * found.request:.1f} ms of a busy engine, a load "
        f"{1000 * found.load:.1f} ms more.",
    ]  # fmt: skip


def routes(result: Result, _name: str) -> list[str]:
    """The fleet that is to be measured: at random, by adapter, and by adapter where the second one needs a lead."""
    found = _work(result)
    head = ("clients", "routed", "find their adapter", "over random", "to the second", "tokens/s", "over random")
    return table(head, list(_routes(found)))


def _routes(found: Work) -> Iterator[Sequence[str]]:
    places = int(Settings.model_fields["engine_rows"].default)
    popularity = zipf(ADAPTERS, EXPONENT)
    for clients in CLIENTS:
        plain = at_random(Fleet(REPLICAS, SLOTS, places), popularity, found, clients=clients)
        ways = {"at random": plain}
        for lead in LEADS:
            name = "by adapter" if lead == 1 else f"by adapter, a lead of {lead}"
            ways[name] = _by_adapter(Fleet(REPLICAS, SLOTS, places, lead), found, clients)
        for name, one in ways.items():
            yield (
                str(clients), name, f"{one.hit:.2f}", f"{one.hit / plain.hit:.2f}", f"{one.spilt:.2f}",
                f"{found.tokens * one.requests_per_s:.0f}", f"{one.requests_per_s / plain.requests_per_s:.2f}",
            )  # fmt: skip


@cache
def _by_adapter(fleet: Fleet, found: Work, clients: int, adapters: int = ADAPTERS) -> Prediction:
    """The mean over some rankings."""
    draw = np.random.default_rng(0)
    ranks = [draw.random((adapters, fleet.replicas)).argsort(axis=1) for _ in range(DRAWS)]
    popularity = zipf(adapters, EXPONENT)
    ones = [by_adapter(fleet, popularity, found, rank[:, 0], rank[:, 1], clients=clients) for rank in ranks]
    return Prediction(
        fmean(one.hit for one in ones), fmean(one.requests_per_s for one in ones), fmean(one.spilt for one in ones)
    )


def fleets(result: Result, _name: str) -> list[str]:
    """Fleets that nobody has here."""
    found = _work(result)
    pool = int(Settings.model_fields["database_pool"].default)
    cells = []
    for replicas, slots, adapters, exponent in FLEETS:
        popularity = zipf(adapters, exponent)
        hit = hits(popularity, replicas * slots)
        busy = min(replicas, most_busy(popularity))
        requests = busy / found.mean(hit)
        shares = f"{hits(popularity, slots):.2f}", f"{hit:.2f}", f"{busy:.1f}"
        tokens = f"{found.tokens * requests:,.0f}", f"{replicas * found.tokens_per_s(hit):,.0f}"
        cells.append((
            f"{replicas:,}", str(slots), f"{adapters:,}", f"{exponent:g}", *shares, *tokens,
            f"{requests * (1 - hit):,.0f}", f"{replicas * pool:,}",
        ))  # fmt: skip
    head = (
        "replicas", "slots", "adapters", "Zipf", "find theirs, at random", "by adapter", "busy at most", "tokens/s",
        "tokens/s, all busy", "loads/s", "connections",
    )  # fmt: skip
    return table(head, cells)


def affinity(result: Result, _name: str) -> list[str]:
    """How many requests found their adapter on the fleet that was measured, beside what the model says of it."""
    measured = {row["way"]: row for row in result["rows"] if row.get("part") == "affinity"}
    if not measured:
        return [NOT_MEASURED]
    one = measured["routed"]
    fleet = Fleet(one["replicas"], one["slots"], int(Settings.model_fields["engine_rows"].default))
    popularity = zipf(one["adapters"], EXPONENT)
    by_route = _by_adapter(fleet, UNIT, CLIENTS[0], one["adapters"])
    assert by_route.spilt == 0, "what a request takes counts where servers are full"
    said = {"routed": by_route.hit, "random": hits(popularity, one["slots"])}
    found = {way: float(row["held"]) for way, row in measured.items()}
    shown = {
        "find their adapter, by the router": (said["routed"], found["routed"]),
        "find their adapter, at random": (said["random"], found["random"]),
        "the one over the other": (said["routed"] / said["random"], found["routed"] / found["random"]),
    }
    cells = [(what, f"{a:.3f}", f"{b:.3f}", f"{100 * (b / a - 1):+.1f}") for what, (a, b) in shown.items()]
    missed = [what for what, (a, b) in shown.items() if abs(b / a - 1) > OFF]
    verdict = (
        f"**The model misses**: by more than {OFF:.0%} in {'; '.join(missed)}."
        if missed
        else f"Within the {OFF:.0%} that were asked for."
    )
    return [*table(("share of requests", "predicted", "measured", "off, %"), cells), "", verdict]


def _work(result: Result) -> Work:
    return fitted(result["rows"], tokens=working_set.TOKENS)


VIEWS: dict[str, Callable[[Result, str], list[str]]] = {
    "work": work, "routes": routes, "fleets": fleets, "affinity": affinity,
}  # fmt: skip
