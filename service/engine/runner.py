"""The forward passes: segments of sequences in, logits, likelihoods and mean states out. Knows no queues.

Used by the engine thread only. A pass runs over one row of tokens, ordered by adapter: newest tokens of sequences that
generate, pieces of prompts and of texts, each sequence with its own adapter or none (`registry.adapters.batched`),
kept apart by `packing`, with their keys and values in `kv`. A sequence computes what it computes alone. A base model
whose attention does not go through transformers' interface is run sequence by sequence instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from registry.adapters.batched import FEW, BatchedAdapters, ReadyAdapter, Run
from registry.base_model import LoadedBase
from registry.base_model.likelihood import hidden_states, lm_logits, log_probs_of, logit_slices
from service.engine.kv_cache import KVCache, KVCopy, Row, Slab, SlabDecodes
from service.engine.packing import Chunk, Packing, first_position, packed_states
from service.engine.request import TopTokens
from service.engine.sampler import chosen_log_probs, log_probs, top_tokens


@dataclass(frozen=True)
class ForwardTask:
    """Tokens of one sequence in a pass: those of `ids` from `start` on that are computed now.

    `follows` is the token behind them, where there is one. `owner` names the row that their keys and values are kept
    in; None keeps none. `copied` names what stands before them there and is another's so far: a row, or what was kept
    of one. What is wanted: the logits after the last token (`logits`), the likelihood of every following
    token (`nll`), the same with alternatives (`alternatives`: how many), the sum of the states of all tokens but the
    first `unpooled` (`pooled`).
    """

    ids: Sequence[int]
    start: int
    adapter: ReadyAdapter | None = None
    owner: object | None = None
    copied: object | None = None
    follows: int | None = None
    logits: bool = False
    nll: bool = False
    alternatives: int | None = None
    pooled: bool = False
    unpooled: int = 0
    reserve: int = 0
    """Positions that the row is to have room for, a prefix not included."""

    @property
    def before(self) -> int:
        """Positions that its adapter puts before its first token."""
        return 0 if self.adapter is None else self.adapter.prefix_length


@dataclass
class ForwardResult:
    """What came of a task: logits (vocabulary,), the sum of log-likelihoods, scores of tokens, a sum of states."""

    logits: Tensor | None = None
    nll: float = 0.0
    chosen: list[float] = field(default_factory=list)
    tops: list[TopTokens] = field(default_factory=list)
    pooled: np.ndarray | None = None
    tokens: int = 0
    """Of `pooled`: how many states were added up."""


class Runner:
    """Runs one base model, and keeps the keys and values of its sequences."""

    def __init__(self, base: LoadedBase, *, packed: bool = True) -> None:
        self.base = base
        self.batched = BatchedAdapters(base.model)
        self.packed = packed
        self._memory = KVCache()
        self._kept: dict[object, KVCopy] = {}
        self._caches: dict[object, DynamicCache] = {}  # of a base model that is not packed
        self._first = first_position(base.model)

    def may_spare(self, asked: Callable[[int], bool]) -> None:
        """Ask this before rows are made for nobody yet: whether so many positions more may be spare."""
        self._memory.may_spare = asked

    @property
    def spare_positions(self) -> int:
        """Positions of rows that are nobody's."""
        return self._memory.spare

    @torch.inference_mode()
    def give_up_spare(self) -> None:
        """Free the rows that are nobody's."""
        self._memory.give_up_spare()

    @torch.inference_mode()
    def retain(self, owners: Iterable[object]) -> None:
        """Forget the rows of all sequences but these."""
        wanted = set(owners)
        for owner in [one for one in self._memory if one not in wanted]:
            self._memory.release(owner)
        for owner in [one for one in self._caches if one not in wanted]:
            del self._caches[owner]

    @torch.inference_mode()
    def keep(self, name: object, owner: object, positions: int) -> bool:
        """Keep the first `positions` of a row when it is forgotten, to be copied by that name; False where they are
        not all there, or not all finite numbers. The row is forgotten."""
        copied = self._memory.copied_out(owner, positions)
        self._memory.release(owner)
        if copied is None:
            return False
        self._kept[name] = copied
        return True

    def drop(self, name: object) -> None:
        """Forget what was kept by a name."""
        self._kept.pop(name, None)

    @property
    def kept_bytes(self) -> int:
        """Bytes of all that is kept."""
        return sum(one.buffer.numel() * one.buffer.element_size() for one in self._kept.values())

    @torch.inference_mode()
    def run(self, tasks: Sequence[ForwardTask]) -> list[ForwardResult]:
        """One forward pass over all of them; gives what came of each, in their order."""
        order = self._order(tasks)
        placed = [tasks[number] for number in order]
        runs, starts = self._runs(placed), _starts(placed)
        hidden = self._packed(placed, runs, starts) if self.packed else self._one_by_one(placed)
        answers = _Answers(self.base, self.batched, placed, starts, hidden).of_all()
        found: list[ForwardResult] = [ForwardResult()] * len(tasks)
        for number, answer in zip(order, answers, strict=True):
            found[number] = answer
        return found

    # --- the pass -------------------------------------------------------------------------------

    def _order(self, tasks: Sequence[ForwardTask]) -> list[int]:
        """Numbers of the tasks in the order of their tokens, which is by adapter.

        The base's own come first, then adapters with few tokens by form, as their stacks have them, then the others.
        """
        by_adapter: dict[ReadyAdapter | None, list[int]] = {}
        for number, task in enumerate(tasks):
            by_adapter.setdefault(task.adapter, []).append(number)
        plain = by_adapter.pop(None, [])
        few: dict[tuple[object, int], list[ReadyAdapter]] = {}
        many: list[int] = []
        for adapter, numbers in by_adapter.items():
            count = sum(len(tasks[number].ids) for number in numbers)
            if adapter is not None and adapter.form is not None and count <= FEW:
                few.setdefault((adapter.form, count), []).append(adapter)
            else:
                many += numbers
        stacked: list[int] = []
        for (_, count), adapters in few.items():
            for adapter in self.batched.slot_order(adapters, count):
                stacked += by_adapter[adapter]
        return [*sorted(plain, key=lambda n: -len(tasks[n].ids)), *stacked, *many]

    def _runs(self, tasks: Sequence[ForwardTask]) -> list[Run]:
        """What of the pass is whose: neighbouring adapters that are stacked are one run."""
        runs: list[Run] = []
        at = 0
        for adapter, group in groupby(tasks, key=lambda task: task.adapter):
            count = sum(len(task.ids) for task in group)
            if adapter is not None:
                last = runs[-1] if runs else None
                if (
                    last is not None
                    and last.count == count
                    and self.batched.are_stacked(last.adapters[0], adapter, count)
                ):
                    runs[-1] = Run(last.start, count, (*last.adapters, adapter))
                else:
                    runs.append(Run(at, count, (adapter,)))
            at += count
        return runs

    def _packed(self, tasks: Sequence[ForwardTask], runs: Sequence[Run], starts: Sequence[int]) -> Tensor:
        """Hidden states (tokens, hidden) of a pass over all tasks."""
        device = self.base.model.device
        newest: dict[Slab, list[tuple[Row, int]]] = {}
        pieces: list[Chunk] = []
        kept: list[tuple[Row, int]] = []
        positions: list[int] = []
        for task, start in zip(tasks, starts, strict=True):
            length = len(task.ids)
            row = None if task.owner is None else self._row(task)
            first = self._first + task.before + task.start
            positions += range(first, first + length)
            if row is not None:
                kept.append((row, length))
            if row is not None and length == 1 and row.length:
                newest.setdefault(row.slab, []).append((row, start))
            else:
                pieces.append(Chunk(start, length, row))
        groups = [
            SlabDecodes(slab, [row for row, _ in rows], [start for _, start in rows], device)
            for slab, rows in newest.items()
        ]
        packing = Packing(pieces, groups, causal=self.base.shape.kind == "causal")
        ids = torch.tensor([token for task in tasks for token in task.ids], device=device)
        with self.batched.applied(runs):
            hidden = packed_states(self.base.model, ids, torch.tensor(positions, device=device), packing)
        for row, length in kept:
            row.length += length
        return hidden

    def _row(self, task: ForwardTask) -> Row:
        """The row of a task's sequence, with what stands before its tokens."""
        owner, before = task.owner, task.before
        states = None if task.adapter is None else task.adapter.prefix
        kept = self._kept.get(task.copied)
        if kept is not None:
            self._memory.copy_in(kept, owner, before + task.start, room=before + task.reserve)
        elif task.copied is not None:
            self._memory.copy(task.copied, owner, before + task.start, room=before + task.reserve)
        row = self._memory.reserve(owner, before + task.reserve)
        if states is not None and row.length == 0:
            self._memory.fill(owner, states.to(self.base.model.dtype))
        row.length = before + task.start  # a pass that failed may have written further
        return row

    # --- a base model that cannot be packed -----------------------------------------------------

    def _one_by_one(self, tasks: Sequence[ForwardTask]) -> Tensor:
        """The same hidden states, one sequence after the other, with transformers' own caches."""
        return torch.cat([self._alone(task) for task in tasks])

    def _alone(self, task: ForwardTask) -> Tensor:
        """Hidden states (tokens, hidden) of one task."""
        if self.base.shape.kind == "encoder":
            row = torch.tensor([list(task.ids)], device=self.base.model.device)
            return hidden_states(self.base.model, row, torch.ones_like(row))[0]
        states = None if task.adapter is None else task.adapter.prefix
        cache = DynamicCache() if task.owner is None else self._cache(task)
        if states is not None and cache.get_seq_length() == 0:
            for layer, (keys, values) in enumerate(states.to(self.base.model.dtype)):
                cache.update(keys[None], values[None], layer)
        cached = cache.get_seq_length()
        ids = torch.tensor([list(task.ids)], device=self.base.model.device)
        positions = torch.arange(cached, cached + len(task.ids), device=ids.device)[None]
        runs = [] if task.adapter is None else [Run(0, None, (task.adapter,))]
        with self.batched.applied(runs):
            out = self.base.model.base_model(
                input_ids=ids, position_ids=positions, past_key_values=cache, use_cache=True,
                attention_mask=ids.new_ones((1, cached + len(task.ids))),
            )  # fmt: skip
        hidden: Tensor = out.last_hidden_state[0]
        return hidden

    def _cache(self, task: ForwardTask) -> DynamicCache:
        before = task.before
        if task.copied is not None or (task.start == 0 and task.owner in self._caches):
            self._caches.pop(task.owner, None)
        cache = self._caches.setdefault(task.owner, DynamicCache())
        if task.copied is not None:
            for number, layer in enumerate(_layers(self._caches[task.copied])):
                keys, values = (part[:, :, : before + task.start].clone() for part in layer)
                cache.update(keys, values, number)
        else:
            _crop(cache, before + task.start)
        return cache


def _crop(cache: DynamicCache, length: int) -> None:
    """Cut what a pass that failed has written behind `length`: only some layers may have it."""
    layers: Any = cache.layers
    for layer in layers:
        further = layer.get_seq_length() - length
        if further > 0:
            layer.crop(-further)


def _layers(cache: DynamicCache) -> list[tuple[Tensor, Tensor]]:
    """Keys and values of every layer, each (1, heads, time, size)."""
    layers: Any = cache.layers
    return [(layer.keys, layer.values) for layer in layers]


def _starts(tasks: Sequence[ForwardTask]) -> list[int]:
    """The place of each task's first token in the pass."""
    starts, at = [], 0
    for task in tasks:
        starts.append(at)
        at += len(task.ids)
    return starts


class _Answers:
    """What the tasks of a pass want of its hidden states (tokens, hidden)."""

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
        self._found = [ForwardResult() for _ in tasks]

    def of_all(self) -> list[ForwardResult]:
        """What came of each."""
        self._by_head(self._logits, [n for n, task in enumerate(self._tasks) if task.logits])
        self._by_head(self._nll, [n for n, task in enumerate(self._tasks) if task.nll])
        for number in [n for n, task in enumerate(self._tasks) if task.alternatives is not None]:
            self._by_head(self._alternatives, [number])
        self._pool([n for n, task in enumerate(self._tasks) if task.pooled])
        return self._found

    def _by_head(self, compute: Callable[[list[int]], None], numbers: list[int]) -> None:
        """Compute for these tasks; those whose adapters edit the output layer with theirs, by themselves."""
        plain: list[int] = []
        editing: dict[ReadyAdapter, list[int]] = {}
        for number in numbers:
            adapter = self._tasks[number].adapter
            if adapter is not None and self._batched.edits_output_layer(adapter):
                editing.setdefault(adapter, []).append(number)
            else:
                plain.append(number)
        if plain:
            compute(plain)
        for adapter, of in editing.items():
            with self._batched.applied([Run(0, None, (adapter,))]):
                compute(of)

    def _logits(self, numbers: list[int]) -> None:
        at = torch.tensor([self._starts[n] + len(self._tasks[n].ids) - 1 for n in numbers], device=self._hidden.device)
        states = self._hidden[at]
        for part in logit_slices(self._base.model, len(numbers)):
            logits = lm_logits(self._base.model, states[part]).float()
            for number, row in zip(numbers[part], logits, strict=True):
                self._found[number].logits = row

    def _nll(self, numbers: list[int]) -> None:
        """Log-likelihoods of all these tasks' following tokens at once, summed for each in fp64."""
        at, wanted, of = self._following(numbers)
        if not wanted:
            return
        device = self._hidden.device
        found = log_probs_of(
            self._base.model, self._hidden[torch.tensor(at, device=device)], torch.tensor(wanted, device=device)
        ).double()
        sums = torch.zeros(len(numbers), dtype=torch.float64, device=device)
        sums.index_add_(0, torch.tensor(of, device=device), found)
        for number, value in zip(numbers, (-sums).tolist(), strict=True):
            self._found[number].nll = value

    def _following(self, numbers: list[int]) -> tuple[list[int], list[int], list[int]]:
        """Places of tokens whose next token is known, that token, and the number among `numbers` of their task."""
        at: list[int] = []
        wanted: list[int] = []
        of: list[int] = []
        for place, number in enumerate(numbers):
            task, start = self._tasks[number], self._starts[number]
            known = [*task.ids[1:], *(() if task.follows is None else (task.follows,))]
            at += range(start, start + len(known))
            wanted += known
            of += [place] * len(known)
        return at, wanted, of

    def _alternatives(self, numbers: list[int]) -> None:
        """Every following token's log-probability, and the likeliest tokens in its place; of one task."""
        (number,) = numbers
        count = self._tasks[number].alternatives
        assert count is not None
        at, wanted, _ = self._following(numbers)
        states = self._hidden[torch.tensor(at, device=self._hidden.device)]
        for part in logit_slices(self._base.model, len(at)) if at else []:
            scores = log_probs(lm_logits(self._base.model, states[part]))
            self._found[number].chosen += chosen_log_probs(scores, wanted[part])
            self._found[number].tops += top_tokens(scores, count)

    def _pool(self, numbers: list[int]) -> None:
        """fp32 sums of each task's states, but for its first `unpooled`."""
        for number in numbers:
            task, start = self._tasks[number], self._starts[number]
            states = self._hidden[start + task.unpooled : start + len(task.ids)].float()
            self._found[number].pooled = states.sum(dim=0).cpu().numpy()
            self._found[number].tokens = len(states)
