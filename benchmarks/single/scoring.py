"""Scoring base, adapters, soups and ensembles on passages, several at once, each score kept on disk.

Called by the choosing and by the tables. A model is a value; what is scored is fp32, one thread a process, so that
a score does not depend on how many are made at once. Soups are mixed by `registry.mixing.average`.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor, nn

from benchmarks.single.setting import Texts
from demo.scores import Score, Scores
from registry.adapters import AdapterModule, attached, from_tensors
from registry.adapters.weights import adapter_digest, load_tensors
from registry.base_model import LoadedBase, load_base, shape_of
from registry.base_model.likelihood import hidden_states
from registry.errors import Internal
from registry.formats import read_directory
from registry.mixing.average import check, mix
from registry.mixing.compat import SoupIngredient
from registry.names import digest_of
from registry.spec import AverageMixing, BaseEntry, canonical_weights
from training.tasks.language import passage_scores

BATCH = 8


@dataclass(frozen=True)
class Ingredient:
    """An adapter in a folder; the digest is its tensors', so that what was scored is never taken for another's."""

    name: str
    folder: Path
    digest: str


@dataclass(frozen=True)
class Model:
    """The base (no ingredients), the weighted average of adapters, or with `ensemble` the mean of their logits.

    `any_init` averages adapters of different initialisations, which is otherwise refused.
    """

    ingredients: tuple[Ingredient, ...] = ()
    weights: tuple[float, ...] = ()
    ensemble: bool = False
    any_init: bool = False

    def identity(self, about: str) -> str:
        """A digest of all that its scores depend on, but for the text; `about` says how, and on which base."""
        mixed = sorted(zip((one.digest for one in self.ingredients), self.shares, strict=True))
        return digest_of([about, "ensemble" if self.ensemble else "average", mixed])

    @property
    def shares(self) -> list[str]:
        """Canonical weights."""
        equal = [1.0] * len(self.ingredients)
        return canonical_weights(self.weights or equal) if self.ingredients else []


def soup(ingredients: Sequence[Ingredient]) -> Model:
    """The uniform average of some adapters."""
    return Model(tuple(ingredients))


def ingredient(name: str, folder: Path) -> Ingredient:
    """The adapter of a directory."""
    found = read_directory(folder)
    tensors = load_tensors(found.weights.read_bytes())
    return Ingredient(name, folder, adapter_digest(str(found.base_fingerprint), found.config, tensors))


class Scorer:
    """Scores, by the processes of `pool` (`worker_pool`); those of an earlier run are taken from `folder`."""

    def __init__(self, base: BaseEntry, folder: Path, pool: Executor, *, block: int) -> None:
        self._scores = Scores(folder)
        self._about = f"{shape_of(base, folder.parent / 'cache').fingerprint} {block}"
        self._pool = pool

    def scores(
        self, models: Sequence[Model], texts: Texts, told: Callable[[int, int, str], object] = lambda *_: None
    ) -> list[Score]:
        """Each model on the texts, in their order; `told` hears (done, of how many, domain)."""
        keys = [model.identity(self._about) for model in models]
        waiting: dict[str, Future[dict[str, Any]]] = {}
        for key, model in zip(keys, models, strict=True):
            if key not in waiting and not self._scores.has(key, texts.passages):
                waiting[key] = self._pool.submit(_score, model, texts.passages)
        found = []
        for number, key in enumerate(keys):
            told(number, len(keys), texts.domain)
            found.append(self._scores.get(key, texts.passages, lambda key=key: waiting[key].result()))  # type: ignore[misc]
        return found


# --- in a process of its own ------------------------------------------------------------------------

_worker: dict[str, Any] = {}


@contextmanager
def worker_pool(base: BaseEntry, *, block: int, processes: int) -> Iterator[Executor]:
    """Processes that score, each with the base model and one thread; what waits is dropped where one fails."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=begin, initargs=(base, block))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def begin(base: BaseEntry, block: int) -> None:
    """Load what a process that scores needs; `block` is the longest window in tokens."""
    torch.set_num_threads(1)
    _worker.update(base=load_base(base), block=block)


def _score(model: Model, passages: Sequence[str]) -> dict[str, Any]:
    return scored(_worker["base"], model, passages, block=_worker["block"])


def scored(base: LoadedBase, model: Model, passages: Sequence[str], *, block: int) -> dict[str, Any]:
    """NLL, tokens and bytes of each passage, in the form of an answer of /v1/perplexity."""
    if model.ensemble:
        adapters = [_adapter(base, soup([one])) for one in model.ingredients]
        base, adapter = replace(base, model=Ensemble(base.model, adapters)), None
    else:
        adapter = _adapter(base, model) if model.ingredients else None
    with nullcontext() if adapter is None else attached(base.model, adapter):
        scores = passage_scores(base, list(passages), block=block, batch=BATCH)
    return {"texts": [{"nll": one.nll, "tokens": one.tokens, "bytes": one.bytes} for one in scores]}


def _adapter(base: LoadedBase, model: Model) -> AdapterModule:
    parts = [
        _part(one, number, share)
        for number, (one, share) in enumerate(zip(model.ingredients, model.shares, strict=True))
    ]
    mixing = AverageMixing(assume_same_init=model.any_init)
    reasons = check(parts, mixing)
    if reasons:
        raise Internal(f"These adapters make no soup: {' '.join(reasons)}")
    return from_tensors(parts[0].config, base.shape, mix(parts, mixing))


def _part(one: Ingredient, number: int, share: str) -> SoupIngredient:
    folder = read_directory(one.folder)
    return SoupIngredient(
        adapter_id=number, ref=one.name, digest=one.digest, weight=share,
        base_fingerprint=str(folder.base_fingerprint), config=folder.config, provenance=folder.provenance,
        dtype="F32", load=partial(_tensors, folder.weights),
    )  # fmt: skip


@lru_cache(maxsize=64)
def _tensors(path: Path) -> Mapping[str, Tensor]:
    return load_tensors(path.read_bytes())


class Ensemble(nn.Module):
    """A causal LM whose logits are the mean of those with each adapter: AdapterSoup's upper reference.

    The output layer is linear and the same for all, so the mean of the last hidden states has those logits. It costs
    one pass of the model per adapter. Raises Internal for a base model that further changes its logits.
    """

    def __init__(self, model: Any, adapters: Sequence[AdapterModule]) -> None:
        super().__init__()
        if getattr(model.config, "final_logit_softcapping", None):
            raise Internal("The logits of this base model are no linear function of its hidden states.")
        self.config = model.config
        self._model, self._adapters = model, list(adapters)
        self.get_output_embeddings = model.get_output_embeddings

    @property
    def base_model(self) -> nn.Module:
        """The model that returns the hidden states."""
        return self

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **_: object) -> SimpleNamespace:
        """The mean of the last hidden states (batch, time, hidden)."""
        total: Tensor | None = None
        for adapter in self._adapters:
            with attached(self._model, adapter):
                hidden = hidden_states(self._model, input_ids, attention_mask)
            total = hidden if total is None else total + hidden
        return SimpleNamespace(last_hidden_state=cast(Tensor, total) / len(self._adapters))
