"""The number of parameters of every structure on every family, against docs/explanation/methods.md#structures.

d hidden size, m bottleneck, L layers, r rank, l virtual tokens, K members.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from registry.adapters import expected_tensors, paper_config
from registry.base_model import shape_of
from registry.spec import (
    AdapterConfig,
    BankConfig,
    BaseShape,
    FusionConfig,
    HeadConfig,
    LoraConfig,
    LoraModule,
    PrefixConfig,
    UnionConfig,
)
from tests.tiny_models import TINY_CONFIGS

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
def test_formula(shape: BaseShape, name: str) -> None:
    config_of, count_of = FORMULAS[name]
    if shape.kind == "encoder" and name in ("prefix", "mam"):
        assert shape.kv is None  # refused: test_prefix.py
        return
    assert sum(math.prod(size) for size in expected_tensors(config_of(shape), shape).values()) == count_of(shape)
