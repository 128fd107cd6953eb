"""Prefixes, heads, unions, fusions and banks in soups: what can be averaged, what is told, what a pool leaves out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from registry.adapters import expected_tensors, from_tensors
from registry.adapters.experts import merge_bank
from registry.errors import InvalidRecipe
from registry.mixing import MIXINGS
from registry.mixing.auto import best_unranked, exclusion_reasons, within_width
from registry.mixing.compat import SoupIngredient, by_digest
from registry.spec import (
    AdapterConfig,
    AutoMixing,
    AverageMixing,
    BankConfig,
    ConcatMixing,
    FusionConfig,
    HeadConfig,
    MergeMixing,
    PrefixConfig,
    Provenance,
    UnionConfig,
)
from tests.registry.random_adapters import (
    INIT,
    OTHER_INIT,
    SHAPE,
    UNKNOWN,
    bottleneck,
    lora,
    make_ingredient,
    reported,
    tensors_of,
    updates,
)

PREFIX = PrefixConfig(length=3)
HEAD = HeadConfig(task="classification", labels=("no", "yes", "maybe"))
MAM = UnionConfig(members=(PREFIX, bottleneck("parallel")))
TASK = UnionConfig(members=(bottleneck("pfeiffer"), HEAD))
LORA_TASK = UnionConfig(members=(lora(), HEAD))
FUSION = FusionConfig(member=bottleneck("pfeiffer"), members=2)
AVERAGED = {"prefix": PREFIX, "head": HEAD, "mam": MAM, "task": TASK, "lora task": LORA_TASK}


def ingredients_of(config: AdapterConfig, count: int = 2, **changes: Any) -> list[SoupIngredient]:
    weights = {1: ["1"], 2: ["0.25", "0.75"], 4: ["0.25"] * 4}[count]
    return [make_ingredient(n, config, weights[n], **{"provenance": INIT, **changes}) for n in range(count)]


# --- what can be averaged -------------------------------------------------------------------------


@pytest.mark.parametrize("name", AVERAGED)
def test_the_average_is_that_of_every_tensor(name: str) -> None:
    config = AVERAGED[name]
    ingredients = ingredients_of(config)
    tensors, report = reported(ingredients, AverageMixing())
    assert list(tensors) == list(expected_tensors(config, SHAPE))
    for key, tensor in tensors.items():
        expected = torch.zeros(())
        for ingredient in by_digest(ingredients):
            expected = (
                expected + torch.tensor(float(ingredient.weight)) * tensors_of(config, ingredient.adapter_id)[key]
            )
        assert torch.equal(tensor, expected), key
    assert (report.relative_cost, report.members) == (1.0, 2)
    assert report.parameters == sum(tensor.numel() for tensor in tensors.values())


def test_what_a_prefix_adds_has_no_exact_mixture() -> None:
    for config in (PREFIX, MAM):
        _, report = reported(ingredients_of(config), AverageMixing())
        assert report.residual is None
        assert report.notes == (
            "What a prefix or a fusion adds goes through a softmax: there is no exact mixture, and no residual.",
        )


def test_heads_are_linear_and_unions_have_their_members_residual() -> None:
    assert reported(ingredients_of(HEAD), AverageMixing())[1].residual == 0.0
    for config in (TASK, LORA_TASK):
        member = next(candidate for candidate in config.members if candidate.method != "head")
        ingredients = ingredients_of(config)
        member_ingredients = [
            replace(
                ingredient,
                config=member,
                load=lambda ingredient=ingredient, member=member, config=config: {
                    key.removeprefix(f"{member.method}."): tensor
                    for key, tensor in tensors_of(config, ingredient.adapter_id).items()
                    if key.startswith(member.method)
                },
            )
            for ingredient in ingredients
        ]
        report, alone = reported(ingredients, AverageMixing())[1], reported(member_ingredients, AverageMixing())[1]
        assert report.residual == alone.residual
        assert report.residual > 0
        assert report.notes == ()


@pytest.mark.parametrize(
    ("config", "width"),
    [
        (PREFIX, 0),
        (HEAD, 0),
        (MAM, 4),
        (TASK, 4),
        (UnionConfig(members=(lora(9), bottleneck("parallel", 5))), 9),
        (FUSION, 4),
        (BankConfig(expert=bottleneck("pfeiffer")), 0),
    ],
)
def test_widths(config: AdapterConfig, width: int) -> None:
    assert config.width == width


def test_a_scale_of_a_task_adapter_is_that_of_what_is_inside_of_the_base() -> None:
    whole, _ = reported(ingredients_of(TASK), AverageMixing())
    half, _ = reported(ingredients_of(TASK), AverageMixing(scale="0.5"))
    for key, tensor in whole.items():
        assert torch.equal(half[key], tensor * 0.5 if ".up." in key else tensor), key


# --- pools ----------------------------------------------------------------------------------------


def test_what_cannot_be_mixed_with_the_best_is_left_out_for_the_right_reason() -> None:
    best, same = ingredients_of(MAM)
    candidates = [
        same,
        replace(make_ingredient(2, MAM), provenance=OTHER_INIT),
        replace(make_ingredient(3, PREFIX), provenance=INIT),
        replace(make_ingredient(4, FUSION), provenance=INIT),
        replace(make_ingredient(5, bottleneck("parallel")), provenance=INIT),
    ]
    for ranked in (True, False):
        out = exclusion_reasons(best, [best, *candidates], AutoMixing(), ranked=ranked)
        assert set(out) == {candidate.digest for candidate in candidates[1:]}
        assert "The initialisations differ" in out[candidates[1].digest]
        assert "The methods differ" in out[candidates[2].digest]


def test_a_fusion_stands_alone() -> None:
    fusion, second_fusion = make_ingredient(0, FUSION, provenance=INIT), make_ingredient(1, FUSION, provenance=INIT)
    out = exclusion_reasons(
        fusion, [fusion, second_fusion, make_ingredient(2, PREFIX, provenance=INIT)], AutoMixing(), ranked=True
    )
    assert set(out) == {second_fusion.digest, make_ingredient(2, PREFIX).digest}
    assert "is a fusion" in out[second_fusion.digest]


@pytest.mark.parametrize("start", [INIT, UNKNOWN])
def test_fusions_are_no_group(start: Provenance) -> None:
    """However many there are: of two they leave one out, and bottlenecks do not."""
    fusions = [make_ingredient(i, FUSION, provenance=start) for i in range(3)]
    two = [make_ingredient(i, bottleneck("pfeiffer"), provenance=start) for i in (8, 9)]
    assert best_unranked([*fusions, *two], AutoMixing()).config == two[0].config
    assert best_unranked([*fusions, *two], ConcatMixing()).config == two[0].config


def test_what_cannot_be_scaled_is_no_group_where_a_scale_is_asked_for() -> None:
    prefixes, first = ingredients_of(PREFIX, 4), make_ingredient(9, bottleneck("pfeiffer"), provenance=INIT)
    second = make_ingredient(8, bottleneck("pfeiffer"), provenance=INIT)
    assert best_unranked([*prefixes, first, second], AutoMixing()).config == PREFIX
    assert best_unranked([*prefixes, first, second], AutoMixing(scale="0.5")).config == first.config


def test_unions_with_a_lora_are_not_averaged_unasked() -> None:
    """One alone is the average of itself; of several nobody else is let in on that account."""
    best, second = ingredients_of(LORA_TASK)
    assert set(exclusion_reasons(best, [best, second], AutoMixing(), ranked=True)) == {second.digest}
    assert exclusion_reasons(best, [best, second], AverageMixing(), ranked=True) == {}


def test_no_width_is_never_too_wide() -> None:
    for config in AVERAGED.values():
        assert within_width(ingredients_of(config, 4), AutoMixing(), max_width=1) == (4, "")


# --- banks of experts -----------------------------------------------------------------------------


def config_of(kind: str = "pfeiffer", **fields: Any) -> BankConfig:
    expert = lora(leaves=("c_attn", "c_fc")) if kind == "lora" else bottleneck(kind)
    return BankConfig.model_validate({"expert": expert, **fields})


def bank(number: int = 1, config: BankConfig | None = None, **changes: Any) -> SoupIngredient:
    return make_ingredient(number, config or config_of(), **changes)


def mixed(ingredient: SoupIngredient) -> dict[str, torch.Tensor]:
    return MIXINGS["merge"].mix([ingredient], MergeMixing())


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_the_dtype_of_the_bank_is_kept(dtype):
    stored = {"F16": torch.float16, "BF16": torch.bfloat16}[dtype]
    config = config_of()
    merged = mixed(bank(config=config, dtype=dtype, load=lambda: tensors_of(config, 4, stored)))
    assert {tensor.dtype for tensor in merged.values()} == {stored}
    expected = merge_bank(config, tensors_of(config, 4, stored))
    assert all(torch.equal(merged[name], tensor.to(stored)) for name, tensor in expected.items())


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
        mean = torch.stack([route[site].double() for route in routes]).mean(0)
        difference += float((merged[site].double() - mean).square().sum())
        size += float(mean.square().sum())
    _, report = reported([bank(6, config)], MergeMixing())
    assert report.residual == pytest.approx((difference / size) ** 0.5, rel=0.15)  # of other probes
    assert report.residual > 0.05


@pytest.mark.parametrize(("kind", "share"), [("lora", "up"), ("lora", "none"), ("pfeiffer", "down")])
def test_a_merge_of_what_is_linear_is_exact(kind, share):
    _, report = reported([bank(config=config_of(kind, experts=3, share=share))], MergeMixing())
    assert report.residual < 1e-6


@pytest.mark.parametrize("expert", [bottleneck("houlsby"), lora()])
def test_a_head_is_kept_as_it_is(expert):
    head = HeadConfig(task="classification", labels=("good", "bad", "so so"))
    config = BankConfig(expert=UnionConfig(members=(expert, head)), experts=3, share="none")
    tensors, report = reported([bank(7, config)], MergeMixing())
    trained = tensors_of(config, 7)
    assert torch.equal(tensors["head.out.weight"], trained["head.out.weight"])
    assert torch.equal(tensors["head.out.bias"], trained["head.out.bias"])
    assert (report.method, report.relative_cost, report.width_out) == ("merge", 1.0, 4)
    from_tensors(config.expert, SHAPE, tensors)
