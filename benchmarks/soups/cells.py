"""The cells of `benchmarks.adaptersoup` that a server answers: a way to answer for a domain, on a sample of some size.

A way is a request to the server, as users make it. Each answer is stored as a file, so that an interrupted run resumes;
the NLL of the test passages is stored with the scores.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.soups import BASE, CLUSTERING_3, CLUSTERING_10, CLUSTERING_15, TWO_BEST
from benchmarks.soups.setting import NAMESPACE, Setting
from demo.scores import computed_once
from demo.strategies import PAPERS_THRESHOLD
from registry.errors import SoupError
from registry.names import digest_of
from registry.spec import (
    CookRequest,
    CosineSpec,
    Effort,
    GmmSpec,
    HandRecipe,
    PoolRequest,
    SampleSource,
    SelectOptions,
    UniformSpec,
    WeightedRef,
)

POOL = PoolRequest(namespaces=(NAMESPACE,))


@dataclass(frozen=True)
class Cell:
    """One requested answer."""

    way: str
    domain: str
    draw: int
    size: int


@dataclass(frozen=True)
class Answer:
    """The server's answer: the model (the base model if it abstained), and its duration in seconds.

    `refused` is the reason for a missing answer; `commit` is that of the server.
    """

    cell: Cell
    model: str
    digest: str | None
    seconds: float
    commit: str | None = None
    width: int = 0
    refused: str = ""


Request = Callable[[Setting, Cell, SampleSource], CookRequest]


def _effort(effort: Effort) -> Request:
    """A cook with an effort; `thorough` weighs the control adapter too."""

    def request(setting: Setting, _cell: Cell, sample: SampleSource) -> CookRequest:
        also = (f"{NAMESPACE}/{setting.job.control}",) if effort == "thorough" else ()
        return CookRequest(sample=sample, effort=effort, pool=POOL, also=also)

    return request


def _clustering(most: int | None = None) -> Request:
    """A cook by the paper's clustering of at most this number of adapters, by default the selector's five."""

    def request(_setting: Setting, cell: Cell, sample: SampleSource) -> CookRequest:
        selector, options = GmmSpec(mode="paper", seed=cell.draw), SelectOptions(max_ingredients=most)
        return CookRequest(sample=sample, selector=selector, options=options, pool=POOL, verify=False)

    return request


def _with_two_best(setting: Setting, cell: Cell, _sample: SampleSource) -> CookRequest:
    """The even average of the clustering soup's adapters and of the two others that are best on the test passages."""
    chosen = clustering_members(setting, cell)
    unchosen = [digest for digest in names_by_digest(setting) if digest not in chosen]
    unchosen.sort(key=lambda digest: float(scored(setting, cell.domain, digest, digest)[0].sum()))
    return even_average([*chosen, *unchosen[:2]])


WAYS: Mapping[str, Request] = {
    "uniform": lambda _setting, _cell, sample: CookRequest(
        sample=sample, selector=UniformSpec(), pool=POOL, verify=False
    ),
    "similarity": lambda _setting, _cell, sample: CookRequest(
        sample=sample, selector=CosineSpec(threshold=PAPERS_THRESHOLD), pool=POOL, verify=False
    ),
    "clustering": _clustering(),
    CLUSTERING_3: _clustering(3),
    CLUSTERING_10: _clustering(10),
    CLUSTERING_15: _clustering(15),
    TWO_BEST: _with_two_best,
    "instant": _effort("instant"),
    "quick": _effort("quick"),
    "thorough": _effort("thorough"),
    "tune": _effort("tune"),
}


class Answers:
    """Every answer so far, a file each in a folder, named by its cell and the sample."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    def get(self, setting: Setting, cell: Cell) -> Answer:
        """The answer of a cell, requested if it is not stored."""
        value = computed_once(self._path(setting, cell), lambda: asdict(ask(setting, cell)))
        return Answer(**{**value, "cell": cell})

    def _path(self, setting: Setting, cell: Cell) -> Path:
        key = digest_of([asdict(cell), setting.sample(cell.domain, size=cell.size, seed=cell.draw)])
        return self._folder / f"{cell.domain}-{cell.way}-{cell.size}-{key[7:19]}.json"


def ask(setting: Setting, cell: Cell) -> Answer:
    """Ask the server; of a request that it refuses the answer is the base, with the reason.

    The way BASE is one pass of the base over the sample: the unit of other answers' seconds.
    """
    texts = setting.sample(cell.domain, size=cell.size, seed=cell.draw)
    answer = Answer(cell, setting.base, None, 0.0, setting.commit)
    if cell.way == BASE:
        began = time.perf_counter()
        setting.client.perplexity(setting.base, texts)
        return replace(answer, seconds=time.perf_counter() - began)
    try:
        request = WAYS[cell.way](setting, cell, setting.client.sample(texts))
        began = time.perf_counter()
        cooked = setting.client.cook(request)
    except SoupError as error:
        return replace(answer, refused=error.message)
    return replace(
        answer,
        model=str(cooked["model"]),
        digest=None if cooked["abstained"] else str(cooked["digest"]),
        seconds=time.perf_counter() - began,
        width=(cooked.get("report") or {}).get("width_out") or 0,
    )


def scores_of(setting: Setting, domain: str, nll: Sequence[float]) -> dict[str, Any]:
    """NLL of a domain's test passages as /v1/perplexity answers it; tokens are counted as under the base model."""
    texts, (_, tokens) = setting.test(domain), scored(setting, domain, setting.base, None)
    rows = zip(nll, tokens.tolist(), texts, strict=True)
    return {
        "texts": [{"nll": float(value), "tokens": count, "bytes": len(text.encode())} for value, count, text in rows]
    }


def clustering_members(setting: Setting, cell: Cell) -> list[str]:
    """Digests of the adapters in the clustering soup of a cell's sample; none if the selector abstains."""
    texts = setting.sample(cell.domain, size=cell.size, seed=cell.draw)
    cooked = setting.client.cook(WAYS["clustering"](setting, cell, setting.client.sample(texts)))
    return [] if cooked["abstained"] else [str(row["digest"]) for row in cooked["recipe"]["ingredients"]]


def names_by_digest(setting: Setting) -> dict[str, str]:
    """The names of the bank's adapters by digest, without the control."""
    adapters = {name: setting.client.adapter(f"{NAMESPACE}/{name}") for name in setting.job.training}
    return {str(adapter["digest"]): name for name, adapter in adapters.items()}


def even_average(refs: Sequence[str]) -> CookRequest:
    """The average of adapters with equal weights, mixed as a server does by default, and not verified."""
    return CookRequest(recipe=HandRecipe(ingredients=tuple(WeightedRef(ref=ref) for ref in refs)))


def scored(
    setting: Setting, domain: str, model: str, digest: str | None, *, texts: Sequence[str] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """NLL in nats and tokens of texts, by default a domain's test passages; under the base where `digest` is None."""
    texts = setting.test(domain) if texts is None else list(texts)
    cell = setting.scores.get(digest or setting.base_digest, texts, lambda: setting.client.perplexity(model, texts))
    return np.array(cell.nll), np.array(cell.tokens)
