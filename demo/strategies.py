"""The strategies to choose adapters that the table compares, and the server's answers to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from adaptersoup.cli.verbs.compare.strategies import Strategy
from adaptersoup.client.client import SoupClient
from registry.spec import CosineSpec, GmmSpec, PoolRequest, UniformSpec

NAMESPACE = "demo"
"""The namespace of the demo's adapters and its pool, so that other adapters do not change its figures."""
PAPERS_THRESHOLD = 0.15
"""Threshold of sentence similarity (AdapterSoup, section 3)."""
_PAPER = GmmSpec(mode="paper")
_LIKE = CosineSpec(threshold=PAPERS_THRESHOLD)
SERVICE = Strategy("the service, verified", None, verify=True)
"""The default of a request without options: effort `tune`."""
EVERY = (
    Strategy("single, similarity", _LIKE, single=True),
    Strategy("soup, similarity", _LIKE),
    Strategy("single, clustering (paper)", _PAPER, single=True),
    Strategy("soup, clustering (paper)", _PAPER),
    Strategy("single, clustering (default)", GmmSpec(), single=True),
    Strategy("soup, clustering (default)", GmmSpec()),
    Strategy("soup, uniform", UniformSpec()),
    Strategy("effort instant", None, verify=True, effort="instant"),
    Strategy("effort quick", None, verify=True, effort="quick"),
    SERVICE,
)
"""All strategies in the order of the table; the service's default is last. Effort `thorough`, of up to 35 passes, is
left out."""
FEW = tuple(EVERY[place] for place in (0, 3, 7, 9))
"""The strategies of the shipped job. Effort `quick` is left out, because it takes more than a minute a domain."""
FITS = tuple(
    (*fit, "--pool-namespace", NAMESPACE)
    for fit in (("--selector", "cosine", "--set", f"threshold={PAPERS_THRESHOLD}"), ("--paper",), ("--selector", "gmm"))
)
"""Options of each call of `soup fit` before the cooks."""


@dataclass(frozen=True)
class Answer:
    """The answer of a strategy for one domain; `digest` is None if it is the base model."""

    model: str
    digest: str | None
    abstained: bool
    reason: str
    ingredients: tuple[str, ...]


def cook(client: SoupClient, strategy: Strategy, sample: Sequence[str]) -> Answer:
    """The server's answer for a sample, from the demo's own adapters."""
    cooked = client.cook(strategy.request(client.sample(sample), PoolRequest(namespaces=(NAMESPACE,))))
    chosen = (cooked.get("selection") or {}).get("selected") or ()
    if (cooked.get("search") or {}).get("candidates"):  # what was weighed is in the soup, not what the selector took
        weights = {ingredient["digest"] for ingredient in (cooked.get("recipe") or {}).get("ingredients") or ()}
        chosen = [candidate for candidate in cooked["search"]["candidates"] if candidate["digest"] in weights]
    return Answer(
        model=str(cooked["model"]),
        digest=None if cooked["abstained"] else str(cooked["digest"]),
        abstained=bool(cooked["abstained"]),
        reason=str(cooked.get("reason") or ""),
        ingredients=tuple(str(row["domain"]) for row in chosen),
    )
