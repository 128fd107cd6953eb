"""What cannot be mixed, with every reason and what could be done instead."""

from __future__ import annotations

from typing import Any

import pytest

from registry.errors import Incompatible
from registry.mixing.auto import choose_mixing, within_width
from registry.mixing.compat import SoupIngredient
from registry.spec import (
    AdapterConfig,
    AlignMixing,
    AutoMixing,
    AverageMixing,
    BankConfig,
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
from tests.registry.random_adapters import INIT, OTHER_INIT, UNKNOWN, bottleneck, lora, part, tensors_of

PFEIFFER, PARALLEL, HOULSBY = bottleneck("pfeiffer"), bottleneck("parallel"), bottleneck("houlsby")
PREFIX, HEAD = PrefixConfig(length=3), HeadConfig(task="classification", labels=("no", "yes", "maybe"))
MAM, TASK = UnionConfig(members=(PREFIX, PARALLEL)), UnionConfig(members=(PFEIFFER, HEAD))
LORA_TASK = UnionConfig(members=(lora(), HEAD))
FUSION = FusionConfig(member=PFEIFFER, members=2)
BANK = BankConfig(expert=PFEIFFER)
MANY_LABELS = HeadConfig(task="classification", labels=tuple(f"label {i}" for i in range(4000)))
MANY_MODULES = LoraConfig.of({f"h.{i}.m{j}": LoraModule(1 + i * j % 97, 1.0) for i in range(20) for j in range(50)})
AUTO, AVERAGE, CONCAT, MERGE, RECOMPRESS = (
    AutoMixing(),
    AverageMixing(),
    ConcatMixing(),
    MergeMixing(),
    RecompressMixing(),
)
BY_TENSORS = [TiesMixing(), DareMixing(), SlerpMixing(), FisherMixing(), RegMeanMixing(), TaskArithmeticMixing()]
SAMPLED = {"provenance": INIT, "sample": INIT.init_hash}
LAYERS = {"layers.0.ffn": "1"}


def two(*configs: AdapterConfig, **fields: Any) -> list[SoupIngredient]:
    """Two ingredients of one configuration or two, of one start unless told."""
    return [part(n, config, **{**SAMPLED, **fields}) for n, config in enumerate((configs * 2)[:2])]


def started(*starts: Provenance, config: AdapterConfig = PFEIFFER) -> list[SoupIngredient]:
    return [part(n, config, provenance=start, sample=INIT.init_hash) for n, start in enumerate(starts)]


def pruned() -> list[SoupIngredient]:
    config, tensors = sparse(PFEIFFER, 0)
    return two(config, load=lambda: tensors)


def houlsbys(**fields: Any) -> list[SoupIngredient]:
    """Two whose trained LayerNorms differ."""
    other = {name: tensor + 1 for name, tensor in tensors_of(HOULSBY, 1).items()}
    return [part(0, HOULSBY, **fields), part(1, HOULSBY, load=lambda: other, **fields)]


def refused(parts: list[SoupIngredient], request: Any, max_width: int = 512) -> Incompatible:
    with pytest.raises(Incompatible) as caught:
        choose_mixing(parts, request, max_width=max_width)
    return caught.value


@pytest.mark.parametrize("mixing", BY_TENSORS, ids=lambda one: one.method)
def test_methods_that_mix_tensor_by_tensor_ask_for_one_start_projections_and_no_masks(mixing) -> None:
    for parts, words in (
        (started(INIT, OTHER_INIT), "initialisations differ"),
        (started(UNKNOWN, UNKNOWN), "is unknown"),
        (pruned(), f"is pruned, and '{mixing.method}' keeps no mask"),
        (two(HEAD), "has no projections to mix"),
        (two(FUSION), "is a fusion"),
        (two(PFEIFFER, layers=LAYERS), "factors by layer"),
    ):
        assert words in refused(parts, mixing).message


@pytest.mark.parametrize("mixing", [AVERAGE, *BY_TENSORS[:5]], ids=lambda one: one.method)
def test_the_request_may_vouch_for_one_start(mixing) -> None:
    vouched = mixing.model_copy(update={"assume_same_init": True})
    assert choose_mixing(started(UNKNOWN, UNKNOWN), vouched, max_width=512).mixing == vouched


NO_SAMPLE = [part(n, PFEIFFER, provenance=INIT) for n in range(2)]
UNION = UnionConfig(members=(PrefixConfig(length=2), bottleneck("parallel", 3)))
ONE_METHOD = ["The methods differ: acme/a0@1 has bottleneck; acme/a1@1 has lora."]
NOT_SCALED = ["A scale of 0.5 multiplies up-projections, and not all of acme/a0@1 goes through one."]
OF_METHODS = "Mix only adapters of one base model and one method."


@pytest.mark.parametrize(
    ("parts", "mixing", "words"),
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
        ([*two(PFEIFFER), part(2, PFEIFFER, **SAMPLED)], SlerpMixing(), "between two adapters, and these are 3"),
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
        (two(FUSION), CONCAT, "be put side by side as one adapter, and acme/a0@1 is a fusion"),
        (two(LORA_TASK), AUTO, "Mix by 'average', which takes the factors of a LoRA apart."),
        (two(LORA_TASK, UnionConfig(members=(lora(rslora=True), HEAD))), AVERAGE, "'rslora'"),
        (two(MAM, PREFIX), AUTO, "acme/a0@1 has bottleneck + prefix; acme/a1@1 has prefix"),
        *[(started(INIT, start, config=MAM), AUTO, "Set mixing.assume_same_init") for start in (OTHER_INIT, UNKNOWN)],
        ([part(0, BANK), part(1, PFEIFFER)], AUTO, "acme/a1@1 is no bank"),
        ([part(0, BANK), part(1, PFEIFFER)], AUTO, "these are 2 adapters, 1 of them"),
        ([part(0, BANK), part(1, PFEIFFER)], AUTO, "Merge each bank by itself"),
        (two(BANK), AUTO, "these are 2 adapters, 2 of them"),
        (two(BANK), AverageMixing(assume_same_init=True), "acme/a0@1, acme/a1@1 are banks of experts"),
        (two(BANK), CONCAT, "are banks of experts, which only its merge can stand for. Merge each bank"),
        ([part(0, BANK)], AVERAGE, "acme/a0@1 is a bank of experts, which only its merge"),
        ([part(0, BANK)], CONCAT, "Merge each bank by itself, by mixing 'merge'"),
        ([part(0, PFEIFFER)], MERGE, "acme/a0@1 is no bank of experts but a bottleneck"),
        ([part(0, PFEIFFER)], MERGE, "mix adapters by 'auto'"),
        ([part(0, BANK)], AutoMixing(scale="0.5"), "A merge has no scale, and 0.5 is asked for"),
    ],
)
def test_what_cannot_be_mixed_is_refused_with_the_reason(parts, mixing, words: str) -> None:
    error = refused(parts, mixing, max_width=4096)
    assert words in error.message
    assert error.problems


@pytest.mark.parametrize(
    ("parts", "mixing", "problems", "advice"),
    [
        *[(two(PFEIFFER, lora()), mixing, ONE_METHOD, OF_METHODS) for mixing in (AUTO, AVERAGE, CONCAT)],
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
def test_nothing_else_is_said_than_what_is_against_it(parts, mixing, problems: list[str], advice: str) -> None:
    error = refused(parts, mixing)
    assert list(error.problems) == problems
    assert error.message.endswith(advice)


@pytest.mark.parametrize("mixing", [AVERAGE, CONCAT])
def test_of_banks_nothing_else_is_compared_however_large_they_are(mixing) -> None:
    error = refused(two(BankConfig(expert=lora()), BankConfig(expert=MANY_MODULES)), mixing)
    assert [problem for problem in error.problems if "are banks of experts" in problem] == [error.problems[0]]
    assert len(error.message) < 500


def test_all_that_differs_is_told_each_once() -> None:
    other_base = part(2, PFEIFFER, base_fingerprint="sha256:" + "c" * 64)
    error = refused([part(0, PFEIFFER), part(1, PARALLEL, provenance=INIT), other_base], AUTO)
    words = "base models", "'structure'", "'scale'", "unknown", "cannot be mixed", "one base model and one struct"
    assert [word for word in words if word not in error.message] == []
    assert len(error.problems) == len(set(error.problems)) == 4


def test_all_that_differs_in_a_union_and_in_a_fusion_is_told_by_its_field() -> None:
    other = UnionConfig(members=(PrefixConfig(length=5), bottleneck("parallel", 6, scale=2.0)))
    problems = refused(two(MAM, other), AVERAGE).problems
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
    error = refused(two(config), CONCAT)
    side_by_side = "Bottlenecks and LoRAs can be put side by side as one adapter, and acme/a0@1 is a"
    assert f"{side_by_side} {described}." in error.problems
    assert "by 'average'" in error.message


@pytest.mark.parametrize("mixing", [AUTO, CONCAT])
def test_wider_than_max_width_is_refused_with_the_numbers(mixing) -> None:
    parts = [part(n, bottleneck("pfeiffer", 300)) for n in range(2)]
    error = refused(parts, mixing)
    assert "Concatenated they would be 600 wide (300, 300), and max_width is 512." in error.problems
    assert "raise max_width" in error.message
    assert ("assume_same_init" in error.message) is (mixing is AUTO)
    assert choose_mixing(parts, mixing, max_width=600).mixing == CONCAT


def test_what_is_recompressed_is_no_wider_than_it_may_be_and_not_made_of_too_many() -> None:
    parts = [part(n, bottleneck("pfeiffer", 300)) for n in range(4)]
    assert "Side by side they are 1200 wide, and 'recompress' takes at most 1024" in refused(parts, RECOMPRESS).message
    assert within_width(parts, RECOMPRESS, max_width=512)[0] == 3
    assert choose_mixing(parts[:3], RECOMPRESS, max_width=512).mixing == RECOMPRESS
    wide = refused(parts[:3], RecompressMixing(width=600))
    assert "Recompressed they would be 600 wide, and max_width is 512" in wide.message


def test_trained_norms_that_differ_leave_vouching_to_an_average() -> None:
    error = refused(houlsbys(), AUTO)
    assert "The trained LayerNorms differ" in error.message
    assert "Set mixing.assume_same_init if you know" in error.message
    assert "'concat'" not in refused(houlsbys(), AVERAGE).message
