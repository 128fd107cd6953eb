"""Task arithmetic (Ilharco et al., ICLR 2023, https://arxiv.org/abs/2212.04089): add task vectors to the start.

theta = theta_0 + scale sum_i w_i (theta_i - theta_0), where theta_0 is what all ingredients started from: the paper's
theta_0 + lambda sum_i tau_i with w_i = 1 / n and scale = n lambda. For bottlenecks theta_0 is drawn again from its seed
and compared with the ingredients' hash of it; a start that this server cannot draw is refused. A LoRA changes the base
model's own matrices, whose task vector is s B A for any start of the factors. So theta_0 is the base, and the sum is
exactly the soup of `concat`. In double precision, element by element, cast once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from registry.adapters import entry_of, expected_tensors
from registry.adapters.initial import INITS, Shapes
from registry.adapters.loadable import Tensors
from registry.adapters.weights import DTYPES, init_hash
from registry.errors import Incompatible
from registry.mixing import average, concat, entrywise
from registry.mixing.compat import SoupIngredient, by_digest, layer_reasons, listed, not_joinable_reasons
from registry.mixing.tensors import add_to, cast_finite
from registry.spec import AdapterConfig, BaseShape, TaskArithmeticMixing
from registry.spec.mixing import INIT_SEEDS
from registry.tensor_file import canonical_order


def check(ingredients: Sequence[SoupIngredient], mixing: TaskArithmeticMixing) -> list[str]:
    """Every reason why these cannot be mixed by task arithmetic; empty when they can. No tensor is read."""
    if _are_updates(ingredients):
        return concat.check(ingredients, mixing) + layer_reasons(ingredients)
    reasons = entrywise.check(ingredients, mixing) or not_joinable_reasons(ingredients, "Task arithmetic")
    return reasons or _start_reasons(ingredients, mixing)


def _start_reasons(ingredients: Sequence[SoupIngredient], mixing: TaskArithmeticMixing) -> list[str]:
    """Reasons why the start of bottlenecks cannot be drawn again."""
    first = ingredients[0]
    same = first.config.same_tensors
    if same is not None:
        return [f"The {same[0]} of {first.ref} started as the base model's, which no seed draws: mix by 'average'."]
    unknown = [ingredient.ref for ingredient in ingredients if ingredient.provenance.init_hash is None]
    if unknown:  # of one ingredient too
        return [f"The initialisation of {listed(unknown)} is unknown."]
    if mixing.init_seed is None and not _seeds(ingredients):
        refs = listed([ingredient.ref for ingredient in ingredients])
        return [f"{refs} came without the seed of the start: name 'init_seed'."]
    return []


def too_wide(ingredients: Sequence[SoupIngredient], mixing: TaskArithmeticMixing, max_width: int) -> list[str]:
    """One sentence where LoRAs would be wider than `max_width` together."""
    return concat.too_wide(ingredients, mixing, max_width) if _are_updates(ingredients) else []


def resolved(
    ingredients: Sequence[SoupIngredient], mixing: TaskArithmeticMixing, shape: BaseShape
) -> TaskArithmeticMixing:
    """The mixing with the initialisation and seed of the ingredients' start; without either for LoRAs.

    Raises Incompatible where no start that this server can draw has the ingredients' hash.
    """
    if _are_updates(ingredients):
        return mixing.model_copy(update={"init": None, "init_seed": None})
    config = by_digest(ingredients)[0].config
    shapes = expected_tensors(config, shape)
    start_hash = ingredients[0].provenance.init_hash
    seeds = _seeds(ingredients) if mixing.init_seed is None else [mixing.init_seed]
    inits = INITS if mixing.init is None else (mixing.init,)
    for seed in seeds:
        for init in inits:
            candidate = mixing.model_copy(update={"init": init, "init_seed": seed})
            if init_hash(_start(config, shapes, candidate)) == start_hash:
                return candidate
    raise Incompatible(
        f"Task arithmetic needs the initial tensors of the ingredients, and neither {', '.join(inits)} "
        f"with seed {listed([str(seed) for seed in seeds])} gives those with hash {start_hash}: name "
        "'init' and 'init_seed', or mix by 'average'.",
        param="mixing",
    )


def result(ingredients: Sequence[SoupIngredient], mixing: TaskArithmeticMixing) -> AdapterConfig:
    """The soup's structure: that of each bottleneck; LoRAs' ranks added up."""
    return concat.result(ingredients, mixing) if _are_updates(ingredients) else ingredients[0].config


def mix(ingredients: Sequence[SoupIngredient], mixing: TaskArithmeticMixing) -> dict[str, Tensor]:
    """The soup's tensors, bottlenecks in their dtype; each ingredient is loaded once, one at a time.

    Raises InvalidRecipe where an ingredient holds NaN or infinity, or the soup leaves the dtype's range.
    """
    if _are_updates(ingredients):
        return concat.mix(ingredients, mixing)
    start: Tensors = {}
    task_vector: dict[str, Tensor] = {}
    for ingredient in by_digest(ingredients):
        tensors = ingredient.load()
        if not start:
            shapes = {name: tuple(tensors[name].shape) for name in canonical_order(tensors)}
            start = {name: tensor.double() for name, tensor in _start(ingredient.config, shapes, mixing).items()}
        for name, initial in start.items():
            add_to(task_vector, name, float(ingredient.weight) * (tensors[name].double() - initial))
    soup = {name: initial + float(mixing.scale) * task_vector[name] for name, initial in start.items()}
    return cast_finite(soup, DTYPES[average.result_dtype(ingredients)])


def _start(config: AdapterConfig, shapes: Shapes, mixing: TaskArithmeticMixing) -> dict[str, Tensor]:
    """The fp32 tensors that adapters of `config` started from."""
    assert mixing.init is not None  # see `resolved`
    assert mixing.init_seed is not None
    drawn = entry_of(config).initial(config, shapes, seed=mixing.init_seed, init=mixing.init, base=None)
    return {name: tensor.to(torch.float32) for name, tensor in drawn.items()}


def _seeds(ingredients: Sequence[SoupIngredient]) -> list[int]:
    """The seeds in the ingredients' provenance that a recipe can name, each once."""
    seeds = [ingredient.provenance.init_seed for ingredient in by_digest(ingredients)]
    return list(dict.fromkeys(seed for seed in seeds if seed is not None and seed in INIT_SEEDS))


def _are_updates(ingredients: Sequence[SoupIngredient]) -> bool:
    """Return True if these are LoRAs, each of which is an update of the base model's matrices."""
    return all(ingredient.config.is_update for ingredient in ingredients)
