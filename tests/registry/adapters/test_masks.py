"""Masks of pruned adapters: packing, files, digests, and everything a push refuses about them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from registry.adapters import create, expected_tensors, from_tensors
from registry.adapters.masks import is_mask, pack, packed_bytes, projections, unpack, without_masks
from registry.adapters.weights import (
    check_weights,
    init_hash,
    load_tensors,
    save_tensors,
)
from registry.errors import Incompatible, Internal, InvalidParameter, InvalidWeights
from registry.formats.adapterhub import checkpoint_files
from registry.spec import HeadConfig, Pruned, UnionConfig
from registry.tensor_file import write
from tests.registry.pruned_adapters import sparse
from tests.registry.random_adapters import SHAPE, STRUCTURES, bottleneck, lora

CONFIGS = {**{kind: bottleneck(kind) for kind in STRUCTURES}, "lora": lora(rank=3, leaves=("c_attn", "c_fc"))}
CONFIG, TENSORS = sparse(bottleneck("houlsby"), 1)
DOWN = "layers.0.ffn.down"


def check(tensors, config=CONFIG):
    return check_weights(save_tensors(tensors), config, SHAPE, max_bytes=10**7)


def refused(tensors, config=CONFIG):
    with pytest.raises(InvalidWeights) as caught:
        check(tensors, config)
    return caught.value.problems


# --- packing --------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 7), min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_a_mask_is_one_bit_an_entry_and_comes_back(size, draw):
    keep = torch.tensor([draw.random() < 0.5 for _ in range(math.prod(size))]).reshape(size)
    packed = pack(keep)
    assert packed.dtype == torch.uint8
    assert packed.shape == (packed_bytes(keep.numel()),)
    assert packed.numpy().tolist() == np.packbits(keep.numpy()).tolist()
    assert torch.equal(unpack(packed, keep.shape), keep)


# --- what has masks -------------------------------------------------------------------------------


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_projections_have_masks_and_nothing_else_has(config):
    pruned, tensors = sparse(config, 3)
    plain, masked = expected_tensors(config, SHAPE), expected_tensors(pruned, SHAPE)
    added = {name: size for name, size in masked.items() if name not in plain}
    assert set(added) == {
        name.removesuffix("weight") + "mask"
        for name, size in plain.items()
        if len(size) == 2  # norms and biases are vectors
    }
    for name, size in added.items():
        assert size == (math.ceil(math.prod(plain[name.removesuffix("mask") + "weight"]) / 8),)
    assert {name: size for name, size in masked.items() if not is_mask(name)} == plain
    report = check(tensors, pruned)
    unmasked = sum(math.prod(size) for size in plain.values()) - pruned.pruned.masked
    assert (report.dtype, report.parameters) == ("F32", unmasked)


def test_a_union_is_pruned_in_its_members():
    config = UnionConfig(
        members=(bottleneck("parallel"), HeadConfig(task="classification", labels=("a", "b"))),
    )
    names = ["bottleneck.layers.0.ffn.down.weight", "bottleneck.layers.0.ffn.down.bias", "head.out.weight"]
    assert projections(config, names) == {"bottleneck.": names[:1]}
    pruned = config.with_pruned({"bottleneck.": Pruned(score="snip", sparsity=0.5, masked=4)})
    assert list(pruned.prunings()) == ["bottleneck."]
    assert pruned != config
    assert pruned.dense() == config
    assert HeadConfig(task="classification", labels=("a", "b")).with_pruned({}).method == "head"


def test_a_module_holds_its_masks_and_computes_as_its_weights_say():
    module = from_tensors(CONFIG, SHAPE, TENSORS).to(torch.bfloat16)
    assert {name for name, tensor in module.state_dict().items() if tensor.dtype == torch.uint8} == set(TENSORS) - set(
        without_masks(TENSORS)
    )
    assert all(not parameter.requires_grad or parameter.is_floating_point() for parameter in module.parameters())
    assert not any(is_mask(name) for name, _ in module.named_parameters())
    plain = from_tensors(CONFIG.dense(), SHAPE, without_masks(TENSORS))
    x = torch.randn(2, 3, SHAPE.hidden_size)
    assert torch.equal(from_tensors(CONFIG, SHAPE, TENSORS).layers[0].ffn(x, x), plain.layers[0].ffn(x, x))


def test_a_pruned_adapter_is_not_drawn():
    with pytest.raises(InvalidParameter, match="draw the dense one"):
        create(CONFIG, SHAPE, seed=0)


# --- bytes and digests ----------------------------------------------------------------------------


def test_an_initialisation_is_not_hashed_after_pruning():
    assert init_hash(without_masks(TENSORS))
    with pytest.raises(Internal, match="after pruning"):
        init_hash(TENSORS)


def test_what_has_no_place_for_masks_is_not_written():
    config, tensors = sparse(bottleneck("pfeiffer"), 1)
    with pytest.raises(Incompatible, match="no place for the masks"):
        checkpoint_files(config, tensors, name="law", model_type="gpt2")
    assert checkpoint_files(config.dense(), without_masks(tensors), name="law", model_type="gpt2")


# --- what a push refuses --------------------------------------------------------------------------


def test_what_the_masks_and_the_configuration_do_not_say_alike():
    keep = unpack(TENSORS[DOWN + ".mask"], TENSORS[DOWN + ".weight"].shape)
    masked, total = int((~keep).sum()), CONFIG.pruned.masked
    spoiled, minus_zero = (TENSORS[DOWN + ".weight"].masked_fill(~keep, value) for value in (1e-30, -0.0))
    assert refused({**TENSORS, DOWN + ".weight": spoiled}) == (
        f"Tensor '{DOWN}.weight' holds {masked} entries that are masked and not zero.",
    )
    check({**TENSORS, DOWN + ".weight": minus_zero})
    keep.view(-1)[int((~keep.view(-1)).nonzero()[0])] = True
    assert refused({**TENSORS, DOWN + ".mask": pack(keep)}) == (
        f"The masks leave out {total - 1} entries, and the configuration says {total}.",
    )
    another = CONFIG.with_pruned({"": CONFIG.pruned.model_copy(update={"sparsity": 0.9})})
    assert "no share of 0.9" in refused(TENSORS, another)[0]


def test_bits_beyond_the_last_entry():
    small = SHAPE.model_copy(update={"hidden_size": 6, "num_layers": 1})
    drawn = create(bottleneck("pfeiffer", width=3), small, seed=0).state_dict()  # 18 entries, 3 bytes
    config, tensors = sparse(bottleneck("pfeiffer", width=3), 0, tensors=drawn)
    check_weights(save_tensors(tensors), config, small, max_bytes=10**6)
    spoiled = tensors[DOWN + ".mask"] | torch.tensor([0, 0, 0b00100001], dtype=torch.uint8)
    with pytest.raises(InvalidWeights) as caught:
        check_weights(save_tensors({**tensors, DOWN + ".mask": spoiled}), config, small, max_bytes=10**6)
    assert caught.value.problems == (f"Tensor '{DOWN}.mask' has 2 bits set beyond the last entry.",)


def test_masks_of_another_dtype_or_of_a_dense_adapter():
    with pytest.raises(Incompatible, match="not expected"):
        check(TENSORS, CONFIG.dense())
    with pytest.raises(InvalidWeights, match="uint8"):
        save_tensors({DOWN + ".mask": torch.zeros(3)})
    with pytest.raises(InvalidWeights, match="fp32, fp16 or bf16"):
        save_tensors({DOWN + ".weight": torch.zeros(3, dtype=torch.uint8)})


def test_masks_are_bytes_and_weights_are_not():
    def stored(dtypes):
        sizes = {"F32": 4, "U8": 1}
        return write(
            (
                name,
                dtypes.get(name, "U8" if is_mask(name) else "F32"),
                tuple(tensor.shape),
                bytes(tensor.numel() * sizes[dtypes.get(name, "U8" if is_mask(name) else "F32")]),
            )
            for name, tensor in TENSORS.items()
        )

    for dtypes, sentence in (
        ({DOWN + ".mask": "F32"}, f"Tensor '{DOWN}.mask' is F32; masks are read as U8."),
        ({DOWN + ".weight": "U8"}, f"Tensor '{DOWN}.weight' is U8; F32, F16 and BF16 are read."),
    ):
        with pytest.raises(InvalidWeights) as caught:
            check_weights(stored(dtypes), CONFIG, SHAPE, max_bytes=10**7)
        assert sentence in caught.value.problems
        with pytest.raises(InvalidWeights):
            load_tensors(stored(dtypes))
