"""The mixing that `auto` chooses, the members a pool leaves out for it, and every reason against a mixture."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from registry.errors import Incompatible
from registry.mixing import MIXINGS, concat
from registry.mixing.auto import best_unranked, choose_mixing, exclusion_reasons, within_width
from registry.mixing.compat import SoupIngredient
from registry.mixing.report import ExactMixture, relative_cost
from registry.spec import (
    AdapterConfig,
    AlignMixing,
    AutoMixing,
    AverageMixing,
    BankConfig,
    BaseShape,
    BottleneckConfig,
    ConcatMixing,
    DareMixing,
    FisherMixing,
    FusionConfig,
    HeadConfig,
    LoraConfig,
    LoraModule,
    MergeMixing,
    PrefixConfig,
    Provenance,
    RecompressMixing,
    RegMeanMixing,
    SlerpMixing,
    TaskArithmeticMixing,
    TiesMixing,
    UnionConfig,
)
from tests.registry.pruned_adapters import sparse
from tests.registry.random_adapters import (
    BASE,
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
    weighted,
)

AUTO, AVERAGE, EXACT = AutoMixing(), AverageMixing(), ConcatMixing()
PFEIFFER, WIDE = bottleneck("pfeiffer"), bottleneck("pfeiffer", 300)


def chosen(*ingredients, request=AUTO, max_width=512):
    return choose_mixing(ingredients, request, max_width=max_width)


# --- auto -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first_fields", "second_fields", "because"),
    [
        ({}, {}, "The initialisation of acme/a0@1, acme/a1@1 is unknown"),
        ({"provenance": INIT}, {"provenance": OTHER_INIT}, "The initialisations differ"),
        ({"provenance": INIT}, {"provenance": INIT, "config": bottleneck("pfeiffer", 9)}, "'bottleneck' differ"),
        ({"provenance": INIT}, {"provenance": INIT, "config": bottleneck("pfeiffer", scale=2.0)}, "'scale' differ"),
    ],
)
def test_one_structure_alone_is_concatenated(first_fields, second_fields, because):
    choice = chosen(
        make_ingredient(0, **{"config": PFEIFFER, **first_fields}),
        make_ingredient(1, **{"config": PFEIFFER, **second_fields}),
    )
    assert choice.mixing == EXACT
    assert choice.reason.startswith("exact, and averaging was not possible: ")
    assert because in choice.reason


def test_vouching_is_written_into_the_recipe_where_it_is_averaged():
    request = AutoMixing(assume_same_init=True, scale="0.5")
    choice = chosen(make_ingredient(0, PFEIFFER), make_ingredient(1, PFEIFFER), request=request)
    assert choice.mixing == AverageMixing(assume_same_init=True, scale="0.5")
    assert "vouches" in choice.reason
    assert chosen(make_ingredient(0, lora()), make_ingredient(1, lora()), request=request).mixing == ConcatMixing(
        scale="0.5"
    )


def test_loras_are_concatenated_even_where_they_could_be_averaged():
    assert (
        chosen(make_ingredient(0, lora(), provenance=INIT), make_ingredient(1, lora(), provenance=INIT)).mixing == EXACT
    )
    assert (
        chosen(
            make_ingredient(0, lora(), provenance=INIT), make_ingredient(1, lora(), provenance=INIT), request=AVERAGE
        ).reason
        == ""
    )


def test_ranks_count_module_by_module_against_max_width():
    assert (
        chosen(make_ingredient(0, lora(3)), make_ingredient(1, lora(3, leaves=("c_fc",))), max_width=3).mixing == EXACT
    )
    with pytest.raises(Incompatible, match="be 6 wide"):
        chosen(make_ingredient(0, lora(3)), make_ingredient(1, lora(3)), max_width=5)


def test_one_adapter_is_as_wide_as_it_is():
    assert chosen(make_ingredient(0, WIDE), max_width=1).mixing == AVERAGE
    assert chosen(make_ingredient(0, lora(40)), max_width=1).mixing == EXACT


# --- pools ----------------------------------------------------------------------------------------


def excluded(best, candidates, request=AUTO, *, ranked=True) -> dict[str, str]:
    refs = {candidate.digest: candidate.ref.partition("/")[2] for candidate in candidates}
    return {
        refs[digest]: reason
        for digest, reason in exclusion_reasons(best, [best, *candidates], request, ranked=ranked).items()
    }


def test_who_can_be_averaged_or_concatenated_stays():
    best = make_ingredient(0, PFEIFFER, provenance=INIT)
    candidates = [
        make_ingredient(1, PFEIFFER, provenance=INIT),
        make_ingredient(2, PFEIFFER),
        make_ingredient(3, bottleneck("parallel")),
        make_ingredient(4, lora()),
        make_ingredient(5, bottleneck("pfeiffer", 9), provenance=OTHER_INIT),
    ]
    reasons = excluded(best, candidates)
    assert set(reasons) == {"a3@1", "a4@1"}
    assert "'structure' differ" in reasons["a3@1"]
    assert "initialisation of acme/a3@1 is unknown" in reasons["a3@1"]
    assert reasons["a4@1"] == "The methods differ: acme/a0@1 has bottleneck; acme/a4@1 has lora."
    assert set(excluded(best, candidates, AVERAGE)) == {"a2@1", "a3@1", "a4@1", "a5@1"}
    assert set(excluded(make_ingredient(9, lora(9)), candidates)) == {"a1@1", "a2@1", "a3@1", "a5@1"}


def test_houlsbys_that_only_average_leave_no_place_for_those_that_only_concatenate():
    config = bottleneck("houlsby")
    tuned = {name: tensor + 1 for name, tensor in tensors_of(config, 1).items()}
    best = make_ingredient(0, config, provenance=INIT)
    averages, joins = make_ingredient(1, config, provenance=INIT, load=lambda: tuned), make_ingredient(2, config)
    assert set(excluded(best, [averages, joins])) == {"a2@1"}
    assert excluded(best, [joins]) == {}


def test_where_nothing_is_ranked_the_average_of_many_wins():
    same = [make_ingredient(n, PFEIFFER, provenance=INIT) for n in range(3)]
    strangers = [make_ingredient(n, PFEIFFER) for n in range(3, 8)]
    best = best_unranked([*strangers, *same], AUTO)
    assert best in same
    assert set(excluded(best, [*same, *strangers], ranked=False)) == {
        stranger.ref.partition("/")[2] for stranger in strangers
    }
    assert excluded(strangers[0], strangers[1:], ranked=False) == {}
    loras = [make_ingredient(n, lora(n)) for n in range(20, 24)]
    assert best_unranked([*strangers[:2], *loras], AUTO) in loras
    assert best_unranked([*loras[:1], *strangers], AverageMixing(assume_same_init=True)) in strangers


def test_the_largest_group_is_of_those_that_concatenate_not_of_one_structure():
    swish = [make_ingredient(n, bottleneck("pfeiffer", 4 + n, activation="swish")) for n in range(3)]
    relu = [make_ingredient(n, bottleneck("pfeiffer", 4, scale=1.0 + n)) for n in range(3, 7)]
    assert best_unranked([*swish, make_ingredient(7, bottleneck("pfeiffer_residual")), *relu], AUTO) in relu


# --- reports --------------------------------------------------------------------------------------


def test_the_residual_is_that_of_the_outputs_of_all_layers():
    """A soup whose second layer is twice too loud, and nothing else wrong."""
    config = bottleneck("pfeiffer")
    (ingredient,) = weighted([config], [1])
    exact = ExactMixture(config, SHAPE, EXACT)
    exact.watched(ingredient).load()
    loud = {name: 2 * t if name.startswith("layers.1.ffn.up") else t for name, t in ingredient.load().items()}
    probes = torch.randn(4000, 16, generator=torch.Generator().manual_seed(3))
    sizes = {site: float(u.square().sum()) for site, u in updates(config, ingredient.load(), probes).items()}
    expected = (sizes["layers.1.ffn"] / sum(sizes.values())) ** 0.5
    assert exact.mixture.residual(config, loud) == pytest.approx(expected, rel=0.1)


def test_ingredients_that_cancel_out_have_no_residual():
    config = bottleneck("pfeiffer")
    tensors = tensors_of(config, 0)
    opposite = {name: -tensor if ".up." in name else tensor for name, tensor in tensors.items()}
    ingredients = [
        make_ingredient(0, config, "0.5", load=lambda: tensors),
        make_ingredient(1, config, "0.5", load=lambda: opposite),
    ]
    exact = ExactMixture(config, SHAPE, EXACT)
    for ingredient in ingredients:
        exact.watched(ingredient).load()
    assert exact.mixture.residual(config, tensors) is None
    _, report = reported(ingredients, AverageMixing(assume_same_init=True))
    assert report.residual == 0.0


def test_a_lora_of_more_rank_than_its_modules_have_sizes():
    _, report = reported(weighted([lora(40), lora(30)], [1, 1]), EXACT)
    assert (set(report.width_in), report.width_out) == ({40, 30}, 70)
    assert report.residual < 1e-6
    assert report.relative_cost > 1


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


# --- what is refused ------------------------------------------------------------------------------


PARALLEL, HOULSBY = bottleneck("parallel"), bottleneck("houlsby")
PREFIX, HEAD = PrefixConfig(length=3), HeadConfig(task="classification", labels=("no", "yes", "maybe"))
MAM, TASK = UnionConfig(members=(PREFIX, PARALLEL)), UnionConfig(members=(PFEIFFER, HEAD))
LORA_TASK = UnionConfig(members=(lora(), HEAD))
FUSION = FusionConfig(member=PFEIFFER, members=2)
BANK = BankConfig(expert=PFEIFFER)
MANY_LABELS = HeadConfig(task="classification", labels=tuple(f"label {i}" for i in range(4000)))
MANY_MODULES = LoraConfig.of({f"h.{i}.m{j}": LoraModule(1 + i * j % 97, 1.0) for i in range(20) for j in range(50)})
MERGE, RECOMPRESS = MergeMixing(), RecompressMixing()
BY_TENSORS = [TiesMixing(), DareMixing(), SlerpMixing(), FisherMixing(), RegMeanMixing(), TaskArithmeticMixing()]
SAMPLED = {"provenance": INIT, "sample": INIT.init_hash}
LAYERS = {"layers.0.ffn": "1"}


def two(*configs: AdapterConfig, **fields: Any) -> list[SoupIngredient]:
    """Two ingredients of one configuration or two, of one start unless the fields say otherwise."""
    return [make_ingredient(n, config, **{**SAMPLED, **fields}) for n, config in enumerate((configs * 2)[:2])]


def started(*starts: Provenance, config: AdapterConfig = PFEIFFER) -> list[SoupIngredient]:
    return [make_ingredient(n, config, provenance=start, sample=INIT.init_hash) for n, start in enumerate(starts)]


def pruned() -> list[SoupIngredient]:
    config, tensors = sparse(PFEIFFER, 0)
    return two(config, load=lambda: tensors)


def houlsbys(**fields: Any) -> list[SoupIngredient]:
    """Two whose trained LayerNorms differ."""
    shifted = {name: tensor + 1 for name, tensor in tensors_of(HOULSBY, 1).items()}
    return [make_ingredient(0, HOULSBY, **fields), make_ingredient(1, HOULSBY, load=lambda: shifted, **fields)]


def refused(ingredients: list[SoupIngredient], request: Any, max_width: int = 512) -> Incompatible:
    with pytest.raises(Incompatible) as caught:
        choose_mixing(ingredients, request, max_width=max_width)
    return caught.value


@pytest.mark.parametrize("mixing", BY_TENSORS, ids=lambda mixing: mixing.method)
def test_methods_that_mix_tensor_by_tensor_ask_for_one_start_projections_and_no_masks(mixing) -> None:
    for ingredients, words in (
        (started(INIT, OTHER_INIT), "initialisations differ"),
        (started(UNKNOWN, UNKNOWN), "is unknown"),
        (pruned(), f"is pruned, and '{mixing.method}' keeps no mask"),
        (two(HEAD), "has no projections to mix"),
        (two(FUSION), "is a fusion"),
        (two(PFEIFFER, layers=LAYERS), "factors by layer"),
    ):
        assert words in refused(ingredients, mixing).message


@pytest.mark.parametrize("mixing", [AVERAGE, *BY_TENSORS[:5]], ids=lambda mixing: mixing.method)
def test_the_request_may_vouch_for_one_start(mixing) -> None:
    vouched = mixing.model_copy(update={"assume_same_init": True})
    assert choose_mixing(started(UNKNOWN, UNKNOWN), vouched, max_width=512).mixing == vouched


NO_SAMPLE = [make_ingredient(n, PFEIFFER, provenance=INIT) for n in range(2)]
UNION = UnionConfig(members=(PrefixConfig(length=2), bottleneck("parallel", 3)))
ONE_METHOD = ["The methods differ: acme/a0@1 has bottleneck; acme/a1@1 has lora."]
NOT_SCALED = ["A scale of 0.5 multiplies up-projections, and not all of acme/a0@1 goes through one."]
OF_METHODS = "Mix only adapters of one base model and one method."


@pytest.mark.parametrize(
    ("ingredients", "mixing", "words"),
    [
        *[(two(UNION), mixing, "of bottlenecks and LoRAs, and acme/a0@1 is a union") for mixing in BY_TENSORS[3:]],
        *[(NO_SAMPLE, mixing, "acme/a0@1, acme/a1@1 have no sample whose text is") for mixing in BY_TENSORS[3:5]],
        *[
            ([*two(PFEIFFER)[:1], NO_SAMPLE[1]], mixing, "acme/a1@1 has no sample whose text is kept")
            for mixing in BY_TENSORS[3:5]
        ],
        (two(lora(2), lora(2, leaves=("c_fc",))), RegMeanMixing(), "on different modules, and RegMean needs the same"),
        (started(UNKNOWN), TaskArithmeticMixing(), "is unknown"),
        (started(INIT), TaskArithmeticMixing(), "name 'init_seed'"),
        (two(HOULSBY), TaskArithmeticMixing(), "trained LayerNorms of acme/a0@1 started"),
        (two(PFEIFFER, lora(2)), TaskArithmeticMixing(), "methods differ"),
        (
            [*two(PFEIFFER), make_ingredient(2, PFEIFFER, **SAMPLED)],
            SlerpMixing(),
            "between two adapters, and these are 3",
        ),
        (two(PFEIFFER, PARALLEL), AlignMixing(), "cannot be aligned"),
        (two(bottleneck("pfeiffer", 3), PFEIFFER), AlignMixing(), "'bottleneck' differ"),
        (two(PFEIFFER, PARALLEL), AlignMixing(), "'structure' differ"),
        (two(lora()), AlignMixing(), "is a lora: mix by another method"),
        (two(PFEIFFER, lora()), AlignMixing(), "The methods differ"),
        (two(bottleneck("pfeiffer", 3000)), AlignMixing(), "is 3000 wide, and at most 2048 neurons"),
        (two(LORA_TASK), AlignMixing(), "union of"),
        (two(PFEIFFER, layers=LAYERS), AlignMixing(), "only 'concat' and 'recompress' can keep"),
        (two(PFEIFFER, layers=LAYERS), AverageMixing(assume_same_init=True), "factors by layer"),
        (two(PFEIFFER, PARALLEL), RecompressMixing(), "cannot be recompressed"),
        (two(PFEIFFER), RecompressMixing(by_inputs=True), "'by_inputs' is of LoRAs, and acme/a0@1 is a bottleneck"),
        (two(lora(2), sample=None), RecompressMixing(by_inputs=True), "text is kept, and 'by_inputs' goes"),
        (started(UNKNOWN, UNKNOWN), AVERAGE, "Mix by 'concat', which needs only the same method and structure, or set"),
        (two(FUSION), AUTO, "is a fusion, whose attention was trained over members of its own"),
        (two(FUSION), AVERAGE, "is a fusion, whose attention was trained over members of its own"),
        (two(FUSION), AverageMixing(assume_same_init=True), "is a fusion, whose attention was trained over members"),
        (two(FUSION), EXACT, "be put side by side as one adapter, and acme/a0@1 is a fusion"),
        (two(LORA_TASK), AUTO, "Mix by 'average', which takes the factors of a LoRA apart."),
        (two(LORA_TASK, UnionConfig(members=(lora(rslora=True), HEAD))), AVERAGE, "'rslora'"),
        (two(MAM, PREFIX), AUTO, "acme/a0@1 has bottleneck + prefix; acme/a1@1 has prefix"),
        *[(started(INIT, start, config=MAM), AUTO, "Set mixing.assume_same_init") for start in (OTHER_INIT, UNKNOWN)],
        ([make_ingredient(0, BANK), make_ingredient(1, PFEIFFER)], AUTO, "acme/a1@1 is no bank"),
        ([make_ingredient(0, BANK), make_ingredient(1, PFEIFFER)], AUTO, "these are 2 adapters, 1 of them"),
        ([make_ingredient(0, BANK), make_ingredient(1, PFEIFFER)], AUTO, "Merge each bank by itself"),
        (two(BANK), AUTO, "these are 2 adapters, 2 of them"),
        (two(BANK), AverageMixing(assume_same_init=True), "acme/a0@1, acme/a1@1 are banks of experts"),
        (two(BANK), EXACT, "are banks of experts, which only its merge can stand for. Merge each bank"),
        ([make_ingredient(0, BANK)], AVERAGE, "acme/a0@1 is a bank of experts, which only its merge"),
        ([make_ingredient(0, BANK)], EXACT, "Merge each bank by itself, by mixing 'merge'"),
        ([make_ingredient(0, PFEIFFER)], MERGE, "acme/a0@1 is no bank of experts but a bottleneck"),
        ([make_ingredient(0, PFEIFFER)], MERGE, "mix adapters by 'auto'"),
        ([make_ingredient(0, BANK)], AutoMixing(scale="0.5"), "A merge has no scale, and 0.5 is asked for"),
    ],
)
def test_what_cannot_be_mixed_is_refused_with_the_reason(ingredients, mixing, words: str) -> None:
    error = refused(ingredients, mixing, max_width=4096)
    assert words in error.message
    assert error.problems


@pytest.mark.parametrize(
    ("ingredients", "mixing", "problems", "advice"),
    [
        *[(two(PFEIFFER, lora()), mixing, ONE_METHOD, OF_METHODS) for mixing in (AUTO, AVERAGE, EXACT)],
        (
            two(lora(2), lora(4, leaves=("c_attn", "c_fc"))),
            AVERAGE,
            [
                "The LoRAs' modules and ranks differ: acme/a0@1 has 2 modules (c_attn) of rank 2 and alpha 8; "
                "acme/a1@1 has 4 modules (c_attn, c_fc) of rank 4 and alpha 8."
            ],
            "Mix by 'concat', which needs only the same method and structure.",
        ),
        (
            two(TASK, UnionConfig(members=(PFEIFFER, MANY_LABELS))),
            AVERAGE,
            [
                "The labels differ: acme/a0@1 has 3 labels (no, yes, maybe); acme/a1@1 has 4000 labels (label 0, "
                "label 1, label 2, label 3, label 4, label 5, ...)."
            ],
            "Mix only adapters of one base model and one structure.",
        ),
        (
            two(MAM, TASK),
            AVERAGE,
            ["The methods differ: acme/a0@1 has bottleneck + prefix; acme/a1@1 has bottleneck + head."],
            "Mix only adapters of one base model and one structure.",
        ),
        *[
            (two(config)[:count], AverageMixing(scale="0.5"), NOT_SCALED, "Leave 'scale' at 1.")
            for config in (PREFIX, HEAD, MAM)
            for count in (1, 2)
        ],
    ],
)
def test_nothing_else_is_said_than_what_is_against_it(ingredients, mixing, problems: list[str], advice: str) -> None:
    error = refused(ingredients, mixing)
    assert list(error.problems) == problems
    assert error.message.endswith(advice)


@pytest.mark.parametrize("mixing", [AVERAGE, EXACT])
def test_of_banks_nothing_else_is_compared_however_large_they_are(mixing) -> None:
    error = refused(two(BankConfig(expert=lora()), BankConfig(expert=MANY_MODULES)), mixing)
    assert [problem for problem in error.problems if "are banks of experts" in problem] == [error.problems[0]]
    assert len(error.message) < 500


def test_all_that_differs_is_told_each_once() -> None:
    other_base = make_ingredient(2, PFEIFFER, base_fingerprint="sha256:" + "c" * 64)
    error = refused([make_ingredient(0, PFEIFFER), make_ingredient(1, PARALLEL, provenance=INIT), other_base], AUTO)
    words = "base models", "'structure'", "'scale'", "unknown", "cannot be mixed", "one base model and one struct"
    assert [word for word in words if word not in error.message] == []
    assert len(error.problems) == len(set(error.problems)) == 4


def test_all_that_differs_in_a_union_and_in_a_fusion_is_told_by_its_field() -> None:
    union = UnionConfig(members=(PrefixConfig(length=5), bottleneck("parallel", 6, scale=2.0)))
    problems = refused(two(MAM, union), AVERAGE).problems
    assert len(problems) == 3
    assert [word for word in ("'bottleneck'", "'scale'", "'length'") if word not in " ".join(problems)] == []
    fusions = two(FUSION, FusionConfig(member=bottleneck("pfeiffer", 7), members=2))
    width = "The values of 'bottleneck' differ: acme/a0@1 has 4; acme/a1@1 has 7."
    assert refused(fusions, AVERAGE).problems[0] == width


@pytest.mark.parametrize(
    ("config", "described"),
    [
        (PREFIX, "prefix"),
        (HEAD, "head"),
        (MAM, "union of bottleneck + prefix"),
        (TASK, "union of bottleneck + head"),
        (LORA_TASK, "union of head + lora"),
    ],
)
def test_what_has_no_width_is_not_concatenated(config: AdapterConfig, described: str) -> None:
    error = refused(two(config), EXACT)
    side_by_side = "Bottlenecks and LoRAs can be put side by side as one adapter, and acme/a0@1 is a"
    assert f"{side_by_side} {described}." in error.problems
    assert "by 'average'" in error.message


@pytest.mark.parametrize("mixing", [AUTO, EXACT])
def test_wider_than_max_width_is_refused_with_the_numbers(mixing) -> None:
    ingredients = [make_ingredient(n, bottleneck("pfeiffer", 300)) for n in range(2)]
    error = refused(ingredients, mixing)
    assert "Concatenated they would be 600 wide (300, 300), and max_width is 512." in error.problems
    assert "raise max_width" in error.message
    assert ("assume_same_init" in error.message) is (mixing is AUTO)
    assert choose_mixing(ingredients, mixing, max_width=600).mixing == EXACT


def test_what_is_recompressed_is_no_wider_than_it_may_be_and_not_made_of_too_many() -> None:
    ingredients = [make_ingredient(n, bottleneck("pfeiffer", 300)) for n in range(4)]
    assert (
        "Side by side they are 1200 wide, and 'recompress' takes at most 1024"
        in refused(ingredients, RECOMPRESS).message
    )
    assert within_width(ingredients, RECOMPRESS, max_width=512)[0] == 3
    assert choose_mixing(ingredients[:3], RECOMPRESS, max_width=512).mixing == RECOMPRESS
    wide = refused(ingredients[:3], RecompressMixing(width=600))
    assert "Recompressed they would be 600 wide, and max_width is 512" in wide.message


def test_many_are_cut_to_what_fits_in_few_steps(monkeypatch) -> None:
    counts = []

    def too_wide(ingredients, mixing, max_width):
        counts.append(len(ingredients))
        return concat.too_wide(ingredients, mixing, max_width)

    monkeypatch.setitem(MIXINGS, "concat", replace(MIXINGS["concat"], too_wide=too_wide))
    ingredients = [make_ingredient(n, lora(1)) for n in range(100)]
    for most in (1, 40, 99):
        count, reason = within_width(ingredients, AUTO, max_width=most)
        assert count == most
        assert reason.startswith(f"Concatenated they would be {most + 1} wide")
    assert within_width(ingredients, AUTO, max_width=100) == (100, "")
    assert len(counts) < 40  # dropping one at a time takes 99 for the first limit alone


def test_trained_norms_that_differ_leave_vouching_to_an_average() -> None:
    error = refused(houlsbys(), AUTO)
    assert "The trained LayerNorms differ" in error.message
    assert "Set mixing.assume_same_init if you know" in error.message
    assert "'concat'" not in refused(houlsbys(), AVERAGE).message
