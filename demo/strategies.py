"""The ways to choose adapters that the table sets side by side, and what the server answers to each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from demo.table import TUNED
from registry.spec import CosineSpec, GmmSpec, PoolRequest, UniformSpec
from service.cli.verbs.compare.strategies import Strategy
from service.client.client import SoupClient

NAMESPACE = "demo"
"""Where the demo's adapters are, and the pool that it asks for: nothing that others pushed changes its figures."""
PAPERS_THRESHOLD = 0.15
"""Of sentence similarity (AdapterSoup, section 3)."""
_PAPER = GmmSpec(mode="paper")
_LIKE = CosineSpec(threshold=PAPERS_THRESHOLD)
SIMILARITY = Strategy("soup, similarity", _LIKE)
PAPER = Strategy("soup, clustering (paper)", _PAPER)
CLUSTERING = Strategy("soup, clustering (default)", GmmSpec())
UNIFORM = Strategy("soup, uniform", UniformSpec())
SERVICE = Strategy("the service, verified", None, verify=True)
"""What people get who ask for nothing in particular: effort `quick`."""
_NEAREST = Strategy("single, similarity", _LIKE, single=True)
STRATEGIES = (
    _NEAREST,
    SIMILARITY,
    Strategy("single, clustering (paper)", _PAPER, single=True),
    PAPER,
    Strategy("single, clustering (default)", GmmSpec(), single=True),
    CLUSTERING,
    UNIFORM,
    SERVICE,
)
"""In the order of the table; the service's own comes last."""
INSTANT = Strategy("effort instant", None, verify=True, effort="instant")
TUNE = Strategy(TUNED, None, verify=True, effort="tune")
EVERY = (*STRATEGIES[:-1], INSTANT, TUNE, SERVICE)
"""With the other efforts, for the main job: `tune` takes some passes of the base over each sample. `thorough`, of up to
35, is left out."""
FEW = (_NEAREST, SIMILARITY, PAPER, INSTANT, TUNE, SERVICE)
"""For a large base model, where each costs a minute."""
FITS = tuple(
    (*fit, "--pool-namespace", NAMESPACE)
    for fit in (("--selector", "cosine", "--set", f"threshold={PAPERS_THRESHOLD}"), ("--paper",), ("--selector", "gmm"))
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


def cook(client: SoupClient, strategy: Strategy, sample: Sequence[str]) -> Answer:
    """The server's answer for a sample, of the demo's own adapters."""
    cooked = client.cook(strategy.request(client.sample(sample), PoolRequest(namespaces=(NAMESPACE,))))
    chosen = (cooked.get("selection") or {}).get("selected") or ()
    if (cooked.get("search") or {}).get("candidates"):  # what was weighed is in the soup, not what the selector took
        weights = {one["digest"] for one in (cooked.get("recipe") or {}).get("ingredients") or ()}
        chosen = [one for one in cooked["search"]["candidates"] if one["digest"] in weights]
    return Answer(
        model=str(cooked["model"]),
        digest=None if cooked["abstained"] else str(cooked["digest"]),
        abstained=bool(cooked["abstained"]),
        reason=str(cooked.get("reason") or ""),
        ingredients=tuple(str(row["domain"]) for row in chosen),
        verification=cooked.get("verification"),
    )
