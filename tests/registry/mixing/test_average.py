"""Averaging: linear, in fp32, cast once, and what its scale and its result may not be."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from registry.errors import InvalidRecipe
from registry.mixing import average
from registry.spec import AverageMixing, Provenance
from tests.registry.random_adapters import INIT, UNKNOWN, bottleneck, part, tensors_of, weighted

CONFIG = bottleneck("bapna_firat")


@given(st.floats(0.05, 0.95))
def test_the_average_is_linear(share):
    parts = weighted([CONFIG] * 2, [share, 1 - share])
    found, (first, second) = average.mix(parts, AverageMixing()), [one.load() for one in parts]
    for name, tensor in found.items():
        exact = share * first[name].double() + (1 - share) * second[name].double()
        assert torch.allclose(tensor.double(), exact, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("scale", "sentence"),
    [
        *[(scale, "must not be 0") for scale in (0, "0.0", -0.0, 1e-12)],
        *[(scale, "scale") for scale in ("1e999999999999", "-1e400", 1e308, "sNaN", 10**400, "1e99999999999999999999")],
    ],
)
def test_a_scale_of_nothing_or_beyond_every_number_is_refused(scale, sentence):
    with pytest.raises(ValueError, match=sentence):
        AverageMixing(scale=scale)


def test_half_precision_ingredients_are_summed_in_fp32_and_cast_once():
    halves = [
        replace(one, dtype="BF16", load=lambda n=n: tensors_of(CONFIG, n, torch.bfloat16))
        for n, one in enumerate(weighted([CONFIG] * 3, [1, 1, 1]))
    ]
    singles = [
        replace(one, dtype="F32", load=lambda one=one: {name: t.float() for name, t in one.load().items()})
        for one in halves
    ]
    exact = average.mix(singles, AverageMixing())
    for name, tensor in average.mix(halves, AverageMixing()).items():
        assert tensor.dtype == torch.bfloat16
        assert torch.equal(tensor, exact[name].to(torch.bfloat16))
    assert average.result_dtype([halves[0], singles[1]]) == "F32"


def test_an_overflow_of_the_result_is_refused():
    large = {name: torch.full_like(t, 6e4).half() for name, t in tensors_of(CONFIG, 0).items()}
    with pytest.raises(InvalidRecipe, match="leave the range"):
        average.mix([part(0, CONFIG, dtype="F16", load=lambda: large)], AverageMixing(scale="2"))


def test_a_start_that_is_declared_is_that_which_was_trained_from_and_one_adapter_needs_none():
    trained = Provenance(init_hash=INIT.init_hash, init_source="trained_here")
    assert average.check([part(0, CONFIG, provenance=INIT), part(1, CONFIG, provenance=trained)], AverageMixing()) == []
    assert average.check([part(0, CONFIG, provenance=UNKNOWN)], AverageMixing()) == []
