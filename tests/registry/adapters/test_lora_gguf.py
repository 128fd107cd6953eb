"""LoRAs as llama.cpp's GGUF files, read back with gguf's own reader: names, metadata, and what the tensors compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import gguf
import pytest
import torch
from torch import Tensor

from registry.adapters.lora_gguf import ARCHITECTURES, GgufBase, gguf_file
from registry.base_model import shape_of
from registry.errors import Incompatible
from registry.spec import BaseEntry, BaseShape, LoraConfig, LoraModule
from tests.registry.random_adapters import drawn
from tests.tiny_models import build_tiny_base

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
    said = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    return said, {one.name: torch.from_numpy(one.data.copy()) for one in reader.tensors}


def update(config: LoraConfig, tensors: Mapping[str, Tensor], path: str) -> Tensor:
    """What a LoRA adds to the weights (outputs, inputs) of a module."""
    a, b = (tensors[f"base_model.model.{path}.lora_{part}.weight"].float() for part in "AB")
    return config.scaling(config.modules()[path]) * b @ a


def llamas(said: Mapping[str, object], tensors: Mapping[str, Tensor], name: str) -> Tensor:
    """What llama.cpp adds to a tensor, with its rule for the scale."""
    a, b = tensors[f"{name}.weight.lora_a"], tensors[f"{name}.weight.lora_b"]
    return said["adapter.lora.alpha"] / b.shape[1] * b @ a


@pytest.mark.parametrize("rslora", [False, True])
@pytest.mark.parametrize("family", ARCHITECTURES)
def test_llama_cpp_adds_what_the_lora_adds(family: str, rslora: bool, shapes: Shapes, tmp_path: Path) -> None:
    shape = shapes(family)
    config = on_layers(shape, rslora=rslora)
    tensors = drawn(config, shape)
    said, found = read(gguf_file(config, tensors, base_of(shape), name="acme/law@1"), tmp_path)
    architecture = {"mistral": "llama"}.get(family, family)
    assert said["general.architecture"] == architecture
    assert (said["general.type"], said["adapter.type"]) == ("adapter", "lora")
    assert (said["general.name"], said["general.file_type"]) == ("acme/law@1", gguf.LlamaFileType.ALL_F32)
    (arch,) = (arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    known = {gguf.TENSOR_NAMES[one] for one in gguf.MODEL_TENSORS[arch]}  # llama.cpp's own list
    names = FUSED if family == "gpt2" else PLAIN
    block = "transformer.h" if family == "gpt2" else "model.layers"
    assert len(found) == 2 * shape.num_layers * len(names)
    for layer in range(shape.num_layers):
        for module, theirs in names.items():
            assert f"blk.{{bid}}.{theirs}" in known
            path, name = f"{block}.{layer}.{module}", f"blk.{layer}.{theirs}"
            ours, added = update(config, tensors, path), llamas(said, found, name)
            assert found[f"{name}.weight.lora_a"].shape == (config.modules()[path].rank, shape.linears[path][0])
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
    tensors = {name: one.to(torch.bfloat16) for name, one in drawn(config, shape).items()}
    said, found = read(gguf_file(config, tensors, base_of(shape), name="a/b"), tmp_path)
    assert said["adapter.lora.alpha"] == pytest.approx(5.1)
    for n in range(2):
        for end, part in (("lora_a", "lora_A"), ("lora_b", "lora_B")):
            stored = tensors[f"base_model.model.transformer.h.{n}.attn.c_attn.{part}.weight"]
            assert torch.equal(found[f"blk.{n}.attn_qkv.weight.{end}"], stored.float())


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
        with pytest.raises(Incompatible) as refused:
            gguf_file(modules, drawn(modules, shape), base_of(shape), name="a/b")
        assert says in refused.value.message
    with pytest.raises(Incompatible, match="heads of one size"):
        gguf_file(on_layers(llama), {}, GgufBase("llama", layers=2, head=None), name="a/b")
