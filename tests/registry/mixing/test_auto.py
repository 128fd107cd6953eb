"""`auto`, what stays in a pool's soup, and what a report says of a soup."""

from __future__ import annotations

import pytest
import torch

from registry.errors import Incompatible
from registry.mixing.auto import best_unranked, choose_mixing, exclusion_reasons
from registry.mixing.report import ExactMixture, relative_cost
from registry.spec import (
    AutoMixing,
    AverageMixing,
    BaseShape,
    BottleneckConfig,
    ConcatMixing,
)
from tests.registry.random_adapters import (
    BASE,
    INIT,
    OTHER_INIT,
    SHAPE,
    STRUCTURES,
    bottleneck,
    lora,
    part,
    reported,
    tensors_of,
    updates,
    weighted,
)

AUTO, AVERAGE, EXACT = AutoMixing(), AverageMixing(), ConcatMixing()
PFEIFFER, WIDE = bottleneck("pfeiffer"), bottleneck("pfeiffer", 300)


def chosen(*parts, request=AUTO, max_width=512):
    return choose_mixing(parts, request, max_width=max_width)


# --- auto -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "because"),
    [
        ({}, {}, "The initialisation of acme/a0@1, acme/a1@1 is unknown"),
        ({"provenance": INIT}, {"provenance": OTHER_INIT}, "The initialisations differ"),
        ({"provenance": INIT}, {"provenance": INIT, "config": bottleneck("pfeiffer", 9)}, "'bottleneck' differ"),
        ({"provenance": INIT}, {"provenance": INIT, "config": bottleneck("pfeiffer", scale=2.0)}, "'scale' differ"),
    ],
)
def test_one_structure_alone_is_concatenated(one, other, because):
    choice = chosen(part(0, **{"config": PFEIFFER, **one}), part(1, **{"config": PFEIFFER, **other}))
    assert choice.mixing == EXACT
    assert choice.reason.startswith("exact, and averaging was not possible: ")
    assert because in choice.reason


def test_vouching_is_written_into_the_recipe_where_it_is_averaged():
    request = AutoMixing(assume_same_init=True, scale="0.5")
    choice = chosen(part(0, PFEIFFER), part(1, PFEIFFER), request=request)
    assert choice.mixing == AverageMixing(assume_same_init=True, scale="0.5")
    assert "vouches" in choice.reason
    assert chosen(part(0, lora()), part(1, lora()), request=request).mixing == ConcatMixing(scale="0.5")


def test_loras_are_concatenated_even_where_they_could_be_averaged():
    assert chosen(part(0, lora(), provenance=INIT), part(1, lora(), provenance=INIT)).mixing == EXACT
    assert chosen(part(0, lora(), provenance=INIT), part(1, lora(), provenance=INIT), request=AVERAGE).reason == ""


def test_ranks_count_module_by_module_against_max_width():
    assert chosen(part(0, lora(3)), part(1, lora(3, leaves=("c_fc",))), max_width=3).mixing == EXACT
    with pytest.raises(Incompatible, match="be 6 wide"):
        chosen(part(0, lora(3)), part(1, lora(3)), max_width=5)


def test_one_adapter_is_as_wide_as_it_is():
    assert chosen(part(0, WIDE), max_width=1).mixing == AVERAGE
    assert chosen(part(0, lora(40)), max_width=1).mixing == EXACT


# --- pools ----------------------------------------------------------------------------------------


def left(best, others, request=AUTO, *, ranked=True) -> dict[str, str]:
    refs = {one.digest: one.ref.partition("/")[2] for one in others}
    return {
        refs[digest]: why for digest, why in exclusion_reasons(best, [best, *others], request, ranked=ranked).items()
    }


def test_who_can_be_averaged_or_concatenated_stays():
    best = part(0, PFEIFFER, provenance=INIT)
    others = [
        part(1, PFEIFFER, provenance=INIT),
        part(2, PFEIFFER),
        part(3, bottleneck("parallel")),
        part(4, lora()),
        part(5, bottleneck("pfeiffer", 9), provenance=OTHER_INIT),
    ]
    found = left(best, others)
    assert set(found) == {"a3@1", "a4@1"}
    assert "'structure' differ" in found["a3@1"]
    assert "initialisation of acme/a3@1 is unknown" in found["a3@1"]
    assert found["a4@1"] == "The methods differ: acme/a0@1 has bottleneck; acme/a4@1 has lora."
    assert set(left(best, others, AVERAGE)) == {"a2@1", "a3@1", "a4@1", "a5@1"}
    assert set(left(part(9, lora(9)), others)) == {"a1@1", "a2@1", "a3@1", "a5@1"}


def test_houlsbys_that_only_average_leave_no_place_for_those_that_only_concatenate():
    config = bottleneck("houlsby")
    tuned = {name: tensor + 1 for name, tensor in tensors_of(config, 1).items()}
    best = part(0, config, provenance=INIT)
    averages, joins = part(1, config, provenance=INIT, load=lambda: tuned), part(2, config)
    assert set(left(best, [averages, joins])) == {"a2@1"}
    assert left(best, [joins]) == {}


def test_where_nothing_is_ranked_the_average_of_many_wins():
    same = [part(n, PFEIFFER, provenance=INIT) for n in range(3)]
    strangers = [part(n, PFEIFFER) for n in range(3, 8)]
    best = best_unranked([*strangers, *same], AUTO)
    assert best in same
    assert set(left(best, [*same, *strangers], ranked=False)) == {one.ref.partition("/")[2] for one in strangers}
    assert left(strangers[0], strangers[1:], ranked=False) == {}
    loras = [part(n, lora(n)) for n in range(20, 24)]
    assert best_unranked([*strangers[:2], *loras], AUTO) in loras
    assert best_unranked([*loras[:1], *strangers], AverageMixing(assume_same_init=True)) in strangers


def test_the_largest_group_is_of_those_that_concatenate_not_of_one_structure():
    swish = [part(n, bottleneck("pfeiffer", 4 + n, activation="swish")) for n in range(3)]
    relu = [part(n, bottleneck("pfeiffer", 4, scale=1.0 + n)) for n in range(3, 7)]
    residual = [part(7, bottleneck("pfeiffer_residual"))]
    assert best_unranked([*swish, *residual, *relu], AUTO) in relu


# --- reports --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", sorted(STRUCTURES))
def test_concat_is_exact_and_average_is_not(kind):
    parts = weighted([bottleneck(kind)] * 3, [1, 2, 3])
    (_, exact), (_, averaged) = (reported(parts, one) for one in (EXACT, AverageMixing(assume_same_init=True)))
    assert (exact.width_in, exact.width_out) == ((4, 4, 4), 12)
    assert (averaged.width_in, averaged.width_out, averaged.relative_cost) == ((4, 4, 4), 4, 1.0)
    assert exact.residual < 1e-6 < 0.1 < averaged.residual
    assert exact.relative_cost > 1


def test_the_residual_is_that_of_the_outputs_of_all_layers():
    """A soup whose second layer is twice too loud, and nothing else wrong."""
    config = bottleneck("pfeiffer")
    (one,) = weighted([config], [1])
    exact = ExactMixture(config, SHAPE, EXACT)
    exact.watched(one).load()
    loud = {name: 2 * t if name.startswith("layers.1.ffn.up") else t for name, t in one.load().items()}
    probes = torch.randn(4000, 16, generator=torch.Generator().manual_seed(3))
    sizes = {site: float(u.square().sum()) for site, u in updates(config, one.load(), probes).items()}
    wanted = (sizes["layers.1.ffn"] / sum(sizes.values())) ** 0.5
    assert exact.mixture.residual(config, loud) == pytest.approx(wanted, rel=0.1)


def test_ingredients_that_cancel_out_have_no_residual():
    config = bottleneck("pfeiffer")
    one = tensors_of(config, 0)
    other = {name: -tensor if ".up." in name else tensor for name, tensor in one.items()}
    parts = [
        part(0, config, "0.5", load=lambda: one),
        part(1, config, "0.5", load=lambda: other),
    ]
    exact = ExactMixture(config, SHAPE, EXACT)
    for each in parts:
        exact.watched(each).load()
    assert exact.mixture.residual(config, one) is None
    _, told = reported(parts, AverageMixing(assume_same_init=True))
    assert told.residual == 0.0


def test_a_lora_of_more_rank_than_its_modules_have_sizes():
    _, found = reported(weighted([lora(40), lora(30)], [1, 1]), EXACT)
    assert (set(found.width_in), found.width_out) == ({40, 30}, 70)
    assert found.residual < 1e-6
    assert found.relative_cost > 1


def test_relative_cost_is_that_of_the_methods_paper():
    """Five of width 64 on GPT-2 small: +7 % of a block against +1.4 % for one."""
    block = {"attn.c_attn": (768, 2304), "attn.c_proj": (768, 768), "mlp.c_fc": (768, 3072), "mlp.c_proj": (3072, 768)}
    linears = {f"transformer.h.{n}.{name}": size for n in range(12) for name, size in block.items()}
    shape = BaseShape(
        fingerprint=BASE,
        model_type="gpt2",
        hidden_size=768,
        num_layers=12,
        context=1024,
        vocab_size=50257,
        linears=linears,
    )

    def config(width: int) -> BottleneckConfig:
        return BottleneckConfig(structure="pfeiffer", bottleneck=width, activation="relu")

    cost = relative_cost([config(64)] * 5, config(320), shape)
    assert cost == pytest.approx((1 + 5 * 64 / (6 * 768)) / (1 + 64 / (6 * 768)))
    assert cost == pytest.approx(1.07 / 1.014, abs=2e-3)
    assert relative_cost([config(64)] * 5, config(64), shape) == 1.0
