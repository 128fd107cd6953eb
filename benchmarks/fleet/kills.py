"""Servers, workers, the store and PostgreSQL are killed (kill -9) at random moments under traffic through a router.

The traffic is pushes, some of which are purged again, cooks, each for a text of its own, and streams. Whoever gets no
answer asks again, as a client does, until it is acknowledged. After each kill what was killed is started again, and a
push, a cook and a stream have to come to their ends. At the end everything that was acknowledged has to be there, as it
was acknowledged and once, every stored byte is hashed, and the store holds no object of what was purged: of those whose
deletion a kill prevented a collection has made sure by then.
"""

from __future__ import annotations

import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import SubprocessError

from benchmarks.faults.server import Stoppable, postgresql_server
from benchmarks.fleet.object_store import Store, bucket_settings, object_store
from benchmarks.fleet.traffic import Acknowledged, Traffic
from benchmarks.replicas import Place, Process, answered, place
from benchmarks.report import Result
from demo.results import Figure
from registry.errors import Internal

KILLS_GOAL = 100
KINDS = ("replica", "worker", "store", "postgresql")
SERVERS, WORKERS = 2, 2
LEASE = "4"
"""Seconds after which another worker takes over a dead one's job."""
SPAN, PAUSE = 3.0, 1.0
"""A kill comes within so many seconds of the one before being over, a start within so many of the kill."""
START_SECONDS, RECOVERY_SECONDS = 180.0, 180.0
SHOWN = 20


@dataclass
class Fleet:
    """What is killed."""

    at: Place
    servers: list[Process]
    workers: list[Process]
    router: Process
    store: Store
    database: Stoppable

    def strike(self, kind: str, draw: random.Random) -> None:
        """Kill one of a kind, and start it again a moment later, until it starts."""
        if kind in ("replica", "worker"):
            one = draw.choice(self.servers if kind == "replica" else self.workers)
            one.end(signal.SIGKILL)
            start: Callable[[], object] = lambda: self.at.again(one)  # noqa: E731
        else:
            hit: Store | Stoppable = self.store if kind == "store" else self.database
            hit.kill()
            start = hit.start
        time.sleep(draw.uniform(0, PAUSE))
        _until_started(start)


def _until_started(start: Callable[[], object]) -> None:
    """As what looks after processes does: again where it ended at once, as a server does without its database."""
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            start()
        except (Internal, SubprocessError):
            if time.monotonic() > end:
                raise
            time.sleep(0.5)
        else:
            return


@contextmanager
def fleet(servers: int, workers: int) -> Iterator[Fleet]:
    """Servers and workers over one PostgreSQL and one bucket, and a router before them.

    Without workers the servers do their work too.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        database = stack.enter_context(postgresql_server())
        store = stack.enter_context(object_store(folder))
        role = "api" if workers else "all"
        settings = {**bucket_settings(store.port), "SOUP_JOB_LEASE_SECONDS": LEASE, "SOUP_ROLE": role}
        at = stack.enter_context(place(folder, settings=settings, database=database))
        found = [at.replica() for _ in range(servers)]
        working = [at.replica(SOUP_ROLE="worker") for _ in range(workers)]
        yield Fleet(at, found, working, at.router(), store, database)


def measure_kills(result: Result, *, kills: int, servers: int = SERVERS, workers: int = WORKERS) -> None:
    """Kill so many in a fleet of its own, and count what was lost."""
    with fleet(servers, workers) as found:
        strike_all(result, found, kills=kills)


def strike_all(result: Result, found: Fleet, *, kills: int) -> None:
    """Kill so many, of each kind that there is the same number in an order that is drawn, and count what was lost."""
    draw = random.Random(f"kills {kills}")
    kinds = [kind for kind in KINDS if kind != "worker" or found.workers]
    order = [kinds[number % len(kinds)] for number in range(kills)]
    draw.shuffle(order)
    began, survived, failures = time.monotonic(), Counter[str](), list[str]()
    with Traffic(lambda: found.at.client(found.router)) as traffic:
        for number, kind in enumerate(order):
            time.sleep(draw.uniform(0, SPAN))
            found.strike(kind, draw)
            stuck = traffic.waits_for_more(RECOVERY_SECONDS)
            failures += [f"after kill {number} ({kind}): no {what} came to its end" for what in stuck]
            survived[kind] += not stuck
        traffic.stop()
        lost = {**traffic.verified(), "left": left_of(traffic.purged, found)}
        checked = found.at.soup("check", "--all", "--rate", str(10**9))
        if checked.returncode:
            lost["wrong"].append(f"soup check: {checked.stdout.strip()} {checked.stderr.strip()}")
    result.rows.append({
        "part": "kills", "kills": dict(Counter(order)), "survived": dict(survived), "seconds": time.monotonic() - began,
        "done": dict(traffic.done), "asked_again": dict(traffic.again), "cut": traffic.cut,
        "failures": failures[:SHOWN], **{what: those[:SHOWN] for what, those in lost.items()},
    })  # fmt: skip
    bad = sum(map(len, lost.values()))
    note = (
        f"{', '.join(f'{survived[kind]} of a {kind}' for kind in kinds)}; the store's are of the process before it, "
        f"which cuts requests off: its objects are in the memory of the one behind"
    )
    result.figures["kills_survived"] = Figure(0 if bad else survived.total(), "kills", KILLS_GOAL, note=note)
    done = ", ".join(f"{traffic.done[what]} {what}" for what in traffic.done)
    note = f"lost, wrong, twice, or left in the store after a purge, of {done}"
    result.figures["kills_lost"] = Figure(bad, "pieces", 0, note=note)


def left_of(purged: Sequence[Acknowledged], found: Fleet) -> list[str]:
    """The objects that the store holds of what was purged, after a collection, in sentences."""
    with found.at.client(found.router) as client:
        answered(client.post("/v1/collect", json={"dry_run": False}))
    return [
        f"{digest} of {one.name}, which was purged, is in the store"
        for one in purged
        for digest in (one.answer["weights_blob"], one.answer["sample"]["digest"])
        if found.store.has(digest)
    ]
