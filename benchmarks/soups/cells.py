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

from benchmarks.soups import NOISE
from benchmarks.soups.setting import FRESH, NAMESPACE, Setting
from demo.strategies import PAPERS_THRESHOLD
from registry.errors import SoupError
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

    `forward` are the seconds of a pass of the base over the sample just before. `best` is the adapter that a selector
    ranked first. `held_out` is the difference from the base on passages that were held out, None where there were none;
    `noise` is what adapters of noise came to; `refused` is why there is no answer; `commit` is that of the server.
    """

    cell: Cell
    model: str
    digest: str | None
    abstained: bool
    seconds: float
    forward: float
    best: str | None = None
    held_out: float | None = None
    commit: str | None = None
    noise: Mapping[str, float] | None = None
    width: int = 0
    recipe: Mapping[str, Any] | None = None
    refused: str = ""

    @property
    def ingredients(self) -> list[str]:
        """Digests of what was mixed; one where the answer is an adapter of the bank, none where it is the base."""
        if self.recipe is not None and not self.abstained:
            return [str(one["digest"]) for one in self.recipe["ingredients"]]
        return [] if self.digest is None else [self.digest]


Request = Callable[[Setting, Cell, SampleSource], CookRequest]


def _effort(effort: str, *, control: bool = False, tuning: TuningOptions | None = None) -> Request:
    """A cook with an effort; `thorough` looks at the control adapter too, and `control` is beside noise."""

    def request(setting: Setting, _cell: Cell, sample: SampleSource) -> CookRequest:
        also = [f"{NAMESPACE}/{setting.job.control}"] if effort == "thorough" and setting.job.control else []
        asked = {"sample": sample, "effort": effort, "pool": POOL, "verify": True, "tuning": tuning}
        return CookRequest.model_validate({**asked, "also": also, "control": control})

    return request


def _tuned(refs: Callable[[Setting], list[str]], tuning: TuningOptions | None = None) -> Request:
    def request(setting: Setting, _cell: Cell, sample: SampleSource) -> CookRequest:
        recipe = HandRecipe(ingredients=tuple(WeightedRef(ref=f"{NAMESPACE}/{ref}") for ref in refs(setting)))
        return CookRequest(sample=sample, effort="tune", recipe=recipe, pool=POOL, tuning=tuning)

    return request


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
    NOISE: _effort("quick", control=True),
    "tune": _effort("tune"),
    TWICE: _effort("tune", tuning=TuningOptions(passes=2)),
    "tune uniform": _tuned(lambda setting: list(setting.job.training)),
    "tune control": _tuned(lambda setting: [setting.job.control]),
    **{fresh(rate): _tuned(lambda _: [FRESH], TuningOptions(rate=rate)) for rate in FRESH_RATES},
    **{
        fresh(rate, passes=2): _tuned(lambda _: [FRESH], TuningOptions(rate=rate, passes=2)) for rate in FRESH_RATES
    },
}  # fmt: skip


class Answers:
    """Every answer so far, in a file of lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.known: dict[Cell, Answer] = {}
        if path.is_file():
            for line in path.read_text(encoding="utf-8").splitlines():
                value = json.loads(line)
                cell = Cell(**value.pop("cell"))
                self.known[cell] = Answer(cell=cell, **value)

    def get(self, setting: Setting, cell: Cell) -> Answer:
        """The answer of a cell, asked for if need be."""
        if cell not in self.known:
            self.known[cell] = asked(setting, cell)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(self.known[cell])) + "\n")
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
    selected = (cooked.get("selection") or {}).get("selected") or [{}]
    check = cooked.get("verification")
    return Answer(
        cell, str(cooked["model"]), None if cooked["abstained"] else str(cooked["digest"]),
        abstained=bool(cooked["abstained"]), seconds=seconds, forward=forward, best=selected[0].get("ref"),
        commit=setting.commit,
        held_out=check["difference"] if check and check["held_out"] else None,
        noise=(cooked.get("search") or {}).get("noise"),
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
