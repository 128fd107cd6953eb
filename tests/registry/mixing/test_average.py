"""Averaging: its laws, its reasons to refuse, and that it is the same bytes under every CPU capability."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from registry.adapters.weights import save_tensors
from registry.errors import InvalidRecipe
from registry.mixing import MIXINGS, average
from registry.mixing.compat import SoupIngredient
from registry.spec import AverageMixing, BottleneckConfig, Provenance, canonical_weights
from tests.other_processor import elsewhere
from tests.registry.random_adapters import INIT, bottleneck, tensors_of
from tests.registry.random_adapters import part as random_part

CONFIG = bottleneck("bapna_firat")


def part(number: int, weight: str = "1", *, config: BottleneckConfig = CONFIG, **changes: Any) -> SoupIngredient:
    return random_part(number, config, weight, **{"provenance": INIT, **changes})


def tensors(seed: int) -> dict[str, torch.Tensor]:
    return tensors_of(CONFIG, seed)


def mixed(parts, ingredients, mixing=AverageMixing()):
    return average.mix([replace(p, load=lambda t=t: t) for p, t in zip(parts, ingredients, strict=True)], mixing)


def weighted(numbers, weights):
    return [part(n, w) for n, w in zip(numbers, canonical_weights(weights), strict=True)]


def same_bits(one, other) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@given(st.permutations(range(4)), st.lists(st.floats(0.01, 10), min_size=4, max_size=4))
def test_the_order_of_ingredients_changes_no_bit(order, weights):
    parts, ingredients = weighted(range(4), weights), [tensors(n) for n in range(4)]
    straight = mixed(parts, ingredients)
    assert same_bits(straight, mixed([parts[i] for i in order], [ingredients[i] for i in order]))


@given(st.integers(2, 6))
def test_copies_average_to_themselves(count):
    one = tensors(0)
    result = mixed(weighted(range(count), [1.0] * count), [one] * count)
    assert all(torch.allclose(result[name], one[name], atol=1e-6, rtol=0) for name in one)


@given(st.floats(0.05, 0.95))
def test_the_average_is_linear(share):
    a, b = tensors(0), tensors(1)
    result = mixed(weighted([0, 1], [share, 1 - share]), [a, b])
    for name in a:
        exact = share * a[name].double() + (1 - share) * b[name].double()
        assert torch.allclose(result[name].double(), exact, atol=1e-6, rtol=0)


def test_scale_multiplies_the_up_projection_only():
    plain = mixed([part(0)], [tensors(0)])
    halved = mixed([part(0)], [tensors(0)], AverageMixing(scale="0.5"))
    for name, tensor in plain.items():
        factor = 0.5 if ".up." in name else 1.0
        assert torch.equal(halved[name], tensor * factor), name


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
    halves = [{name: t.to(torch.bfloat16) for name, t in tensors(n).items()} for n in range(3)]
    parts = [part(n, w, dtype="BF16") for n, w in enumerate(canonical_weights([1, 1, 1]))]
    result = mixed(parts, halves)
    exact = mixed(
        [part(n, p.weight) for n, p in enumerate(parts)], [{k: v.float() for k, v in h.items()} for h in halves]
    )
    assert all(result[name].dtype == torch.bfloat16 for name in result)
    assert all(torch.equal(result[name], exact[name].to(torch.bfloat16)) for name in result)
    assert average.result_dtype([part(0, dtype="BF16"), part(1)]) == "F32"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_is_refused(value):
    broken = tensors(1)
    broken["layers.0.ffn.down.bias"][0] = value
    with pytest.raises(InvalidRecipe, match=r"not finite in 1 tensors \(layers\.0\.ffn\.down\.bias first\)"):
        mixed(weighted([0, 1], [1, 1]), [tensors(0), broken])


def test_an_overflow_of_the_result_is_refused():
    large = {name: torch.full_like(t, 6e4).half() for name, t in tensors(0).items()}
    with pytest.raises(InvalidRecipe, match="leave the range"):
        mixed([part(0, dtype="F16")], [large], AverageMixing(scale="2"))


# --- reasons --------------------------------------------------------------------------------------


def reasons(*parts, mixing=AverageMixing()) -> str:
    return " ".join(MIXINGS["average"].check(parts, mixing))


def test_unknown_matches_nothing_not_even_unknown():
    unknown = [part(n, provenance=Provenance()) for n in range(2)]
    assert "unknown" in reasons(*unknown)
    assert reasons(*unknown, mixing=AverageMixing(assume_same_init=True)) == ""
    assert reasons(unknown[0]) == ""


def test_declared_matches_trained_here():
    trained = Provenance(init_hash=INIT.init_hash, init_source="trained_here")
    assert reasons(part(0), part(1, provenance=trained)) == ""


# --- the same bytes everywhere --------------------------------------------------------------------


def digest_of_some() -> str:
    parts = weighted(range(5), [0.1, 0.7, 1.3, 2.9, 0.05])
    return hashlib.sha256(save_tensors(mixed(parts, [tensors(n) for n in range(5)]))).hexdigest()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("capability", ["default", "avx2", "avx512"])
def test_the_bytes_do_not_depend_on_the_cpu(capability):
    """`ATEN_CPU_CAPABILITY=default` runs torch's plain kernels; a higher one than the CPU has falls back to it."""
    assert elsewhere(digest_of_some, {"ATEN_CPU_CAPABILITY": capability}) == digest_of_some()
