"""Task arithmetic (Ilharco et al., ICLR 2023, https://arxiv.org/abs/2212.04089): add what was learnt to the start.

theta = theta_0 + scale sum_i w_i (theta_i - theta_0), where theta_0 is what all ingredients started from: the paper's
theta_0 + lambda sum_i tau_i with w_i = 1 / n and scale = n lambda. Of bottlenecks theta_0 is drawn again from its seed,
and held against the hash that the ingredients have of it; a start that this server cannot draw is refused. A LoRA
changes the base model's own matrices, whose task vector is s B A whatever the factors started from: theta_0 is the
base, and the sum is `concat`'s soup, exactly. In double precision, element by element, cast once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from registry.adapters import entry_of, expected_tensors
from registry.adapters.initial import INITS, Shapes
from registry.adapters.loadable import Tensors
from registry.adapters.weights import DTYPES, init_hash
from registry.errors import Incompatible, Internal
from registry.mixing import average, concat, entrywise
from registry.mixing.cast import cast_finite
from registry.mixing.compat import SoupIngredient, by_digest, layer_reasons, listed, not_joinable_reasons
from registry.spec import AdapterConfig, BaseShape, ConcatMixing, TaskArithmeticMixing
from registry.tensor_file import canonical_order


def check(parts: Sequence[SoupIngredient], mixing: TaskArithmeticMixing) -> list[str]:
    """Every reason why these cannot be mixed so; empty when they can. No tensor is read."""
    if _are_updates(parts):
        return concat.check(parts, _exact(mixing)) + layer_reasons(parts)
    reasons = entrywise.check(parts, mixing) or not_joinable_reasons(parts, "Task arithmetic")
    return reasons or _start_reasons(parts, mixing)


def _start_reasons(parts: Sequence[SoupIngredient], mixing: TaskArithmeticMixing) -> list[str]:
    """Reasons against drawing again what bottlenecks started from."""
    same = parts[0].config.same_tensors
    if same is not None:
        return [f"The {same[0]} of {parts[0].ref} started as the base model's, which no seed draws: mix by 'average'."]
    unknown = [part.ref for part in parts if part.provenance.init_hash is None]
    if unknown:  # of one ingredient too
        return [f"The initialisation of {listed(unknown)} is unknown."]
    if mixing.init_seed is None and not _seeds(parts):
        return [f"{listed([part.ref for part in parts])} came without the seed of the start: name 'init_seed'."]
    return []


def too_wide(parts: Sequence[SoupIngredient], mixing: TaskArithmeticMixing, max_width: int) -> list[str]:
    """One sentence where LoRAs would be wider than `max_width` together."""
    return concat.too_wide(parts, _exact(mixing), max_width) if _are_updates(parts) else []


def resolved(parts: Sequence[SoupIngredient], mixing: TaskArithmeticMixing, shape: BaseShape) -> TaskArithmeticMixing:
    """The mixing with the start that the ingredients' hash is of; raises Incompatible where none that is drawn is it.

    A LoRA's start decides nothing, and is not named.
    """
    if _are_updates(parts):
        return mixing.model_copy(update={"init": None, "init_seed": None})
    config = by_digest(parts)[0].config
    shapes = expected_tensors(config, shape)
    seeds = _seeds(parts) if mixing.init_seed is None else [mixing.init_seed]
    for seed in seeds:
        for init in INITS if mixing.init is None else (mixing.init,):
            one = mixing.model_copy(update={"init": init, "init_seed": seed})
            if init_hash(_start(config, shapes, one)) == parts[0].provenance.init_hash:
                return one
    drawn = ", ".join(INITS) if mixing.init is None else mixing.init
    raise Incompatible(
        f"Task arithmetic needs the tensors that the ingredients started from, and neither {drawn} of seed "
        f"{listed([str(seed) for seed in seeds])} gives those of hash {parts[0].provenance.init_hash}: name 'init' and "
        "'init_seed', or mix by 'average'.",
        param="mixing",
    )


def result(parts: Sequence[SoupIngredient], mixing: TaskArithmeticMixing) -> AdapterConfig:
    """The soup's structure: that of each bottleneck; LoRAs' ranks added up."""
    return concat.result(parts, _exact(mixing)) if _are_updates(parts) else parts[0].config


def mix(parts: Sequence[SoupIngredient], mixing: TaskArithmeticMixing) -> dict[str, Tensor]:
    """The soup's tensors, bottlenecks in their dtype; each ingredient is loaded once, one at a time.

    Raises InvalidRecipe where an ingredient holds NaN or infinity, or the soup leaves the dtype's range.
    """
    if _are_updates(parts):
        return concat.mix(parts, _exact(mixing))
    start: Tensors = {}
    total: dict[str, Tensor] = {}
    for part in by_digest(parts):
        tensors = part.load()
        if not start:
            shapes = {name: tuple(tensors[name].shape) for name in canonical_order(tensors)}
            start = {name: one.double() for name, one in _start(part.config, shapes, mixing).items()}
        for name, first in start.items():
            learnt = float(part.weight) * (tensors[name].double() - first)
            total[name] = total[name] + learnt if name in total else learnt
    found = {name: first + float(mixing.scale) * total[name] for name, first in start.items()}
    return cast_finite(found, DTYPES[average.result_dtype(parts)])


def _start(config: AdapterConfig, shapes: Shapes, mixing: TaskArithmeticMixing) -> dict[str, Tensor]:
    """What adapters of `config` started from, fp32, with the names and shapes of their tensors."""
    if mixing.init is None or mixing.init_seed is None:
        raise Internal("A start was to be drawn, and the recipe does not say which.")
    found = entry_of(config).initial(config, shapes, seed=mixing.init_seed, init=mixing.init, base=None)
    return {name: tensor.to(torch.float32) for name, tensor in found.items()}


def _seeds(parts: Sequence[SoupIngredient]) -> list[int]:
    """Seeds that the ingredients say they started from, each once."""
    found = [part.provenance.init_seed for part in by_digest(parts)]
    return list(dict.fromkeys(seed for seed in found if seed is not None))


def _are_updates(parts: Sequence[SoupIngredient]) -> bool:
    """Whether these are LoRAs, each of which is a change of the base model's matrices."""
    return all(part.config.is_update for part in parts)


def _exact(mixing: TaskArithmeticMixing) -> ConcatMixing:
    return ConcatMixing(scale=mixing.scale)
