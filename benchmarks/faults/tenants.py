"""One key floods a server by every means, while small requests of another key are timed.

The flood comes from separate processes with the lowest priority (nice 19), so that the server's scheduling is timed and
not the machine's. It does not stop at a 429: it sends the next request at once.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, MutableSequence
from contextlib import contextmanager, suppress
from itertools import count
from multiprocessing.synchronize import Event
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import httpx2

from adaptersoup.client.client import SoupClient
from benchmarks.faults.content import adapter, passages
from benchmarks.faults.server import BASE, Killable
from benchmarks.report import seconds
from registry.errors import Internal
from registry.spec import CookRequest, HandRecipe, WeightedRef

THREADS = 8
OPEN = 300
"""Connections whose request never ends."""
START_SECONDS = 120.0
WARM_SECONDS = 3.0
"""From the start of a flood to the first request that is timed."""
MODEL = f"base/{BASE}"

Means = Callable[[httpx2.Client, int], httpx2.Response]


def _bodies(client: httpx2.Client, _number: int) -> httpx2.Response:
    content = b'{"name": [' + b"[]," * 300_000 + b"[]]}"
    return client.post("/v1/adapters", content=content, headers={"content-type": "application/json"})


def _completions(client: httpx2.Client, _number: int) -> httpx2.Response:
    body = {"model": MODEL, "prompt": ["the court held"] * 255, "n": 16, "max_tokens": 300, "temperature": 1}
    return client.post("/v1/completions", json=body)


def _perplexity(client: httpx2.Client, number: int) -> httpx2.Response:
    return client.post("/v1/perplexity", json={"model": MODEL, "texts": list(passages(number, 200))})


def _samples(client: httpx2.Client, number: int) -> httpx2.Response:
    pushed = adapter(f"flood/a{number}", number, sample=False).model_dump(mode="json", exclude_none=True)
    texts = [f"{number} {place} " + "word " * 3_000 for place in range(100)]
    return client.post("/v1/adapters", json={**pushed, "sample": {"texts": texts}})


def _cooks(client: httpx2.Client, number: int) -> httpx2.Response:
    return client.post("/v1/soups", json={"sample": {"texts": passages(number, 60)}, "effort": "quick", "wait": 0})


MEANS: dict[str, Means] = {
    "bodies": _bodies,
    "completions": _completions,
    "perplexity": _perplexity,
    "samples": _samples,
    "cooks": _cooks,
}
"""How a key floods; `connections` is the one that is no request."""
EVERY = (*MEANS, "connections")
REFUSED = {"bodies": "413"}
"""Expected statuses of refusals by means of the flood; the default is 429."""


def flood(url: str, key: str, means: str, statuses: MutableSequence[int], begun: Event) -> None:
    """Flood until the process is killed; `statuses` are counts by the answers' status, which it shares."""
    os.nice(19)
    begun.set()
    if means == "connections":
        _hold_open(url, key)
    number = count(100)

    def send() -> None:
        with httpx2.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=600) as client:
            while True:
                with suppress(httpx2.HTTPError):
                    statuses[MEANS[means](client, next(number)).status_code] += 1

    threads = [threading.Thread(target=send) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _hold_open(url: str, key: str) -> None:
    address = urlsplit(url)
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {address.netloc}\r\nAuthorization: Bearer {key}\r\nContent-Length: 9"
    )
    connections: list[socket.socket] = []
    while True:
        with suppress(OSError):
            connections.append(socket.create_connection((str(address.hostname), int(address.port or 0))))
            connections[-1].sendall(head.encode())
        if len(connections) >= OPEN:
            connections.pop(0).close()
            time.sleep(0.01)


@contextmanager
def flooded(url: str, key: str, means: str) -> Iterator[dict[str, int]]:
    """While open, a process floods the server; gives the answers it had by status, which are there at the end.

    Raises Internal if the server refused requests that it should accept: then it was not flooded.
    """
    spawned = multiprocessing.get_context("spawn")
    statuses: Any = spawned.Array("q", 600)
    begun = spawned.Event()
    process = spawned.Process(target=flood, args=(url, key, means, statuses, begun), daemon=True)
    process.start()
    answers: dict[str, int] = {}
    try:
        if not begun.wait(START_SECONDS):
            raise Internal(f"the flood of {means} did not begin")
        time.sleep(WARM_SECONDS)
        yield answers
        if not process.is_alive():
            raise Internal(f"the flood of {means} ended by itself")
    finally:
        process.kill()
        process.join()
    answers |= {str(status): amount for status, amount in enumerate(statuses) if amount}
    expected = REFUSED.get(means, "429")
    refused = {status: amount for status, amount in answers.items() if status[0] == "4" and status != expected}
    if refused:
        raise Internal(f"the flood of {means} was refused: {refused} of {answers}")


def waits(server: Killable, *, requests: int) -> list[dict[str, Any]]:
    """Of every means: the seconds that another key's completion and recipe take beside it, over those alone."""
    with server.client() as admin:
        for seed in range(3):
            admin.wait_job(admin.push(adapter(f"calm/a{seed}", seed, sample=True))["job"])
            admin.wait_job(admin.push(adapter(f"flood/s{seed}", seed, sample=True))["job"])
        flooder = admin.create_key("flood", scopes=["read", "write", "infer"], namespaces=["flood"])["secret"]
        calm = admin.create_key("calm", scopes=["read", "write", "infer"], namespaces=["calm"])["secret"]
    rows = []
    weights = count(1)
    with SoupClient(server.url, calm, timeout=600) as client:
        calls = {"completion": lambda: _completion(client), "recipe": lambda: _recipe(client, next(weights))}
        for means in EVERY:
            alone = {kind: median(seconds(call) for _ in range(requests)) for kind, call in calls.items()}
            with flooded(server.url, flooder, means) as answers:
                beside = {kind: median(seconds(call) for _ in range(requests)) for kind, call in calls.items()}
            for kind in calls:
                rows.append(
                    {
                        "flood": means,
                        "request": kind,
                        "alone_s": alone[kind],
                        "beside_s": beside[kind],
                        "ratio": beside[kind] / alone[kind],
                        "flood_answers": answers,
                    }
                )
    return rows


def _completion(client: SoupClient) -> object:
    return client.complete(MODEL, "the court held that", max_tokens=8, temperature=0)


def _recipe(client: SoupClient, number: int) -> object:
    share = round(0.1 + 0.001 * number, 3)  # never the same, so that it is cooked each time
    ingredients = (WeightedRef(ref="calm/a0", weight=share), WeightedRef(ref="calm/a1", weight=round(1 - share, 3)))
    return client.cook(CookRequest(recipe=HandRecipe(ingredients=ingredients), verify=False))
