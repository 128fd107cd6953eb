"""Greedy search of `benchmarks.adaptersoup`: the average of adapters that is best on the test passages themselves.

Each domain's search is a task, in a process here or on Ray. It mixes like the server's cook and scores like its engine,
but without requests to the server. Its figures equal those of cooking and scoring each average there, to the last bit
on the same number of threads. Results are stored with the scores, by the digests of the adapters: a domain is searched
only once.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.soups.cells import even_average, scores_of
from benchmarks.soups.setting import NAMESPACE, Setting
from registry import cores
from registry.adapters.loadable import LoadableAdapter
from registry.adapters.weights import adapter_digest, dtype_of, load_tensors
from registry.base_model import shape_of
from registry.cook.mix import plan_recipe
from registry.errors import Conflict
from registry.formats import read_directory
from registry.mixing.auto import choose_mixing
from registry.mixing.compat import SoupIngredient
from registry.names import digest_of
from registry.spec import AdapterConfig, BaseEntry, BaseShape, Provenance, weights_by_digest
from registry.tasks.run import run_tasks
from registry.tasks.task import Pool, Task, Watch
from service.engine.score_task import engine_of

Alone = Mapping[str, np.ndarray]
"""NLL of a domain's test passages under each adapter that may be in the average, by the adapter's name."""
Averaged = Callable[[Sequence[str]], np.ndarray]
"""NLL of the same passages under the average of these adapters with equal weights."""


@dataclass(frozen=True)
class BestAverage:
    """The adapters of the best average that was found, and the NLL of the passages under it."""

    chosen: tuple[str, ...]
    nll: np.ndarray


def greedy(alone: Alone, averaged: Averaged) -> BestAverage:
    """The best single adapter, joined while that helps by the one that helps most; none is in it twice."""
    chosen = [min(alone, key=lambda name: _sum(alone[name]))]
    best_nll = alone[chosen[0]]
    while len(chosen) < len(alone):
        candidates = {name: averaged([*chosen, name]) for name in sorted(alone.keys() - set(chosen))}
        name = min(candidates, key=lambda candidate: _sum(candidates[candidate]))
        if _sum(candidates[name]) >= _sum(best_nll):
            break
        chosen.append(name)
        best_nll = candidates[name]
    return BestAverage(tuple(chosen), best_nll)


def searched(pool: Pool, setting: Setting, alone: Mapping[str, Alone]) -> dict[str, np.ndarray]:
    """NLL of each domain's test passages under the average that its search finds.

    Raises what a search raises, and Conflict as `bank_of`. Domains that were searched before are not searched again.
    """
    names = sorted({name for adapters in alone.values() for name in adapters})
    digests = {name: str(setting.client.adapter(f"{NAMESPACE}/{name}")["digest"]) for name in names}
    keys = {
        domain: digest_of(["greedy search", {name: digests[name] for name in adapters}])
        for domain, adapters in alone.items()
    }
    todo = [domain for domain in alone if not setting.scores.has(keys[domain], setting.test(domain))]

    best_averages: dict[str, BestAverage] = {}

    def nll_of(domain: str) -> np.ndarray:
        texts = setting.test(domain)
        return np.array(
            setting.scores.get(
                keys[domain], texts, lambda: scores_of(setting, domain, best_averages[domain].nll.tolist())
            ).nll
        )

    def report(index: int, done: int, total: int, message: str) -> None:
        print(f"greedy search: {todo[index]}, {message} ({done} of at most {total})", file=sys.stderr)

    for index, outcome in run_tasks(pool, search, _tasks(pool, setting, alone, todo, digests), progress=report):
        if isinstance(outcome, BaseException):
            raise outcome
        best_averages[todo[index]] = outcome
        nll_of(todo[index])
        print(f"greedy search: {todo[index]} is done, {', '.join(outcome.chosen)}", file=sys.stderr)
    return {domain: nll_of(domain) for domain in alone}


def _tasks(
    pool: Pool, setting: Setting, alone: Mapping[str, Alone], domains: Sequence[str], digests: Mapping[str, str]
) -> Iterator[Task]:
    """The searches of these domains, which share the bank."""
    if not domains:
        return
    job = setting.job
    shape, threads = shape_of(job.base, job.home / "cache"), pool.threads(of=cores.ALL)
    bank = bank_of(job.adapters, digests, shape)
    for domain in domains:
        yield Task(ToSearch(job.base, shape, threads, tuple(setting.test(domain)), alone[domain]), bank)


def _sum(nll: np.ndarray) -> float:
    return float(nll.sum())


# --- in a process of its own, here or on another machine ---------------------------------------------


@dataclass(frozen=True)
class Member:
    """An adapter of the bank with its weights as they are stored."""

    name: str
    digest: str
    config: AdapterConfig
    provenance: Provenance
    dtype: str
    weights: bytes

    def ingredient(self, number: int, weight: str, fingerprint: str) -> SoupIngredient:
        """This adapter as an ingredient at a weight; `number` is its place among the ingredients of a soup."""
        return SoupIngredient(
            digest=self.digest,
            config=self.config,
            load=lambda: load_tensors(self.weights),
            adapter_id=number,
            ref=self.name,
            weight=weight,
            base_fingerprint=fingerprint,
            provenance=self.provenance,
            dtype=self.dtype,
        )


@dataclass(frozen=True)
class ToSearch:
    """The search of a domain, beside the bank, which searches share."""

    entry: BaseEntry
    shape: BaseShape
    threads: int
    texts: tuple[str, ...]
    alone: Alone


def bank_of(folder: Path, digests: Mapping[str, str], shape: BaseShape) -> dict[str, Member]:
    """The adapters of a folder by their names, which have these digests on the server; raises Conflict for others."""
    members = {}
    for name, digest in digests.items():
        adapter = read_directory(folder / name)
        weights = adapter.weights.read_bytes()
        tensors = load_tensors(weights)
        if adapter_digest(shape.fingerprint, adapter.config, tensors) != digest:
            raise Conflict(
                f"{adapter.path} is another adapter than {NAMESPACE}/{name} on the server: choose another --home."
            )
        members[name] = Member(name, digest, adapter.config, adapter.provenance, dtype_of(tensors), weights)
    return members


def search(task: ToSearch, watch: Watch) -> BestAverage:
    """Search greedily; the bank (`bank_of`) is shared. Raises as `engine_of`, and Cancelled where it is to stop."""
    watch.progress(0, len(task.alone), "loading the base model")
    engine, bank = engine_of(task.entry, task.shape.fingerprint, task.threads), watch.shared

    def averaged(names: Sequence[str]) -> np.ndarray:
        watch.progress(len(names), len(task.alone), f"looking for adapter {len(names)} of an average")
        soup = mixed([bank[name] for name in names], task.shape)
        scores = engine.score(task.entry.id, task.texts, soup, progress=watch.raise_if_stopped, patient=True)
        return np.array([score.nll for score in scores])

    return greedy(task.alone, averaged)


def mixed(members: Sequence[Member], shape: BaseShape) -> LoadableAdapter:
    """The soup that a server cooks of these adapters with equal weights; raises Incompatible as that does."""
    request = even_average([member.name for member in members])
    weights = weights_by_digest(Counter(member.digest for member in members))
    by_digest = {member.digest: member for member in members}
    ingredients = [
        by_digest[digest].ingredient(number, weight, shape.fingerprint)
        for number, (digest, weight) in enumerate(weights.items())
    ]
    plan = plan_recipe(
        ingredients, choose_mixing(ingredients, request.mixing, max_width=request.max_width).mixing, shape
    )
    tensors, _ = plan.mix()
    return LoadableAdapter(plan.digest_of(tensors), plan.config, lambda: tensors)
