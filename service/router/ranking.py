"""In which order replicas are tried for a request: by rendezvous hashing, and by load among the first two.

Each replica has a rank for each key (a base model and an adapter's digest), which depends on nothing but the two. So
all routers agree without speaking to each other, and when a replica goes, only the keys that it was first for move
(Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998). Which of the first two gets a request
is said by their load ("the power of two choices": Mitzenmacher, 2001): the second one only where the first has as many
more for its places as it computes together. So an adapter that few ask for is loaded once, and one that many ask for
twice; and where all replicas are full, those of a request or two less are not sent everything, which would load every
adapter twice (docs/explanation/scale.md). What it costs: some wait at a first that is full, where a second that is
nearly full has places left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b


@dataclass(frozen=True)
class Load:
    """The requests that a replica has, and the places in which it computes them together."""

    requests: int
    places: int

    @property
    def share(self) -> float:
        """Requests for each place."""
        return self.requests / max(1, self.places)


def ranked(key: str, replicas: Iterable[str]) -> list[str]:
    """Replica ids by their rank for a key, the first one first."""
    return sorted(replicas, key=lambda replica: (-_rank(key, replica), replica))


def _rank(key: str, replica: str) -> int:
    return int.from_bytes(blake2b(f"{replica}\n{key}".encode(), digest_size=8).digest())


def by_key(key: str, loads: Mapping[str, Load]) -> list[str]:
    """Replica ids in the order in which they are tried for an adapter's request; `loads` are all that serve it."""
    order = ranked(key, loads)
    if len(order) > 1:
        first, second = loads[order[0]], loads[order[1]]
        if first.share >= second.share + 1:
            order[:2] = order[1], order[0]
    return order


def by_load(turn: int, loads: Mapping[str, Load]) -> list[str]:
    """Replica ids, the one with the fewest requests for its places first; of equal ones another first each `turn`."""
    return sorted(ranked(str(turn), loads), key=lambda replica: loads[replica].share)
