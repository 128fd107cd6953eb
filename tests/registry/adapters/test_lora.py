"""LoRA modules: PEFT's names, the update by hand, and what does not fit."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from registry.adapters import attached, create, expected_tensors, from_tensors
from registry.adapters.lora_ranks import on_all_linears
from registry.adapters.weights import adapter_digest, init_hash, scale_output
from registry.base_model.loading import LoadedBase
from registry.errors import Incompatible
from registry.spec import BaseShape, LoraConfig, LoraGroup, LoraModule
from registry.spec.structures.lora import MAX_GROUPS
from tests.registry.adapters.logits import IDS, logits
from tests.registry.random_adapters import drawn

ATTN = "transformer.h.0.attn.c_attn"
FC = "transformer.h.1.mlp.c_fc"
LINEARS = {
    f"transformer.h.{i}.{name}": sizes
    for i in range(2)
    for name, sizes in {
        "attn.c_attn": (32, 96),
        "attn.c_proj": (32, 32),
        "mlp.c_fc": (32, 128),
        "mlp.c_proj": (128, 32),
    }.items()
}


@pytest.fixture(scope="module")
def shape(base: LoadedBase) -> BaseShape:
    return base.shape.model_copy(update={"linears": LINEARS})


def a_config(**fields: object) -> LoraConfig:
    return LoraConfig.of({ATTN: LoraModule(2, 4.0), FC: LoraModule(3, 6.0)}, **fields)  # type: ignore[arg-type]


def test_a_lora_on_all_linear_modules_computes_the_same(base: LoadedBase, shape: BaseShape) -> None:
    config = a_config(rslora=True)
    tensors = {name: tensor.to(torch.bfloat16) for name, tensor in drawn(config, shape, 3).items()}
    complete, more = on_all_linears(config, tensors, shape, seed=1)
    modules = complete.modules()
    assert set(modules) == set(LINEARS)
    assert {path: modules[path] for path in (ATTN, FC)} == config.modules()
    added = [module for path, module in modules.items() if path not in (ATTN, FC)]
    assert {module.rank for module in added} == {3}
    assert [complete.scaling(module) for module in added] == pytest.approx([4.0] * len(added))
    before = logits(base.model, from_tensors(config, shape, tensors))
    assert torch.equal(logits(base.model, from_tensors(complete, shape, more)), before)
    assert {tensor.dtype for tensor in more.values()} == {torch.float32}


# --- tensors --------------------------------------------------------------------------------------


def test_b_starts_at_zero_or_small_and_a_as_ever(shape: BaseShape) -> None:
    plain, small, again = (
        create(a_config(), shape, seed=5, init=init).state_dict() for init in ("near_identity", "small_b", "small_b")
    )
    assert all(not tensor.any() for name, tensor in plain.items() if "lora_B" in name)
    drawn = torch.cat([tensor.reshape(-1) for name, tensor in small.items() if "lora_B" in name])
    assert 0.005 < float(drawn.std()) < 0.01
    assert float(drawn.abs().max()) <= 0.02
    assert init_hash(small) == init_hash(again) != init_hash(plain)
    first = f"base_model.model.{ATTN}.lora_A.weight"  # drawn before any B
    assert torch.equal(plain[first], small[first])


def test_modules_the_base_lacks_are_all_named(shape: BaseShape) -> None:
    config = LoraConfig.of({f"model.layers.{i}.q_proj": LoraModule(2, 4.0) for i in range(30)})
    with pytest.raises(Incompatible, match=r"no linear module model\.layers\.0.*and 27 more.*transformer\.h") as found:
        expected_tensors(config, shape)
    assert len(found.value.problems) == 20
    with pytest.raises(Incompatible, match="not known"):
        expected_tensors(config, shape.model_copy(update={"linears": {}}))


def test_a_fresh_one_is_the_base(base: LoadedBase, shape: BaseShape) -> None:
    one = create(a_config(), shape, seed=1)
    a = one.state_dict()[f"base_model.model.{ATTN}.lora_A.weight"]
    assert 0 < float(a.abs().max()) <= 1 / np.sqrt(32)
    assert torch.equal(logits(base.model, one), logits(base.model))


def test_scaling_the_output_scales_b_only(shape: BaseShape) -> None:
    tensors = drawn(a_config(), shape)
    scaled = scale_output(tensors, a_config(), 0.5)
    for name, tensor in tensors.items():
        assert torch.equal(scaled[name], tensor * 0.5 if "lora_B" in name else tensor)


def test_alpha_and_rslora_are_in_the_digest(shape: BaseShape) -> None:
    tensors = drawn(a_config(), shape)
    configs = [a_config(), a_config(rslora=True), LoraConfig.of({ATTN: LoraModule(2, 5.0), FC: LoraModule(3, 6.0)})]
    assert len({adapter_digest(shape.fingerprint, config, tensors) for config in configs}) == 3


# --- forward --------------------------------------------------------------------------------------


@pytest.mark.parametrize("rslora", [False, True])
def test_the_update_is_that_of_the_merged_weights(base: LoadedBase, shape: BaseShape, rslora: bool) -> None:
    config = a_config(rslora=rslora)
    tensors = drawn(config, shape)
    merged = copy.deepcopy(base.model)
    for path, module in config.modules().items():
        a, b = (tensors[f"base_model.model.{path}.lora_{x}.weight"] for x in "AB")
        s = module.alpha / (module.rank**0.5 if rslora else module.rank)
        merged.get_submodule(path).weight.data += (s * (b @ a)).T  # Conv1D keeps (inputs, outputs)
    got = logits(base.model, from_tensors(config, shape, tensors))
    torch.testing.assert_close(got, logits(merged), atol=1e-4, rtol=1e-5)
    assert float((got - logits(base.model)).abs().max()) > 1e-2


def test_gradients_reach_a_and_b_and_nothing_of_the_base(base: LoadedBase, shape: BaseShape) -> None:
    adapter = from_tensors(a_config(), shape, drawn(a_config(), shape))
    with attached(base.model, adapter):
        base.model(IDS).logits.square().mean().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in adapter.parameters())
    assert all(parameter.grad is None for parameter in base.model.parameters())


def test_another_model_is_refused_with_every_reason(base: LoadedBase, shape: BaseShape) -> None:
    adapter = from_tensors(a_config(), shape, drawn(a_config(), shape))
    other = copy.deepcopy(base.model)
    del other.transformer.h[1].mlp.c_fc
    other.transformer.h[0].attn.c_attn = nn.Linear(32, 90)
    with (
        pytest.raises(Incompatible, match=r"32 -> 90; the LoRA is for 32 -> 96 \(1 more") as found,
        attached(other, adapter),
    ):
        pass
    assert "no linear module" in found.value.problems[1]


# --- config ---------------------------------------------------------------------------------------


def test_equal_structures_are_equal_however_written() -> None:
    apart = LoraConfig(
        groups=(
            LoraGroup(targets=("h.*.b",), layers=(1,), rank=2, alpha=4),
            LoraGroup(targets=("h.*.b", "h.*.a"), layers=(0,), rank=2, alpha=4),
            LoraGroup(targets=("h.*.a",), layers=(1,), rank=2, alpha=4),
        )
    )
    assert apart == LoraConfig.of({f"h.{i}.{x}": LoraModule(2, 4) for i in (0, 1) for x in "ab"})
    assert apart.groups == (LoraGroup(targets=("h.*.a", "h.*.b"), layers=(0, 1), rank=2, alpha=4),)


def test_more_targets_than_a_group_holds() -> None:
    modules = {f"h.{i}.experts.{e}.up": LoraModule(2, 4) for i in range(2) for e in range(300)}
    config = LoraConfig.of(modules)
    assert [len(group.targets) for group in config.groups] == [256, 44]
    assert config.modules() == modules
    assert LoraConfig.model_validate(config.model_dump()) == config


def test_groups_that_are_more_in_canonical_form_are_refused() -> None:
    layers_of = [(i, j) for i in range(120) for j in range(i)][:5000]  # of each target another pair of layers
    groups = [
        {"targets": names[start : start + 256], "layers": [layer], "rank": 1, "alpha": 1}
        for layer in range(120)
        for names in [[f"h.*.x{n}" for n, pair in enumerate(layers_of) if layer in pair]]
        for start in range(0, len(names), 256)
    ]
    assert len(groups) < MAX_GROUPS
    with pytest.raises(ValidationError, match="are 5000 groups of like rank and layers; 4096 can be"):
        LoraConfig.model_validate({"groups": groups})


def test_a_small_text_cannot_name_millions_of_modules() -> None:
    groups = [{"targets": [f"t{n}.*" for n in range(256)], "layers": list(range(2048)), "rank": 1, "alpha": 1}]
    with pytest.raises(ValidationError, match="name 524288 modules, and at most 65536"):
        LoraConfig.model_validate({"groups": groups})
