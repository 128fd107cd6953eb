"""The tensors of each structure, how many parameters they have, and how they start."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from registry.adapters import create, expected_tensors, paper_config
from registry.adapters.weights import init_hash
from registry.base_model import shape_of
from registry.errors import InvalidParameter, UnknownMethod
from registry.spec import (
    AdapterConfig,
    BankConfig,
    BaseShape,
    BottleneckConfig,
    FusionConfig,
    HeadConfig,
    LoraConfig,
    LoraModule,
    PrefixConfig,
    UnionConfig,
)
from registry.tensor_file import canonical_order
from tests.tiny_models import TINY_CONFIGS

FINGERPRINT = "sha256:" + "0" * 64
TINY = BaseShape(fingerprint=FINGERPRINT, model_type="gpt2", hidden_size=32, num_layers=2, context=64, vocab_size=300)
SMALL = BaseShape(
    fingerprint=FINGERPRINT, model_type="gpt2", hidden_size=768, num_layers=12, context=1024, vocab_size=50257
)


def test_canonical_order_counts_layers_as_numbers():
    names = list(expected_tensors(paper_config("pfeiffer", bottleneck=1), SMALL))
    assert [int(name.split(".")[1]) for name in names] == sorted(i for i in range(12) for _ in range(4))
    ordered = ["base_model.model.lm_head.lora_A.weight", "x", "layers.9.a", "layers.9.b", "base_model.h.10.a"]
    assert canonical_order(reversed(ordered)) == ordered


def test_near_identity_is_truncated_and_of_the_right_spread():
    adapter = create(paper_config("bapna_firat", bottleneck=64), TINY.model_copy(update={"hidden_size": 256}), seed=7)
    for name, tensor in adapter.state_dict().items():
        if name.endswith("norm.weight"):
            assert torch.equal(tensor, torch.ones_like(tensor))
        elif name.endswith("bias"):
            assert not tensor.any()
        else:
            assert tensor.abs().max() <= 2e-2
            assert tensor.abs().max() > 1.9e-2
            # the standard deviation of a normal truncated at two is 0.8796 of the untruncated one
            assert tensor.std().item() == pytest.approx(0.8796e-2, rel=0.03)
            assert abs(tensor.mean().item()) < 3e-4


def test_linear_is_the_spread_of_torch_linear():
    state = create(paper_config("pfeiffer", bottleneck=64), SMALL, seed=7, init="linear").state_dict()
    for name, fan_in in (("down", 768), ("up", 64)):
        bound = 1 / math.sqrt(fan_in)
        for kind in ("weight", "bias"):
            assert 0.8 * bound < state[f"layers.3.ffn.{name}.{kind}"].abs().max() <= bound
    assert state["layers.3.ffn.down.weight"].std().item() == pytest.approx(1 / math.sqrt(3 * 768), rel=0.02)


def test_initial_bytes_are_pinned():
    """A change here breaks averaging with every adapter trained before it."""
    state = create(
        BottleneckConfig(structure="bapna_firat", bottleneck=4, activation="relu"), TINY, seed=1
    ).state_dict()
    assert init_hash(state) == "sha256:09f33dd6c214f787ae2788dc4ea0daf3139247d9fb4c6ace035bc58608356254"


def test_houlsby_starts_from_the_base_norms(model):
    with torch.no_grad():
        model.transformer.h[1].ln_2.bias.fill_(0.25)
    adapter = create(paper_config("houlsby", bottleneck=4), TINY, seed=0, base=model)
    assert torch.equal(adapter.state_dict()["layers.1.base_norm.1.bias"], torch.full((32,), 0.25))
    with torch.no_grad():
        adapter.layers[1].base_norm[1].bias.add_(1)
    assert float(model.transformer.h[1].ln_2.bias.detach()[0]) == 0.25
    with pytest.raises(InvalidParameter, match="pass the base model"):
        create(paper_config("houlsby", bottleneck=4), TINY, seed=0)


def test_houlsby_without_trained_norms_has_none_and_needs_no_base():
    config = paper_config("houlsby", bottleneck=4).model_copy(update={"trained_norms": False})
    names = create(config, TINY, seed=0).state_dict()
    assert len(names) == 2 * 8
    assert not any("norm" in name for name in names)


def test_an_unknown_method_is_refused_with_those_that_are_known():
    with pytest.raises(
        UnknownMethod, match="'ia3' is not one of adamix, bottleneck, fusion, head, lora, prefix, union"
    ):
        expected_tensors(paper_config("pfeiffer").model_copy(update={"method": "ia3"}), TINY)


# --- the number of parameters on every family, as in docs/explanation/methods.md ------------------


D, LAYERS, M, R, LENGTH, K, LABELS = 32, 2, 5, 3, 4, 3, 6
ENCODERS = ("bert", "roberta", "distilbert")
RMS = ("llama", "mistral", "qwen2", "qwen3")
ONE = 2 * D * M + M + D  # a bottleneck with its biases
PREFIX = PrefixConfig(length=LENGTH)
HEAD = HeadConfig(task="classification", labels=tuple(f"label-{i}" for i in range(LABELS)))


@pytest.fixture(scope="module", params=[*sorted(TINY_CONFIGS), *ENCODERS])
def shape(request, base_entry) -> BaseShape:
    return shape_of(base_entry(request.param))


def lora(shape: BaseShape) -> LoraConfig:
    return LoraConfig.of({path: LoraModule(R, 2.0 * R) for path in shape.linears if "lm_head" not in path})


def lora_count(shape: BaseShape) -> int:
    return sum(R * sum(sizes) for path, sizes in shape.linears.items() if "lm_head" not in path)


def prefix_count(shape: BaseShape) -> int:
    heads, size = shape.kv
    return LENGTH * 2 * LAYERS * heads * size


def norms(shape: BaseShape) -> int:
    """Of one layer: weight and bias of two LayerNorms, or the weights of two RMSNorms."""
    return 2 * D if shape.model_type in RMS else 4 * D


FORMULAS: dict[str, tuple[Callable[[BaseShape], AdapterConfig], Callable[[BaseShape], int]]] = {
    "houlsby": (
        lambda _: paper_config("houlsby", bottleneck=M),
        lambda shape: LAYERS * (2 * ONE + norms(shape)),
    ),
    "houlsby, the base's norms": (
        lambda _: paper_config("houlsby", bottleneck=M).model_copy(update={"trained_norms": False}),
        lambda _: LAYERS * 2 * ONE,
    ),
    "pfeiffer": (lambda _: paper_config("pfeiffer", bottleneck=M), lambda _: LAYERS * ONE),
    "bapna_firat": (lambda _: paper_config("bapna_firat", bottleneck=M), lambda _: LAYERS * (ONE + 2 * D)),
    "parallel": (lambda _: paper_config("parallel", bottleneck=M), lambda _: LAYERS * ONE),
    "lora": (lora, lora_count),
    "head": (lambda _: HEAD, lambda _: LABELS * D + LABELS),
    "parallel + head": (
        lambda _: UnionConfig(members=(paper_config("parallel", bottleneck=M), HEAD)),
        lambda _: LAYERS * ONE + LABELS * D + LABELS,
    ),
    "fusion": (
        lambda _: FusionConfig(member=paper_config("pfeiffer", bottleneck=M), members=K),
        lambda _: LAYERS * (3 * D * D + 2 * D + K * ONE),
    ),
    "adamix, up shared": (
        lambda _: BankConfig(expert=paper_config("pfeiffer", bottleneck=M), experts=K, share="up"),
        lambda _: LAYERS * (K * (D * M + M) + D * M + D),
    ),
    "adamix, none shared": (
        lambda shape: BankConfig(expert=lora(shape), experts=K, share="none"),
        lambda shape: K * lora_count(shape),
    ),
    "prefix": (lambda _: PREFIX, prefix_count),
    "mam": (
        lambda _: UnionConfig(members=(PREFIX, paper_config("parallel", bottleneck=M))),
        lambda shape: prefix_count(shape) + LAYERS * ONE,
    ),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_parameter_counts_of_every_family_are_those_of_the_formulas(shape: BaseShape, name: str) -> None:
    config_of, count_of = FORMULAS[name]
    if shape.kind == "encoder" and name in ("prefix", "mam"):
        assert shape.kv is None  # refused: test_prefix.py
        return
    assert sum(math.prod(size) for size in expected_tensors(config_of(shape), shape).values()) == count_of(shape)
