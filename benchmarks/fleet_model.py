"""A queueing model of several servers behind a router: how many requests find their adapter loaded, and are answered.

For docs/explanation/scale.md, which reads it off for fleets that nobody has here; tests/project/test_fleet_model.py
holds it to a simulation of the same, request by request. Nothing is measured here: what a request and a load take is
read from a results file (`fitted`).

The parts: adapters are asked for by Zipf's law; a server holds `slots` of them, the least recently used one leaves, and
what it holds is said by Che's approximation ("Hierarchical Web caching systems", 2002); a server's engine is a queue
whose work is shared among all requests (processor sharing: how many there are depends on the mean work alone); the
router sends an adapter's requests to the first server of its ranking, and to the second while the first has all its
places taken and the second has fewer requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]

EXACT = 10_000
"""Adapters that are looked at one by one, the most popular ones; the others are taken together in bands."""
BANDS = 400
HALVINGS = 60
"""Of the time for which a working set remembers."""
STEPS = 14
"""Halvings of the rate at which requests may come."""
PASSES = 200
"""At most so many passes over the queues until they agree with each other."""
ROUNDS = 20
"""At most so many rounds until queues and working sets agree."""
LEAST_CHANGE = 1e-3


# --- how popular adapters are -------------------------------------------------------------------------


@dataclass(frozen=True)
class Popularity:
    """Adapters in bands of equal popularity, the most popular band first."""

    share: Vector
    """Of all requests, those for each adapter of a band. (bands,)"""
    count: Vector
    """Adapters in each band. (bands,)"""

    @property
    def first(self) -> float:
        """The share of the most popular adapter."""
        return float(self.share[0])


def zipf(adapters: int, exponent: float) -> Popularity:
    """The adapter of rank k is asked for in proportion to k ** -exponent.

    Beyond the first `EXACT` ranks come in bands, each with the popularity of its middle: of 10 million adapters the sum
    is right to 1e-4.
    """
    edges = np.arange(1, min(adapters, EXACT) + 2)
    if adapters > EXACT:
        far = np.unique(np.geomspace(EXACT + 1, adapters + 1, BANDS).round().astype(np.int64))
        edges = np.concatenate([edges[:-1], far])
    count = np.diff(edges).astype(np.float64)
    middle = (edges[:-1] + edges[1:] - 1) / 2
    weight = middle**-exponent
    return Popularity(weight / float(weight @ count), count)


# --- what a working set holds -------------------------------------------------------------------------


def held(rates: Vector, count: Vector, slots: int) -> Vector:
    """The probability that an adapter of each band is held by a server that holds the `slots` last used ones. (bands,)

    `rates` are requests for each adapter of a band, in any unit of time. An adapter is held where it was asked for
    within the last T, and T is such that as many are held as there are slots; a request finds its own as probably.
    """
    asked = rates > 0
    if count[asked].sum() <= slots:
        return asked.astype(np.float64)

    low, high = 0.0, 1.0 / float(rates[asked].min())
    while count @ -np.expm1(-rates * high) < slots:
        high *= 2
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if count @ -np.expm1(-rates * middle) < slots else (low, middle)
    found: Vector = -np.expm1(-rates * high)
    return found


def hits(popularity: Popularity, slots: int) -> float:
    """The share of requests that find their adapter, where all come to one working set.

    One server of several to which requests come at random has this with its own slots. Several, of which each has the
    requests for its own adapters, have it with all their slots together: of each adapter one in so many comes to each.
    """
    probability = held(popularity.share, popularity.count, slots)
    return float(popularity.count @ (popularity.share * probability))


# --- what a request takes -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """What requests take of an engine that is never idle, in seconds of it."""

    request: float
    """A request whose adapter is ready."""
    load: float
    """What it takes to load an adapter, beside the requests that go on meanwhile."""
    tokens: int
    """Tokens that a request has written."""

    def mean(self, hit: float) -> float:
        """Seconds of the engine for each request, of which `hit` find their adapter."""
        return self.request + (1 - hit) * self.load

    def tokens_per_s(self, hit: float) -> float:
        """What one busy server writes."""
        return self.tokens / self.mean(hit)


def fitted(rows: Sequence[Mapping[str, Any]], *, tokens: int) -> Work:
    """The straight line through what `benchmarks.working_set` measured: seconds for a request over loads for one."""
    loads = np.array([row["loads_a_request"] for row in rows])
    seconds = tokens / np.array([row["tokens_per_s"] for row in rows])
    slope, start = np.polyfit(loads, seconds, 1)
    return Work(float(start), float(slope), tokens)


# --- several servers ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fleet:
    """Equal servers behind a router."""

    replicas: int
    slots: int
    """Adapters that each holds."""
    places: int
    """Requests that each computes together; beyond it they wait, and the router looks at the second server."""
    lead: int = 1
    """Requests by which the second one has to have fewer."""


@dataclass(frozen=True)
class Prediction:
    """What a fleet does with some traffic."""

    hit: float
    """The share of requests that find their adapter loaded."""
    requests_per_s: float
    spilt: float
    """The share of requests that went to their second server."""


def at_random(fleet: Fleet, popularity: Popularity, work: Work, *, clients: int) -> Prediction:
    """Requests go to any server, whatever it has loaded; each of the clients asks again when it is answered.

    Queues of which each request joins any, with equal work: of `clients` requests all servers are busy but for a share
    that is known exactly (mean value analysis, Reiser and Lavenberg, 1980).
    """
    hit = hits(popularity, fleet.slots)
    busy = fleet.replicas * clients / (clients + fleet.replicas - 1)
    return Prediction(hit, busy / work.mean(hit), 0.0)


def by_adapter(
    fleet: Fleet, popularity: Popularity, work: Work, first: Whole, second: Whole, *, clients: int
) -> Prediction:
    """Requests go to their adapter's servers; each of the clients asks again when it is answered.

    `first` and `second` are the numbers of each adapter's servers. (adapters,) The popularity is of single adapters. As
    many requests come as keep `clients` of them there at a time, and no more than the busiest server can answer.
    """
    traffic = _Traffic(fleet, popularity, work, first, second, clients)
    for _ in range(ROUNDS):
        before = traffic.hit
        traffic.settle()
        if np.abs(traffic.hit - before).max() < LEAST_CHANGE:
            break
    return traffic.prediction()


class _Traffic:
    """The fixed point of arrivals, queues and working sets; each server's queue is taken to know the others' means."""

    def __init__(
        self, fleet: Fleet, popularity: Popularity, work: Work, first: Whole, second: Whole, clients: int
    ) -> None:
        self._fleet, self._work = fleet, work
        self._share, self._first, self._second = popularity.share, first, second
        self._clients, replicas = clients, fleet.replicas
        self._pairs = np.zeros((replicas, replicas))
        """(first, second): the share of requests for adapters with these servers."""
        np.add.at(self._pairs, (first, second), popularity.share)
        self._there = np.zeros((replicas, clients + 1))
        """(server, requests on it): probabilities."""
        self._there[:, 0] = 1.0
        self._spill = np.zeros((replicas, replicas))
        """(first, second): of the requests for such adapters, the share that goes to the second."""
        self.hit = np.ones(replicas)
        """(server,): the share of its requests that find their adapter."""
        self._rate = 0.0
        """Requests a second, of all clients together."""

    def settle(self) -> None:
        """Find the rate and the queues that agree with what requests take now, and then what they take by those."""
        low, high = 0.0, self._fleet.replicas / self._work.request
        for _ in range(STEPS):
            self._rate = (low + high) / 2
            self._fill()
            waiting = float(self._there.sum(axis=0) @ np.arange(self._there.shape[1]))
            low, high = (self._rate, high) if waiting < self._clients else (low, self._rate)
        self._spill = self._spilling()
        self.hit = self._hits()

    def _fill(self) -> None:
        """The queues that agree with each other at this rate."""
        self._there = np.zeros_like(self._there)
        self._there[:, 0] = 1.0
        for _ in range(PASSES):
            there = self._queues(self._rate)
            change = np.abs(there - self._there).max()
            self._there = (there + self._there) / 2
            if change < LEAST_CHANGE:
                break

    def prediction(self) -> Prediction:
        """What was found, at no more than what the busiest server can answer."""
        gone = self._pairs * self._spill
        arriving = (self._pairs - gone).sum(axis=1) + gone.sum(axis=0)  # (server,): shares of all requests
        most = 1 / float((arriving * self._means()).max())
        return Prediction(float(arriving @ self.hit), min(self._rate, most), float(gone.sum()))

    def _means(self) -> Vector:
        return np.array([self._work.mean(hit) for hit in self.hit])

    def _queues(self, rate: float) -> Vector:
        """How many requests each server has: births by what the others have, deaths by its work."""
        most = self._there.shape[1] - 1
        at_least = np.cumsum(self._there[:, ::-1], axis=1)[:, ::-1]  # P(N >= n)
        number, places, lead = np.arange(most), self._fleet.places, self._fleet.lead
        kept = self._pairs @ at_least[:, np.maximum(number + 1 - lead, 0)]  # where the first is full
        stay = np.where(number >= places, kept, self._pairs.sum(axis=1, keepdims=True))
        over = np.maximum(number + lead, places)
        come = np.where(over < most, self._pairs.T @ at_least[:, np.minimum(over, most)], 0)
        with np.errstate(divide="ignore"):
            logs = np.cumsum(np.log(rate * (stay + come) * self._means()[:, None]), axis=1)
        logs = np.concatenate([np.zeros((self._fleet.replicas, 1)), logs], axis=1)
        found: Vector = np.exp(logs - logs.max(axis=1, keepdims=True))
        found /= found.sum(axis=1, keepdims=True)
        return found

    def _spilling(self) -> Vector:
        places, lead = self._fleet.places, self._fleet.lead
        full = np.arange(max(places, lead), self._clients)  # who arrives is not there yet
        few = np.cumsum(self._there, axis=1)  # P(N <= n)
        found: Vector = self._there[:, full] @ few[:, full - lead].T
        return found

    def _hits(self) -> Vector:
        gone = self._spill[self._first, self._second]
        found = np.ones(self._fleet.replicas)
        for replica in range(self._fleet.replicas):
            stay, come = np.where(self._first == replica, 1 - gone, 0), np.where(self._second == replica, gone, 0)
            rates = self._share * (stay + come)
            if rates.any():
                found[replica] = rates @ held(rates, np.ones(len(rates)), self._fleet.slots) / rates.sum()
        return found


def most_busy(popularity: Popularity, *, choices: int = 2) -> float:
    """The most servers that can be busy, where an adapter has `choices` of them: then its most popular one's are."""
    return choices / popularity.first
