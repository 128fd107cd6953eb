"""LoRA modules: PEFT's names, the update by hand, what does not fit, and the same as a GGUF file for llama.cpp."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from registry.adapters import create, expected_tensors, from_tensors
from registry.adapters.lora_gguf import ARCHITECTURES, GgufBase, gguf_file
from registry.adapters.lora_ranks import on_all_linears
from registry.adapters.weights import adapter_digest, init_hash, scale_output
from registry.base_model import shape_of
from registry.base_model.loading import LoadedBase
from registry.errors import Incompatible
from registry.spec import BaseEntry, BaseShape, LoraConfig, LoraGroup, LoraModule
from registry.spec.structures.lora import MAX_GROUPS
from tests.registry.adapters.logits import logits
from tests.registry.random_adapters import drawn
from tests.tiny_models import build_tiny_base

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
    expected = logits(base.model, from_tensors(config, shape, tensors))
    assert torch.equal(logits(base.model, from_tensors(complete, shape, more)), expected)
    assert {tensor.dtype for tensor in more.values()} == {torch.float32}


# --- tensors --------------------------------------------------------------------------------------


def test_b_starts_at_zero_or_small_and_a_as_ever(shape: BaseShape) -> None:
    plain, small, repeated = (
        create(a_config(), shape, seed=5, init=init).state_dict() for init in ("near_identity", "small_b", "small_b")
    )
    assert all(not tensor.any() for name, tensor in plain.items() if "lora_B" in name)
    drawn = torch.cat([tensor.reshape(-1) for name, tensor in small.items() if "lora_B" in name])
    assert 0.005 < float(drawn.std()) < 0.01
    assert float(drawn.abs().max()) <= 0.02
    assert init_hash(small) == init_hash(repeated) != init_hash(plain)
    first = f"base_model.model.{ATTN}.lora_A.weight"  # drawn before any B
    assert torch.equal(plain[first], small[first])
    assert 0 < float(plain[first].abs().max()) <= 1 / np.sqrt(32)


def test_modules_the_base_lacks_are_all_named(shape: BaseShape) -> None:
    config = LoraConfig.of({f"model.layers.{i}.q_proj": LoraModule(2, 4.0) for i in range(30)})
    with pytest.raises(Incompatible, match=r"no linear module model\.layers\.0.*and 27 more.*transformer\.h") as caught:
        expected_tensors(config, shape)
    assert len(caught.value.problems) == 20
    with pytest.raises(Incompatible, match="not known"):
        expected_tensors(config, shape.model_copy(update={"linears": {}}))


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


# --- as a GGUF file -------------------------------------------------------------------------------


PLAIN = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
FUSED = {"attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}
"""llama.cpp's names of a layer's modules."""
Shapes = Callable[[str], BaseShape]


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Shapes:
    """The shape of a tiny base model of a family."""
    folder = tmp_path_factory.mktemp("bases")

    def of(family: str) -> BaseShape:
        where = folder / family
        source = where if where.is_dir() else build_tiny_base(where, model_type=family)
        return shape_of(BaseEntry(id="tiny", source=str(source)), folder / "cache")

    return of


def base_of(shape: BaseShape) -> GgufBase:
    return GgufBase(shape.model_type, layers=shape.num_layers, head=None if shape.kv is None else shape.kv[1])


def on_layers(shape: BaseShape, *, rslora: bool = False) -> LoraConfig:
    """A LoRA on all modules of the layers, of ranks and alphas that differ."""
    paths = [path for path in shape.linears if path != "lm_head"]
    modules = {path: LoraModule(2 + place % 3, 3.0 + place % 2) for place, path in enumerate(paths)}
    return LoraConfig.of(modules, rslora=rslora)


def read(file: bytes, folder: Path) -> tuple[dict[str, object], dict[str, Tensor]]:
    """Metadata and tensors as llama.cpp has them, with axes in the order of numpy."""
    path = folder / "read.gguf"
    path.write_bytes(file)
    reader = gguf.GGUFReader(path)
    metadata = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    return metadata, {tensor.name: torch.from_numpy(tensor.data.copy()) for tensor in reader.tensors}


def update(config: LoraConfig, tensors: Mapping[str, Tensor], path: str) -> Tensor:
    """The addition of a LoRA to the weights (outputs, inputs) of a module."""
    a, b = (tensors[f"base_model.model.{path}.lora_{side}.weight"].float() for side in "AB")
    return config.scaling(config.modules()[path]) * b @ a


def llamas(metadata: Mapping[str, object], tensors: Mapping[str, Tensor], name: str) -> Tensor:
    """The addition of llama.cpp to a tensor, with its rule for the scale."""
    a, b = tensors[f"{name}.weight.lora_a"], tensors[f"{name}.weight.lora_b"]
    return metadata["adapter.lora.alpha"] / b.shape[1] * b @ a


@pytest.mark.parametrize("rslora", [False, True])
@pytest.mark.parametrize("family", ARCHITECTURES)
def test_llama_cpp_adds_what_the_lora_adds(family: str, rslora: bool, shapes: Shapes, tmp_path: Path) -> None:
    shape = shapes(family)
    config = on_layers(shape, rslora=rslora)
    tensors = drawn(config, shape)
    metadata, gguf_tensors = read(gguf_file(config, tensors, base_of(shape), name="acme/law@1"), tmp_path)
    architecture = {"mistral": "llama"}.get(family, family)
    assert metadata["general.architecture"] == architecture
    assert (metadata["general.type"], metadata["adapter.type"]) == ("adapter", "lora")
    assert (metadata["general.name"], metadata["general.file_type"]) == ("acme/law@1", gguf.LlamaFileType.ALL_F32)
    (arch,) = (arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    llama_cpp_names = {gguf.TENSOR_NAMES[tensor] for tensor in gguf.MODEL_TENSORS[arch]}  # llama.cpp's own list
    names = FUSED if family == "gpt2" else PLAIN
    block = "transformer.h" if family == "gpt2" else "model.layers"
    assert len(gguf_tensors) == 2 * shape.num_layers * len(names)
    for layer in range(shape.num_layers):
        for module, theirs in names.items():
            assert f"blk.{{bid}}.{theirs}" in llama_cpp_names
            path, name = f"{block}.{layer}.{module}", f"blk.{layer}.{theirs}"
            ours, added = update(config, tensors, path), llamas(metadata, gguf_tensors, name)
            assert gguf_tensors[f"{name}.weight.lora_a"].shape == (config.modules()[path].rank, shape.linears[path][0])
            if architecture == "llama" and theirs in {"attn_q", "attn_k"}:
                assert not torch.allclose(added, ours)
                size = shape.kv[1] if shape.kv else 0
                places = [  # of a row in transformers' order, by its place in llama.cpp's
                    head * size + half * (size // 2) + pair
                    for head in range(len(ours) // size)
                    for pair in range(size // 2)
                    for half in range(2)
                ]
                ours = ours[places]
            torch.testing.assert_close(added, ours)


def test_weights_stay_as_they_are_where_one_alpha_does_for_all(shapes: Shapes, tmp_path: Path) -> None:
    shape = shapes("gpt2")
    config = LoraConfig.of({f"transformer.h.{n}.attn.c_attn": LoraModule(3 + n, 5.1) for n in range(2)})
    tensors = {name: tensor.to(torch.bfloat16) for name, tensor in drawn(config, shape).items()}
    metadata, gguf_tensors = read(gguf_file(config, tensors, base_of(shape), name="a/b"), tmp_path)
    assert metadata["adapter.lora.alpha"] == pytest.approx(5.1)
    for n in range(2):
        for end, factor in (("lora_a", "lora_A"), ("lora_b", "lora_B")):
            stored = tensors[f"base_model.model.transformer.h.{n}.attn.c_attn.{factor}.weight"]
            assert torch.equal(gguf_tensors[f"blk.{n}.attn_qkv.weight.{end}"], stored.float())


def test_the_same_lora_gives_the_same_bytes(shapes: Shapes) -> None:
    shape = shapes("llama")
    config = on_layers(shape)
    first, second = (gguf_file(config, drawn(config, shape), base_of(shape), name="a/b") for _ in range(2))
    assert first == second


def test_what_llama_cpp_does_not_have_is_refused_by_name(shapes: Shapes) -> None:
    neox, llama = shapes("gpt_neox"), shapes("llama")
    for shape, modules, says in (
        (neox, on_layers(neox), "and this base model is of family 'gpt_neox'."),
        (llama, LoraConfig.of({"lm_head": LoraModule(2, 2.0)}), "without a name of its own: lm_head."),
    ):
        with pytest.raises(Incompatible, match=re.escape(says)):
            gguf_file(modules, drawn(modules, shape), base_of(shape), name="a/b")
    with pytest.raises(Incompatible, match="heads of one size"):
        gguf_file(on_layers(llama), {}, GgufBase("llama", layers=2, head=None), name="a/b")
