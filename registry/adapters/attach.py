"""Attach an adapter to a frozen base model for one forward pass, and detach it.

Hooks only: no parameter, buffer or attribute of the base changes, and the hooks leave with the context,
whatever happens inside. Called by the trainer (the hooks are differentiable) and by evaluation; the engine, which has
many adapters in one pass, uses `batched`. A hook changes every pass of that model, so the caller must be the only one
that runs it.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from registry.errors import Internal
from registry.spec import AdapterConfig

Edit = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""(hooked module, its argument (batch, time, hidden), its output (batch, time, hidden)) -> the edited output."""
InputEdit = Callable[[nn.Module, dict[str, Any]], dict[str, Any]]
"""(hooked module, the arguments of its forward pass by name) -> the edited arguments."""


class AdapterModule(nn.Module, ABC):
    """An adapter's tensors and their effect: `state_dict()` has the canonical names, `edits` the edits of modules.

    It computes in the dtype of its own parameters, and casts its results to the dtype of the hidden state. Parameters
    are built in fp32, also on bf16 and fp16 base models: that costs little, and near-identity updates are not rounded
    away. `.to(torch.bfloat16)` makes it compute in the base's dtype instead.
    """

    config: AdapterConfig

    @abstractmethod
    def edits(self, model: nn.Module) -> Iterator[tuple[nn.Module, Edit]]:
        """Pairs of a module of `model` and the edit of its output.

        `model` has the shape that the adapter was built for (`base_model.architecture.check_model`). Called for each
        `attached`, once by `batched`. Edits of one module follow each other in this order; an edit may also only read
        its arguments, and return the output unchanged. Raises Incompatible for norms that cannot be edited.
        """

    def stackable(self) -> AdapterModule | None:
        """An adapter that computes the same and can be stacked (`stacked`): this one, perhaps changed for it.

        None where there is none: the adapter then runs by itself.
        """
        return None

    def settings(self) -> Hashable:
        """The settings that two stackable adapters of this type must share, besides the shapes of their tensors."""
        return None

    def prefix_states(self) -> Tensor | None:
        """Keys and values (layers, 2, heads, length, size) of a prefix, in the adapter's dtype, or None."""
        return None

    def inputs(self, _model: nn.Module) -> Iterator[tuple[nn.Module, InputEdit]]:
        """Pairs of a module of `model` and the edit of its arguments; most adapters have none."""
        return iter(())


def edit_output(edit: Edit, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
    """A forward hook, given `edit`, that edits a module's output, or the first item of its output tuple."""
    source = args[0] if args else next(iter(kwargs.values()))
    if isinstance(output, tuple):
        return (edit(module, source, output[0]), *output[1:])
    return edit(module, source, output)


def _edit_input(
    edit: InputEdit, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[()], dict[str, Any]]:
    """A forward pre-hook, given `edit`, that edits a module's arguments and passes them all by name."""
    named = dict(zip(inspect.signature(module.forward).parameters, args, strict=False)) if args else {}
    return (), edit(module, {**named, **kwargs})


def _is_attached(_module: nn.Module, _args: tuple[Any, ...]) -> None:
    """A forward pre-hook that does nothing: it marks a model that has an adapter attached."""


@contextmanager
def attached(model: nn.Module, adapter: AdapterModule) -> Iterator[None]:
    """While open, `model`'s forward passes run with `adapter`.

    Raises Internal where an adapter is attached already: the two would silently run together. Raises what `edits` does.
    """
    if _is_attached in model._forward_pre_hooks.values():
        raise Internal("An adapter is attached to this base model already.")
    handles = [model.register_forward_pre_hook(_is_attached)]
    try:
        for module, input_edit in adapter.inputs(model):
            handles.append(module.register_forward_pre_hook(partial(_edit_input, input_edit), with_kwargs=True))
        for module, edit in adapter.edits(model):
            handles.append(module.register_forward_hook(partial(edit_output, edit), with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()
