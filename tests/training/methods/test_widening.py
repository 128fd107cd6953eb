"""Large-Sparse: wider, and pruned to as many entries as before."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.adapters import expected_tensors, paper_config
from registry.adapters.masks import projections
from registry.errors import InvalidParameter
from registry.spec import (
    BankConfig,
    BottleneckConfig,
    FusionConfig,
    HeadConfig,
    LoraConfig,
    PrefixConfig,
    UnionConfig,
)
from tests.registry.random_adapters import SHAPE, lora
from training.methods.widening import sparsity_of, widened

NARROW = paper_config("houlsby", bottleneck=6)
MAM = UnionConfig(members=(PrefixConfig(length=3), paper_config("parallel", bottleneck=5)))


def entries(config):
    sizes = expected_tensors(config, SHAPE)
    return sum(math.prod(sizes[name]) for names in projections(config, sizes).values() for name in names)


@given(st.sampled_from([NARROW, lora(rank=3), lora(rank=5, rslora=True, leaves=("c_fc", "c_attn"))]), st.integers(2, 9))
def test_as_many_entries_stay(config, factor):
    wide = widened(config, factor)
    assert entries(wide) == factor * entries(config)
    assert entries(wide) - round(sparsity_of(factor) * entries(wide)) == entries(config)


def test_the_papers_shares():
    assert [round(sparsity_of(factor), 2) for factor in (2, 3, 4)] == [0.5, 0.67, 0.75]


def test_nothing_but_the_width_changes():
    wide = widened(NARROW, 3)
    assert isinstance(wide, BottleneckConfig)
    assert wide == NARROW.model_copy(update={"bottleneck": 18})
    for config in (lora(rank=3, alpha=6.0), lora(rank=4, alpha=7.0, rslora=True)):
        grown = widened(config, 2)
        assert isinstance(grown, LoraConfig)
        for path, module in config.modules().items():
            found = grown.modules()[path]
            assert found.rank == 2 * module.rank
            assert grown.scaling(found) == pytest.approx(config.scaling(module))


def test_of_a_union_what_has_a_width_is_widened():
    wide = widened(MAM, 2)
    assert isinstance(wide, UnionConfig)
    assert {member.method: member for member in wide.members} == {
        "bottleneck": paper_config("parallel", bottleneck=10),
        "prefix": PrefixConfig(length=3),
    }


def test_what_cannot_be_widened():
    head = HeadConfig(task="classification", labels=("a", "b"))
    narrow = paper_config("pfeiffer", bottleneck=4)
    for config in (
        head,
        PrefixConfig(length=3),
        UnionConfig(members=(head, PrefixConfig(length=3))),
        FusionConfig(member=narrow, members=2),
        BankConfig(expert=narrow),
    ):
        with pytest.raises(InvalidParameter, match=f"A {config.method} adapter has no width"):
            widened(config, 2)
    with pytest.raises(InvalidParameter, match="at least twice"):
        widened(narrow, 1)
    with pytest.raises(InvalidParameter, match="cannot be"):
        widened(narrow.model_copy(update={"bottleneck": 40_000}), 2)
