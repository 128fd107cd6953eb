"""Ingredients for mixing: parts with random tensors of any configuration, drawn with NumPy, so the same everywhere."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from registry.adapters import Init, create, expected_tensors, from_tensors
from registry.adapters.bottleneck import Bottleneck
from registry.adapters.lora import LORA_A, LORA_B, PREFIX
from registry.adapters.moments import measured_weights, packed
from registry.adapters.weights import init_hash
from registry.mixing import MIXINGS
from registry.mixing.compat import SoupIngredient, Statistic, by_digest
from registry.mixing.report import ExactMixture, report_of
from registry.spec import (
    AdapterConfig,
    BaseShape,
    BottleneckConfig,
    LoraConfig,
    LoraModule,
    Mixing,
    MixReport,
    Provenance,
    Recipe,
    RecipeIngredient,
    canonical_weights,
)

BASE = "sha256:" + "b" * 64
INIT = Provenance(init_hash="sha256:" + "1" * 64, init_source="declared")
OTHER_INIT = Provenance(init_hash="sha256:" + "2" * 64, init_source="declared")
UNKNOWN = Provenance()
LINEARS = {
    f"transformer.h.{layer}.{name}": sizes
    for layer in range(2)
    for name, sizes in {
        "attn.c_attn": (16, 48),
        "attn.c_proj": (16, 16),
        "mlp.c_fc": (16, 64),
        "mlp.c_proj": (64, 16),
    }.items()
}
SHAPE = BaseShape(
    fingerprint=BASE,
    model_type="gpt2",
    hidden_size=16,
    num_layers=2,
    context=32,
    vocab_size=50,
    linears=LINEARS,
    kv=(2, 8),
)
STRUCTURES = {
    "bapna_firat": {"structure": "bapna_firat", "activation": "relu"},
    "bapna_firat_residual": {"structure": "bapna_firat", "activation": "gelu", "input": "residual"},
    "houlsby": {"structure": "houlsby", "activation": "gelu"},
    "houlsby_plain": {"structure": "houlsby", "activation": "swish", "trained_norms": False},
    "pfeiffer": {"structure": "pfeiffer", "activation": "relu"},
    "pfeiffer_residual": {"structure": "pfeiffer", "activation": "swish", "input": "residual"},
    "parallel": {"structure": "parallel", "activation": "relu", "scale": 4.0},
    "parallel_residual": {"structure": "parallel", "activation": "relu", "input": "residual"},
}


def bottleneck(kind: str, width: int = 4, **fields: Any) -> BottleneckConfig:
    return BottleneckConfig.model_validate({**STRUCTURES[kind], "bottleneck": width, **fields})


def lora(rank: int = 4, alpha: float = 8.0, *, rslora: bool = False, leaves: Sequence[str] = ("c_attn",)) -> LoraConfig:
    paths = [path for path in LINEARS if path.rpartition(".")[2] in leaves]
    return LoraConfig.of({path: LoraModule(rank, alpha) for path in paths}, rslora=rslora)


def tensors_of(config: AdapterConfig, seed: int, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """Values as of a trained adapter; Houlsby's trained LayerNorms are the same for every seed."""
    draw, same = np.random.default_rng(seed), np.random.default_rng(1000)
    values = {}
    for name, size in expected_tensors(config, SHAPE).items():
        drawn = (same if ".base_norm." in name else draw).normal(0, 0.5, size).astype(np.float32)
        values[name] = torch.from_numpy(drawn).to(dtype)
    return values


def drawn(config: AdapterConfig, shape: BaseShape, seed: int = 0) -> dict[str, torch.Tensor]:
    """Values far from nothing on any base model, so that whatever is misplaced shows."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(size, generator=generator) * 0.3 + (0.8 if "norm" in name and "weight" in name else 0.0)
        for name, size in expected_tensors(config, shape).items()
    }


def started(config: AdapterConfig, *, seed: int = 7, init: Init = "linear") -> Provenance:
    """Of an adapter that started from what this seed draws."""
    first = create(config, SHAPE, seed=seed, init=init).state_dict()
    return Provenance(init_hash=init_hash(first), init_source="trained_here", init_seed=seed)


def make_ingredient(number: int, config: AdapterConfig, weight: str = "1", **changes: Any) -> SoupIngredient:
    fields: dict[str, Any] = {
        "adapter_id": number,
        "ref": f"acme/a{number}@1",
        "digest": "sha256:" + hashlib.sha256(str(number).encode()).hexdigest(),
        "weight": weight,
        "base_fingerprint": BASE,
        "config": config,
        "provenance": UNKNOWN,
        "dtype": "F32",
        "load": lambda: tensors_of(config, number),
    }
    return SoupIngredient(**{**fields, **changes})


def weighted(configs: Sequence[AdapterConfig], weights: Sequence[float], **changes: Any) -> list[SoupIngredient]:
    return [
        make_ingredient(n, c, w, **changes)
        for n, (c, w) in enumerate(zip(configs, canonical_weights(weights), strict=True))
    ]


def with_statistic(ingredient: SoupIngredient, kind: str) -> SoupIngredient:
    """The ingredient with a statistic of this kind, by its number: squares, or moments of twice as many vectors."""
    draw = np.random.default_rng(500 + ingredient.adapter_id)
    sizes = expected_tensors(ingredient.config, SHAPE)
    if kind == "fisher":
        entries = {name: torch.from_numpy(draw.normal(size=size) ** 2).float() for name, size in sizes.items()}
    else:
        read = {
            name: draw.normal(size=(2 * sizes[name][1], sizes[name][1]))
            for name in measured_weights(ingredient.config, sizes)
        }
        entries = {name: packed(torch.from_numpy(values.T @ values / len(values))) for name, values in read.items()}
    return replace(ingredient, statistic=Statistic(BASE, lambda: entries))


def updates(config: AdapterConfig, tensors: dict[str, torch.Tensor], probes: torch.Tensor) -> dict[str, torch.Tensor]:
    """The additions of a bottleneck adapter to probes (n, hidden) at every site, by the modules that serve."""
    module = from_tensors(config, SHAPE, tensors)
    sites = {name: site for name, site in module.named_modules() if isinstance(site, Bottleneck)}
    with torch.no_grad():
        return {name: site(probes, torch.zeros_like(probes)) for name, site in sites.items()}


def residual(ingredients: Sequence[SoupIngredient], mixing: Mixing) -> float:
    """How far the mixture is from the exact one, as a share of it."""
    method = MIXINGS[mixing.method]
    config = method.result(ingredients, mixing)
    exact = ExactMixture(config, SHAPE, mixing)
    return (
        exact.mixture.residual(config, method.mix([exact.watched(ingredient) for ingredient in ingredients], mixing))
        or 0.0
    )


def reported(ingredients: Sequence[SoupIngredient], mixing: Mixing) -> tuple[dict[str, torch.Tensor], MixReport]:
    """The soup and its report, as `cook` makes them."""
    ordered = by_digest(ingredients)
    method = MIXINGS[mixing.method]
    config = method.result(ordered, mixing)
    exact = ExactMixture(config, SHAPE, mixing)
    tensors = method.mix([exact.watched(ingredient) for ingredient in ordered], mixing)
    recipe_ingredients = tuple(
        RecipeIngredient(digest=ingredient.digest, weight=ingredient.weight) for ingredient in ordered
    )
    recipe = Recipe(base_fingerprint=BASE, ingredients=recipe_ingredients, mixing=mixing)
    return tensors, report_of(ordered, recipe, config, tensors, shape=SHAPE, exact=exact)


def deltas(config: AdapterConfig, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """s B A of every linear module of the base in double precision, zero where the LoRA has none."""
    matrices = {path: torch.zeros(outputs, inputs, dtype=torch.float64) for path, (inputs, outputs) in LINEARS.items()}
    for path, module in config.modules().items():
        a, b = tensors[PREFIX + path + LORA_A].double(), tensors[PREFIX + path + LORA_B].double()
        matrices[path] = config.scaling(module) * (b @ a)
    return matrices
