"""Whether each answer is of the adapter that was asked for, while servers come and go and aliases move."""

from __future__ import annotations

import itertools
import random
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import httpx2

from benchmarks.faults.server import BASE
from benchmarks.fleet.asking import CLIENTS, REPLICAS, behind_router, completion, said
from benchmarks.replicas import Place, Process, Pushed, answered, push_adapters, the_base
from benchmarks.report import Result
from demo.results import Figure
from registry.errors import Internal

ALIASES = 4
SAME = 1e-3
"""How far the log-probabilities of one answer may be apart, which other requests run beside."""
BETWEEN = 2.0
"""Seconds from one change of servers to the next; the first is at once."""
SHOWN = 20


@dataclass
class Alias:
    """A name that moves between two adapters: which it may mean at a moment."""

    ref: str
    digests: Sequence[str]
    moves: int = 0
    acknowledged: int = 0

    def may_mean(self, since: int) -> set[str]:
        """What it meant at any moment from its `since`-th move on."""
        return {self.digests[number % 2] for number in range(since, self.moves + 1)}


@dataclass
class Canaries:
    """What is asked for, what it is to be, and what was not."""

    known: dict[str, tuple[str, float]]
    """By digest."""
    names: dict[str, str]
    """Digest by name."""
    aliases: list[Alias]
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    def ask(self, client: httpx2.Client, draw: random.Random) -> None:
        """One request for one of them."""
        alias = draw.choice(self.aliases) if draw.random() < 0.1 else None
        name = draw.choice(list(self.names)) if alias is None else alias.ref
        since = 0 if alias is None else alias.acknowledged
        try:
            answer = client.post("/v1/completions", json=completion(name))
        except httpx2.HTTPError as error:
            self.lost.append(f"{name}: {type(error).__name__}")
            return
        if answer.is_error:
            self.lost.append(f"{name}: {answer.status_code}")
            return
        digest, (text, likely) = answer.headers["x-soup-digest"], said(answer.json())
        meant = {self.names[name]} if alias is None else alias.may_mean(since)
        known = self.known.get(digest, ("", 0.0))
        if digest not in meant or text != known[0] or abs(likely - known[1]) > SAME:
            self.wrong.append(f"{name}: {digest}")


def measure_wrong(result: Result, *, requests: int, canaries: int, replicas: int = REPLICAS) -> None:
    """Ask servers of their own while these come and go and aliases move."""
    with behind_router(replicas) as (at, servers, router):
        ask_while_they_change(result, at, servers, router, requests=requests, canaries=canaries)


def ask_while_they_change(
    result: Result, at: Place, servers: list[Process], router: Process, *, requests: int, canaries: int
) -> None:
    """Ask through the router while servers come and go and aliases move; `servers` are those that run then."""
    with at.client(router) as client:
        pushed = push_adapters(client, the_base(), canaries)
        found = _canaries(client, pushed)
    changes: list[str] = []
    over = threading.Event()
    others = [threading.Thread(target=_move, args=(at, router, found, over))]
    others.append(threading.Thread(target=_come_and_go, args=(at, servers, changes, over)))
    for one in others:
        one.start()
    try:
        _ask_all(at, router, found, requests)
    finally:
        over.set()
        for one in others:
            one.join()
    note = f"{len(changes)} servers killed, stopped or started, {sum(one.moves for one in found.aliases)} aliases moved"
    result.rows.append({
        "part": "wrong", "requests": requests, "adapters": canaries, "wrong": found.wrong[:SHOWN],
        "lost": found.lost[:SHOWN], "changes": changes,
    })  # fmt: skip
    result.figures["wrong_digest"] = Figure(len(found.wrong), "requests", 0, note=f"of {requests}; {note}")
    result.figures["not_answered"] = Figure(len(found.lost), "requests", note=f"of {requests}")


def _canaries(client: httpx2.Client, pushed: Sequence[Pushed]) -> Canaries:
    """What each writes, and aliases that lead to pairs of them."""
    known = {one.digest: said(answered(client.post("/v1/completions", json=completion(one.digest)))) for one in pushed}
    if len({(text, round(likely / SAME)) for text, likely in known.values()}) < 0.9 * len(known):
        raise Internal("too many of the adapters write the same: nothing would be noticed")
    aliases = []
    for number in range(min(ALIASES, len(pushed) // 2)):
        pair = [pushed[2 * number], pushed[2 * number + 1]]
        for one in pair:
            _copy(client, one, f"canary/moving{number}")
        answered(client.put(f"/v1/adapters/canary/moving{number}/aliases/live", json={"version": 1}))
        aliases.append(Alias(f"canary/moving{number}@live", [one.digest for one in pair]))
    return Canaries(known, {one.name: one.digest for one in pushed}, aliases)


def _copy(client: httpx2.Client, one: Pushed, name: str) -> None:
    """Push an adapter that is there once more, as the next version of another name."""
    row = answered(client.get(f"/v1/adapters/{one.name}"))
    files = {"adapter_model.safetensors": {"digest": row["weights_blob"]}}
    body = {"name": name, "domain": "scale", "base_model": BASE, "config": row["config"], "files": files}
    answered(client.post("/v1/adapters", json=body))


def _move(at: Place, router: Process, found: Canaries, over: threading.Event) -> None:
    """Move the aliases, one after the other."""
    with at.client(router) as client:
        for alias in itertools.cycle(found.aliases):
            if over.wait(0.05):
                return
            alias.moves += 1  # from here on it may be seen
            name = alias.ref.removesuffix("@live")
            answer = client.put(f"/v1/adapters/{name}/aliases/live", json={"version": alias.moves % 2 + 1})
            if answer.is_error:  # whether it moved is not known: it goes on from where it is
                continue
            alias.acknowledged = alias.moves


def _come_and_go(at: Place, servers: list[Process], changes: list[str], over: threading.Event) -> None:
    """Kill or stop the oldest server and start another, again and again."""
    for how in itertools.cycle((signal.SIGKILL, signal.SIGTERM)):
        if changes and over.wait(BETWEEN):
            return
        servers.append(at.replica())
        changes.append("started")
        servers.pop(0).end(how)
        changes.append("killed" if how == signal.SIGKILL else "stopped")


def _ask_all(at: Place, router: Process, found: Canaries, requests: int) -> None:
    def ask(number: int) -> None:
        draw = random.Random(number)
        with at.client(router) as client:
            for _ in range(requests // CLIENTS):
                found.ask(client, draw)

    with ThreadPoolExecutor(CLIENTS) as clients:
        list(clients.map(ask, range(CLIENTS)))
