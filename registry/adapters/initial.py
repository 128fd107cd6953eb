"""Initial tensors of bottleneck adapters: only adapters that start from the same ones average well (AdapterSoup, A.1).

Drawn with NumPy's PCG64 in canonical order, not with torch: the same seed gives the same bytes, and so the same
`init_hash`, whatever the machine's vector instructions and torch's version.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from registry.adapters.sites import layer_sites
from registry.errors import InvalidParameter
from registry.spec import BottleneckConfig

Shapes = Mapping[str, tuple[int, ...]]
"""Sizes of tensors by their canonical names, in canonical order."""
Init = Literal["near_identity", "linear", "zero_up", "small_b"]
INITS: tuple[Init, ...] = ("near_identity", "linear", "zero_up")
"""Initialisations of bottlenecks; `small_b` is one of LoRAs (`lora.initial_lora`)."""
NEAR_IDENTITY_STD = 1e-2  # robust below, harmful above (Houlsby et al., section 3.6)
TRUNCATION = 2.0


def initial_tensors(
    _config: BottleneckConfig, shapes: Shapes, *, seed: int, init: Init, base: nn.Module | None
) -> dict[str, Tensor]:
    """fp32 tensors for `shapes` (canonical names, in canonical order).

    - `near_identity`: projections N(0, 1e-2) truncated at two standard deviations, biases zero (Houlsby et al.).
    - `linear`: the default of `torch.nn.Linear`, a far larger shared anchor (AdapterSoup's released code).
    - `zero_up`: D as `linear`, U and all biases zero: exactly the base at step 0, but SNIP scores are all zero.

    LayerNorms start at 1 and 0; Houlsby's trained copies of norms start as the base's. Raises InvalidParameter for
    an unknown `init` or a LoRA's, a negative seed, or copies without `base`, and Incompatible for norms that cannot be
    trained.
    """
    rng = seeded(seed, init)
    if init not in INITS:
        raise InvalidParameter(f"{init!r} is a start of LoRAs: bottlenecks have {', '.join(INITS)}.", param="init")
    norms = _base_norms(shapes, base)
    tensors = {}
    for name, shape in shapes.items():
        if name in norms:
            tensors[name] = norms[name]
        elif ".norm." in name:
            tensors[name] = torch.ones(shape) if name.endswith("weight") else torch.zeros(shape)
        else:
            tensors[name] = torch.from_numpy(_projection(rng, name, shapes, init).astype(np.float32))
    return tensors


def seeded(seed: int, init: Init) -> np.random.Generator:
    """NumPy's PCG64, from which every start is drawn; raises InvalidParameter for an unknown `init` or a bad seed."""
    inits = get_args(Init)
    if init not in inits:
        raise InvalidParameter(f"Initialisation {init!r} is not one of {', '.join(inits)}.", param="init")
    if seed < 0:
        raise InvalidParameter(f"A seed must not be negative, and {seed} is.", param="seed")
    return np.random.Generator(np.random.PCG64(seed))


def _projection(rng: np.random.Generator, name: str, shapes: Shapes, init: Init) -> np.ndarray:
    """float64 values of a projection's weight or bias."""
    shape = shapes[name]
    is_bias = name.endswith(".bias")
    if init == "near_identity":
        return np.zeros(shape) if is_bias else NEAR_IDENTITY_STD * truncated_normal(rng, shape)
    if init == "zero_up" and (is_bias or name.endswith(".up.weight")):
        return np.zeros(shape)
    fan_in = shapes[name.removesuffix("bias") + "weight" if is_bias else name][1]
    bound = 1.0 / math.sqrt(fan_in)
    return rng.uniform(-bound, bound, size=shape)


def truncated_normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Standard normal draws; draws beyond two standard deviations are repeated."""
    values = rng.standard_normal(math.prod(shape))
    while (outliers := np.flatnonzero(np.abs(values) > TRUNCATION)).size:
        values[outliers] = rng.standard_normal(outliers.size)
    return values.reshape(shape)


def _base_norms(shapes: Shapes, base: nn.Module | None) -> dict[str, Tensor]:
    """Copies of the base's norms by their canonical names; empty where `shapes` has none."""
    if not any(".base_norm." in name for name in shapes):
        return {}
    if base is None:
        raise InvalidParameter("Houlsby adapters start from the base's norms: pass the base model.", param="base")
    norms = {}
    for i, sites in enumerate(layer_sites(base)):
        sites.check_norms()
        for j, norm in enumerate(sites.norms):
            for parameter in ("weight",) if sites.rms_norms else ("weight", "bias"):
                value = getattr(norm, parameter).detach().to("cpu", torch.float32, copy=True)
                norms[f"layers.{i}.base_norm.{j}.{parameter}"] = value
    return norms
