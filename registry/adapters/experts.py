"""Banks of experts (AdaMix, Wang et al., EMNLP 2022): copies of an adapter's projections, routed at random in training.

Each site of the adapter has `experts` copies of its down- and of its up-projection, or one copy where
`BankConfig.share` names it; norms are always shared. `draw` chooses a copy for each projection of a forward pass
(section 3.1), and `routed` applies the choice. Without a route a bank computes its merge, the mean of the copies
(section 3.3), which is served in its place. Used by the trainer, and by `mixing.merge` for stored banks.

Knows no list of structures: its maker hands it the adapter of one expert, which may have a head, shared too. Tensor
names are those of that adapter; the weight and bias of a projection with copies have a leading dimension, one entry a
copy. All copies start as the projection of a plain adapter, like the LoRA experts of the paper's code. So the merge of
a new bank equals, bit for bit, a new plain adapter of the same seed, and the bank has that adapter's `init_hash`.
Experts merge well only because they started alike (AdapterSoup, appendix A.1).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from registry.adapters.attach import AdapterModule, Edit, InputEdit
from registry.adapters.initial import Shapes
from registry.spec import BankConfig

Routes = Mapping[str, int]
"""The number of the copy in use, by the path of a projection that has copies (`layers.0.ffn.down`)."""


class Experts(nn.Module):
    """The copies of one linear projection; `weight` and `bias` are those of the current route.

    The stored parameters have a leading dimension (experts, ...). It replaces a plain projection, whose weight, bias
    and output are all that adapters use.
    """

    def __init__(self, plain: nn.Linear, experts: int) -> None:
        super().__init__()
        self.in_features, self.out_features = plain.in_features, plain.out_features
        self.chosen: int | None = None
        for name, parameter in plain.named_parameters():
            self._parameters[name] = nn.Parameter(parameter.new_empty((experts, *parameter.shape)))

    @property
    def weight(self) -> Tensor:
        """(outputs, inputs): of the chosen copy, or of the merge."""
        weight = self._routed("weight")
        assert weight is not None  # a projection without a bias still has a weight
        return weight

    @property
    def bias(self) -> Tensor | None:
        """(outputs,), of the same copy; None where the projection has none."""
        return self._routed("bias")

    def _routed(self, name: str) -> Tensor | None:
        copies = self._parameters.get(name)
        if copies is None:
            return None
        return mean_of(copies).to(copies.dtype) if self.chosen is None else copies[self.chosen]

    def forward(self, source: Tensor) -> Tensor:
        """(..., inputs) -> (..., outputs)."""
        return F.linear(source, self.weight, self.bias)


def mean_of(copies: Tensor) -> Tensor:
    """The mean over the first dimension in fp32: x_0 + sum_i (x_i - x_0) / M, term by term in order.

    Bit-identical on every machine (docs/explanation/mixing.md#average), and exactly the copy where all are equal.
    """
    share = torch.tensor(1.0 / len(copies), dtype=torch.float32)
    first, *rest = copies.to(torch.float32).unbind()
    mean = first
    for copy in rest:
        mean = mean + share * (copy - first)
    return mean


class BankAdapter(AdapterModule):
    """A bank without values: built on torch's meta device and filled by its maker.

    `expert` is the plain adapter of the experts' configuration, which becomes the bank's own.
    """

    config: BankConfig
    _expert: AdapterModule

    def __init__(self, config: BankConfig, expert: AdapterModule) -> None:
        super().__init__()
        self.config = config
        self._experts = {
            path: Experts(module, config.experts)
            for path, module in expert.named_modules()
            if isinstance(module, nn.Linear) and _has_copies(path, config)
        }
        for path, experts in self._experts.items():
            expert.set_submodule(path, experts)
        for name, child in expert.named_children():  # so that its tensors have the names of the expert's
            self.add_module(name, child)
        self.__dict__["_expert"] = expert  # not a child of its own: its children are the bank's

    @property
    def projections(self) -> tuple[str, ...]:
        """The paths of the projections that have copies, the keys of every route."""
        return tuple(self._experts)

    def edits(self, model: nn.Module) -> Iterator[tuple[nn.Module, Edit]]:
        """The edits of the expert, with the projections of the current route."""
        yield from self._expert.edits(model)

    def inputs(self, model: nn.Module) -> Iterator[tuple[nn.Module, InputEdit]]:
        """The input edits of the expert."""
        yield from self._expert.inputs(model)

    def draw(self, avoiding: Routes | None = None) -> Routes:
        """A copy for every projection that has several, drawn uniformly from torch's global generator.

        With `avoiding` each is another copy than in those routes, as in the paper's second pass.
        """
        count = self.config.experts
        least = 0 if avoiding is None else 1  # steps from the copy to avoid
        steps = torch.randint(least, count, (len(self._experts),)).tolist()
        return {
            path: (step + (0 if avoiding is None else avoiding[path])) % count
            for path, step in zip(self._experts, steps, strict=True)
        }

    @contextmanager
    def routed(self, routes: Routes) -> Iterator[None]:
        """While open, forward passes go through these copies; `routes` are drawn by this bank."""
        previous = {path: experts.chosen for path, experts in self._experts.items()}
        self._choose(routes)
        try:
            yield
        finally:
            self._choose(previous)

    def _choose(self, routes: Mapping[str, int | None]) -> None:
        for path, experts in self._experts.items():
            experts.chosen = routes[path]


def _has_copies(path: str, config: BankConfig) -> bool:
    """Return True if the module at this path is a projection that has copies in the bank."""
    return path.rpartition(".")[2] in config.copied


def merge_bank(config: BankConfig, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The adapter of a bank (AdaMix, section 3.3): the mean of each projection's copies, in fp32."""
    return {
        name: mean_of(tensor) if _has_copies(name.rpartition(".")[0], config) else tensor.to(torch.float32)
        for name, tensor in tensors.items()
    }


def mean_routes(config: BankConfig, tensors: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """The adapters whose mean output is that of all routes through a bank, in fp32: one for each down-projection.

    An adapter's update is linear in its up-projections, so that these can be averaged before the mean over routes.
    """
    merged = merge_bank(config, tensors)
    copied = [name for name, tensor in tensors.items() if tensor.shape != merged[name].shape]
    down = [name for name in copied if name.split(".")[-2] == config.sides[0]]
    if not down:
        return [merged]
    return [
        {**merged, **{name: tensors[name][expert].to(torch.float32) for name in down}}
        for expert in range(config.experts)
    ]


def initial_bank(
    config: BankConfig, shapes: Shapes, *, initial: Callable[..., dict[str, Tensor]], **start: object
) -> dict[str, Tensor]:
    """fp32 tensors for `shapes`: every copy of a projection starts as a plain adapter's, drawn by `initial`.

    Raises what that does.
    """
    copies = {name: size[0] for name, size in shapes.items() if _has_copies(name.rpartition(".")[0], config)}
    plain = {name: size[1:] if name in copies else size for name, size in shapes.items()}
    return {
        name: tensor.repeat(copies[name], *(1 for _ in tensor.shape)) if name in copies else tensor
        for name, tensor in initial(config.expert, plain, **start).items()
    }
