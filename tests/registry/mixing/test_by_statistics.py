"""Fisher averages, RegMean and truncation by inputs: the formulas in double precision, on statistics that are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from registry.adapters.moments import measured_weights, packed, unpacked
from registry.errors import Internal
from registry.mixing import MIXINGS
from registry.mixing.compat import SoupIngredient, Statistic
from registry.spec import (
    AverageMixing,
    ConcatMixing,
    FisherMixing,
    RecompressMixing,
    RegMeanMixing,
)
from tests.registry.random_adapters import (
    INIT,
    bottleneck,
    deltas,
    known,
    lora,
    weighted,
)

PLAIN = bottleneck("bapna_firat", 5)


def ours(parts: Sequence[SoupIngredient], mixing) -> dict[str, torch.Tensor]:
    return MIXINGS[mixing.method].mix(parts, mixing)


def measured(configs, weights, kind: str, **changes) -> list[SoupIngredient]:
    return [known(one, kind) for one in weighted(configs, weights, **changes)]


def moments_of(values: torch.Tensor, size: int) -> np.ndarray:
    return unpacked(values, size).numpy()


def update(config, tensors, path: str) -> np.ndarray:
    """s B A of a module, float64."""
    return deltas(config, tensors)[path].numpy()


# --- Fisher ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", [PLAIN, bottleneck("houlsby", 3), lora(3)])
def test_fisher_is_the_papers_formula(config) -> None:
    parts = measured([config] * 3, [1, 2, 5], "fisher", provenance=INIT)
    for name, tensor in ours(parts, FisherMixing()).items():
        over = sum(float(one.weight) * one.load_statistic()[name].double() for one in parts)
        above = sum(
            float(one.weight) * one.load_statistic()[name].double() * one.load()[name].double() for one in parts
        )
        assert torch.allclose(tensor.double(), above / over, rtol=1e-6, atol=1e-7), name


def test_equal_fishers_are_the_average_and_none_too() -> None:
    parts = weighted([PLAIN] * 2, [1, 3], provenance=INIT)
    average = ours(parts, AverageMixing())
    for value in (2.5e-9, 0.0):
        same = {name: torch.full_like(tensor, value) for name, tensor in parts[0].load().items()}
        alike = [replace(one, statistic=Statistic(one.digest, lambda same=same: same)) for one in parts]
        for name, tensor in ours(alike, FisherMixing()).items():
            assert torch.allclose(tensor, average[name], rtol=1e-6, atol=1e-7), name


# --- RegMean --------------------------------------------------------------------------------------


@pytest.mark.parametrize("off", ["0.9", "0.1", "1"])
def test_regmean_is_the_papers_formula(off: str) -> None:
    parts = measured([PLAIN] * 3, [1, 2, 5], "inputs", provenance=INIT)
    found, average = ours(parts, RegMeanMixing(off_diagonal=off)), ours(parts, AverageMixing())
    fitted = measured_weights(PLAIN, found)
    assert len(fitted) == 4
    for name, tensor in found.items():
        if name not in fitted:
            assert torch.equal(tensor, average[name]), name
            continue
        assert not torch.allclose(tensor, average[name], rtol=1e-2), name
        left, right = 0.0, 0.0
        for one in parts:
            gram = moments_of(one.load_statistic()[name], tensor.shape[1])
            gram = float(off) * gram + (1 - float(off)) * np.diag(np.diag(gram))
            left = left + float(one.weight) * gram
            right = right + float(one.weight) * gram @ one.load()[name].double().numpy().T
        assert np.allclose(tensor.numpy(), np.linalg.solve(left, right).T, rtol=1e-4, atol=1e-4), name


def test_inputs_that_nobody_reads_get_the_average() -> None:
    parts = measured([PLAIN] * 2, [1, 3], "inputs", provenance=INIT)
    name = "layers.0.ffn.up.weight"
    average = ours(parts, AverageMixing())[name]
    silent = []
    for one in parts:
        gram = moments_of(one.load_statistic()[name], 5)
        gram[2], gram[:, 2] = 0, 0
        says = {**one.load_statistic(), name: packed(torch.from_numpy(gram))}
        silent.append(replace(one, statistic=Statistic(one.digest, lambda says=says: says)))
    found = ours(silent, RegMeanMixing())[name]
    assert torch.allclose(found[:, 2], average[:, 2], rtol=1e-5, atol=1e-6)
    assert not torch.allclose(found[:, 1], average[:, 1], rtol=1e-2)
    nothing = {key: torch.zeros_like(value) for key, value in parts[0].load_statistic().items()}
    silent = [replace(one, statistic=Statistic(one.digest, lambda: nothing)) for one in parts]
    assert torch.allclose(ours(silent, RegMeanMixing())[name], average, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", ["1", "0.5"])
def test_regmean_of_loras_is_the_formula_on_their_updates(scale: str) -> None:
    """Whatever they started from, and exact at the sum of their ranks."""
    configs = [lora(2, leaves=("c_attn", "c_proj")), lora(4, 3.0, rslora=True, leaves=("c_attn", "c_proj"))]
    parts = measured(configs, [1, 3], "inputs")
    mixing = RegMeanMixing(scale=scale)
    method = MIXINGS["regmean"]
    assert method.check(parts, mixing) == []
    config = method.result(parts, mixing)
    assert set(config.widths().values()) == {6}
    soup = ours(parts, mixing)
    for path in config.modules():
        left, right = 0.0, 0.0
        for one in parts:
            gram = moments_of(
                one.load_statistic()[f"base_model.model.{path}.lora_A.weight"], update(config, soup, path).shape[1]
            )
            gram = 0.9 * gram + 0.1 * np.diag(np.diag(gram))
            left = left + float(one.weight) * gram
            right = right + float(one.weight) * gram @ update(one.config, one.load(), path).T
        wanted = float(scale) * np.linalg.solve(left, right).T
        assert np.allclose(update(config, soup, path), wanted, rtol=1e-4, atol=1e-3), path
    assert "max_width is 5" in method.too_wide(parts, mixing, 5)[0]
    assert method.too_wide(measured([PLAIN] * 2, [1, 1], "inputs"), mixing, 1) == []


def test_without_a_statistic_nothing_is_mixed() -> None:
    for mixing in (FisherMixing(), RegMeanMixing()):
        with pytest.raises(Internal, match="was to be mixed by a statistic"):
            ours(weighted([PLAIN] * 2, [1, 1], provenance=INIT), mixing)


# --- recompress by inputs -------------------------------------------------------------------------


def test_a_lora_is_truncated_by_what_its_modules_read() -> None:
    """The best there is of that rank, as numpy's SVD of B A C^1/2 says; the plain truncation is worse there."""
    configs = [lora(3, leaves=("c_attn", "c_proj")), lora(3, 2.0, leaves=("c_attn",))]
    parts = measured(configs, [1, 2], "inputs")
    method, plain = MIXINGS["recompress"], RecompressMixing()
    by_inputs = RecompressMixing(by_inputs=True)
    assert method.check(parts, by_inputs) == []
    config = method.result(parts, by_inputs)
    assert config == method.result(parts, plain)
    soup, other = ours(parts, by_inputs), ours(parts, plain)
    for path in configs[1].modules():  # where both are
        name = f"base_model.model.{path}.lora_A.weight"
        moments = sum(float(one.weight) * moments_of(one.load_statistic()[name], 16) for one in parts)
        values, vectors = np.linalg.eigh(moments)
        root = vectors * np.sqrt(np.maximum(values, 0)) @ vectors.T
        wanted = sum(float(one.weight) * update(one.config, one.load(), path) for one in parts)
        left, sizes, right = np.linalg.svd(wanted @ root, full_matrices=False)
        best = (left[:, :3] * sizes[:3]) @ right[:3] @ np.linalg.inv(root)
        assert np.allclose(update(config, soup, path), best, rtol=1e-4, atol=1e-3), path
        assert not np.allclose(update(config, other, path), best, rtol=1e-2, atol=1e-2), path


def test_by_inputs_nothing_changes_where_nothing_is_left_out() -> None:
    parts = measured([lora(2)] * 2, [1, 1], "inputs")
    wide, exact = ours(parts, RecompressMixing(by_inputs=True, width=4)), ours(parts, ConcatMixing())
    assert all(torch.equal(tensor, exact[name]) for name, tensor in wide.items())
