"""Merging banks: what is refused and what is told instead, that the result is the mean, and what the report says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from registry.adapters import from_tensors
from registry.adapters.experts import merge_bank
from registry.adapters.weights import adapter_digest
from registry.errors import Incompatible, InvalidRecipe
from registry.mixing import MIXINGS, merge
from registry.mixing.auto import choose_mixing
from registry.mixing.compat import SoupIngredient
from registry.mixing.report import ExactMixture, report_of
from registry.spec import (
    AutoMixing,
    AverageMixing,
    BankConfig,
    ConcatMixing,
    HeadConfig,
    MergeMixing,
    Recipe,
    RecipeIngredient,
    UnionConfig,
)
from tests.registry.random_adapters import BASE, INIT, SHAPE, STRUCTURES, bottleneck, lora, part, tensors_of, updates

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
    found = mixed(one)
    expected = merge_bank(config, tensors_of(config, 2))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)
    from_tensors(config.expert, SHAPE, found)


@given(weight=st.sampled_from(["1", "0.5", "0.000000001"]), seed=st.integers(0, 50))
def test_what_a_bank_weighs_does_not_matter(weight, seed):
    heavy, light = (mixed(bank(seed, weight=one)) for one in ("1", weight))
    assert all(torch.equal(heavy[name], light[name]) for name in heavy)


def test_the_same_bank_gives_the_same_digest_every_time():
    found = {adapter_digest(BASE, config_of().expert, mixed(bank(3))) for _ in range(3)}
    assert len(found) == 1


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


# --- what is chosen, and what is refused ------------------------------------------------------------


def test_auto_merges_a_bank_and_says_of_how_many():
    found = choose_mixing([bank()], AutoMixing(), max_width=1)
    assert found.mixing == MergeMixing()
    assert found.reason == "the mean of its 4 experts"
    assert choose_mixing([bank()], MergeMixing(), max_width=1).reason == ""


PLAIN = part(5, bottleneck("pfeiffer"), provenance=INIT)


@pytest.mark.parametrize(
    ("parts", "request_", "sentences"),
    [
        ([bank(), PLAIN], AutoMixing(), ["acme/a5@1 is no bank", "these are 2 adapters, 1 of them", "Merge each bank"]),
        ([bank(1), bank(2)], AutoMixing(), ["these are 2 adapters, 2 of them", "Merge each bank by itself"]),
        (
            [bank(1), bank(2)],
            AverageMixing(assume_same_init=True),
            ["acme/a1@1, acme/a2@1 are banks", "Merge each bank"],
        ),
        ([bank(1, provenance=INIT), bank(2, provenance=INIT)], AverageMixing(), ["are banks of experts"]),
        ([bank(1), bank(2)], ConcatMixing(), ["are banks of experts", "Merge each bank"]),
        ([bank()], AverageMixing(), ["acme/a1@1 is a bank of experts, which only its merge", "mixing 'merge'"]),
        ([bank()], ConcatMixing(), ["acme/a1@1 is a bank of experts"]),
        ([PLAIN], MergeMixing(), ["acme/a5@1 is no bank of experts but a bottleneck", "mix adapters by 'auto'"]),
        ([bank()], AutoMixing(scale="0.5"), ["A merge has no scale, and 0.5 is asked for"]),
    ],
)
def test_what_is_no_merge_is_refused_with_what_to_do(parts, request_, sentences):
    with pytest.raises(Incompatible) as refused:
        choose_mixing(parts, request_, max_width=512)
    for sentence in sentences:
        assert sentence in refused.value.message
    assert refused.value.problems


# --- the report -------------------------------------------------------------------------------------


def report(one: SoupIngredient):
    recipe = Recipe(
        base_fingerprint=BASE,
        ingredients=(RecipeIngredient(digest=one.digest, weight="1"),),
        mixing=MergeMixing(),
    )
    config = merge.result([one], MergeMixing())
    exact = ExactMixture(config, SHAPE, recipe.mixing)
    tensors = merge.mix([exact.watched(one)], MergeMixing())
    return report_of([one], recipe, config, tensors, shape=SHAPE, exact=exact), tensors


def test_a_merge_costs_what_an_expert_costs():
    found, tensors = report(bank(config=config_of("houlsby", experts=8, share="none")))
    assert (found.method, found.members, found.weights) == ("merge", 1, ("1",))
    assert (found.width_in, found.width_out) == ((4,), 4)
    assert found.relative_cost == 1.0
    assert found.parameters == sum(tensor.numel() for tensor in tensors.values())
    assert found.notes == ()


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
    found, _ = report(bank(6, config))
    assert found.residual == pytest.approx((difference / size) ** 0.5, rel=0.15)  # of other probes
    assert found.residual > 0.05


@pytest.mark.parametrize(("kind", "share"), [("lora", "up"), ("lora", "none"), ("pfeiffer", "down")])
def test_a_merge_of_what_is_linear_is_exact(kind, share):
    found, _ = report(bank(config=config_of(kind, experts=3, share=share)))
    assert found.residual is not None
    assert found.residual < 1e-6


def test_experts_that_are_the_same_are_merged_exactly():
    config = config_of("bapna_firat", experts=5)
    tensors = tensors_of(config, 1)
    for name in tensors:
        if tensors[name].shape[0] == 5:
            tensors[name] = tensors[name][:1].repeat(5, *(1 for _ in tensors[name].shape[1:]))
    found, _ = report(bank(config=config, load=lambda: tensors))
    assert found.residual == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("expert", [bottleneck("houlsby"), lora()])
def test_a_head_is_kept_as_it_is(expert):
    head = HeadConfig(task="classification", labels=("good", "bad", "so so"))
    config = BankConfig(expert=UnionConfig(members=(expert, head)), experts=3, share="none")
    found, tensors = report(bank(7, config))
    trained = tensors_of(config, 7)
    assert torch.equal(tensors["head.out.weight"], trained["head.out.weight"])
    assert torch.equal(tensors["head.out.bias"], trained["head.out.bias"])
    assert (found.method, found.relative_cost, found.width_out) == ("merge", 1.0, 4)
    from_tensors(config.expert, SHAPE, tensors)
