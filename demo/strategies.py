"""The ways to choose adapters that the table sets side by side, and what the server answers to each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from registry.spec import CosineSpec, GmmSpec, PoolRequest, UniformSpec
from service.cli.verbs.compare import Strategy
from service.client.client import SoupClient

NAMESPACE = "demo"
"""Where the demo's adapters are, and the pool that it asks for: nothing that others pushed changes its figures."""
_PAPER = GmmSpec(mode="paper")
STRATEGIES = (
    Strategy("single, similarity", CosineSpec(), single=True),
    Strategy("soup, similarity", CosineSpec()),
    Strategy("single, clustering (paper)", _PAPER, single=True),
    Strategy("soup, clustering (paper)", _PAPER),
    Strategy("single, clustering (default)", GmmSpec(), single=True),
    Strategy("soup, clustering (default)", GmmSpec()),
    Strategy("soup, uniform", UniformSpec()),
    Strategy("the service, verified", None, verify=True),
)
"""In the order of the table; the last is what people get who ask for nothing in particular."""
SERVICE, CLUSTERING, UNIFORM, PAPER, SIMILARITY = (STRATEGIES[i].name for i in (7, 5, 6, 3, 1))
FEW = tuple(STRATEGIES[i] for i in (0, 1, 3, 7))
"""For a large base model, where each costs a minute."""
FITS = tuple(
    (*fit, "--pool-namespace", NAMESPACE) for fit in (("--selector", "cosine"), ("--paper",), ("--selector", "gmm"))
)
"""What `soup fit` is told, once each, before anything is cooked."""


@dataclass(frozen=True)
class Answer:
    """What a strategy came to for one domain; `digest` is None where the answer is the base model."""

    model: str
    digest: str | None
    abstained: bool
    reason: str
    ingredients: tuple[str, ...]
    verification: dict[str, Any] | None


def cook(client: SoupClient, strategy: Strategy, sample: Sequence[str], digests: dict[str, str]) -> Answer:
    """The server's answer for a sample, of the demo's own adapters; `digests` has theirs by ref."""
    cooked = client.cook(strategy.request(client.sample(sample), PoolRequest(namespaces=(NAMESPACE,))))
    model = str(cooked["model"])
    soup = cooked.get("soup") or {}
    chosen = (cooked.get("selection") or {}).get("selected") or ()
    return Answer(
        model=model,
        digest=None if cooked["abstained"] else str(soup.get("digest") or digests[model]),
        abstained=bool(cooked["abstained"]),
        reason=str(cooked.get("reason") or ""),
        ingredients=tuple(str(row["domain"]) for row in chosen),
        verification=cooked.get("verification"),
    )
