"""AdapterHub checkpoints for encoders, against the hidden states that the library `adapters` computed from them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel

from registry.adapters import attached, from_tensors
from registry.errors import Incompatible, InvalidWeights, UnknownMethod
from registry.formats.adapterhub import checkpoint_files, read_checkpoint
from registry.spec import BaseShape, BottleneckConfig
from tests.repository import REPOSITORY

FIXTURES = REPOSITORY / "tests" / "fixtures" / "adapterhub"
FAMILIES = ("bert", "distilbert", "roberta")
KINDS = [(family, path.name) for family in FAMILIES for path in sorted((FIXTURES / family).iterdir())
         if path.is_dir() and path.name != "base"]  # fmt: skip
CONFIGS = {
    "seq_bn": BottleneckConfig(structure="pfeiffer", bottleneck=4, activation="relu", input="residual"),
    "double_seq_bn": BottleneckConfig(structure="houlsby", bottleneck=4, activation="swish", trained_norms=False),
    "par_bn": BottleneckConfig(structure="parallel", bottleneck=4, activation="relu", scale=4.0),
    "seq_bn_module": BottleneckConfig(structure="pfeiffer", bottleneck=8, activation="gelu", scale=0.5),
    "ln_before": BottleneckConfig(structure="bapna_firat", bottleneck=4, activation="relu"),
    "ln_before_after": BottleneckConfig(structure="bapna_firat", bottleneck=4, activation="relu", input="residual"),
}


def shape_of(family: str) -> BaseShape:
    return BaseShape(
        fingerprint="sha256:" + "0" * 64, model_type=family, hidden_size=16, num_layers=2, context=32, vocab_size=40,
        kind="encoder",
    )  # fmt: skip


@pytest.fixture(scope="module")
def bases() -> dict[str, Any]:
    return {family: AutoModel.from_pretrained(FIXTURES / family / "base").eval() for family in FAMILIES}


def states(model: Any, tokens: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(torch.tensor(tokens)).last_hidden_state
    return found


def configured(tmp_path: Path, kind: str, **options: Any) -> Path:
    """BERT's checkpoint with other options."""
    folder = Path(shutil.copytree(FIXTURES / "bert" / kind, tmp_path / "checkpoint"))
    table = json.loads((folder / "adapter_config.json").read_text())
    table["config"] |= options
    (folder / "adapter_config.json").write_text(json.dumps(table))
    return folder


def test_every_kind_that_has_a_counterpart_is_there() -> None:
    assert {kind for family, kind in KINDS if family == "bert"} == set(CONFIGS)
    assert {(family, kind) for family in FAMILIES for kind in ("seq_bn", "double_seq_bn", "par_bn")} <= set(KINDS)


@pytest.mark.parametrize(("family", "kind"), KINDS)
def test_an_adapter_computes_what_the_library_computes(bases: dict[str, Any], family: str, kind: str) -> None:
    recorded = json.loads((FIXTURES / family / "logits.json").read_text())
    checkpoint = read_checkpoint(FIXTURES / family / kind)
    assert checkpoint.config == CONFIGS[kind]
    assert (checkpoint.model_type, checkpoint.left_out) == (family, ())
    own = states(bases[family], recorded["tokens"])
    torch.testing.assert_close(own, torch.tensor(recorded["logits"]["base"]), atol=1e-5, rtol=0)
    with attached(bases[family], from_tensors(checkpoint.config, shape_of(family), checkpoint.tensors)):
        found = states(bases[family], recorded["tokens"])
    torch.testing.assert_close(found, torch.tensor(recorded["logits"][kind]), atol=1e-5, rtol=0)
    assert (found - own).abs().max() > 0.01


@pytest.mark.parametrize("safetensors", [False, True])
@pytest.mark.parametrize(("family", "kind"), KINDS)
def test_there_and_back_is_the_same(tmp_path: Path, family: str, kind: str, safetensors: bool) -> None:
    checkpoint = read_checkpoint(FIXTURES / family / kind)
    files = checkpoint_files(
        checkpoint.config, checkpoint.tensors, name="again", model_type=family, safetensors=safetensors
    )
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    again = read_checkpoint(tmp_path)
    assert again.config == checkpoint.config
    assert again.tensors.keys() == checkpoint.tensors.keys()
    assert all(torch.equal(tensor, checkpoint.tensors[name]) for name, tensor in again.tensors.items())


def test_names_with_the_prefix_of_a_head_model_are_read(tmp_path: Path) -> None:
    """What is saved from BertForSequenceClassification has `bert.` in front."""
    folder = Path(shutil.copytree(FIXTURES / "bert" / "double_seq_bn", tmp_path / "checkpoint"))
    tensors = torch.load(folder / "pytorch_adapter.bin", weights_only=True)
    assert all(name.startswith("encoder.layer.") for name in tensors)
    torch.save({f"bert.{name}": tensor for name, tensor in tensors.items()}, folder / "pytorch_adapter.bin")
    again = read_checkpoint(folder)
    assert again.tensors.keys() == read_checkpoint(FIXTURES / "bert" / "double_seq_bn").tensors.keys()
    torch.save({f"other.{name}": tensor for name, tensor in tensors.items()}, folder / "pytorch_adapter.bin")
    with pytest.raises(InvalidWeights, match=r"named like bert\.encoder\.layer\.0\.output\.adapters\.double_seq_bn"):
        read_checkpoint(folder)


def test_the_written_names_are_the_librarys(tmp_path: Path) -> None:
    checkpoint = read_checkpoint(FIXTURES / "bert" / "double_seq_bn")
    files = checkpoint_files(checkpoint.config, checkpoint.tensors, name="double_seq_bn", model_type="bert")
    (tmp_path / "written.bin").write_bytes(files["pytorch_adapter.bin"])
    written = torch.load(tmp_path / "written.bin", weights_only=True)
    theirs = torch.load(FIXTURES / "bert" / "double_seq_bn" / "pytorch_adapter.bin", weights_only=True)
    assert set(written) == {f"bert.{name}" for name in theirs}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("seq_bn", {"original_ln_after": False, "residual_before_ln": False}),
        ("seq_bn", {"original_ln_after": False}),
        ("seq_bn", {"residual_before_ln": False}),
        ("seq_bn", {"residual_before_ln": "post_add"}),
        ("seq_bn", {"original_ln_before": False, "original_ln_after": False}),
        ("ln_before", {"original_ln_before": True}),
        ("double_seq_bn", {"original_ln_before": True}),
        ("par_bn", {"original_ln_after": False}),
    ],
)
def test_options_without_counterpart_are_refused_by_their_names(tmp_path: Path, kind: str, options: Any) -> None:
    with pytest.raises(UnknownMethod, match="|".join(options)):
        read_checkpoint(configured(tmp_path, kind, **options))


@pytest.mark.parametrize(
    ("config", "match"),
    [
        (BottleneckConfig(structure="houlsby", bottleneck=4, activation="gelu"), "trained LayerNorms"),
        (CONFIGS["par_bn"].model_copy(update={"input": "residual"}), "input 'module'"),
    ],
)
def test_what_the_library_cannot_express_is_not_written(config: BottleneckConfig, match: str) -> None:
    with pytest.raises(Incompatible, match=match):
        checkpoint_files(config, {}, name="x", model_type="bert")
