"""How long a server takes for a page of a large catalogue (lists, filters, searches) and for one adapter, over one
open connection.
"""

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
from registry.names import parse_ref, sha256_digest

LISTS = "/v1/adapters"
PAGE = 50
WARM = 20
"""Requests of each kind that are sent before those that are timed: connections open, statements prepared."""
ALIAS, ALIASED = "prod", 1_000
"""An alias, and how many adapters have it."""
Query = Mapping[str, Any]
Call = tuple[str, Query]


@dataclass(frozen=True)
class Timed:
    """The times of the requests of one kind in milliseconds, and the number with a result."""

    kind: str
    milliseconds: Sequence[float]
    matched: int

    @property
    def p95(self) -> float:
        """The 95th percentile of the times."""
        return float(np.percentile(self.milliseconds, 95))

    def row(self, database: str) -> dict[str, Any]:
        """A row of the results."""
        half, most = float(np.median(self.milliseconds)), max(self.milliseconds)
        return {
            "part": "lists",
            "database": database,
            "kind": self.kind,
            "requests": len(self.milliseconds),
            "found": self.matched,
            "median_ms": half,
            "p95_ms": self.p95,
            "slowest_ms": most,
        }


def stock(server: Killable, amount: int) -> None:
    """Push one adapter and copy it repeatedly in the server's own database."""
    with server.client() as client:
        pushed = client.push(adapter("first/pushed", 0, sample=False))
    database = Database(server.database_url or f"sqlite:///{server.data / 'soup.db'}")
    try:
        with database.read() as catalogue:
            row = catalogue.adapters.resolve(None, parse_ref(pushed["ref"]))
        fill(database, described(row), amount)
        with database.write() as catalogue:
            for number in range(min(ALIASED, amount)):
                catalogue.aliases.put(*_name(number), ALIAS, 1)
        if make_url(str(database.engine.url)).get_backend_name() == "postgresql":
            with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                connection.exec_driver_sql("VACUUM ANALYZE")  # which autovacuum does within a minute of many writes
    finally:
        database.close()


def timed(server: Killable, amount: int, *, requests: int) -> Iterator[Timed]:
    """Every kind of request, with a key that sees everything.

    `nothing` is the time of an empty request: the share of the machine and the transport in the others.
    """
    calls: dict[str, list[Call]] = {
        "nothing": [("/healthz", {})] * requests,
        "list": [(LISTS, {"limit": PAGE})] * requests,
        "filter": [(LISTS, {**query, "limit": PAGE}) for query in _filters(amount, requests)],
        "search": [(LISTS, {**query, "limit": PAGE}) for query in _searches(requests)],
        "resolve": [(f"{LISTS}/{ref}", {}) for ref in _refs(amount, requests)],
    }
    headers = {"authorization": f"Bearer {server.key()}"}
    with httpx2.Client(base_url=server.url, headers=headers, timeout=120) as client:
        for kind, kind_calls in calls.items():
            yield _timed(kind, client, kind_calls, pages=kind == "list")


def _timed(kind: str, client: httpx2.Client, calls: Sequence[Call], *, pages: bool) -> Timed:
    """The times of these requests; of `pages` each takes the one after the last."""
    milliseconds, matched, cursor = [], 0, None
    for path, query in [*calls[:WARM], *calls]:
        params = {**query, **({"cursor": cursor} if pages and cursor else {})}
        began = time.perf_counter()
        answer = client.get(path, params=params)
        milliseconds.append(1000 * (time.perf_counter() - began))
        if answer.status_code != 200:
            raise Internal(f"{path} {params} was answered with {answer.status_code}: {answer.text[:500]}")
        body = answer.json()
        matched += bool(body.get("data") or body.get("digest"))
        cursor = body.get("next_cursor")
    return Timed(kind, milliseconds[-len(calls) :], matched)


def _name(number: int) -> tuple[str, str]:
    """The namespace and the name of the adapter of this number."""
    return f"team{number % NAMESPACES}", f"a{number}"


def _refs(amount: int, requests: int) -> Iterator[str]:
    """Adapters by name, by version, by alias and by digest in turn."""
    draw = random.Random(5)
    for turn in range(requests):
        most = min(ALIASED, amount) if turn % 4 == 2 else amount
        number = draw.randrange(max(1, most // NAMESPACES)) * NAMESPACES + draw.randrange(NAMESPACES)
        name = "/".join(_name(number))
        yield (name, f"{name}@1", f"{name}@{ALIAS}", sha256_digest(str(number).encode()))[turn % 4]


def _filters(amount: int, requests: int) -> Iterator[Query]:
    draw, words = random.Random(3), vocabulary()
    for number in range(requests):
        index = draw.randrange(amount)
        team, name = _name(index)
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
