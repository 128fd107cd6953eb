"""The measurements of a trained cell: the NLL of each test passage, in three ways.

Called by `work`. No other module reads test text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.lm.cells import Cell
from registry.adapters import attached, from_tensors
from registry.adapters.attach import AdapterModule
from registry.adapters.experts import BankAdapter
from registry.base_model import LoadedBase
from registry.errors import Internal
from registry.spec import BottleneckConfig
from training.tasks.language import passage_scores

AT_A_TIME = 8
"""Windows of a forward pass, and passages of a route."""
_ADAPTER = re.compile(r"^layers\.(\d+)\.\w+\.up\.(weight|bias)$")


def measured(
    cell: Cell, base: LoadedBase, texts: Sequence[str], served: AdapterModule | None, trained: AdapterModule | None
) -> dict[str, Any]:
    """The measurements that the cell requests; `served` is the adapter to score, `trained` the one it was made from (a
    bank).
    """
    found: dict[str, Any] = {}
    if "test" in cell.measures:
        found |= _test(cell, base, texts, served)
    if "spans" in cell.measures:
        found["spans"] = _spans(cell, base, texts[: cell.span_texts], served)
    if "routing" in cell.measures:
        found["routing"] = _routing(cell, base, texts, trained)
    return found


def _test(cell: Cell, base: LoadedBase, texts: Sequence[str], served: AdapterModule | None) -> dict[str, Any]:
    """NLL in nats, tokens and bytes of each passage."""
    scores = _scores(cell, base, texts, served)
    return {
        "nll": [one.nll for one in scores],
        "tokens": [one.tokens for one in scores],
        "bytes": [one.bytes for one in scores],
    }


def _scores(cell: Cell, base: LoadedBase, texts: Sequence[str], served: AdapterModule | None) -> list[Any]:
    if served is None:
        return passage_scores(base, texts, block=cell.window, batch=AT_A_TIME)
    with attached(base.model, served):
        return passage_scores(base, texts, block=cell.window, batch=AT_A_TIME)


# --- spans (Houlsby et al., section 3.6, figure 6) --------------------------------------------------


def spans(layers: int) -> list[tuple[int, int]]:
    """(first, last) of every run of layers."""
    return [(first, last) for first in range(layers) for last in range(first, layers)]


def _spans(cell: Cell, base: LoadedBase, texts: Sequence[str], served: AdapterModule | None) -> dict[str, list[float]]:
    """NLL of each passage without the adapters of the layers `first-last`, which are not trained again."""
    if served is None or not isinstance(served.config, BottleneckConfig):
        raise Internal("Spans are removed from bottleneck adapters.")
    found = {}
    for first, last in spans(base.shape.num_layers):
        tensors = without_layers(served.state_dict(), first, last)
        part = from_tensors(served.config, base.shape, tensors)
        found[f"{first}-{last}"] = [one.nll for one in _scores(cell, base, texts, part)]
    return found


def without_layers(tensors: Mapping[str, Tensor], first: int, last: int) -> dict[str, Tensor]:
    """The adapter that adds nothing in the layers `first` to `last`; norms stay as they were trained."""

    def inside(name: str) -> bool:
        match = _ADAPTER.match(name)
        return match is not None and first <= int(match[1]) <= last

    return {name: torch.zeros_like(value) if inside(name) else value for name, value in tensors.items()}


# --- random routing (AdaMix, section 4.3) -----------------------------------------------------------


def _routing(cell: Cell, base: LoadedBase, texts: Sequence[str], bank: AdapterModule | None) -> list[list[float]]:
    """`cell.draws` times the NLL of each passage, a route drawn for every few of them."""
    if not isinstance(bank, BankAdapter):
        raise Internal("Routes are drawn through banks.")
    with torch.random.fork_rng(devices=[]), attached(base.model, bank):
        torch.manual_seed(cell.seed)
        return [list(_under_routes(cell, base, texts, bank)) for _ in range(cell.draws)]


def _under_routes(cell: Cell, base: LoadedBase, texts: Sequence[str], bank: BankAdapter) -> Iterator[float]:
    for start in range(0, len(texts), AT_A_TIME):
        with bank.routed(bank.draw()):
            for one in passage_scores(base, texts[start : start + AT_A_TIME], block=cell.window, batch=AT_A_TIME):
                yield one.nll
