"""Many adapters on one base model in one forward pass: each token has its own, or none.

Hooks are put on a module of the base once, when the first adapter that edits it is made ready, and stay. Which adapter
edits which tokens is told anew for every pass. Whatever a module computes is a row of tokens here (the runner packs
sequences), and every edit looks at each token by itself, so an adapter's edits are those it has alone, applied to its
own tokens. Adapters of one form with equally few tokens each are stacked and edit theirs at once (`stacked`).

Used by one thread, the only one that runs that base model; what edits nothing costs a look-up a module.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from registry.adapters.attach import AdapterModule, Edit
from registry.adapters.stacked import Stack, form_of, roomy

FEW = 32
"""Adapters with at most so many tokens each are stacked; more are worth a product of their own."""
STACKS = 4
"""Stacks kept after a pass: of those used least recently the slots are given up."""


class ReadyAdapter:
    """An adapter that a base model of `Together` can run: its edits, and how it is stacked."""

    def __init__(self, module: AdapterModule, model: nn.Module) -> None:
        module.check_fit(model)
        form = module.stackable()
        self.before = module.states_before()
        """Keys and values (layers, 2, heads, length, size) that stand before its texts, or None."""
        self.length_before = 0 if self.before is None else int(self.before.shape[3])
        self.module = module if form is None else form
        self.form: Hashable | None = None if form is None else form_of(form)
        self.slot_bytes = sum(one.numel() * one.element_size() for one in self.module.parameters())
        """Bytes of a slot for it in a stack."""
        self.edits = list(self.module.edits(model))
        self.everywhere = _by_module([_Edit(target, 0, None, 1, edit) for target, edit in self.edits])
        """The plan of a pass whose every token is this adapter's."""
        tensors = [*self.module.state_dict().values(), *(() if self.before is None else (self.before,))]
        self.bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@dataclass(frozen=True)
class Run:
    """Consecutive tokens from `start` on: `count` of each of `adapters`, which are of one form where there are several.

    `count` None is every token there is.
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
"""Form and tokens of each."""


class Together:
    """The adapters of one base model."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._hooked: set[nn.Module] = set()
        self._now: Mapping[nn.Module, Sequence[_Edit]] = {}
        self._stacks: OrderedDict[_StackKey, Stack] = OrderedDict()
        self._taken: set[_StackKey] = set()  # by the pass to come
        self.room: Callable[[int], int | None] = lambda _needed: None
        """Bytes that stacks may take (None: any number), asked with those that the pass to come needs."""
        self._last: tuple[Sequence[Run], Mapping[nn.Module, Sequence[_Edit]]] | None = None

    @property
    def bytes(self) -> int:
        """Bytes of the stacks."""
        return sum(stack.bytes for stack in self._stacks.values())

    def ready(self, module: AdapterModule) -> ReadyAdapter:
        """Make an adapter ready, with hooks where it edits; raises Incompatible where it does not fit."""
        found = ReadyAdapter(module, self._model)
        for target, _ in found.edits:
            if target not in self._hooked:
                target.register_forward_hook(self._hook, with_kwargs=True)
                self._hooked.add(target)
        return found

    def edits_outputs(self, adapter: ReadyAdapter) -> bool:
        """Whether an adapter edits the output layer, which sees only the tokens whose logits are wanted."""
        head: Any = self._model.get_output_embeddings()  # type: ignore[operator]
        return any(target is head for target, _ in adapter.edits)

    def forget_stacks(self) -> None:
        """Give up every slot; adapters that are used again take one again."""
        self._stacks.clear()
        self._last = None

    @contextmanager
    def using(self, runs: Sequence[Run]) -> Iterator[None]:
        """While open, passes of the model run with these adapters on these tokens; the others have none."""
        self._now = self._plan(runs)
        try:
            yield
        finally:
            self._now = {}
            self._taken.clear()
            while len(self._stacks) > STACKS:
                self._stacks.popitem(last=False)

    def order(self, adapters: Sequence[ReadyAdapter], count: int) -> list[ReadyAdapter]:
        """Adapters of one form, `count` tokens each, in the order in which a run of them takes their tokens."""
        if len(adapters) < 2:
            return list(adapters)
        key = adapters[0].form, count
        room = self._room_for(key, adapters)
        if room is None:
            self._stacks.pop(key, None)
            self._taken.discard(key)
            return list(adapters)
        stack = self._stacks.get(key)
        if stack is None:  # a stack copies its example
            stack = self._stacks[key] = Stack(adapters[0].module)
        self._stacks.move_to_end(key)
        self._taken.add(key)
        slots = stack.arrange([adapter.module for adapter in adapters], room=room)
        return [adapters[number] for number in sorted(range(len(adapters)), key=slots.__getitem__)]

    def stacks(self, one: ReadyAdapter, other: ReadyAdapter, count: int) -> bool:
        """Whether two adapters of the pass to come are stacked, with `count` tokens each."""
        return one.form is not None and one.form == other.form and (one.form, count) in self._taken

    def _room_for(self, key: _StackKey, adapters: Sequence[ReadyAdapter]) -> int | None:
        """Slots that a stack for these adapters may have; None where there is not even room for them alone.

        Stacks that the pass to come does not need make room, those used least recently first.
        """
        stack, count = self._stacks.get(key), len(adapters)
        size = adapters[0].slot_bytes
        others = {other: one for other, one in self._stacks.items() if other != key}
        needed = sum(others[other].bytes for other in others if other in self._taken) + count * size
        allowed = self.room(needed)
        if allowed is None:
            return roomy(count)
        taken = sum(one.bytes for one in others.values())
        if stack is not None and stack.has_room(count) and taken + stack.bytes <= allowed:
            return count
        if taken + roomy(count) * size <= allowed:
            return roomy(count)
        for other in [one for one in others if one not in self._taken]:
            if taken + count * size > allowed:
                taken -= self._stacks.pop(other).bytes
        if stack is not None and (taken + max(stack.bytes, count * size)) > allowed:
            del self._stacks[key]  # with slots that are not needed now
        return count if taken + count * size <= allowed else None

    def _plan(self, runs: Sequence[Run]) -> Mapping[nn.Module, Sequence[_Edit]]:
        """The edits of every module, in the order of tokens; that of the last pass is taken again if it is the same.

        A plan of one adapter for every token is made once and stands for itself: between two passes the output layer
        runs with such plans, and the pass behind it is to find its own again.
        """
        if len(runs) == 1 and runs[0].count is None:
            return runs[0].adapters[0].everywhere
        if self._last is not None and self._last[0] == list(runs) and self._kept(runs):
            return self._last[1]
        found: list[_Edit] = []
        for run in runs:
            slots = len(run.adapters)
            if slots > 1:
                assert run.count is not None
                edits: Sequence[tuple[nn.Module, Edit]] = self._stacked(run)
            else:
                edits = run.adapters[0].edits
            end = None if run.count is None else run.start + slots * run.count
            found += [_Edit(target, run.start, end, slots, edit) for target, edit in edits]
        plan = _by_module(found)
        self._last = list(runs), plan
        return plan

    def _kept(self, runs: Sequence[Run]) -> bool:
        """Whether the stacks of runs are all there."""
        return all((run.adapters[0].form, run.count) in self._stacks for run in runs if len(run.adapters) > 1)

    def _stacked(self, run: Run) -> list[tuple[nn.Module, Edit]]:
        stack = self._stacks[run.adapters[0].form, run.count or 0]
        assert stack.arrange([adapter.module for adapter in run.adapters]) == list(range(len(run.adapters)))
        return list(stack.module.edits(self._model))

    def _hook(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        todo = self._now.get(module)
        if not todo:
            return None
        source: Tensor = args[0] if args else next(iter(kwargs.values()))
        hidden: Tensor = output[0] if isinstance(output, tuple) else output
        edited = _edited(module, source.reshape(-1, source.shape[-1]), hidden.reshape(-1, hidden.shape[-1]), todo)
        edited = edited.view(hidden.shape)
        return (edited, *output[1:]) if isinstance(output, tuple) else edited


def _by_module(edits: Sequence[_Edit]) -> Mapping[nn.Module, Sequence[_Edit]]:
    found: dict[nn.Module, list[_Edit]] = {}
    for one in edits:
        found.setdefault(one.target, []).append(one)
    return found


def _edited(module: nn.Module, source: Tensor, hidden: Tensor, todo: Sequence[_Edit]) -> Tensor:
    """`hidden` (tokens, outputs) with every edit done to its own tokens, edits of the same tokens one after another."""
    tokens, outputs = hidden.shape
    one = todo[0]
    if len(todo) == 1 and one.start == 0 and one.end in (None, tokens):  # as in most passes: nothing is picked out
        seen, before = (states.view(one.slots, -1, states.shape[-1]) for states in (source, hidden))
        return one.edit(module, seen, before).view(tokens, outputs)
    parts: list[Tensor] = []
    done = 0
    for number, one in enumerate(todo):
        end = tokens if one.end is None else one.end
        again = number > 0 and todo[number - 1].start == one.start and parts
        if one.start > done:
            parts.append(hidden[done : one.start])
        before = parts.pop() if again else hidden[one.start : end]
        seen = source[one.start : end].view(one.slots, -1, source.shape[-1])
        parts.append(one.edit(module, seen, before.view(one.slots, -1, outputs)).view(end - one.start, -1))
        done = end
    if done < tokens:
        parts.append(hidden[done:])
    return parts[0] if len(parts) == 1 else torch.cat(parts)
