"""Many adapters on one base model in one forward pass: each token has its own, or none.

Modules of the base get their hooks once, with the first adapter that edits them; the edits of tokens are planned for
every pass. The runner packs sequences into one row of tokens. Every edit reads each token separately, so an adapter's
edits are the same as without a batch, applied to its own tokens. Adapters of one form with equally few tokens each are
stacked and edit theirs at once (`stacked`).

`BatchedAdapters` is used by one thread, the only one that runs that base model. A module without edits costs one
look-up.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from registry.adapters.attach import AdapterModule, Edit, edit_output
from registry.adapters.stacked import Stack, form_of, spare_capacity

FEW = 32
"""Most tokens of an adapter that is stacked; for more a product of its own pays."""
STACKS = 4
"""Stacks kept after a pass; the least recently used of more are dropped."""


class ReadyAdapter:
    """An adapter that a base model of `BatchedAdapters` can run: its edits, and how it is stacked.

    Takes `module` over, and may change it (`AdapterModule.stackable`). Made in any thread, as it only reads the model;
    raises what `AdapterModule.edits` does.
    """

    def __init__(self, module: AdapterModule, model: nn.Module) -> None:
        form = module.stackable()
        self.prefix = module.prefix_states()
        """Keys and values (layers, 2, heads, length, size) that stand before its texts, or None."""
        self.prefix_length = 0 if self.prefix is None else int(self.prefix.shape[3])
        self.module = module if form is None else form
        self.form: Hashable | None = None if form is None else form_of(form)
        self.slot_bytes = sum(parameter.numel() * parameter.element_size() for parameter in self.module.parameters())
        """Bytes of a slot for it in a stack."""
        self.edits = list(self.module.edits(model))
        self.plan = _by_module([_Edit(target, 0, None, 1, edit) for target, edit in self.edits])
        """The edits of a pass whose every token is this adapter's."""
        tensors = [*self.module.state_dict().values(), *(() if self.prefix is None else (self.prefix,))]
        self.bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@dataclass(frozen=True)
class Run:
    """Consecutive tokens from `start` on, `count` of each of `adapters`; several adapters are of one form.

    With `count` None the run covers every token of the pass.
    """

    start: int
    count: int | None
    adapters: tuple[ReadyAdapter, ...]


@dataclass(frozen=True)
class _Edit:
    """An edit of tokens `start` to `end` of a module, seen as (slots, tokens, hidden)."""

    target: nn.Module
    start: int
    end: int | None
    slots: int
    edit: Edit


_StackKey = tuple[Hashable, int]
"""Form of the adapters, and number of tokens of each."""
_Plan = Mapping[nn.Module, Sequence[_Edit]]
"""The edits of each module in one pass, in the order of tokens."""


class BatchedAdapters:
    """The adapters of one base model."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._hooked: set[nn.Module] = set()
        self._plan: _Plan = {}
        self._stacks: OrderedDict[_StackKey, Stack] = OrderedDict()
        self._reserved: set[_StackKey] = set()  # for the next pass
        self.stack_budget: Callable[[int], int | None] = lambda _needed: None
        """(bytes that stacks need for the next pass) -> bytes that they may take; None: any number."""
        self._last: tuple[Sequence[Run], _Plan] | None = None

    @property
    def bytes(self) -> int:
        """Bytes of the stacks."""
        return sum(stack.bytes for stack in self._stacks.values())

    def add_hooks(self, adapter: ReadyAdapter) -> None:
        """Hook the modules that an adapter edits, once."""
        for target, _ in adapter.edits:
            if target not in self._hooked:
                target.register_forward_hook(partial(edit_output, self.edit), with_kwargs=True)
                self._hooked.add(target)

    def edits_output_layer(self, adapter: ReadyAdapter) -> bool:
        """Return True if an adapter edits the output layer, which runs only on tokens whose logits are needed."""
        head = cast(Callable[[], nn.Module], self._model.get_output_embeddings)()
        return any(target is head for target, _ in adapter.edits)

    def clear_stacks(self) -> None:
        """Free every slot; adapters that are used again get new ones."""
        self._stacks.clear()
        self.clear_plan()

    def clear_plan(self) -> None:
        """Drop the edits of the last pass, which keep its adapters in memory."""
        self._last = None

    @contextmanager
    def applied(self, runs: Sequence[Run]) -> Iterator[None]:
        """While open, passes of the model run with these adapters on these tokens, and none on the others."""
        self._plan = self._plan_of(runs)
        try:
            yield
        finally:
            self._plan = {}
            self._reserved.clear()
            while len(self._stacks) > STACKS:
                self._stacks.popitem(last=False)

    def slot_order(self, adapters: Sequence[ReadyAdapter], count: int) -> list[ReadyAdapter]:
        """Adapters of one form, `count` tokens each, in the order in which a run of them has their tokens.

        Reserves slots for them in a stack as far as the budget allows.
        """
        if len(adapters) < 2:
            return list(adapters)
        key = adapters[0].form, count
        capacity = self._capacity_for(key, adapters)
        if capacity is None:
            self._stacks.pop(key, None)
            self._reserved.discard(key)
            return list(adapters)
        stack = self._stacks.get(key)
        if stack is None:  # a stack copies its example
            stack = self._stacks[key] = Stack(adapters[0].module)
        self._stacks.move_to_end(key)
        self._reserved.add(key)
        slots = stack.arrange([adapter.module for adapter in adapters], capacity=capacity)
        return [adapters[number] for number in sorted(range(len(adapters)), key=slots.__getitem__)]

    def are_stacked(self, first: ReadyAdapter, second: ReadyAdapter, count: int) -> bool:
        """Return True if two adapters of the next pass are stacked, with `count` tokens each."""
        return first.form is not None and first.form == second.form and (first.form, count) in self._reserved

    def _capacity_for(self, key: _StackKey, adapters: Sequence[ReadyAdapter]) -> int | None:
        """Slots that a stack for these adapters may have; None where the budget is too small for one each.

        Drops stacks that the next pass does not need, the least recently used first.
        """
        stack, count = self._stacks.get(key), len(adapters)
        size = adapters[0].slot_bytes
        sizes = {rival: self._stacks[rival].bytes for rival in self._stacks if rival != key}
        reserved = sum(sizes[rival] for rival in sizes if rival in self._reserved)
        budget = self.stack_budget(reserved + count * size)
        if budget is None:
            return spare_capacity(count)
        used = sum(sizes.values())
        if stack is not None and stack.has_capacity(count) and used + stack.bytes <= budget:
            return count
        if used + spare_capacity(count) * size <= budget:
            return spare_capacity(count)
        for rival in sizes:
            if rival not in self._reserved and used + count * size > budget:
                used -= self._stacks.pop(rival).bytes
        if stack is not None and (used + max(stack.bytes, count * size)) > budget:
            del self._stacks[key]  # it has slots that are not needed now
        return count if used + count * size <= budget else None

    def _plan_of(self, runs: Sequence[Run]) -> _Plan:
        """The edits of every module, in the order of tokens; cached for passes with the same runs as the last.

        The plan of one adapter for every token is not cached: the output layer runs with such plans between two
        passes, which must not replace the plan of the pass.
        """
        if len(runs) == 1 and runs[0].count is None:
            return runs[0].adapters[0].plan
        if self._last is not None and self._last[0] == list(runs) and self._has_stacks(runs):
            return self._last[1]
        planned: list[_Edit] = []
        for run in runs:
            slots = len(run.adapters)
            edits = self._stacked_edits(run) if slots > 1 else run.adapters[0].edits
            end = None if run.count is None else run.start + slots * run.count
            planned += [_Edit(target, run.start, end, slots, edit) for target, edit in edits]
        plan = _by_module(planned)
        self._last = list(runs), plan
        return plan

    def _has_stacks(self, runs: Sequence[Run]) -> bool:
        """Return True if the stacks of all runs exist."""
        return all((run.adapters[0].form, run.count) in self._stacks for run in runs if len(run.adapters) > 1)

    def _stacked_edits(self, run: Run) -> list[tuple[nn.Module, Edit]]:
        assert run.count is not None
        stack = self._stacks[run.adapters[0].form, run.count]
        assert stack.arrange([adapter.module for adapter in run.adapters]) == list(range(len(run.adapters)))
        return list(stack.module.edits(self._model))

    def has_edits(self, module: nn.Module) -> bool:
        """Return True if adapters of the pass edit a module's output."""
        return module in self._plan

    def edit(self, module: nn.Module, source: Tensor, hidden: Tensor) -> Tensor:
        """`hidden` (..., outputs), the output of a module for `source` (..., inputs), with the edits of the pass."""
        edits = self._plan.get(module)
        if not edits:
            return hidden
        edited = _edited(module, source.reshape(-1, source.shape[-1]), hidden.reshape(-1, hidden.shape[-1]), edits)
        return edited.view(hidden.shape)


def _by_module(edits: Sequence[_Edit]) -> _Plan:
    plan: dict[nn.Module, list[_Edit]] = {}
    for edit in edits:
        plan.setdefault(edit.target, []).append(edit)
    return plan


def _edited(module: nn.Module, source: Tensor, hidden: Tensor, edits: Sequence[_Edit]) -> Tensor:
    """`hidden` (tokens, outputs) with every edit applied to its own tokens, edits of the same tokens in their order."""
    tokens, outputs = hidden.shape
    first = edits[0]
    if len(edits) == 1 and first.start == 0 and first.end in (None, tokens):  # as in most passes: no slicing
        stacked_source, stacked_hidden = (states.view(first.slots, -1, states.shape[-1]) for states in (source, hidden))
        return first.edit(module, stacked_source, stacked_hidden).view(tokens, outputs)
    pieces: list[Tensor] = []
    done = 0
    for number, edit in enumerate(edits):
        end = tokens if edit.end is None else edit.end
        is_repeated = number > 0 and edits[number - 1].start == edit.start and pieces
        if edit.start > done:
            pieces.append(hidden[done : edit.start])
        unedited = pieces.pop() if is_repeated else hidden[edit.start : end]
        stacked_source = source[edit.start : end].view(edit.slots, -1, source.shape[-1])
        result = edit.edit(module, stacked_source, unedited.view(edit.slots, -1, outputs))
        pieces.append(result.view(end - edit.start, -1))
        done = end
    if done < tokens:
        pieces.append(hidden[done:])
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)
