"""Runs forward passes: segments of sequences in; logits, likelihoods and mean states out. Knows no queues.

Used by the engine's thread only. A pass runs over one row of tokens, ordered by adapter: newest tokens of sequences
that generate, and chunks of prompts and texts. Each sequence has its own adapter or none (`registry.adapters.batched`).
`packing` keeps the sequences apart, `kv_cache` has their keys and values. Each sequence gets what it would get alone. A
base model whose attention bypasses transformers' interface is run sequence by sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, chain, groupby
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from registry.adapters.batched import FEW, BatchedAdapters, ReadyAdapter, Run
from registry.base_model import LoadedBase
from registry.base_model.likelihood import hidden_states, lm_logits, log_probs_of, logit_slices
from service.engine.kv_cache import KVCache, KVCopy, Row, Slab, SlabDecodes, SlabWrites
from service.engine.llama import FAMILIES, LlamaForward
from service.engine.packing import Chunk, Packing, first_position, packed_states
from service.engine.request import TopTokens
from service.engine.sampler import chosen_log_probs, log_probs, top_tokens


@dataclass(frozen=True)
class ForwardTask:
    """Tokens `ids` of one sequence that a pass computes, the first of them at position `start`, and what it returns.

    Their keys and values are kept in the row of `sequence` (None: not kept); those before `start` are first copied from
    `copy_from`, another sequence or a cached prefix, if given. `next_id` is the token that follows the last one, if
    known.

    Results: with `needs_logits`, logits after the last token. With `needs_nll`, the NLL of the following tokens except
    the first `unscored`. With `alternatives`, the log-probabilities of all tokens and of that many alternatives. With
    `needs_pooled`, the sum of the last hidden states except the first `pooling_offset`.
    """

    ids: Sequence[int]
    start: int
    adapter: ReadyAdapter | None = None
    sequence: object | None = None
    copy_from: object | None = None
    next_id: int | None = None
    needs_logits: bool = False
    needs_nll: bool = False
    unscored: int = 0
    alternatives: int | None = None
    needs_pooled: bool = False
    pooling_offset: int = 0
    reserve: int = 0
    """Positions that the row must hold, without virtual tokens."""

    @property
    def virtual_tokens(self) -> int:
        """Positions that its adapter puts before its first token."""
        return 0 if self.adapter is None else self.adapter.prefix_length

    @property
    def following_ids(self) -> list[int]:
        """The token that follows each of `ids`, as far as it is known."""
        return [*self.ids[1:], *(() if self.next_id is None else (self.next_id,))]


@dataclass
class ForwardResult:
    """Results of a task: logits (vocabulary,), NLL, log-probabilities of following tokens, pooled states (hidden,)."""

    logits: Tensor | None = None
    nll: float = 0.0
    log_probs: list[float] = field(default_factory=list)
    top_tokens: list[TopTokens] = field(default_factory=list)
    pooled: np.ndarray | None = None
    pooled_tokens: int = 0
    """The number of states that `pooled` is the sum of."""


class Runner:
    """Runs one base model, and keeps the keys and values of its sequences."""

    def __init__(self, base: LoadedBase, *, packed: bool = True) -> None:
        self.base = base
        self.batched = BatchedAdapters(base.model)
        self.packed = packed
        self._forward: Callable[[Tensor, Tensor, Packing], Tensor] = (
            LlamaForward(base.model, self.batched)
            if base.shape.model_type in FAMILIES
            else partial(packed_states, base.model)
        )
        self.kv_cache = KVCache()
        self._prefixes: dict[object, KVCopy] = {}
        self._dynamic_caches: dict[object, DynamicCache] = {}  # of a base model that is not packed
        self._first_position = first_position(base.model)

    @torch.inference_mode()
    def retain(self, sequences: Iterable[object]) -> None:
        """Release the rows of all sequences but these; without any, also the adapters of the last pass."""
        retained = set(sequences)
        for sequence in [sequence for sequence in self.kv_cache if sequence not in retained]:
            self.kv_cache.release(sequence)
        self._dynamic_caches = {owner: cache for owner, cache in self._dynamic_caches.items() if owner in retained}
        if not retained:
            self.batched.clear_plan()

    @torch.inference_mode()
    def copy_prefix(self, prefix: object, sequence: object, positions: int) -> bool:
        """Move the first `positions` of a sequence to a cached prefix.

        Returns False if they are not all there and finite.
        """
        copied = self.kv_cache.copy_out(sequence, positions)
        self.kv_cache.release(sequence)
        if copied is None:
            return False
        self._prefixes[prefix] = copied
        return True

    def free_prefix(self, prefix: object) -> None:
        """Free a cached prefix."""
        self._prefixes.pop(prefix, None)

    @torch.inference_mode()
    def run(self, tasks: Sequence[ForwardTask]) -> list[ForwardResult]:
        """Run one forward pass over all tasks; return their results in the same order."""
        order = self._order(tasks)
        ordered = [tasks[number] for number in order]
        runs, starts = self._adapter_runs(ordered), _starts(ordered)
        hidden = self._run_packed(ordered, runs, starts) if self.packed else self._run_one_by_one(ordered)
        results = _ResultReader(self.base, self.batched, ordered, starts, hidden).read()
        return [result for _, result in sorted(zip(order, results, strict=True), key=itemgetter(0))]

    # --- the pass -------------------------------------------------------------------------------

    def _order(self, tasks: Sequence[ForwardTask]) -> list[int]:
        """Indices of the tasks in the order of their tokens in the pass, by adapter.

        First those without an adapter, then adapters with few tokens in the order of their stacks, then the others.
        """
        by_adapter: dict[ReadyAdapter | None, list[int]] = {}
        for number, task in enumerate(tasks):
            by_adapter.setdefault(task.adapter, []).append(number)
        plain = by_adapter.pop(None, [])
        stackable: dict[tuple[object, int], list[ReadyAdapter]] = {}
        unstacked: list[int] = []
        for adapter, numbers in by_adapter.items():
            count = sum(len(tasks[number].ids) for number in numbers)
            if adapter is not None and adapter.form is not None and count <= FEW:
                stackable.setdefault((adapter.form, count), []).append(adapter)
            else:
                unstacked += numbers
        stacked: list[int] = []
        for (_, count), adapters in stackable.items():
            for adapter in self.batched.slot_order(adapters, count):
                stacked += by_adapter[adapter]
        return [*sorted(plain, key=lambda n: -len(tasks[n].ids)), *stacked, *unstacked]

    def _adapter_runs(self, tasks: Sequence[ForwardTask]) -> list[Run]:
        """The token ranges of the pass by adapter; neighbouring adapters that are stacked are one run."""
        runs: list[Run] = []
        start = 0
        for adapter, group in groupby(tasks, key=lambda task: task.adapter):
            count = sum(len(task.ids) for task in group)
            if adapter is not None:
                last = runs[-1] if runs and runs[-1].count == count else None
                if last is not None and self.batched.are_stacked(last.adapters[0], adapter, count):
                    runs[-1] = Run(last.start, count, (*last.adapters, adapter))
                else:
                    runs.append(Run(start, count, (adapter,)))
            start += count
        return runs

    def _run_packed(self, tasks: Sequence[ForwardTask], runs: Sequence[Run], starts: Sequence[int]) -> Tensor:
        """Hidden states (tokens, hidden) of a pass over all tasks."""
        device = self.base.model.device
        decodes: dict[Slab, list[tuple[Row, int]]] = {}
        chunks: list[Chunk] = []
        written: dict[Slab, list[tuple[Row, int, int]]] = {}
        positions: list[int] = []
        for task, start in zip(tasks, starts, strict=True):
            length = len(task.ids)
            row = None if task.sequence is None else self._prepare_row(task)
            first = self._first_position + task.virtual_tokens + task.start
            positions += range(first, first + length)
            if row is not None:
                written.setdefault(row.slab, []).append((row, start, length))
            if row is not None and length == 1 and row.length:
                decodes.setdefault(row.slab, []).append((row, start))
            else:
                chunks.append(Chunk(start, length, row if row is not None and row.length else None))
        packing = Packing(
            chunks,
            [SlabDecodes(slab, rows, device) for slab, rows in decodes.items()],
            [SlabWrites(slab, segments, device) for slab, segments in written.items()],
            causal=self.base.shape.kind == "causal",
        )
        ids = torch.tensor([token for task in tasks for token in task.ids], device=device)
        with self.batched.applied(runs):
            hidden = self._forward(ids, torch.tensor(positions, device=device), packing)
        for row, _, length in chain.from_iterable(written.values()):
            row.length += length
        return hidden

    def _prepare_row(self, task: ForwardTask) -> Row:
        """The row of a task, filled with the keys and values before its tokens."""
        length = task.virtual_tokens + task.start
        row = self.kv_cache.reserve(task.sequence, task.virtual_tokens + task.reserve)
        states = None if task.adapter is None else task.adapter.prefix
        prefix = self._prefixes.get(task.copy_from)
        if prefix is not None:
            prefix.write(row, length)
        elif task.copy_from is not None:
            self.kv_cache.copy(task.copy_from, row, length)
        elif states is not None and row.length == 0:
            for layer, pair in enumerate(states.to(self.base.model.dtype)):
                row.fill(layer, pair.flatten(0, 1))
        row.length = length  # a pass that failed may have written further
        return row

    # --- a base model that cannot be packed -----------------------------------------------------

    def _run_one_by_one(self, tasks: Sequence[ForwardTask]) -> Tensor:
        """Hidden states (tokens, hidden), one sequence after the other, with transformers' caches."""
        return torch.cat([self._run_alone(task) for task in tasks])

    def _run_alone(self, task: ForwardTask) -> Tensor:
        """Hidden states (tokens, hidden) of one task."""
        ids = torch.tensor([list(task.ids)], device=self.base.model.device)
        if self.base.shape.kind == "encoder":
            return hidden_states(self.base.model, ids, torch.ones_like(ids))[0]
        states = None if task.adapter is None else task.adapter.prefix
        cache = DynamicCache() if task.sequence is None else self._prepare_dynamic_cache(task)
        if states is not None and cache.get_seq_length() == 0:
            for layer, (keys, values) in enumerate(states.to(self.base.model.dtype)):
                cache.update(keys[None], values[None], layer)
        cached = cache.get_seq_length()
        runs = [] if task.adapter is None else [Run(0, None, (task.adapter,))]
        with self.batched.applied(runs):
            output = self.base.model.base_model(
                input_ids=ids,
                position_ids=torch.arange(cached, cached + len(task.ids), device=ids.device)[None],
                past_key_values=cache,
                use_cache=True,
                attention_mask=ids.new_ones((1, cached + len(task.ids))),
            )
        hidden: Tensor = output.last_hidden_state[0]
        return hidden

    def _prepare_dynamic_cache(self, task: ForwardTask) -> DynamicCache:
        """The cache of a task, with the keys and values before its tokens."""
        length = task.virtual_tokens + task.start
        if task.copy_from is not None or (task.start == 0 and task.sequence in self._dynamic_caches):
            self._dynamic_caches.pop(task.sequence, None)
        cache = self._dynamic_caches.setdefault(task.sequence, DynamicCache())
        if task.copy_from is None:
            _crop(cache, length)
            return cache
        for number, (keys, values) in enumerate(_layers(self._dynamic_caches[task.copy_from])):
            cache.update(keys[:, :, :length].clone(), values[:, :, :length].clone(), number)
        return cache


def _crop(cache: DynamicCache, length: int) -> None:
    """Cut off what a failed pass has written behind `length`, possibly in some layers only."""
    layers: Any = cache.layers
    for layer in layers:
        excess = layer.get_seq_length() - length
        if excess > 0:
            layer.crop(-excess)


def _layers(cache: DynamicCache) -> list[tuple[Tensor, Tensor]]:
    """Keys and values of each layer, (1, heads, positions, size)."""
    layers: Any = cache.layers
    return [(layer.keys, layer.values) for layer in layers]


def _starts(tasks: Sequence[ForwardTask]) -> list[int]:
    """The position of each task's first token in the pass."""
    return list(accumulate((len(task.ids) for task in tasks[:-1]), initial=0))


class _ResultReader:
    """Reads the results of a pass's tasks from its hidden states (tokens, hidden)."""

    def __init__(
        self,
        base: LoadedBase,
        batched: BatchedAdapters,
        tasks: Sequence[ForwardTask],
        starts: Sequence[int],
        hidden: Tensor,
    ) -> None:
        self._base = base
        self._batched = batched
        self._tasks = tasks
        self._starts = starts
        self._hidden = hidden
        self._results = [ForwardResult() for _ in tasks]

    def read(self) -> list[ForwardResult]:
        """The results of all tasks."""
        self._by_head(self._read_logits, [n for n, task in enumerate(self._tasks) if task.needs_logits])
        self._by_head(self._read_nll, [n for n, task in enumerate(self._tasks) if task.needs_nll])
        for number in [n for n, task in enumerate(self._tasks) if task.alternatives is not None]:
            self._by_head(self._read_alternatives, [number])
        self._sum_states([n for n, task in enumerate(self._tasks) if task.needs_pooled])
        return self._results

    def _by_head(self, read: Callable[[list[int]], None], numbers: list[int]) -> None:
        """Read results of tasks together; of those whose adapter edits the output layer, adapter by adapter."""
        plain: list[int] = []
        by_editing_adapter: dict[ReadyAdapter, list[int]] = {}
        for number in numbers:
            adapter = self._tasks[number].adapter
            if adapter is not None and self._batched.edits_output_layer(adapter):
                by_editing_adapter.setdefault(adapter, []).append(number)
            else:
                plain.append(number)
        if plain:
            read(plain)
        for adapter, edited in by_editing_adapter.items():
            with self._batched.applied([Run(0, None, (adapter,))]):
                read(edited)

    def _read_logits(self, numbers: list[int]) -> None:
        last = [self._starts[n] + len(self._tasks[n].ids) - 1 for n in numbers]
        states = self._hidden[torch.tensor(last, device=self._hidden.device)]
        for rows in logit_slices(len(numbers)):
            logits = lm_logits(self._base.model, states[rows]).float()
            for number, row in zip(numbers[rows], logits, strict=True):
                self._results[number].logits = row

    def _read_nll(self, numbers: list[int]) -> None:
        """NLL of the scored following tokens of all these tasks at once, summed for each in fp64."""
        positions: list[int] = []
        next_ids: list[int] = []
        indices: list[int] = []
        for index, number in enumerate(numbers):
            task = self._tasks[number]
            following = task.following_ids[task.unscored :]
            first = self._starts[number] + task.unscored
            positions += range(first, first + len(following))
            next_ids += following
            indices += [index] * len(following)
        if not next_ids:
            return
        device = self._hidden.device
        states = self._hidden[torch.tensor(positions, device=device)]
        log_probs = log_probs_of(self._base.model, states, torch.tensor(next_ids, device=device)).double()
        sums = torch.zeros(len(numbers), dtype=torch.float64, device=device)
        sums.index_add_(0, torch.tensor(indices, device=device), log_probs)
        for number, value in zip(numbers, (-sums).tolist(), strict=True):
            self._results[number].nll = value

    def _read_alternatives(self, numbers: list[int]) -> None:
        """Log-probabilities of one task's following tokens, and the likeliest tokens in their places."""
        (number,) = numbers
        task, result = self._tasks[number], self._results[number]
        assert task.alternatives is not None
        next_ids = task.following_ids
        if not next_ids:
            return
        states = self._hidden[self._starts[number] : self._starts[number] + len(next_ids)]
        for rows in logit_slices(len(next_ids)):
            scores = log_probs(lm_logits(self._base.model, states[rows]))
            result.log_probs += chosen_log_probs(scores, next_ids[rows])
            result.top_tokens += top_tokens(scores, task.alternatives)

    def _sum_states(self, numbers: list[int]) -> None:
        """fp32 sums of each task's states, but for its first `pooling_offset`."""
        for number in numbers:
            task, start = self._tasks[number], self._starts[number]
            states = self._hidden[start + task.pooling_offset : start + len(task.ids)].float()
            self._results[number].pooled = states.sum(dim=0).cpu().numpy()
            self._results[number].pooled_tokens = len(states)
