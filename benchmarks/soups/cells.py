"""The cells of `benchmarks.adaptersoup`: a way to answer for a domain, on a draw of so many passages.

A way is a request to the server, as people would make it. Its answer is kept as a line of a file, so that a run that
was stopped goes on; what the answer says of the test passages is kept with the scores.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.soups.setting import FRESH, NAMESPACE, Setting
from demo.strategies import PAPERS_THRESHOLD
from registry.errors import SoupError
from registry.files import replace_file
from registry.names import digest_of
from registry.spec import (
    CookRequest,
    CosineSpec,
    GmmSpec,
    HandRecipe,
    PoolRequest,
    SampleSource,
    TuningOptions,
    UniformSpec,
    WeightedRef,
)

POOL = PoolRequest(namespaces=(NAMESPACE,))
FRESH_RATES = ("0.003", "0.01")
TWICE = "tune 2 passes"


@dataclass(frozen=True)
class Cell:
    """One answer that is asked for."""

    way: str
    domain: str
    draw: int
    size: int


@dataclass(frozen=True)
class Answer:
    """What the server answered: the model (the base where it abstained), seconds, and what it says of itself.

    `forward` are the seconds of a pass of the base over the sample just before. `held_out` is the difference from the
    base on passages that were held out, None where there were none; `refused` is why there is no answer; `commit` is
    that of the server.
    """

    cell: Cell
    model: str
    digest: str | None
    abstained: bool
    seconds: float
    forward: float
    held_out: float | None = None
    commit: str | None = None
    width: int = 0
    recipe: Mapping[str, Any] | None = None
    refused: str = ""


Request = Callable[[Setting, Cell, SampleSource], CookRequest]


def _effort(effort: str, tuning: TuningOptions | None = None) -> Request:
    """A cook with an effort; `thorough` looks at the control adapter too."""

    def request(setting: Setting, _cell: Cell, sample: SampleSource) -> CookRequest:
        also = [f"{NAMESPACE}/{setting.job.control}"] if effort == "thorough" and setting.job.control else []
        asked = {"sample": sample, "effort": effort, "pool": POOL, "verify": True, "tuning": tuning, "also": also}
        return CookRequest.model_validate(asked)

    return request


def _fresh(tuning: TuningOptions) -> Request:
    """A training of the fresh adapter."""
    recipe = HandRecipe(ingredients=(WeightedRef(ref=f"{NAMESPACE}/{FRESH}"),))
    return lambda _setting, _cell, sample: CookRequest(
        sample=sample, effort="tune", recipe=recipe, pool=POOL, tuning=tuning
    )


def fresh(rate: str, *, passes: int | None = None) -> str:
    """The name of a fresh adapter's training."""
    return f"tune fresh {rate}" + (f" {passes} passes" if passes else "")


WAYS: dict[str, Request] = {
    "uniform": lambda _setting, _cell, sample: CookRequest(
        sample=sample, selector=UniformSpec(), pool=POOL, verify=False
    ),
    "similarity": lambda _setting, _cell, sample: CookRequest(
        sample=sample, selector=CosineSpec(threshold=PAPERS_THRESHOLD), pool=POOL, verify=False
    ),
    "clustering": lambda _setting, cell, sample: CookRequest(
        sample=sample, selector=GmmSpec(mode="paper", seed=cell.draw), pool=POOL, verify=False
    ),
    "instant": _effort("instant"),
    "quick": _effort("quick"),
    "thorough": _effort("thorough"),
    "tune": _effort("tune"),
    TWICE: _effort("tune", TuningOptions(passes=2)),
    **{
        fresh(rate, passes=passes): _fresh(TuningOptions(rate=rate, passes=passes))
        for rate in FRESH_RATES for passes in (None, 2)
    },
}  # fmt: skip


class Answers:
    """Every answer so far, a file each in a folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.known: dict[Cell, Answer] = {}
        for path in folder.glob("*.json"):
            value = json.loads(path.read_bytes())
            cell = Cell(**value.pop("cell"))
            self.known[cell] = Answer(cell=cell, **value)

    def get(self, setting: Setting, cell: Cell) -> Answer:
        """The answer of a cell, asked for if need be."""
        if cell not in self.known:
            self.known[cell] = asked(setting, cell)
            path = self._folder / f"{digest_of(asdict(cell))[7:]}.json"
            replace_file(path, json.dumps(asdict(self.known[cell])).encode(), temporary=path.with_suffix(".new"))
        return self.known[cell]


def asked(setting: Setting, cell: Cell) -> Answer:
    """What the server answers now; a request that it refuses is answered with the base, and says why."""
    texts = setting.sample(cell.domain, size=cell.size, seed=cell.draw)
    request = WAYS[cell.way](setting, cell, setting.client.sample(texts))
    began = time.perf_counter()
    setting.client.perplexity(setting.base, texts)
    forward = time.perf_counter() - began
    try:
        cooked = setting.client.cook(request)
    except SoupError as error:
        refused = Answer(cell, setting.base, None, abstained=True, seconds=0.0, forward=forward, commit=setting.commit)
        return replace(refused, refused=error.message)
    seconds = time.perf_counter() - began - forward
    check = cooked.get("verification")
    return Answer(
        cell, str(cooked["model"]), None if cooked["abstained"] else str(cooked["digest"]),
        abstained=bool(cooked["abstained"]), seconds=seconds, forward=forward,
        commit=setting.commit,
        held_out=check["difference"] if check and check["held_out"] else None,
        width=(cooked.get("report") or {}).get("width_out") or 0, recipe=cooked.get("recipe"),
    )  # fmt: skip


def even_average(refs: Sequence[str]) -> CookRequest:
    """The average of adapters with equal weights, mixed as a server does by default, and not verified."""
    return CookRequest(recipe=HandRecipe(ingredients=tuple(WeightedRef(ref=ref) for ref in refs)))


def mixed(setting: Setting, answer: Answer, method: str) -> Answer:
    """The ingredients of an answer mixed by another method, not verified."""
    assert answer.recipe is not None
    recipe = {
        "ingredients": [
            {"ref": one["digest"], "weight": float(one["weight"]), "layers": one.get("layers")}
            for one in answer.recipe["ingredients"]
        ]
    }
    cooked = setting.client.cook(
        CookRequest.model_validate({"recipe": recipe, "mixing": {"method": method}, "max_width": 1024})
    )
    return replace(answer, model=str(cooked["model"]), digest=str(cooked["digest"]))


def scored(
    setting: Setting, domain: str, model: str, digest: str | None, *, texts: Sequence[str] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """NLL in nats and tokens of texts, by default a domain's test passages; under the base where `digest` is None."""
    texts = setting.test(domain) if texts is None else list(texts)
    cell = setting.scores.get(digest or setting.base_digest, texts, lambda: setting.client.perplexity(model, texts))
    return np.array(cell.nll), np.array(cell.tokens)
