"""Selectors: fitted on a pool's embeddings, they map a sample to an ordered list of adapters, with evidence.

They follow scikit-learn's contract: the constructor stores, `fit` checks, learned state ends in `_`. Called by the fit
and select verbs; nothing here knows torch, SQL or HTTP.
"""

from typing import Any

from registry.selectors.contract import Selector
from registry.selectors.cosine import CosineSelector
from registry.selectors.gmm import GmmSelector
from registry.selectors.posterior import PosteriorSelector
from registry.selectors.uniform import UniformSelector

SELECTORS: dict[str, type[Selector[Any]]] = {
    selector.kind: selector for selector in (GmmSelector, CosineSelector, PosteriorSelector, UniformSelector)
}
"""Selector classes by the `kind` of their spec.

A new one: its spec, a member of `SelectorSpec` in registry/spec/selection.py, exported by registry/spec; a file here;
its class above. Also `SPECS` in tests/registry/selectors/test_contract.py, docs/explanation/selection.md, the glossary,
the tree in README.md and `make openapi`. Flags of the command line follow from the spec.
"""
