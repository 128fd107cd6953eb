"""Several servers behind `soup route`: whether answers are right, what the router costs, and what it saves.

- `wrong_digest`: of requests for adapters that each write something else, while servers are killed, stopped and
  started and aliases move, those that were answered by another adapter than was asked for: by `x-soup-digest`, or by
  a text that is not that adapter's. `not_answered` are those that were refused or lost.
- `router_overhead`: tokens per second of streams at once through the router, over the same from the server behind it.
- `affinity`: the share of requests that found their adapter held ready, over the same with servers drawn at random;
  adapters are asked for with frequencies 1/rank (Zipf 1.0), and the servers hold fewer than there are.

All processes are on this machine, and share its processors with the clients. The database is PostgreSQL.
"""

from __future__ import annotations

import argparse
import itertools
import random
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import httpx2

from benchmarks.faults.server import BASE, FOLDER
from benchmarks.replicas import (
    Place,
    Process,
    Pushed,
    adapter_size,
    answered,
    figures_of,
    place,
    push_adapters,
    the_base,
)
from benchmarks.report import Result, interleaved, options, ratios, repeated, run_parts
from demo.results import Figure
from registry.errors import Internal

REPLICAS, CLIENTS = 3, 8
REQUESTS, CANARIES, ALIASES = 20_000, 500, 4
SLOTS, WANTED, DRAWN = 40, 200, 4_000
STREAMS, TOKENS = 32, 64
WRITTEN = 4
"""Tokens of a canary's text."""
OVERHEAD_GOAL, AFFINITY_GOAL = 0.95, 1.3
SHOWN = 20


def completion(model: str, **more: Any) -> dict[str, Any]:
    """A short completion that any two adapters answer differently."""
    return {"model": model, "prompt": "The court held", "temperature": 0, "max_tokens": WRITTEN, "logprobs": 0, **more}


def said(answer: Mapping[str, Any]) -> tuple[str, float]:
    """The text of an answer, and how likely its first token was."""
    choice = answer["choices"][0]
    return choice["text"], choice["logprobs"]["token_logprobs"][0]


# --- right whatever the routing does --------------------------------------------------------------


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
        if digest not in meant or text != known[0] or abs(likely - known[1]) > 1e-3:
            self.wrong.append(f"{name}: {digest}")


def measure_wrong(result: Result, *, requests: int, canaries: int, replicas: int = REPLICAS) -> None:
    """Ask while servers come and go and aliases move."""
    with behind_router(replicas) as (at, servers, router):
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
    if len({(text, round(likely, 2)) for text, likely in known.values()}) < 0.9 * len(known):
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
        if over.wait(2.0):
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


# --- what the router costs ------------------------------------------------------------------------


def measure_overhead(result: Result, *, streams: int, tokens: int, repeats: int, source: Path = FOLDER) -> None:
    """Streams at once, straight from a server and through a router before it."""
    with behind_router(1, source) as (at, servers, router), ExitStack() as stack:
        clients = {way: stack.enter_context(at.client(of)) for way, of in (("direct", servers[0]), ("routed", router))}
        body = completion(f"base/{BASE}", stream=True, max_tokens=tokens)
        body.pop("logprobs")
        calls = {way: _streaming(client, body, streams) for way, client in clients.items()}
        times = interleaved(calls, repeats=repeats)
    result.rows += [
        {"part": "overhead", "way": way, "streams": streams, "tokens": tokens, "wall_s": median(found)}
        for way, found in times.items()
    ]
    found = ratios(times["direct"], times["routed"])
    result.figures["router_overhead"] = repeated(
        found, "ratio", goal=OVERHEAD_GOAL, note=f"tokens/s through the router over direct; {streams} streams"
    )


def _streaming(client: httpx2.Client, body: Mapping[str, Any], streams: int) -> Callable[[], None]:
    """Reads so many streams at once, each to its end."""

    def one(_: int) -> None:
        with client.stream("POST", "/v1/completions", json=body) as answer:
            last = ""
            for line in answer.iter_lines():
                last = line or last
        if last != "data: [DONE]":
            raise Internal(f"a stream ended with {last[:200]}")

    def all_of_them() -> None:
        with ThreadPoolExecutor(streams) as pool:
            list(pool.map(one, range(streams)))

    return all_of_them


# --- what it saves --------------------------------------------------------------------------------


def measure_affinity(result: Result, *, adapters: int, slots: int, requests: int, replicas: int = REPLICAS) -> None:
    """The same requests by the router, and to servers drawn at random."""
    hits: dict[str, float] = {}
    base = the_base()
    bank = str(slots * adapter_size(base))
    for way in ("routed", "random"):
        with behind_router(replicas, SOUP_ADAPTER_BANK_BYTES=bank) as (at, servers, router):
            with at.client(router) as client:
                pushed = push_adapters(client, base, adapters)
            hits[way] = _share_held(at, servers, [router] if way == "routed" else servers, pushed, requests)
            row = {"part": "affinity", "way": way, "replicas": replicas, "slots": slots, "adapters": adapters}
            result.rows.append({**row, "requests": requests, "held": hits[way]})
    note = f"{hits['routed']:.3f} over {hits['random']:.3f}; {replicas} x {slots} slots, {adapters} adapters, Zipf 1.0"
    result.figures["affinity"] = Figure(hits["routed"] / hits["random"], "ratio", AFFINITY_GOAL, note=note)


def _share_held(
    at: Place, servers: Sequence[Process], asked: Sequence[Process], pushed: Sequence[Pushed], requests: int
) -> float:
    """The share of requests that found their adapter ready, after as many again to warm up."""
    weights = [1.0 / rank for rank in range(1, len(pushed) + 1)]

    def ask(number: int) -> None:
        draw = random.Random(number)
        with ExitStack() as stack:
            clients = [stack.enter_context(at.client(one)) for one in asked]
            for _ in range(requests // CLIENTS):
                one = draw.choices(pushed, weights)[0]
                answered(draw.choice(clients).post("/v1/completions", json=completion(one.name, max_tokens=1)))

    with ExitStack() as stack:
        clients = [stack.enter_context(at.client(one)) for one in servers]

        def loads() -> float:
            return figures_of(clients, "soup_engine_adapter_loads_total")

        before = 0.0
        for turn in range(2):
            before = loads()
            with ThreadPoolExecutor(CLIENTS) as pool:
                list(pool.map(ask, range(turn * CLIENTS, (turn + 1) * CLIENTS)))
        return 1 - (loads() - before) / (requests // CLIENTS * CLIENTS)


@contextmanager
def behind_router(
    replicas: int, source: Path = FOLDER, **settings: str
) -> Iterator[tuple[Place, list[Process], Process]]:
    """So many servers, and a router that knows all of them."""
    with tempfile.TemporaryDirectory() as folder, place(Path(folder), source, **settings) as at:
        servers = [at.replica() for _ in range(replicas)]
        router = at.router()
        yield at, servers, router


def main() -> None:
    """The command line."""
    parser = options(__doc__)
    parts = ("wrong", "overhead", "affinity")
    parser.add_argument("--only", nargs="+", choices=parts, help="these parts, in their own place in the file")
    parser.add_argument("--requests", type=int, default=REQUESTS, help="requests for canaries")
    parser.add_argument("--base-folder", type=Path, default=FOLDER, help="base model of the overhead's streams")
    given = parser.parse_args()
    run(given)


def run(given: argparse.Namespace) -> None:
    """Every part, or those that are named."""
    run_parts(
        "scale",
        {
            "wrong": lambda result: measure_wrong(result, requests=given.requests, canaries=CANARIES),
            "overhead": lambda result: measure_overhead(
                result, streams=STREAMS, tokens=TOKENS, repeats=given.repeats, source=given.base_folder
            ),
            "affinity": lambda result: measure_affinity(result, adapters=WANTED, slots=SLOTS, requests=DRAWN),
        },
        only=given.only,
        out=given.out,
    )  # fmt: skip


if __name__ == "__main__":
    main()
