"""PEFT directories, with the real `peft`: the same logits both ways, whatever family and option."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from torch import Tensor, nn

from registry.adapters import attached, from_tensors
from registry.adapters.weights import adapter_digest, check_weights, load_tensors
from registry.base_model import load_base
from registry.base_model.loading import LoadedBase
from registry.errors import InvalidManifest, InvalidWeights, NotFound, UnknownMethod
from registry.formats import (
    CONFIG_FILE,
    EMBEDDINGS_FILE,
    SOUP_FILE,
    WEIGHTS_FILE,
    AdapterContents,
    AdapterDirectory,
    read_directory,
    write_directory,
)
from registry.spec import BaseEntry, Card, Provenance
from tests.tiny_models import CAUSAL, build_tiny_base

IDS = torch.arange(1, 13).reshape(2, 6)
SHORT = {"gpt2": ["c_attn", "c_fc"], "gpt_neox": ["query_key_value", "dense_4h_to_h"], "opt": ["q_proj", "fc1"]}
BLOCKS = {"gpt2": "h", "gpt_neox": "layers", "opt": "layers"}
HEX = "sha256:" + "a" * 64


ON_BASES = CAUSAL


def loaded(model_type: str, folder: Path) -> LoadedBase:
    return load_base(BaseEntry(id="tiny", source=str(build_tiny_base(folder / "base", model_type=model_type))))


def fresh(base: LoadedBase) -> Any:
    """Another copy of the base model, for `peft` to work on."""
    return copy.deepcopy(base.model)


@dataclass
class Trained:
    """A PEFT directory, and the logits `peft` has with it."""

    folder: Path
    logits: Tensor


def logits_of(model: Any) -> Tensor:
    with torch.inference_mode():
        found: Tensor = model(input_ids=IDS).logits
    return found


def trained(base: LoadedBase, folder: Path, *, dtype: torch.dtype = torch.float32, **options: Any) -> Trained:
    """What `peft` writes for a LoRA whose B is not zero."""
    model_type = base.shape.model_type
    options = {"target_modules": SHORT.get(model_type, ["q_proj", "down_proj"]), "r": 3, "lora_alpha": 5, **options}
    config = peft.LoraConfig(task_type="CAUSAL_LM", fan_in_fan_out=model_type == "gpt2", **options)
    model = peft.get_peft_model(fresh(base), config)
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = (torch.randn(parameter.shape, generator=generator) * 0.3).to(dtype)
    model.save_pretrained(str(folder))
    return Trained(folder, of_peft(base, folder))  # as loaded: saving sorts patterns, and the first that matches counts


def ours(base: LoadedBase, folder: AdapterDirectory) -> Tensor:
    with attached(base.model, from_tensors(folder.config, base.shape, load_tensors(folder.weights.read_bytes()))):
        return logits_of(base.model)


def of_peft(base: LoadedBase, folder: Path) -> Tensor:
    model = peft.PeftModel.from_pretrained(fresh(base), folder, autocast_adapter_dtype=True)
    return logits_of(model.eval())


def digest(base: LoadedBase, folder: AdapterDirectory) -> str:
    data = folder.weights.read_bytes()
    check_weights(data, folder.config, base.shape, max_bytes=10**9)
    return adapter_digest(base.shape.fingerprint, folder.config, load_tensors(data))


def options_of(base: LoadedBase) -> dict[str, dict[str, Any]]:
    """Every way to say which modules, ranks and alphas there are."""
    model_type = base.shape.model_type
    first, second = SHORT.get(model_type, ["q_proj", "down_proj"])
    block = BLOCKS.get(model_type, "layers")
    return {
        "plain": {},
        "rslora": {"use_rslora": True, "r": 5},
        "patterns": {
            "rank_pattern": {first: 2, rf"{block}\.1\..*{second}": 4},
            "alpha_pattern": {rf"{block}\.[1-9]\..*": 7, first: 2},
        },
        "regex": {"target_modules": rf".*{block}\.1\..*({first}|{second})"},
        "layers": {"layers_to_transform": [1], "layers_pattern": block},
        "one layer": {"layers_to_transform": 0},
        "all-linear": {"target_modules": "all-linear", "r": 2},
        "exclude": {"exclude_modules": rf".*\.0\..*{second}"},
    }


def same(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-5)  # PEFT adds W x and s B A x in another order


OPTIONS = ["plain", "rslora", "patterns", "regex", "layers", "one layer", "all-linear", "exclude"]
pytestmark = pytest.mark.filterwarnings(
    "ignore::UserWarning:peft", "ignore:.*is_gradient_checkpointing.*:FutureWarning"
)


@pytest.mark.parametrize("option", OPTIONS)
def test_the_logits_are_pefts_there_and_back(base: LoadedBase, tmp_path: Path, option: str) -> None:
    written = trained(base, tmp_path / "peft", **options_of(base)[option])
    folder = read_directory(written.folder)
    assert (written.logits - logits_of(base.model)).abs().max() > 1e-3
    same(ours(base, folder), written.logits)

    again = write_directory(
        tmp_path / "ours",
        AdapterContents(
            config=folder.config,
            domain="law",
            weights=folder.weights.read_bytes(),
            base_model="tiny",
            base_fingerprint=base.shape.fingerprint,
            shape=base.shape,
        ),
    )
    assert digest(base, again) == digest(base, folder)
    same(of_peft(base, again.path), written.logits)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_files(gpt2: LoadedBase, tmp_path: Path, dtype: torch.dtype) -> None:
    written = trained(gpt2, tmp_path / "peft", dtype=dtype)
    folder = read_directory(written.folder)
    assert {str(t.dtype) for t in load_tensors(folder.weights.read_bytes()).values()} == {str(dtype)}
    same(ours(gpt2, folder), written.logits)
    same(of_peft(gpt2, written.folder), written.logits)


def test_a_head_of_its_own_may_have_a_lora(tmp_path: Path) -> None:
    base = load_base(BaseEntry(id="tiny", source=str(build_tiny_base(tmp_path / "b", model_type="gpt_neox"))))
    written = trained(base, tmp_path / "peft", target_modules=["embed_out", "dense"])
    same(ours(base, read_directory(written.folder)), written.logits)


@pytest.fixture(scope="module")
def plain(gpt2: LoadedBase, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(gpt2, tmp_path_factory.mktemp("plain") / "peft").folder


class TestTheDirectory:
    @pytest.fixture
    def folder(self, plain: Path, tmp_path: Path) -> Path:
        copy = tmp_path / "peft"
        copy.mkdir()
        for file in plain.iterdir():
            (copy / file.name).write_bytes(file.read_bytes())
        return copy

    def test_as_it_lies_on_disk_it_names_its_base_and_no_domain(self, folder: Path, gpt2: LoadedBase) -> None:
        read = read_directory(folder)
        assert (read.domain, read.base_model, read.recorded_base) == (None, None, gpt2.entry.source)
        assert read.card == Card(tags=("lora", "transformers"))  # peft's unfilled card has no text

    def test_soup_json_says_what_pefts_file_cannot(self, folder: Path) -> None:
        notes = {"domain": "law", "base_model": "small", "provenance": {"init_hash": HEX, "init_source": "declared"}}
        (folder / SOUP_FILE).write_text(json.dumps(notes))
        read = read_directory(folder)
        assert (read.domain, read.base_model, read.provenance.init_hash) == ("law", "small", HEX)

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ('{"domain": "law", "config": {}}', "config"),
            ("[]", "soup.json"),
            ("{", "broken"),
            ('{"domain": ""}', "domain"),
        ],
    )
    def test_a_soup_json_that_is_not_right(self, folder: Path, text: str, says: str) -> None:
        (folder / SOUP_FILE).write_text(text)
        with pytest.raises(InvalidManifest, match=says):
            read_directory(folder)

    def test_pickled_weights_are_refused_with_what_to_do(self, folder: Path) -> None:
        (folder / WEIGHTS_FILE).rename(folder / "adapter_model.bin")
        with pytest.raises(NotFound, match=r"adapter_model\.bin is a pickle: load it with peft .*safe_serialization"):
            read_directory(folder)

    def test_broken_weights_are_named_with_their_directory(self, folder: Path) -> None:
        for data in (b"", b"\x80\x04pickle", (folder / WEIGHTS_FILE).read_bytes()[:-1]):
            (folder / WEIGHTS_FILE).write_bytes(data)
            with pytest.raises(InvalidWeights, match="peft: The weights cannot be taken"):
                read_directory(folder)

    def test_embeddings_need_soup_json(self, folder: Path) -> None:
        (folder / EMBEDDINGS_FILE).write_bytes(b"x")
        with pytest.raises(InvalidManifest, match=r"soup\.json does not say what made"):
            read_directory(folder)
        (folder / SOUP_FILE).write_text(json.dumps({"embeddings": {"encoder": HEX, "unit": "sentence"}}))
        assert read_directory(folder).embeddings is not None

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            (lambda c: c | {"r": 16}, r"rank 3 in the weights and 16 in the configuration \(3 more problems\)"),
            (lambda c: c | {"target_modules": ["c_fc"]}, "does not target"),
            (lambda c: c | {"peft_type": 3}, "peft_type '3' is not supported"),
        ],
    )
    def test_what_does_not_agree(
        self, folder: Path, change: Callable[[dict[str, Any]], dict[str, Any]], says: str
    ) -> None:
        file = folder / CONFIG_FILE
        file.write_text(json.dumps(change(json.loads(file.read_text()))))
        with pytest.raises((InvalidManifest, UnknownMethod), match=says):
            read_directory(folder)

    def test_what_peft_writes_for_what_we_cannot_compute(self, gpt2: LoadedBase, tmp_path: Path) -> None:
        dora = trained(gpt2, tmp_path / "dora", use_dora=True, bias="lora_only")
        with pytest.raises(UnknownMethod) as found:
            read_directory(dora.folder)
        for word in ("use_dora", "bias 'lora_only'", "lora_magnitude_vector"):
            assert any(word in problem for problem in found.value.problems), found.value.problems

    def test_writing_keeps_what_is_known(self, folder: Path, tmp_path: Path) -> None:
        read = read_directory(folder)
        provenance = Provenance(init_hash=HEX, init_source="declared", training={"lr": 0.1})
        again = write_directory(
            tmp_path / "again",
            AdapterContents(
                config=read.config,
                domain="law",
                weights=read.weights.read_bytes(),
                base_model="small",
                provenance=provenance,
                texts=["one"],
                card=Card(description="Words", tags=("a",)),
            ),
        )
        assert (again.config, again.provenance, again.domain) == (read.config, provenance, "law")
        assert (again.card.description, again.card.tags) == ("Words", ("a",))
        assert json.loads((again.path / CONFIG_FILE).read_text())["base_model_name_or_path"] == "small"
        assert "config" not in json.loads((again.path / SOUP_FILE).read_text())


def test_our_modules_have_pefts_names(gpt2: LoadedBase, tmp_path: Path) -> None:
    folder = read_directory(trained(gpt2, tmp_path / "peft", target_modules="all-linear").folder)
    module = from_tensors(folder.config, gpt2.shape, load_tensors(folder.weights.read_bytes()))
    assert isinstance(module, nn.Module)
    assert set(module.state_dict()) == set(load_tensors(folder.weights.read_bytes()))
