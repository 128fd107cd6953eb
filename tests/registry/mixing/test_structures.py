"""Prefixes, heads, unions and fusions in soups: what can be averaged, what is refused in which words, what is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from registry.adapters import expected_tensors
from registry.adapters.masks import is_mask
from registry.errors import Incompatible
from registry.mixing import MIXINGS
from registry.mixing.auto import best_unranked, choose_mixing, exclusion_reasons, within_width
from registry.mixing.compat import SoupIngredient, by_digest
from registry.mixing.report import ExactMixture, report_of
from registry.spec import (
    AdapterConfig,
    AutoMixing,
    AverageMixing,
    BankConfig,
    ConcatMixing,
    FusionConfig,
    HeadConfig,
    LoraConfig,
    LoraModule,
    Mixing,
    MixReport,
    PrefixConfig,
    Provenance,
    Recipe,
    RecipeIngredient,
    UnionConfig,
)
from tests.registry.random_adapters import BASE, INIT, OTHER_INIT, UNKNOWN, bottleneck, lora, part
from tests.registry.random_adapters import SHAPE as PLAIN

SHAPE = PLAIN.model_copy(update={"kv": (2, 8)})
PREFIX = PrefixConfig(length=3)
HEAD = HeadConfig(task="classification", labels=("no", "yes", "maybe"))
MAM = UnionConfig(members=(PREFIX, bottleneck("parallel")))
TASK = UnionConfig(members=(bottleneck("pfeiffer"), HEAD))
LORA_TASK = UnionConfig(members=(lora(), HEAD))
FUSION = FusionConfig(member=bottleneck("pfeiffer"), members=2)
AVERAGED = {"prefix": PREFIX, "head": HEAD, "mam": MAM, "task": TASK, "lora task": LORA_TASK}


def tensors_of(config: AdapterConfig, seed: int) -> dict[str, torch.Tensor]:
    draw = np.random.default_rng(seed)
    return {
        name: torch.from_numpy(draw.normal(0, 0.5, size).astype(np.float32))
        for name, size in expected_tensors(config, SHAPE).items()
    }


def parts_of(config: AdapterConfig, count: int = 2, **changes: Any) -> list[SoupIngredient]:
    weights = {1: ["1"], 2: ["0.25", "0.75"], 4: ["0.25"] * 4}[count]
    return [
        part(n, config, weights[n], **{"provenance": INIT, "load": lambda n=n: tensors_of(config, n), **changes})
        for n in range(count)
    ]


def reported(parts: list[SoupIngredient], mixing: Mixing) -> tuple[dict[str, torch.Tensor], MixReport]:
    """What `cook` does with them."""
    ordered = by_digest(parts)
    method = MIXINGS[mixing.method]
    config = method.result(ordered, mixing)
    exact = ExactMixture(config, SHAPE, mixing)
    tensors = method.mix([exact.watched(one) for one in ordered], mixing)
    recipe = Recipe(
        base_fingerprint=BASE,
        ingredients=tuple(RecipeIngredient(digest=one.digest, weight=one.weight) for one in ordered),
        mixing=mixing,
    )
    return tensors, report_of(ordered, recipe, config, tensors, shape=SHAPE, exact=exact)


# --- what can be averaged -------------------------------------------------------------------------


@pytest.mark.parametrize("name", AVERAGED)
def test_the_average_is_that_of_every_tensor(name: str) -> None:
    config = AVERAGED[name]
    parts = parts_of(config)
    tensors, report = reported(parts, AverageMixing())
    assert list(tensors) == list(expected_tensors(config, SHAPE))
    for key, tensor in tensors.items():
        wanted = torch.zeros(())
        for one in by_digest(parts):
            wanted = wanted + torch.tensor(float(one.weight)) * tensors_of(config, one.adapter_id)[key]
        assert torch.equal(tensor, wanted), key
    assert (report.relative_cost, report.members) == (1.0, 2)
    assert report.parameters == sum(tensor.numel() for tensor in tensors.values())


def test_what_a_prefix_adds_has_no_exact_mixture() -> None:
    for config in (PREFIX, MAM):
        _, report = reported(parts_of(config), AverageMixing())
        assert report.residual is None
        assert report.notes == (
            "What a prefix or a fusion adds goes through a softmax: there is no exact mixture, and no residual.",
        )


def test_heads_are_linear_and_unions_have_their_members_residual() -> None:
    assert reported(parts_of(HEAD), AverageMixing())[1].residual == 0.0
    for config in (TASK, LORA_TASK):
        member = next(one for one in config.members if one.method != "head")
        parts = parts_of(config)
        own = [
            replace(
                one,
                config=member,
                load=lambda one=one, member=member, config=config: {
                    key.removeprefix(f"{member.method}."): tensor
                    for key, tensor in tensors_of(config, one.adapter_id).items()
                    if key.startswith(member.method)
                },
            )
            for one in parts
        ]
        found, alone = reported(parts, AverageMixing())[1], reported(own, AverageMixing())[1]
        assert found.residual == alone.residual
        assert found.residual is not None
        assert found.residual > 0
        assert found.notes == ()


@pytest.mark.parametrize(
    ("config", "width"),
    [(PREFIX, 0), (HEAD, 0), (MAM, 4), (TASK, 4), (UnionConfig(members=(lora(9), bottleneck("parallel", 5))), 9),
     (FUSION, 4), (BankConfig(expert=bottleneck("pfeiffer")), 0)],
)  # fmt: skip
def test_widths(config: AdapterConfig, width: int) -> None:
    assert config.width == width


# --- what cannot ----------------------------------------------------------------------------------


def refusal(parts: list[SoupIngredient], request: Any) -> Incompatible:
    with pytest.raises(Incompatible) as found:
        choose_mixing(parts, request, max_width=512)
    return found.value


class TestRefused:
    def test_fusions(self) -> None:
        for request in (AutoMixing(), AverageMixing(), AverageMixing(assume_same_init=True)):
            said = refusal(parts_of(FUSION), request)
            assert "is a fusion, whose attention was trained over members of its own" in said.message
        assert (
            "be put side by side as one adapter, and acme/a0@1 is a fusion"
            in refusal(parts_of(FUSION), ConcatMixing()).message
        )

    @pytest.mark.parametrize("name", AVERAGED)
    def test_concatenating_what_has_no_width(self, name: str) -> None:
        said = refusal(parts_of(AVERAGED[name]), ConcatMixing())
        config = AVERAGED[name]
        union = isinstance(config, UnionConfig)
        method = f"union of {' + '.join(one.method for one in config.members)}" if union else config.method
        assert f"Bottlenecks and LoRAs can be put side by side as one adapter, and acme/a0@1 is a {method}." in (
            said.problems
        )
        assert "by 'average'" in said.message

    def test_auto_does_not_take_factors_apart_in_a_union_either(self) -> None:
        said = refusal(parts_of(LORA_TASK), AutoMixing())
        assert "Mix by 'average', which takes the factors of a LoRA apart." in said.message
        assert choose_mixing(parts_of(LORA_TASK), AverageMixing(), max_width=512).mixing == AverageMixing()

    def test_other_initialisations(self) -> None:
        one, two = parts_of(MAM)
        for provenance, words in ((OTHER_INIT, "The initialisations differ"), (UNKNOWN, "is unknown")):
            said = refusal([one, replace(two, provenance=provenance)], AutoMixing())
            assert words in said.message
            assert "Set mixing.assume_same_init" in said.message
            assert choose_mixing(
                [one, replace(two, provenance=provenance)], AutoMixing(assume_same_init=True), max_width=512
            ).mixing == AverageMixing(assume_same_init=True)  # fmt: skip

    def test_other_labels_are_told_in_words(self) -> None:
        many = HeadConfig(task="classification", labels=tuple(f"label {i}" for i in range(4000)))
        other = UnionConfig(members=(bottleneck("pfeiffer"), many))
        said = refusal([parts_of(TASK)[0], replace(parts_of(TASK)[1], config=other)], AverageMixing())
        assert said.problems == (
            "The labels differ: acme/a0@1 has 3 labels (no, yes, maybe); acme/a1@1 has 4000 labels (label 0, label 1, "
            "label 2, label 3, label 4, label 5, ...).",
        )

    def test_all_that_differs_in_a_union_is_told(self) -> None:
        other = UnionConfig(members=(PrefixConfig(length=5), bottleneck("parallel", 6, scale=2.0)))
        said = refusal([parts_of(MAM)[0], replace(parts_of(MAM)[1], config=other)], AverageMixing())
        told = " ".join(said.problems)
        for word in ("'bottleneck'", "'scale'", "'length'"):
            assert word in told
        assert len(said.problems) == 3

    def test_what_differs_in_the_members_of_fusions_is_told_by_its_field(self) -> None:
        other = FusionConfig(member=bottleneck("pfeiffer", 7), members=2)
        said = refusal([parts_of(FUSION)[0], replace(parts_of(FUSION)[1], config=other)], AverageMixing())
        assert said.problems[0] == "The values of 'bottleneck' differ: acme/a0@1 has 4; acme/a1@1 has 7."

    def test_of_banks_nothing_else_is_told_however_large_they_are(self) -> None:
        wide = LoraConfig.of({f"h.{i}.m{j}": LoraModule(1 + i * j % 97, 1.0) for i in range(20) for j in range(50)})
        one, two = parts_of(BankConfig(expert=lora()))
        for request in (AverageMixing(), ConcatMixing()):
            said = refusal([one, replace(two, config=BankConfig(expert=wide))], request)
            assert [problem for problem in said.problems if "are banks of experts" in problem] == [said.problems[0]]
            assert len(said.message) < 500

    def test_unions_of_other_methods(self) -> None:
        said = refusal([parts_of(MAM)[0], parts_of(TASK)[1]], AverageMixing())
        assert said.problems == (
            "The methods differ: acme/a0@1 has bottleneck + prefix; acme/a1@1 has bottleneck + head.",
        )
        said = refusal([parts_of(MAM)[0], parts_of(PREFIX)[1]], AutoMixing())
        assert "acme/a0@1 has bottleneck + prefix; acme/a1@1 has prefix" in said.message

    @pytest.mark.parametrize("config", [PREFIX, HEAD, MAM])
    def test_a_scale_of_what_has_nothing_to_scale(self, config: AdapterConfig) -> None:
        for count in (1, 2):
            said = refusal(parts_of(config, count), AverageMixing(scale="0.5"))
            assert "A scale of 0.5 multiplies up-projections, and not all of acme/a0@1 goes through one." in (
                said.problems
            )
            assert said.message.endswith("Leave 'scale' at 1.")


def test_a_scale_of_a_task_adapter_is_that_of_what_is_inside_of_the_base() -> None:
    whole, _ = reported(parts_of(TASK), AverageMixing())
    half, _ = reported(parts_of(TASK), AverageMixing(scale="0.5"))
    for key, tensor in whole.items():
        up = ".up." in key
        assert torch.equal(half[key], tensor * 0.5 if up else tensor), key


# --- mixed pools ----------------------------------------------------------------------------------


class TestPools:
    def test_what_cannot_be_mixed_with_the_best_is_left_out_for_the_right_reason(self) -> None:
        best, same = parts_of(MAM)
        others = [
            same,
            replace(part(2, MAM), provenance=OTHER_INIT),
            replace(part(3, PREFIX), provenance=INIT),
            replace(part(4, FUSION), provenance=INIT),
            replace(part(5, bottleneck("parallel")), provenance=INIT),
        ]
        for ranked in (True, False):
            out = exclusion_reasons(best, [best, *others], AutoMixing(), ranked=ranked)
            assert set(out) == {one.digest for one in others[1:]}
            assert "The initialisations differ" in out[others[1].digest]
            assert "The methods differ" in out[others[2].digest]

    def test_a_fusion_stands_alone(self) -> None:
        fusion, other = part(0, FUSION, provenance=INIT), part(1, FUSION, provenance=INIT)
        out = exclusion_reasons(fusion, [fusion, other, part(2, PREFIX, provenance=INIT)], AutoMixing(), ranked=True)
        assert set(out) == {other.digest, part(2, PREFIX).digest}
        assert "is a fusion" in out[other.digest]

    def test_the_largest_group_is_the_best_where_nothing_is_ranked(self) -> None:
        mams, one = parts_of(MAM, 4), part(9, FUSION, provenance=INIT)
        assert best_unranked([one, *mams], AutoMixing()).config == MAM

    @pytest.mark.parametrize("start", [INIT, UNKNOWN])
    def test_fusions_are_no_group(self, start: Provenance) -> None:
        """However many there are: of two they leave one out, and bottlenecks do not."""
        fusions = [part(i, FUSION, provenance=start) for i in range(3)]
        two = [part(i, bottleneck("pfeiffer"), provenance=start) for i in (8, 9)]
        assert best_unranked([*fusions, *two], AutoMixing()).config == two[0].config
        assert best_unranked([*fusions, *two], ConcatMixing()).config == two[0].config

    def test_what_cannot_be_scaled_is_no_group_where_a_scale_is_asked_for(self) -> None:
        prefixes, one = parts_of(PREFIX, 4), part(9, bottleneck("pfeiffer"), provenance=INIT)
        two = part(8, bottleneck("pfeiffer"), provenance=INIT)
        assert best_unranked([*prefixes, one, two], AutoMixing()).config == PREFIX
        assert best_unranked([*prefixes, one, two], AutoMixing(scale="0.5")).config == one.config

    def test_unions_with_a_lora_are_not_averaged_unasked(self) -> None:
        """One alone is the average of itself; of several nobody else is let in on that account."""
        best, other = parts_of(LORA_TASK)
        assert set(exclusion_reasons(best, [best, other], AutoMixing(), ranked=True)) == {other.digest}
        assert exclusion_reasons(best, [best, other], AverageMixing(), ranked=True) == {}

    def test_no_width_is_never_too_wide(self) -> None:
        for config in AVERAGED.values():
            assert within_width(parts_of(config, 4), AutoMixing(), max_width=1) == (4, "")


def test_masks_of_a_union_go_with_their_member() -> None:
    from registry.adapters.masks import mask_name, pack
    from registry.spec import Pruned

    inner = bottleneck("parallel")
    entries = 2 * 2 * 4 * 16
    pruned = inner.model_copy(update={"pruned": Pruned(score="random", sparsity=16 / entries, masked=16)})
    config = UnionConfig(members=(PREFIX, pruned))

    def load(seed: int) -> dict[str, torch.Tensor]:
        tensors = tensors_of(MAM, seed)
        for key in list(tensors):
            if key.endswith(("down.weight", "up.weight")):
                keep = torch.ones(tensors[key].shape, dtype=torch.bool)
                if key == "bottleneck.layers.0.ffn.down.weight":
                    keep[seed] = False
                tensors[key] = tensors[key].masked_fill(~keep, 0.0)
                tensors[mask_name(key)] = pack(keep)
        return tensors

    parts = [replace(one, config=config, load=lambda n=n: load(n)) for n, one in enumerate(parts_of(MAM))]
    tensors, report = reported(parts, AverageMixing(masks="intersect"))
    assert not tensors["bottleneck.layers.0.ffn.down.weight"][:2].any()
    assert tensors["bottleneck.layers.0.ffn.down.weight"][2:].all()
    assert sum(map(is_mask, tensors)) == 4
    assert report.parameters == sum(one.numel() for one in tensors_of(MAM, 0).values()) - 32


def test_a_lora_of_a_union_may_be_of_any_kind() -> None:
    """Configurations are compared as wholes: ranks, alphas and rsLoRA too."""
    other = UnionConfig(members=(lora(rslora=True), HEAD))
    assert isinstance(other.members[1], LoraConfig)
    said = refusal([parts_of(LORA_TASK)[0], replace(parts_of(LORA_TASK)[1], config=other)], AverageMixing())
    assert "'rslora'" in said.message
