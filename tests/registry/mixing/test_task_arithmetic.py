"""Task arithmetic: the paper's formula in double precision, the start that is drawn again, and LoRAs' updates."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from registry.adapters import create
from registry.errors import Incompatible
from registry.mixing import MIXINGS
from registry.spec import (
    ConcatMixing,
    Provenance,
    TaskArithmeticMixing,
)
from tests.registry.random_adapters import (
    OTHER_INIT,
    SHAPE,
    bottleneck,
    lora,
    started,
    tensors_of,
    weighted,
)

METHOD = MIXINGS["task_arithmetic"]
PLAIN = bottleneck("bapna_firat", 5)


@pytest.mark.parametrize("config", [PLAIN, bottleneck("pfeiffer", 3), bottleneck("houlsby_plain", 4)])
@pytest.mark.parametrize("coefficients", [(0.4, 0.4, 0.4), (0.9, 0.1, 0.5), (-0.2, -0.3, -0.5)])
def test_it_is_the_papers_formula(config, coefficients) -> None:
    total = sum(coefficients)
    parts = weighted([config] * 3, [one / total for one in coefficients], provenance=started(config))
    found = METHOD.mix(parts, METHOD.resolved(parts, TaskArithmeticMixing(scale=total), SHAPE))
    start = create(config, SHAPE, seed=7, init="linear").state_dict()
    for name, tensor in found.items():
        first = start[name].double()
        vectors = [tensors_of(config, n)[name].double() - first for n in range(3)]
        wanted = first + sum(c * vector for c, vector in zip(coefficients, vectors, strict=True))
        assert torch.allclose(tensor.double(), wanted, rtol=1e-6, atol=1e-6), name


def test_the_start_is_found_by_its_hash_and_stands_in_the_recipe() -> None:
    for init in ("near_identity", "linear", "zero_up"):
        parts = weighted([PLAIN] * 2, [1, 1], provenance=started(PLAIN, seed=3, init=init))
        mixing = METHOD.resolved(parts, TaskArithmeticMixing(scale="2"), SHAPE)
        assert mixing == TaskArithmeticMixing(scale="2", init=init, init_seed=3)
        assert METHOD.resolved(parts, mixing, SHAPE) == mixing


def test_a_seed_can_be_named_where_none_was_recorded_and_is_not_believed() -> None:
    unsaid = started(PLAIN, seed=3).model_copy(update={"init_seed": None})
    parts = weighted([PLAIN] * 2, [1, 1], provenance=unsaid)
    assert "came without the seed of the start: name 'init_seed'" in METHOD.check(parts, TaskArithmeticMixing())[0]
    named = METHOD.resolved(parts, TaskArithmeticMixing(init_seed=3), SHAPE)
    assert (named.init, named.init_seed) == ("linear", 3)
    for wrong in (TaskArithmeticMixing(init_seed=4), TaskArithmeticMixing(init="zero_up", init_seed=3)):
        assert METHOD.check(parts, wrong) == []
        with pytest.raises(Incompatible, match="gives those with hash"):
            METHOD.resolved(parts, wrong, SHAPE)


@pytest.mark.parametrize("scale", ["1", "2.4", "-0.5"])
def test_of_loras_it_is_the_sum_of_their_updates_exactly(scale: str) -> None:
    parts = weighted([lora(2), lora(4, 3.0, rslora=True), lora(3, leaves=("c_fc",))], [1, 2, 3], provenance=OTHER_INIT)
    parts[1] = replace(parts[1], provenance=Provenance())
    mixing = METHOD.resolved(parts, TaskArithmeticMixing(scale=scale, init="linear", init_seed=1), SHAPE)
    assert mixing == TaskArithmeticMixing(scale=scale)
    exact = ConcatMixing(scale=scale)
    assert METHOD.result(parts, mixing) == MIXINGS["concat"].result(parts, exact)
    wanted = MIXINGS["concat"].mix(parts, exact)
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in METHOD.mix(parts, mixing).items())
    assert "max_width is 5" in METHOD.too_wide(parts, mixing, 5)[0]
