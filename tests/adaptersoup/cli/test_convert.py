"""`soup convert`: AdapterHub checkpoints to directories and back, and the way from a checkpoint to a served adapter."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from registry.adapters import expected_tensors
from registry.adapters.weights import load_tensors, save_tensors
from registry.formats import AdapterContents, read_directory, write_directory
from registry.formats.adapterhub import read_checkpoint
from registry.spec import BottleneckConfig, Card
from tests.adaptersoup.cli.outcome import done, refused
from tests.repository import REPOSITORY
from tests.service.servers import Soup

FIXTURES = REPOSITORY / "tests" / "fixtures" / "adapterhub"
DOMAIN = ("--domain", "US law")


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return set(a) == set(b) and all(torch.equal(a[name], b[name]) and a[name].dtype == b[name].dtype for name in a)


def left_in(folder: Path) -> list[str]:
    """What is in a folder, hidden files too."""
    return sorted(path.name for path in folder.iterdir())


# --- to ours --------------------------------------------------------------------------------------


def test_a_checkpoint_becomes_ours(command: Soup, tmp_path: Path) -> None:
    (tmp_path / "law.txt").write_text("One passage.\n\nAnother.")
    target = tmp_path / "adapters" / "law"
    code, out, err = command(
        "convert", FIXTURES / "gpt2/seq_bn", target, *DOMAIN, "--base", "small", "--sample", tmp_path / "law.txt"
    )
    assert (code, out) == (0, f"{target}\n")
    assert "head_config.json, pytorch_model_head.bin" in err
    assert "--base" not in err
    assert "--sample" not in err
    folder = read_directory(target)
    checkpoint = read_checkpoint(FIXTURES / "gpt2/seq_bn")
    assert (folder.config, folder.domain, folder.base_model) == (checkpoint.config, "US law", "small")
    assert same(load_tensors(folder.weights.read_bytes()), checkpoint.tensors)
    assert folder.sample is not None
    assert folder.sample.read_text().count('"text"') == 2
    assert folder.provenance.init_source == "unknown"
    assert folder.provenance.training["adapterhub"] == {
        "name": "seq_bn",
        "model_type": "gpt2",
        "model_name": "base",
        "version": "adapters.1.3.0",
    }


def test_what_is_missing_is_said(command: Soup, tmp_path: Path) -> None:
    _, err = done(command("convert", FIXTURES / "gpt2/par_bn", tmp_path / "a", *DOMAIN))
    assert "made for base" in err
    assert "--base" in err
    assert "--sample" in err
    assert "Left out" not in err
    assert read_directory(tmp_path / "a").base_model is None


def test_a_conversion_as_json(command: Soup, tmp_path: Path) -> None:
    out, _ = done(command("convert", FIXTURES / "llama/double_seq_bn", tmp_path / "a", *DOMAIN, "--json"))
    value = json.loads(out)
    assert value["path"] == str(tmp_path / "a")
    assert (value["config"]["structure"], value["config"]["trained_norms"]) == ("houlsby", False)
    assert len(value["notes"]) == 2


def test_the_card_comes_along(command: Soup, tmp_path: Path) -> None:
    source = shutil.copytree(FIXTURES / "gpt2/par_bn", tmp_path / "source")
    (source / "README.md").write_text(
        "---\nlicense: mit\ntags:\n- adapterhub:law/us\n- gpt2\ndatasets:\n- a/b\n---\n\n# Law\n\nWords.\n"
    )
    assert command("convert", source, tmp_path / "a", *DOMAIN)[0] == 0
    assert read_directory(tmp_path / "a").card == Card(license="mit", tags=("gpt2",), description="# Law\n\nWords.")
    (source / "README.md").write_bytes(b"\xff")
    assert command("convert", source, tmp_path / "b", *DOMAIN)[0] == 1


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ([], "--domain"),
        (["--domain", "x" * 201], "--domain"),
        (["--domain", ""], "--domain"),
        ([*DOMAIN, "--base", "b" * 65], "--base"),
        ([*DOMAIN, "--name", "a"], "--name"),
        ([*DOMAIN, "--family", "gpt2"], "--family"),
        ([*DOMAIN, "--safetensors"], "--safetensors"),
        ([*DOMAIN, "--to", "peft"], "--to"),
        ([*DOMAIN, "--family", "bert"], "--family"),
        (["--to", "adapterhub", *DOMAIN], "--domain"),
        (["--to", "adapterhub", "--base", "b"], "--base"),
        (["--to", "adapterhub", "--sample", "s.txt"], "--sample"),
    ],
)
def test_usage_errors(command: Soup, tmp_path: Path, options: list[str], named: str) -> None:
    assert named in refused(command("convert", FIXTURES / "gpt2/seq_bn", tmp_path / "a", *options), 2)
    assert not (tmp_path / "a").exists()


# --- places ---------------------------------------------------------------------------------------


def test_a_target_that_is_there(command: Soup, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "mine.txt").write_text("kept")
    ours = ("convert", FIXTURES / "gpt2/par_bn", tmp_path / "a", *DOMAIN)
    back = ("convert", tmp_path / "a", tmp_path / "b", "--to", "adapterhub")
    assert "--replace" in refused(command(*ours))
    assert "is not replaced" in refused(command(*ours, "--replace"))
    assert left_in(tmp_path / "a") == ["mine.txt"]
    (tmp_path / "a" / "mine.txt").unlink()
    done(command(*ours))
    done(command(*back))
    refused(command(*back))
    done(command(*back, "--replace"))
    assert left_in(tmp_path) == ["a", "b"]


@pytest.mark.parametrize("target", [".", "..", "inside", "../source"])
def test_the_source_is_never_replaced(command: Soup, tmp_path: Path, target: str) -> None:
    source = shutil.copytree(FIXTURES / "gpt2/par_bn", tmp_path / "source")
    before = {path.name: path.read_bytes() for path in source.iterdir()}
    assert "is inside the other" in refused(command("convert", source, source / target, *DOMAIN, "--replace"))
    assert {path.name: path.read_bytes() for path in source.iterdir()} == before


def test_a_source_that_is_none(command: Soup, tmp_path: Path) -> None:
    assert command("convert", tmp_path / "none", tmp_path / "a", *DOMAIN)[0] == 1
    assert command("convert", FIXTURES / "gpt2/par_bn/adapter_config.json", tmp_path / "a", *DOMAIN)[0] == 1
    (tmp_path / "empty").mkdir()
    assert "pytorch_adapter.bin" in refused(command("convert", tmp_path / "empty", tmp_path / "a", *DOMAIN))
    assert command("convert", tmp_path / "empty", tmp_path / "a", "--to", "adapterhub")[0] == 1


# --- to adapter hub -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "kind", "options"), [("gpt2", "seq_bn", []), ("llama", "double_seq_bn", ["--safetensors"])]
)
def test_there_and_back(command: Soup, tmp_path: Path, family: str, kind: str, options: list[str]) -> None:
    source = FIXTURES / family / kind
    assert command("convert", source, tmp_path / "ours", *DOMAIN)[0] == 0
    code, out, err = command("convert", tmp_path / "ours", tmp_path / "back", "--to", "adapterhub", *options)
    assert (code, out) == (0, f"{tmp_path / 'back'}\n")
    assert "'US law'" in err
    assert ("use_safetensors=True" in err) == bool(options)
    weights = "adapter.safetensors" if options else "pytorch_adapter.bin"
    assert left_in(tmp_path / "back") == sorted(["adapter_config.json", weights])
    before, after = read_checkpoint(source), read_checkpoint(tmp_path / "back")
    assert (after.config, after.name, after.model_type, after.model_name) == (
        before.config,
        before.name,
        before.model_type,
        before.model_name,
    )
    assert same(after.tensors, before.tensors)


def ours(folder: Path, config: BottleneckConfig) -> Path:
    """A directory of ours that no checkpoint stands behind."""
    tensors = {name: torch.ones(shape) for name, shape in expected_tensors(config, _shape(hidden_size=16)).items()}
    write_directory(folder, AdapterContents(config=config, domain="law", weights=save_tensors(tensors)))
    return folder


def test_one_of_ours_needs_the_family(command: Soup, tmp_path: Path) -> None:
    source = ours(tmp_path / "a", BottleneckConfig(structure="pfeiffer", bottleneck=3, activation="gelu"))
    assert "--family" in refused(command("convert", source, tmp_path / "my law.v2", "--to", "adapterhub"), 2)
    out, _ = done(
        command("convert", source, tmp_path / "my law.v2", "--to", "adapterhub", "--family", "mistral", "--json")
    )
    assert json.loads(out)["name"] == "my_law_v2"
    found = read_checkpoint(tmp_path / "my law.v2")
    assert (found.name, found.model_type, found.model_name) == ("my_law_v2", "mistral", None)
    done(command("convert", source, tmp_path / "b", "--to", "adapterhub", "--family", "gpt2", "--name", "law"))
    assert read_checkpoint(tmp_path / "b").name == "law"


def test_what_it_cannot_express_is_incompatible(command: Soup, tmp_path: Path) -> None:
    source = ours(tmp_path / "a", BottleneckConfig(structure="houlsby", bottleneck=3, activation="gelu"))
    assert "LayerNorms" in refused(
        command("convert", source, tmp_path / "b", "--to", "adapterhub", "--family", "gpt2"), 3
    )
    assert left_in(tmp_path) == ["a"]


def test_a_peft_folder_is_converted(command: Soup, tmp_path: Path) -> None:
    source = tmp_path / "lora"
    source.mkdir()
    prefix = "base_model.model.transformer.h.0.attn.c_attn"
    tensors = {f"{prefix}.lora_A.weight": torch.ones(2, 16), f"{prefix}.lora_B.weight": torch.ones(48, 2)}
    (source / "adapter_model.safetensors").write_bytes(save_tensors(tensors))
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["c_attn"]}
    (source / "adapter_config.json").write_text(json.dumps(config))
    assert "'lora'" in refused(command("convert", source, tmp_path / "b", "--to", "adapterhub", "--family", "gpt2"))
    assert "is an adapter directory already" in refused(command("convert", source, tmp_path / "b", *DOMAIN))


def test_a_checkpoint_to_a_checkpoint(command: Soup, tmp_path: Path) -> None:
    assert "--to soup" in refused(command("convert", FIXTURES / "gpt2/par_bn", tmp_path / "a", "--to", "adapterhub"))


def _shape(*, hidden_size: int) -> Any:
    from registry.spec import BaseShape

    return BaseShape(
        fingerprint="sha256:" + "0" * 64,
        model_type="gpt2",
        hidden_size=hidden_size,
        num_layers=2,
        context=64,
        vocab_size=300,
    )


def test_it_does_not_load_torch_for_usage_errors(
    command: Soup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "registry.formats.adapterhub", None)  # importing it would fail
    assert command("convert", FIXTURES / "gpt2/par_bn", tmp_path / "a", *DOMAIN, "--name", "x")[0] == 2
