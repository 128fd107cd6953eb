"""Selectors: fitted on a pool's embeddings, they map a sample to an ordered list of adapters, with evidence.

scikit-learn's contract: the constructor stores, `fit` checks, learned state ends in `_`. Called by the fit and cook
verbs; nothing here knows torch, SQL or HTTP.
"""

from typing import Any

from registry.selectors.contract import Domain, Selector
from registry.selectors.cosine import CosineSelector
from registry.selectors.gmm import GmmSelector
from registry.selectors.ranking import Member
from registry.selectors.uniform import UniformSelector
from registry.spec import CosineSpec, GmmSpec, UniformSpec

SELECTORS: dict[str, type[Selector[Any]]] = {
    "gmm": GmmSelector,
    "cosine": CosineSelector,
    "uniform": UniformSelector,
}
"""By the `kind` of their specs."""


def new_selector(spec: GmmSpec | CosineSpec | UniformSpec) -> Selector[Any]:
    """The selector of a spec, not fitted yet."""
    return SELECTORS[spec.kind](spec)


__all__ = [
    "SELECTORS",
    "CosineSelector",
    "Domain",
    "GmmSelector",
    "Member",
    "Selector",
    "UniformSelector",
    "new_selector",
]
