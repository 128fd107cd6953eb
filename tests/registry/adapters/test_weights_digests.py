"""Bytes and digests of adapters: exact round trips, and what each hash depends on."""

from __future__ import annotations

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from registry.adapters import create, expected_tensors, paper_config
from registry.adapters.weights import adapter_digest, check_weights, init_hash, load_tensors, save_tensors, scale_output
from registry.errors import InvalidWeights
from registry.spec import AverageMixing, BaseShape, BottleneckConfig, LoraConfig, LoraModule, Recipe, RecipeIngredient
from registry.tensor_file import canonical_order

BASE = "sha256:" + "0" * 64
SHAPE = BaseShape(fingerprint=BASE, model_type="gpt2", hidden_size=8, num_layers=11, context=64, vocab_size=300)
CONFIG = paper_config("bapna_firat", bottleneck=3)
TENSORS = {name: tensor.detach() for name, tensor in create(CONFIG, SHAPE, seed=0).state_dict().items()}
DIGEST = adapter_digest(BASE, CONFIG, TENSORS)
dtypes = st.sampled_from([torch.float32, torch.float16, torch.bfloat16])


def bits(tensor):
    return tensor.contiguous().view(torch.uint8)


@given(st.data())
def test_round_trip_is_bit_exact(data):
    dtype = data.draw(dtypes)
    size = {torch.float32: 4}.get(dtype, 2)
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    raw = data.draw(st.binary(min_size=size * torch.Size(shape).numel(), max_size=size * torch.Size(shape).numel()))
    tensor = torch.frombuffer(bytearray(raw), dtype=dtype).reshape(shape)  # any bits: NaN payloads, -0, subnormals
    stored = save_tensors({"layers.0.x": tensor})
    back = load_tensors(stored)["layers.0.x"]
    assert back.dtype == dtype
    assert torch.equal(bits(back), bits(tensor))
    assert torch.equal(bits(safetensors.torch.load(stored)["layers.0.x"]), bits(tensor))


def test_layout_and_metadata_change_the_file_and_not_the_digest():
    ours = save_tensors(TENSORS)
    theirs = safetensors.torch.save(TENSORS, metadata={"made": "elsewhere"})
    assert ours != theirs
    for data in (ours, theirs, save_tensors(TENSORS, metadata={"x": "y"})):
        check_weights(data, CONFIG, SHAPE, max_bytes=10**6)
        assert adapter_digest(BASE, CONFIG, load_tensors(data)) == DIGEST
    assert list(load_tensors(theirs)) == list(load_tensors(ours)) == canonical_order(TENSORS)


@given(st.sampled_from(sorted(TENSORS)), st.integers(0, 10**6), st.integers(0, 31))
def test_any_flipped_bit_changes_the_digest(name, element, bit):
    changed = {key: tensor.clone() for key, tensor in TENSORS.items()}
    flat = changed[name].view(-1).view(torch.int32)
    flat[element % flat.numel()] ^= -(2**31) if bit == 31 else 1 << bit
    assert adapter_digest(BASE, CONFIG, changed) != DIGEST
    assert init_hash(changed) != init_hash(TENSORS)


def test_the_digest_holds_base_configuration_names_shapes_and_dtype():
    renamed = dict(TENSORS)
    renamed["layers.0.ffn.up.biaz"] = renamed.pop("layers.0.ffn.up.bias")
    turned = {**TENSORS, "layers.0.ffn.up.weight": TENSORS["layers.0.ffn.up.weight"].reshape(3, 8)}
    zero = {name: torch.zeros_like(t) for name, t in TENSORS.items()}
    digests = {
        DIGEST,
        adapter_digest("sha256:" + "1" * 64, CONFIG, TENSORS),
        adapter_digest(BASE, CONFIG.model_copy(update={"scale": 2.0}), TENSORS),
        adapter_digest(BASE, CONFIG.model_copy(update={"activation": "gelu"}), TENSORS),
        adapter_digest(BASE, CONFIG, renamed),
        adapter_digest(BASE, CONFIG, turned),
        adapter_digest(BASE, CONFIG, zero),
        adapter_digest(BASE, CONFIG, {name: t.half() for name, t in zero.items()}),
        adapter_digest(BASE, CONFIG, {name: t.bfloat16() for name, t in zero.items()}),
        init_hash(TENSORS),
    }
    assert len(digests) == 10


def test_init_hash_is_that_of_fp32_values():
    half = {name: tensor.half() for name, tensor in TENSORS.items()}
    assert init_hash(half) == init_hash({name: tensor.float() for name, tensor in half.items()})
    assert init_hash(half) != init_hash(TENSORS)
    assert init_hash(dict(list(TENSORS.items())[1:])) != init_hash(TENSORS)


def test_strides_do_not_matter():
    strided = {name: (t.t().contiguous().t() if t.ndim == 2 else t) for name, t in TENSORS.items()}
    assert adapter_digest(BASE, CONFIG, strided) == DIGEST
    assert save_tensors(strided) == save_tensors(TENSORS)


def test_other_dtypes_are_not_stored():
    with pytest.raises(InvalidWeights, match="int64"):
        adapter_digest(BASE, CONFIG, {"layers.0.x": torch.zeros(2, dtype=torch.int64)})


def test_scaling_the_output_keeps_the_dtype():
    half = {name: t.bfloat16() for name, t in TENSORS.items()}
    assert {t.dtype for t in scale_output(half, CONFIG, 0.3).values()} == {torch.bfloat16}


OTHERWISE = BottleneckConfig(
    structure="bapna_firat", bottleneck=3, activation="swish", scale=2.5, input="residual", layer_norm_eps=1e-6
)
LINEARS = {f"transformer.h.{i}.attn.c_attn": (8, 24) for i in range(11)}
LORA = LoraConfig.of({path: LoraModule(2, 4.0) for path in LINEARS})


@pytest.mark.parametrize(
    ("config", "digest"),
    [
        (paper_config("houlsby", bottleneck=3), "2258805ca3c629d6f017e6895e03626cc0dd6c7921a34c7ed25c6e1a0655bcd4"),
        (paper_config("pfeiffer", bottleneck=3), "dc67678272ab7ba531b16eda8cd672b9b2bc48a40127a4c695475bf91b199969"),
        (paper_config("bapna_firat", bottleneck=3), "8937996d8b6d27198319ee74ef7f43e545e2d17642cf0601158c84ff43e19f59"),
        (paper_config("parallel", bottleneck=3), "10ad4648b91b28b2b747ba811600176949abd712acd8875c193b194e16246b61"),
        (OTHERWISE, "2f3f540ffbed1bffc54802f4e83b066ecddd5e108e025ae46b13bee1c8283fa9"),
        (LORA, "334d14d76c96353cbfc50854b82e04dbf95616d2ca88eeb92934fb6d0ef2d5fc"),
    ],
)
def test_digests_stay_what_they_are(config, digest):
    """Those of bottlenecks are of the first release: what is in people's recipes and refs may never change."""
    shape = SHAPE.model_copy(update={"linears": LINEARS})
    tensors = {name: torch.full(size, 0.5) for name, size in expected_tensors(config, shape).items()}
    assert adapter_digest(BASE, config, tensors) == f"sha256:{digest}"


@pytest.mark.parametrize(
    ("mixing", "digest"),
    [
        (AverageMixing(), "79965408218639eeee3037a13e441675fe20a3194c91759e20371de6b48d77ee"),
        (AverageMixing(scale="0.5"), "6d0d14b79227023e6900e059ea6f60b191bc8c58aa34eb28f9e5f70c52fab445"),
        (AverageMixing(assume_same_init=True), "5a7bc59314e62d7e15f0156002e36deaf0e221ed74008a903370e76e14f3ade5"),
    ],
)
def test_recipes_that_were_cooked_are_found_again(mixing, digest):
    two = tuple(RecipeIngredient(digest="sha256:" + one * 64, weight="0.5") for one in "12")
    assert Recipe(base_fingerprint=BASE, ingredients=two, mixing=mixing).digest == f"sha256:{digest}"
