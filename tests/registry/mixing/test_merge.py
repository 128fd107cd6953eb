"""Merging banks: what is refused and what is told instead, that the result is the mean, and what the report says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from registry.adapters import from_tensors
from registry.adapters.experts import merge_bank
from registry.errors import InvalidRecipe
from registry.mixing import MIXINGS
from registry.mixing.compat import SoupIngredient
from registry.spec import (
    BankConfig,
    HeadConfig,
    MergeMixing,
    UnionConfig,
)
from tests.registry.random_adapters import SHAPE, STRUCTURES, bottleneck, lora, part, reported, tensors_of, updates

KINDS = (*STRUCTURES, "lora")
SHARES = ("up", "down", "none")


def config_of(kind: str = "pfeiffer", **fields: Any) -> BankConfig:
    expert = lora(leaves=("c_attn", "c_fc")) if kind == "lora" else bottleneck(kind)
    return BankConfig.model_validate({"expert": expert, **fields})


def bank(number: int = 1, config: BankConfig | None = None, **changes: Any) -> SoupIngredient:
    return part(number, config or config_of(), **changes)


def mixed(one: SoupIngredient) -> dict[str, torch.Tensor]:
    return MIXINGS["merge"].mix([one], MergeMixing())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", SHARES)
def test_a_merge_is_an_adapter_of_the_experts_configuration(kind, share):
    config = config_of(kind, share=share, experts=3)
    one = bank(2, config)
    assert MIXINGS["merge"].check([one], MergeMixing()) == []
    assert MIXINGS["merge"].result([one], MergeMixing()) == config.expert
    merged, expected = mixed(one), merge_bank(config, tensors_of(config, 2))
    assert merged.keys() == expected.keys()
    assert all(torch.equal(merged[name], expected[name]) for name in merged)
    from_tensors(config.expert, SHAPE, merged)


def test_what_a_bank_weighs_does_not_matter():
    heavy, light = (mixed(bank(3, weight=one)) for one in ("1", "0.000000001"))
    assert all(torch.equal(heavy[name], light[name]) for name in heavy)


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_the_dtype_of_the_bank_is_kept(dtype):
    stored = {"F16": torch.float16, "BF16": torch.bfloat16}[dtype]
    config = config_of()
    found = mixed(bank(config=config, dtype=dtype, load=lambda: tensors_of(config, 4, stored)))
    assert {tensor.dtype for tensor in found.values()} == {stored}
    expected = merge_bank(config, tensors_of(config, 4, stored))
    assert all(torch.equal(found[name], tensor.to(stored)) for name, tensor in expected.items())


def test_values_beyond_the_numbers_are_refused():
    config = config_of()
    huge = {name: torch.full_like(tensor, -3e38) for name, tensor in tensors_of(config, 0).items()}
    huge["layers.0.ffn.down.weight"][1] = 3e38
    with pytest.raises(InvalidRecipe, match=r"layers\.0\.ffn\.down\.weight"):
        mixed(bank(config=config, load=lambda: huge))


# --- the report -------------------------------------------------------------------------------------


def test_the_residual_is_the_distance_from_the_mean_over_all_routes():
    """Every route is taken by hand, through the modules that serve; nothing of the report's code is used."""
    config = config_of("pfeiffer", experts=3, share="none")
    tensors = tensors_of(config, 6)
    probes = torch.from_numpy(np.random.default_rng(0).normal(size=(200, 16))).float()
    routes = [
        updates(
            config.expert,
            {
                name: tensor[down if ".down." in name else up].contiguous() if tensor.ndim > 0 else tensor
                for name, tensor in tensors.items()
            },
            probes,
        )
        for down in range(3)
        for up in range(3)
    ]
    merged = updates(config.expert, merge_bank(config, tensors), probes)
    difference = size = 0.0
    for site in merged:
        mean = torch.stack([one[site].double() for one in routes]).mean(0)
        difference += float((merged[site].double() - mean).square().sum())
        size += float(mean.square().sum())
    _, found = reported([bank(6, config)], MergeMixing())
    assert found.residual == pytest.approx((difference / size) ** 0.5, rel=0.15)  # of other probes
    assert found.residual > 0.05


@pytest.mark.parametrize(("kind", "share"), [("lora", "up"), ("lora", "none"), ("pfeiffer", "down")])
def test_a_merge_of_what_is_linear_is_exact(kind, share):
    _, found = reported([bank(config=config_of(kind, experts=3, share=share))], MergeMixing())
    assert found.residual < 1e-6


@pytest.mark.parametrize("expert", [bottleneck("houlsby"), lora()])
def test_a_head_is_kept_as_it_is(expert):
    head = HeadConfig(task="classification", labels=("good", "bad", "so so"))
    config = BankConfig(expert=UnionConfig(members=(expert, head)), experts=3, share="none")
    tensors, found = reported([bank(7, config)], MergeMixing())
    trained = tensors_of(config, 7)
    assert torch.equal(tensors["head.out.weight"], trained["head.out.weight"])
    assert torch.equal(tensors["head.out.bias"], trained["head.out.bias"])
    assert (found.method, found.relative_cost, found.width_out) == ("merge", 1.0, 4)
    from_tensors(config.expert, SHAPE, tensors)
