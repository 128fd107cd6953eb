"""Soups that are made by LAPACK: what commit faf82b18 made of the same ingredients, to the tolerance of reports."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from registry.mixing.report import TOLERANCE
from registry.spec import LoraConfig
from tests.fixtures.make_soups import CASES, cooked
from tests.registry.random_adapters import deltas
from tests.repository import REPOSITORY


@pytest.fixture(scope="module")
def stored() -> dict[str, torch.Tensor]:
    return load_file(REPOSITORY / "tests" / "fixtures" / "soups.safetensors")


@pytest.mark.parametrize("name", CASES)
def test_soups_of_before_are_made_again_within_the_tolerance(name: str, stored: dict[str, torch.Tensor]) -> None:
    """A LoRA by its updates, since the signs of its factors were open."""
    config, tensors = cooked(name)
    before = {key.partition(":")[2]: one for key, one in stored.items() if key.startswith(f"{name}:")}
    assert tensors.keys() == before.keys()
    if isinstance(config, LoraConfig):
        tensors, before = deltas(config, tensors), deltas(config, before)
    for key, tensor in tensors.items():
        assert (tensor - before[key]).norm() <= TOLERANCE * before[key].norm(), key
