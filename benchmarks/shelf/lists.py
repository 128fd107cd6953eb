"""How long a server takes for a page of a large catalogue: lists, filters and searches, over one open connection."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx2
import numpy as np
from sqlalchemy import make_url

from benchmarks.faults.content import adapter
from benchmarks.faults.server import BASE, Killable
from benchmarks.shelf.rows import COMMON, DOMAINS, NAMESPACES, TAGS, described, domain, fill, vocabulary
from registry.catalogue import Database
from registry.errors import Internal
from registry.names import parse_ref

LISTS = "/v1/adapters"
PAGE = 50
WARM = 20
"""Requests of each kind that are sent before those that are timed: connections open, statements prepared."""
TENANT = 3
"""Namespaces of the key that does not see all of them."""
Query = Mapping[str, Any]


@dataclass(frozen=True)
class Timed:
    """What the requests of one kind took, in milliseconds, and how many of them found anything."""

    kind: str
    sees: str
    milliseconds: Sequence[float]
    found: int

    @property
    def p95(self) -> float:
        """All but the slowest twentieth took at most so long."""
        return float(np.percentile(self.milliseconds, 95))

    def row(self, database: str, part: str = "lists") -> dict[str, Any]:
        """As a row of the results."""
        half, most = float(np.median(self.milliseconds)), max(self.milliseconds)
        return {
            "part": part, "database": database, "kind": self.kind, "sees": self.sees,
            "requests": len(self.milliseconds), "found": self.found, "median_ms": half,
            "p95_ms": self.p95, "slowest_ms": most,
        }  # fmt: skip


def stock(server: Killable, amount: int) -> None:
    """Push one adapter and copy it so many times, into the server's own database."""
    with server.client() as client:
        pushed = client.push(adapter("first/pushed", 0, sample=False))
    database = Database(server.database_url or f"sqlite:///{server.data / 'soup.db'}")
    try:
        with database.read() as catalogue:
            row = catalogue.adapters.resolve(None, parse_ref(pushed["ref"]))
        fill(database, described(row), amount)
        if make_url(str(database.engine.url)).get_backend_name() == "postgresql":
            with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.exec_driver_sql("VACUUM ANALYZE")  # which autovacuum does within a minute of many writes
    finally:
        database.close()


def timed(server: Killable, amount: int, *, requests: int) -> Iterator[Timed]:
    """Every kind of request, with a key that sees everything and with one that sees a few namespaces.

    `nothing` is what a request takes that asks for nothing: the machine's and the transport's share in the others.
    """
    with server.client() as admin:
        few = [f"team{number}" for number in range(TENANT)]
        tenant = admin.create_key("tenant", scopes=["read"], namespaces=few)["secret"]
    for sees, key in (("everything", server.key()), (f"{TENANT} namespaces", tenant)):
        with httpx2.Client(base_url=server.url, headers={"authorization": f"Bearer {key}"}, timeout=120) as client:
            yield _timed("nothing", sees, client, [{} for _ in range(requests)], path="/healthz")
            yield _timed("list", sees, client, [{} for _ in range(requests)], pages=True)
            yield _timed("filter", sees, client, list(_filters(amount, requests)))
            yield _timed("search", sees, client, list(_searches(requests)))


def _timed(
    kind: str, sees: str, client: httpx2.Client, queries: Sequence[Query], *, path: str = LISTS, pages: bool = False
) -> Timed:
    """The times of these queries; of `pages` each takes the one after the last."""
    taken, found, cursor = [], 0, None
    for query in [*queries[:WARM], *queries]:
        asked = {**query, "limit": PAGE, **({"cursor": cursor} if pages and cursor else {})}
        began = time.perf_counter()
        answer = client.get(path, params=asked)
        taken.append(1000 * (time.perf_counter() - began))
        if answer.status_code != 200:
            raise Internal(f"{asked} was answered with {answer.status_code}: {answer.text[:500]}")
        body = answer.json()
        found += bool(body.get("data"))
        cursor = body.get("next_cursor")
    return Timed(kind, sees, taken[-len(queries) :], found)


def _filters(amount: int, requests: int) -> Iterator[Query]:
    draw, words = random.Random(3), vocabulary()
    for number in range(requests):
        one = draw.randrange(amount)
        team, name = f"team{one % NAMESPACES}", f"a{one}"
        yield (
            {"domain": domain(words, draw.randrange(DOMAINS))},
            {"tag": f"t{draw.randrange(TAGS)}"},
            {"tag": COMMON, "kind": "soup"},
            {"tag": [COMMON, f"t{draw.randrange(TAGS)}"]},
            {"tag": "rare", "method": "bottleneck", "base_model": BASE},
            {"namespace": team, "kind": "soup"},
            {"name": name},
            {"name": f"{team}/{name}"},
            {"kind": "soup", "domain": domain(words, draw.randrange(DOMAINS))},
        )[number % 9]


def _searches(requests: int) -> Iterator[Query]:
    draw, words = random.Random(4), vocabulary()
    for number in range(requests):
        frequent, any_word = words[draw.randrange(50)], draw.choice(words)
        yield (
            {"q": any_word},
            {"q": frequent},
            {"q": COMMON},
            {"q": "rare"},
            {"q": any_word[:3]},
            {"q": frequent[:2]},
            {"q": f"{frequent} {any_word}"},
            {"q": f"{COMMON} rare"},
            {"q": any_word, "kind": "soup"},
            {"q": COMMON, "tag": "rare"},
        )[number % 10]
