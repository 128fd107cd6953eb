"""Putting an adapter on a frozen base model for one forward pass, and taking it off again.

Hooks only: no parameter, buffer or attribute of the base changes, and the hooks leave with the context,
whatever happens inside. Called by the trainer (the hooks are differentiable) and by evaluation; the engine, which has
many adapters in one pass, has `together` for it. A hook changes what everybody who runs that model gets, so the
caller must be the only one who runs it.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from registry.errors import Internal
from registry.spec import AdapterConfig

Edit = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""(hooked module, its argument (batch, time, hidden), its output (batch, time, hidden)) -> the output to use."""
InputEdit = Callable[[nn.Module, dict[str, Any]], dict[str, Any]]
"""(hooked module, the arguments of its forward pass by name) -> those to use."""


class AdapterModule(nn.Module, ABC):
    """An adapter's tensors: `state_dict()` has the canonical names, `edits` says what it does to which module.

    It computes in the dtype of its own parameters (fp32 as built, also on bf16 and fp16 base models, where that
    costs little and keeps near-identity updates from rounding away); what it returns is cast to the dtype of the
    hidden state. `.to(torch.bfloat16)` makes it compute in the base's dtype instead.
    """

    config: AdapterConfig

    @abstractmethod
    def check_fit(self, model: nn.Module) -> None:
        """Raises Incompatible, with every reason, where the adapter cannot be put on `model`."""

    @abstractmethod
    def edits(self, model: nn.Module) -> Iterator[tuple[nn.Module, Edit]]:
        """Pairs of a module of `model` and the edit of its output.

        Called after `check_fit`: for each forward pass here, once by `together`. Edits of one module follow each other
        in this order; an edit may also only look at what passes, and give the output back as it came.
        """

    def stackable(self) -> AdapterModule | None:
        """What this adapter computes, in the form in which it is stacked with others (`stacked`).

        It may be the adapter itself. None where there is no such form: it then runs by itself.
        """
        return None

    def settings(self) -> Hashable:
        """What besides the shapes of their tensors two stackable adapters of this type have to have alike."""
        return None

    def states_before(self) -> Tensor | None:
        """Keys and values (layers, 2, heads, length, size) that stand before every text, in the adapter's dtype."""
        return None

    def inputs(self, _model: nn.Module) -> Iterator[tuple[nn.Module, InputEdit]]:
        """Pairs of a module of `model` and the edit of what its forward pass is given; most adapters have none."""
        return iter(())


def _output_hook(edit: Edit) -> Callable[..., Any]:
    """A forward hook that edits a module's output, or the first item of its output tuple."""

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        source = args[0] if args else next(iter(kwargs.values()))
        if isinstance(output, tuple):
            return (edit(module, source, output[0]), *output[1:])
        return edit(module, source, output)

    return hook


def _input_hook(edit: InputEdit) -> Callable[..., Any]:
    """A forward pre-hook that edits a module's arguments, and gives them all by name."""

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[()], dict[str, Any]]:
        named = dict(zip(inspect.signature(module.forward).parameters, args, strict=False)) if args else {}
        return (), edit(module, {**named, **kwargs})

    return hook


def _in_use(_module: nn.Module, _args: tuple[Any, ...]) -> None:
    """A forward pre-hook that does nothing: on a model, it says that an adapter is attached."""


@contextmanager
def attached(model: nn.Module, adapter: AdapterModule) -> Iterator[None]:
    """While open, `model`'s forward passes run with `adapter`.

    Raises Incompatible where the two do not fit, and Internal where an adapter is attached already: two at once
    would silently give a model nobody asked for.
    """
    adapter.check_fit(model)
    if _in_use in model._forward_pre_hooks.values():
        raise Internal("An adapter is attached to this base model already.")
    handles = [model.register_forward_pre_hook(_in_use)]
    try:
        for module, change in adapter.inputs(model):
            handles.append(module.register_forward_pre_hook(_input_hook(change), with_kwargs=True))
        for module, edit in adapter.edits(model):
            handles.append(module.register_forward_hook(_output_hook(edit), with_kwargs=True))
        yield
    finally:
        for handle in handles:
            handle.remove()
