"""Pushes, cooks and streams until they are told to stop, and whether what was acknowledged is there, right and once."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, Self

import httpx2

from benchmarks.faults.content import WEIGHTS, adapter, passages
from benchmarks.fleet.asking import completion
from benchmarks.replicas import answered
from registry.spec import CookRequest, PoolRequest, SampleSource, UniformSpec

READY, TOKENS = 3, 24
"""Adapters of the pool that is cooked from, which streams ask for; and the tokens of a stream."""
PAUSE = 0.2
REST = 0.0
"""Seconds between the end of a push, cook or stream and the next of its kind."""
FINAL = frozenset({"succeeded", "failed", "cancelled"})
END_SECONDS = 300.0
"""Within which all that was acknowledged has to be there at the end."""
KINDS = ("pushes", "cooks", "streams")
PURGED = 4
"""One of so many pushes is purged again."""
GONE = 410


@dataclass(frozen=True)
class Acknowledged:
    """What a push or a cook was answered: the name it is for, and the job it left."""

    name: str
    answer: dict[str, Any]

    @property
    def job(self) -> str | None:
        """The job that it left."""
        found = self.answer["id"] if self.answer["object"] == "job" else self.answer.get("job")
        return None if found is None else str(found)


class Traffic:
    """Three threads that work through a router; `client` opens a client of it."""

    def __init__(self, client: Callable[[], httpx2.Client]) -> None:
        self._client = client
        self._over = threading.Event()
        self._pool = ThreadPoolExecutor(len(KINDS))
        self._threads: list[Future[None]] = []
        self._texts: dict[str, str] = {}
        """What a stream of each ready adapter says."""
        self._pushed: list[Acknowledged] = []
        self._cooked: list[Acknowledged] = []
        self.purged: list[Acknowledged] = []
        """Pushes whose purge was acknowledged too."""
        self._wrong: list[str] = []
        self.done: Counter[str] = Counter()
        """What came to its end, by kind."""
        self.again: Counter[str] = Counter()
        """Requests that were sent again, by why."""
        self.cut = 0
        """Streams that ended with an error, or with their connection."""

    def __enter__(self) -> Self:
        with self._client() as client:
            for seed in range(READY):
                pushed = answered(
                    client.post("/v1/adapters", json=_push(f"ready/a{seed}", seed, sample=True, tag="ready"))
                )
                while answered(client.get(f"/v1/jobs/{pushed['job']}"))["state"] not in FINAL:
                    time.sleep(PAUSE)
                body = completion(f"ready/a{seed}", max_tokens=TOKENS)
                self._texts[f"ready/a{seed}"] = answered(client.post("/v1/completions", json=body))["choices"][0][
                    "text"
                ]
        self._threads = [self._pool.submit(work) for work in (self._push_all, self._cook_all, self._stream_all)]
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._pool.shutdown()

    def stop(self) -> None:
        """End all three; raises what one of them failed with."""
        self._over.set()
        for one in self._threads:
            one.result()

    def waits_for_more(self, seconds: float) -> list[str]:
        """Wait until one more of each kind came to its end; the kinds of which none did in time."""
        before, end = Counter(self.done), time.monotonic() + seconds
        while stuck := [kind for kind in KINDS if self.done[kind] <= before[kind]]:
            for one in self._threads:
                if one.done():
                    one.result()
            if time.monotonic() > end:
                return stuck
            time.sleep(0.05)
        return []

    def _acknowledged(self, client: httpx2.Client, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """Ask again until it is acknowledged; None where it is over before. Any refusal but 429 and 503 is wrong."""
        while not self._over.is_set():
            try:
                answer = client.post(path, json=body)
            except httpx2.HTTPError as error:
                self.again[type(error).__name__] += 1
            else:
                if answer.is_success:
                    return dict(answer.json())
                if answer.status_code not in (429, 503):
                    self._wrong.append(f"{path}: {answer.status_code} {answer.text[:300]}")
                    self._over.wait(PAUSE)
                    return None
                self.again[str(answer.status_code)] += 1
            self._over.wait(PAUSE)
        return None

    def _push_all(self) -> None:
        """Every second one with a sample, which is waited for: else workers would fall behind further and further.

        Some of these are purged.
        """
        with self._client() as client:
            for number in count():
                if self._over.wait(REST):
                    return
                name = f"kept/a{number}"
                body = _push(name, 1000 + number, sample=number % 2 == 0)
                answer = self._acknowledged(client, "/v1/adapters", body)
                if answer is not None:
                    self._pushed.append(Acknowledged(name, answer))
                    self._wait_for(client, "pushes", self._pushed[-1])
                    if number % PURGED == 0 and not self._over.is_set():
                        self._purge(client, self._pushed.pop())

    def _purge(self, client: httpx2.Client, one: Acknowledged) -> None:
        """Ask again until it is acknowledged; a version that is gone was purged by a request that had no answer.

        Of one that is not acknowledged before all is over nobody knows whether it is there.
        """
        while not self._over.is_set():
            try:
                answer = client.post(f"/v1/adapters/{one.name}@1/purge")
            except httpx2.HTTPError as error:
                self.again[type(error).__name__] += 1
            else:
                if answer.is_success or answer.status_code == GONE:
                    self.purged.append(one)
                    self.done["purges"] += 1
                    return
                if answer.status_code not in (429, 503):
                    self._wrong.append(f"purge of {one.name}: {answer.status_code} {answer.text[:300]}")
                    return
                self.again[str(answer.status_code)] += 1
            self._over.wait(PAUSE)

    def _cook_all(self) -> None:
        """One after the other: the next is cooked for when the last is there."""
        with self._client() as client:
            for number in count():
                name = f"soups/s{number}"
                asked = CookRequest(
                    sample=SampleSource(texts=passages(100_000 + number)), selector=UniformSpec(),
                    pool=PoolRequest(tag="ready"), verify=False, name=name,
                )  # fmt: skip
                body = {**asked.model_dump(mode="json", exclude_none=True), "wait": 0}
                answer = self._acknowledged(client, "/v1/soups", body)
                if answer is not None:
                    self._cooked.append(Acknowledged(name, answer))
                    self._wait_for(client, "cooks", self._cooked[-1])
                if self._over.wait(REST):
                    return

    def _wait_for(self, client: httpx2.Client, kind: str, one: Acknowledged) -> None:
        """Until its job has ended, if it left one; counted where that came before all was over."""
        while one.job is not None and not self._over.is_set():
            with suppress(httpx2.HTTPError):
                answer = client.get(f"/v1/jobs/{one.job}")
                if answer.is_success and answer.json()["state"] in FINAL:
                    break
            self._over.wait(PAUSE)
        if not self._over.is_set():
            self.done[kind] += 1

    def _stream_all(self) -> None:
        with self._client() as client:
            for number in count():
                if self._over.wait(REST):
                    return
                self._stream(client, f"ready/a{number % READY}")

    def _stream(self, client: httpx2.Client, name: str) -> None:
        """One stream: it ends whole, or with an error, and what it said by then is the adapter's."""
        body = completion(name, max_tokens=TOKENS, stream=True)
        body.pop("logprobs")
        text, last = "", ""
        try:
            with client.stream("POST", "/v1/completions", json=body) as answer:
                if not answer.is_success:
                    self.again[f"stream {answer.status_code}"] += 1
                    self._over.wait(PAUSE)
                    return
                for line in answer.iter_lines():
                    last = line.removeprefix("data: ") or last
                    if line.startswith("data: {") and "choices" in (event := json.loads(last)):
                        text += event["choices"][0]["text"]
        except httpx2.HTTPError:
            last = ""
        whole = last == "[DONE]"
        self.done["streams"] += whole
        self.cut += not whole
        if text != self._texts[name] if whole else not self._texts[name].startswith(text):
            self._wrong.append(f"a stream of {name} said {text!r}")

    # --- afterwards -----------------------------------------------------------------------------------

    def verified(self) -> dict[str, list[str]]:
        """What of all that was acknowledged is lost, wrong or there twice, in sentences."""
        found: dict[str, list[str]] = {"lost": [], "wrong": list(self._wrong), "twice": []}
        end = time.monotonic() + END_SECONDS
        with self._client() as client:
            for one in (*self._pushed, *self._cooked):
                row = {} if one.job is None else self._ended(client, one.job, end)
                if row.get("state", "succeeded") != "succeeded":
                    found["lost"].append(f"{one.name}: its job {one.job} is {row['state']}: {row.get('error')}")
                self._look(client, one, found)
            for one in self.purged:
                answer = client.get(f"/v1/adapters/{one.name}@1")
                if answer.status_code != GONE:
                    found["wrong"].append(f"{one.name} was purged, and is answered {answer.status_code}")
        return found

    def _ended(self, client: httpx2.Client, job: str, end: float) -> dict[str, Any]:
        while (row := answered(client.get(f"/v1/jobs/{job}")))["state"] not in FINAL and time.monotonic() < end:
            time.sleep(PAUSE)
        return row

    def _look(self, client: httpx2.Client, one: Acknowledged, found: dict[str, list[str]]) -> None:
        """Whether a version is there, with the bytes that it names, and no second one."""
        answer = client.get(f"/v1/adapters/{one.name}")
        if answer.is_error:
            found["lost"].append(f"{one.name}: {answer.status_code}")
            return
        row = answer.json()
        if row["version"] != 1:
            found["twice"].append(f"{one.name} has {row['version']} versions")
        if one.answer.get("digest", row["digest"]) != row["digest"]:
            found["wrong"].append(f"{one.name} is {row['digest']} and was acknowledged as {one.answer['digest']}")
        data = client.get(f"/v1/adapters/{one.name}/files/{WEIGHTS}")
        if data.is_error or f"sha256:{hashlib.sha256(data.content).hexdigest()}" != row["weights_blob"]:
            found["wrong"].append(f"{one.name}: its weights are answered {data.status_code}, {len(data.content)} bytes")


def _push(name: str, seed: int, *, sample: bool, tag: str | None = None) -> dict[str, Any]:
    """The body that pushes an adapter."""
    manifest = adapter(name, seed, sample=sample, tags=() if tag is None else (tag,))
    return manifest.model_dump(mode="json", exclude_none=True)
