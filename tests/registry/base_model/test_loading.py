"""Allowlist, loading, fingerprint, chat templates and refusals of base models, on tiny models and without a network."""

from __future__ import annotations

import copy
import importlib
import json
import math
import os
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx2
import pytest
import torch
from huggingface_hub.errors import RevisionNotFoundError
from huggingface_hub.utils import filter_repo_objects
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import GPT2LMHeadModel
from transformers.utils import logging

from registry.base_model import load_base, load_text, position_bytes, read_allowlist, shape_of
from registry.base_model.chat_template import render, template_of
from registry.base_model.fingerprint import fingerprint
from registry.base_model.likelihood import hidden_states, lm_logits
from registry.errors import InvalidParameter, Unavailable
from registry.spec import BaseEntry
from tests.tiny_models import build_tiny_base, build_tiny_encoder, with_special

COMMIT = "1" * 40


@pytest.fixture
def folder(tiny_base_dir, tmp_path):
    """A copy that a test may change."""
    return shutil.copytree(tiny_base_dir, tmp_path / "base")


def entry(folder, **fields):
    return BaseEntry(id="tiny", source=str(folder), **fields)


def allowlist(tmp_path, text):
    path = tmp_path / "bases.toml"
    path.write_text(text)
    return path


# loading beside a text side that is in memory


def test_a_text_side_is_taken_as_long_as_the_files_are_those_it_was_read_from(folder):
    text = load_text(entry(folder))
    assert load_base(entry(folder), text=text).tokenizer is text.tokenizer
    tensors = load_file(folder / "model.safetensors")
    tensors["transformer.ln_f.weight"] += 1
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(Unavailable, match=r"'tiny' was replaced after it was first read .*: restart the server"):
        load_base(entry(folder), text=text)
    assert load_base(entry(folder)).shape.fingerprint != text.shape.fingerprint


def test_a_bos_is_not_taken_for_padding(tmp_path):
    base = load_base(entry(build_tiny_base(tmp_path / "base", pad_token_id=0)))
    handler = Mock(level=logging.WARNING)
    logging.add_handler(handler)
    try:
        base.model(input_ids=torch.tensor([[0, 1, 2]]), use_cache=False)
    finally:
        logging.remove_handler(handler)
    assert not handler.handle.called


# allowlist


def test_sources_are_relative_to_the_file(folder, tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    path = allowlist(
        tmp_path,
        '[bases.tiny]\nsource = "base"\n[bases.half]\nsource = "./base"\ndtype = "bfloat16"\nbos = false\n'
        'kind = "encoder"\n'
        f'[bases.absolute]\nsource = "{folder}"\n[bases.hub]\nsource = "openai-community/gpt2"\nrevision = "607a30d"\n',
    )
    entries = read_allowlist(path)
    assert list(entries) == ["tiny", "half", "absolute", "hub"]
    assert {entries[name].source for name in ("tiny", "half", "absolute")} == {str(folder.resolve())}
    half = entries["half"]
    assert (half.dtype, half.bos, half.id, half.kind) == ("bfloat16", False, "half", "encoder")
    assert entries["tiny"].kind == "causal"
    assert (entries["hub"].source, entries["hub"].revision) == ("openai-community/gpt2", "607a30d")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("[bases.a", "cannot be read"),
        ("", "one or more tables"),
        ("[base.a]\nsource='x'", r"\[bases.<id>\]"),
        ("[bases.a]\nsource='base'\n[other]", "one or more tables"),
        ("[bases.a]\nsource='base'\n[bases.a]\nsource='base'", "cannot be read"),
        ("bases = 3", "one or more tables"),
        ("[bases]\na = 3", "a: it is not a table"),
        ("[bases.a]\nrevision='main'", "a: source: Field required"),
        ("[bases.A]\nsource='base'", "A: id"),
        ("[bases.a]\nsource='base'\ndtype='int8'", "a: dtype"),
        ("[bases.a]\nsource='base'\nkind='decoder'", "a: kind"),
        (
            "[bases.a]\nsource='base'\ndevice='gpu'",
            "a: device 'gpu' is not a device of torch: Expected one of cpu, cuda",
        ),
        ("[bases.a]\nsource='base'\ndevice=''", "a: device '' is not a device of torch"),
        ("[bases.a]\nsource='base'\ndevice='cuda:300'", "a: device 'cuda:300' cannot hold a base model"),
        ("[bases.a]\nsource='base'\ndevice='meta'", "a: device 'meta' cannot hold a base model"),
        ("[bases.a]\nsource='base'\nquantization='int8'", "a: 'quantization' was removed: use dtype = \"bfloat16\""),
        ("[bases.a]\nsource='base'\ntrust_remote_code=true", "a: trust_remote_code"),
        ("[bases.a]\nsource='./nowhere'", "is not a folder"),
        ("[bases.a]\nsource='/nowhere/at/all'", "is not a folder"),
        ("[bases.a]\nsource='~nosuchuser/x'", r"source '~nosuchuser/x' is not a folder \(Could not determine home"),
        ("[bases.a]\nsource='openai-community/gpt2'", "pinned 'revision'"),
    ],
)
def test_bad_allowlists(folder, tmp_path, text, match):
    with pytest.raises(InvalidParameter, match=match):
        read_allowlist(allowlist(tmp_path, text))


def test_all_problems_of_an_allowlist_at_once(folder, tmp_path):
    with pytest.raises(InvalidParameter) as caught:
        read_allowlist(allowlist(tmp_path, "[bases.a]\nsource='./x'\n[bases.b]\nsource='base'\ndtype='x'\n[bases.c]\n"))
    assert [problem.split(":")[0] for problem in caught.value.problems] == ["a", "b", "c"]
    with pytest.raises(InvalidParameter, match="cannot be read"):
        read_allowlist(tmp_path / "none.toml")


# loading


def test_loaded_base_is_frozen_and_described(folder):
    base = load_base(entry(folder))
    assert not base.model.training
    assert not any(p.requires_grad for p in base.model.parameters())
    assert base.model.dtype == torch.float32
    assert (base.bos_id, base.eos_id) == (0, 0)
    shape = base.shape
    assert (shape.model_type, shape.hidden_size, shape.num_layers) == ("gpt2", 32, 2)
    assert (shape.context, shape.vocab_size, shape.fingerprint) == (64, 300, fingerprint(folder))
    assert shape_of(entry(folder)) == shape


def test_a_configuration_that_changes_has_another_shape_and_a_copy_elsewhere_the_same(folder, tmp_path):
    shape_of(entry(folder)).linears.clear()  # nobody else's
    copy = shape_of(entry(shutil.copytree(folder, tmp_path / "copy")))
    assert len(copy.linears) > 1
    change_config(folder, n_head=4, n_layer=3)
    changed = shape_of(entry(folder))
    assert (copy.kv, changed.kv) == ((2, 16), (4, 8))
    assert len(changed.linears) > len(copy.linears)
    assert changed.fingerprint != copy.fingerprint


def test_dtype_changes_the_model_and_not_the_fingerprint(folder, capfd):
    bar_enabled = logging.is_progress_bar_enabled()
    base = load_base(entry(folder, dtype="bfloat16"))
    assert base.model.dtype == torch.bfloat16
    assert base.shape.fingerprint == fingerprint(folder)
    assert (logging.is_progress_bar_enabled(), capfd.readouterr().err) == (bar_enabled, "")  # no progress bars


def test_tokenize_puts_bos_in_front_as_the_entry_says(folder):
    base, bare = load_base(entry(folder)), load_base(entry(folder, bos=False))
    text = "The quick brown fox: été \N{SNOWMAN}\n\n"
    ids = base.tokenize(text, bos=False)
    assert base.tokenizer.decode(ids) == text
    assert base.tokenize(text) == base.tokenize(text, bos=True) == bare.tokenize(text, bos=True) == [0, *ids]
    assert bare.tokenize(text) == ids
    assert (base.tokenize(""), bare.tokenize("")) == ([0], [])
    assert len(base.tokenize("word " * 500)) > 500  # never truncated to the context


def test_truncation_saved_in_the_tokenizer_does_not_cut_texts(folder):
    truncation = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    change_config(folder, "tokenizer.json", truncation=truncation)
    base = load_base(entry(folder))
    assert len(base.tokenize("word " * 50)) > 50
    with pytest.raises(InvalidParameter, match="valid Unicode at character 2"):
        base.tokenize("ab\ud800c")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_missing_files_are_named_and_pickled_weights_are_not_loaded(folder, name):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / name).unlink()
    for act in (load_base, shape_of):
        with pytest.raises(Unavailable, match=name):
            act(entry(folder))


@pytest.mark.parametrize(
    ("file", "damage", "sentence"),
    [
        ("config.json", lambda _: b"{", None),
        ("config.json", lambda _: b"[1]", None),
        ("config.json", lambda _: b"[" * 3000 + b"]" * 3000, None),
        ("config.json", lambda _: b'{"model_type": "no-such-family"}', None),
        (
            "config.json",
            lambda data: data.replace(b"{", rb'{"x": "\ud800",', 1),
            "config.json has no fingerprint: .*utf-8",
        ),
        ("model.safetensors", lambda data: data[:-10], "clean safetensors"),
        ("generation_config.json", lambda _: b"{", "cannot be loaded from .*Expecting"),
        ("generation_config.json", lambda _: b"[7]", "cannot be loaded from .*generation_config.json holds a list"),
        ("tokenizer.json", lambda _: b"[7]", "'tiny' cannot be loaded from .*: 'str' object"),
        ("tokenizer.json", lambda data: data.replace(b'"BPE"', b'"bpe"'), "'tiny' cannot be loaded from .*: data did"),
        ("tokenizer_config.json", lambda _: b'{"bos_token": 5}', "'tiny' cannot be loaded from .*: .*bos_token"),
        ("tokenizer_config.json", lambda _: b"[7]", "'tiny' cannot be loaded from .*: 'list' object"),
    ],
)
def test_damaged_files(folder, file, damage, sentence):
    path = folder / file
    path.write_bytes(damage(path.read_bytes() if path.exists() else b""))
    with pytest.raises(Unavailable, match=sentence):
        load_base(entry(folder))


def test_a_device_that_does_not_work_is_named(folder, monkeypatch):
    no_gpu = AssertionError("Torch not compiled with CUDA enabled")
    monkeypatch.setattr(GPT2LMHeadModel, "to", Mock(side_effect=no_gpu))
    with pytest.raises(Unavailable, match=r"'tiny' cannot be loaded from .*: Torch not compiled with CUDA enabled"):
        load_base(entry(folder, device="cuda"))


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"source": "/nowhere/none"}, "is gone"),
        ({"source": "nobody/nothing-here", "revision": "0" * 40}, "not in the local cache"),
        ({"source": "nobody/nothing-here"}, "no revision is pinned"),
    ],
)
def test_folder_that_is_gone_and_hub_without_network(fields, sentence):
    with pytest.raises(Unavailable, match=sentence):
        load_base(BaseEntry(id="x", **fields))


def test_pinned_hub_revision_is_loaded_from_the_cache(folder, tmp_path, monkeypatch):
    shutil.copytree(folder, tmp_path / "hub" / "models--someone--tiny" / "snapshots" / COMMIT)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    base = load_base(BaseEntry(id="tiny", source="someone/tiny", revision=COMMIT))
    assert base.shape.fingerprint == fingerprint(folder)


def test_a_hub_repository_is_fetched_at_its_pinned_revision_and_only_what_is_needed(folder, tmp_path, monkeypatch):
    needed = sorted(file.name for file in folder.iterdir())
    (folder / "onnx").mkdir()
    for name in ("onnx/config.json", "consolidated.safetensors", "pytorch_model.bin", "modeling_tiny.py"):
        (folder / name).write_bytes(b"not for us")

    def download(repository, *, revision, **patterns):
        assert (repository, revision) == ("someone/tiny", COMMIT)
        names = [str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()]
        fetched = sorted(filter_repo_objects(names, **patterns))
        assert fetched == needed
        return shutil.copytree(folder, tmp_path / "snapshot", ignore=lambda _, names: set(names) - set(fetched))

    monkeypatch.setattr("registry.base_model.loading.snapshot_download", download)
    assert shape_of(BaseEntry(id="tiny", source="someone/tiny", revision=COMMIT)).fingerprint == fingerprint(folder)


@pytest.mark.parametrize(
    "error",
    [
        httpx2.ProxyError("403 Forbidden"),
        RevisionNotFoundError("404", response=httpx2.Response(404, request=httpx2.Request("GET", "http://hub"))),
    ],
)
def test_a_hub_that_cannot_be_reached_or_lacks_the_revision(monkeypatch, error):
    monkeypatch.setattr("registry.base_model.loading.snapshot_download", Mock(side_effect=error))
    with pytest.raises(Unavailable, match=rf"cannot be fetched \({type(error).__name__}\)"):
        load_base(BaseEntry(id="tiny", source="someone/tiny", revision=COMMIT))


# fingerprint


def change_config(folder, file="config.json", **changes):
    (folder / file).write_text(json.dumps(json.loads((folder / file).read_text()) | changes, indent=7))


def test_fingerprint_ignores_where_and_by_what_it_was_saved(folder):
    original = fingerprint(folder)
    change_config(folder, transformers_version="9.9", _name_or_path="/elsewhere")
    weights = load_file(folder / "model.safetensors")
    save_file(dict(reversed(weights.items())), folder / "model.safetensors", metadata={"format": "pt", "by": "us"})
    assert fingerprint(folder) == original


@pytest.mark.parametrize("text", ["[1]", "[" * 3000 + "]" * 3000], ids=["a list", "nested"])
def test_a_configuration_that_is_no_object_has_no_fingerprint(folder, text):
    (folder / "config.json").write_text(text)
    with pytest.raises(Unavailable, match=r"config\.json has no fingerprint"):
        fingerprint(folder)


def test_an_adapter_beside_the_weights_is_ignored_or_refused(folder, monkeypatch):
    bare = load_base(entry(folder)).model
    config = LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True, init_lora_weights=False)
    get_peft_model(copy.deepcopy(bare), config).save_pretrained(folder)
    loaded = load_base(entry(folder)).model
    assert loaded.state_dict().keys() == bare.state_dict().keys()
    older_search = Mock(return_value=(str(folder), folder, {}))  # of a version that ignores the subfolder
    monkeypatch.setattr("transformers.modeling_utils.maybe_load_adapters", older_search)
    with pytest.raises(Unavailable, match=r"'tiny'.* applies the adapter of adapter_config\.json in"):
        load_base(entry(folder))


def test_fingerprint_of_a_sharded_model_is_the_same(folder):
    original = fingerprint(folder)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, tensor_names in shards.items():
        save_file({name: weights[name] for name in tensor_names}, folder / file, metadata={"format": "pt"})
    index = {
        "metadata": {},
        "weight_map": {name: file for file, tensor_names in shards.items() for name in tensor_names},
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert fingerprint(folder) == original
    assert load_base(entry(folder)).shape.fingerprint == original
    (folder / "b.safetensors").unlink()
    with pytest.raises(Unavailable, match=r"b\.safetensors"):
        fingerprint(folder)


def test_an_index_beside_the_whole_weights_is_ignored(folder):
    original = fingerprint(folder)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"lm_head.weight": "old.safetensors"}}')
    assert load_base(entry(folder)).shape.fingerprint == original


def test_fingerprint_changes_with_anything_that_matters(folder):
    weights = load_file(folder / "model.safetensors")
    weights["transformer.h.1.mlp.c_fc.bias"][0] += 1e-6
    changes = [
        lambda: None,
        lambda: save_file(weights, folder / "model.safetensors", metadata={"format": "pt"}),
        lambda: save_file({n: t.bfloat16() for n, t in weights.items()}, folder / "model.safetensors"),
        lambda: change_config(folder, n_head=4),
        lambda: change_config(folder, limit=[0.0, math.inf]),
        lambda: (folder / "tokenizer.json").write_text((folder / "tokenizer.json").read_text() + "\n"),
    ]
    assert len({(change(), fingerprint(folder))[1] for change in changes}) == len(changes)


def test_cache_is_used_until_size_or_time_of_a_file_changes(folder, tmp_path, monkeypatch):
    module, cache = importlib.import_module("registry.base_model.fingerprint"), tmp_path / "cache" / "deep"
    computed = Mock(wraps=module._compute)
    monkeypatch.setattr(module, "_compute", computed)
    first = fingerprint(folder, cache_dir=cache)
    shape = shape_of(entry(folder), cache)
    assert load_base(entry(folder), cache_dir=cache).shape == shape
    assert (fingerprint(folder, cache_dir=cache), computed.call_count) == (first, 1)
    assert (fingerprint(folder), computed.call_count) == (first, 2)  # without a cache it is computed
    os.utime(folder / "model.safetensors", ns=(1, 1))
    assert (fingerprint(folder, cache_dir=cache), computed.call_count) == (first, 3)
    change_config(folder, n_head=4)
    assert fingerprint(folder, cache_dir=cache) != first
    assert computed.call_count == 4
    assert not list(cache.glob("*.tmp"))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"digest": "sha256:0"}'])
def test_a_damaged_cache_is_no_cache(folder, tmp_path, content):
    first = fingerprint(folder, cache_dir=tmp_path / "cache")
    (file,) = (tmp_path / "cache").iterdir()
    file.write_bytes(content)
    assert fingerprint(folder, cache_dir=tmp_path / "cache") == first


def test_a_cache_that_cannot_be_written_costs_time_only(folder, tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert fingerprint(folder, cache_dir=tmp_path / "cache") == fingerprint(folder)


# what cannot be a base model is refused by name: by its configuration, by its files, or on its first tokens


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}, "T5ForConditionalGeneration.*encoder"),
        ({"model_type": "t5"}, "family 't5', an encoder-decoder"),
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "BertForMaskedLM.*needs kind = 'encoder'"),
        ({"model_type": "bert", "architectures": ["BertModel"]}, "BertModel.*it needs kind = 'encoder'"),  # as SBERT's
        ({"model_type": "gpt2", "architectures": ["GPT2ForSequenceClassification"]}, "GPT2ForSequenceClassification"),
        ({"model_type": "vit"}, "family 'vit', and not a causal"),
        ({"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"]}, "takes more than text"),
        ({"model_type": "bloom"}, "'bloom'.*has no number 'max_position_embeddings'"),
        ({"model_type": "mamba"}, "'mamba'.*has no number 'max_position_embeddings'"),
        (
            {"model_type": "opt", "do_layer_norm_before": False, "word_embed_proj_dim": 512},
            r"norms come after.*\(1 more problem\)|norms come after.*embeddings are projected",
        ),
        ({"model_type": "opt", "do_layer_norm_before": False}, "norms come after"),
        ({"model_type": "opt", "word_embed_proj_dim": 512}, "embeddings are projected"),
        ({"model_type": "gpt2", "quantization_config": {"quant_method": "bitsandbytes"}}, "quantised"),
        ({"model_type": "gpt2", "transformers_weights": "a.safetensors"}, "weights are in 'a.safetensors'"),
        ({"model_type": "gpt2", "n_embd": "many"}, "cannot be used"),
        ({"model_type": "gpt2", "n_embd": 33, "n_head": 2}, "no model can be built"),
        ({"model_type": "llama", "num_attention_heads": 0}, "cannot be used|no model can be built"),
        ({"model_type": "no-such", "auto_map": {"AutoConfig": "evil.Config"}}, "cannot be used"),
        ({}, "cannot be used"),
    ],
)
def test_what_cannot_be_a_base_model_is_refused_by_name(folder, config, match):
    (folder / "evil.py").write_text("raise SystemExit('code of a model was run')")
    (folder / "config.json").write_text(json.dumps(config))
    for act in (shape_of, load_base):
        with pytest.raises(Unavailable, match=f"^Base model 'tiny'.*(?:{match})"):
            act(entry(folder))


def small(tmp_path, model_type, **settings):
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    settings = {**sizes, "max_position_embeddings": 64, **settings}
    return entry(build_tiny_base(tmp_path / model_type, model_type=model_type, **settings))


def test_the_context_ends_where_longrope_changes_the_frequencies(tmp_path):
    factors = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, **factors}
    phi = small(tmp_path, "phi3", original_max_position_embeddings=16, rope_parameters=rope, pad_token_id=0)
    assert shape_of(phi).context == 16


@pytest.mark.parametrize("model_type", ["gpt_oss", "mixtral"])
def test_keys_and_values_of_a_mixture_of_experts_are_seen(tmp_path, model_type):
    text = load_text(small(tmp_path, model_type, num_key_value_heads=2, head_dim=8, num_local_experts=4))
    assert text.shape.kv == (2, 8)
    assert position_bytes(text.entry, text.shape) == 2 * 2 * 2 * 8 * 4


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("model_type", "settings"),
    [
        ("gemma2", {"num_key_value_heads": 2, "head_dim": 8, "final_logit_softcapping": 0.5}),
        ("cohere", {"num_key_value_heads": 2, "logit_scale": 0.25}),
        ("granite", {"num_key_value_heads": 2, "logits_scaling": 4.0}),
    ],
)
def test_logits_that_a_family_scales_or_caps_are_its_own(tmp_path, model_type, settings, dtype):
    base = load_base(small(tmp_path, model_type, **settings).model_copy(update={"dtype": dtype}))
    ids = torch.tensor([[0, 5, 17, 250, 3, 99]])
    with torch.no_grad():
        logits = lm_logits(base.model, hidden_states(base.model, ids, torch.ones_like(ids)))
        assert torch.equal(logits, base.model(ids).logits)
        assert not torch.allclose(logits, base.model.get_output_embeddings()(base.model.base_model(ids)[0]), rtol=0.01)


def test_logits_made_in_another_way_are_refused(tiny_base_dir, monkeypatch):
    forward = GPT2LMHeadModel.forward

    def shifted(self, *args, **kwargs):
        out = forward(self, *args, **kwargs)
        out.logits = out.logits + torch.linspace(0, 0.01, out.logits.shape[-1])
        return out

    monkeypatch.setattr(GPT2LMHeadModel, "forward", shifted)
    with pytest.raises(Unavailable, match=r"'gpt2'.*another way than by an output layer"):
        load_base(entry(tiny_base_dir))


def test_a_model_that_reads_ahead_is_refused(tmp_path):
    config = small(tmp_path, "bert")
    change_config(tmp_path / "bert", architectures=["BertLMHeadModel"])
    with pytest.raises(Unavailable, match=r"'bert'.*not a causal language model"):
        load_base(config)


def test_weights_that_lack_a_tensor_are_refused_and_a_tied_head_is_none(folder, tmp_path):
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    load_base(entry(folder))
    llama = build_tiny_base(tmp_path / "llama", model_type="llama")
    weights = load_file(llama / "model.safetensors")
    del weights["lm_head.weight"]
    save_file(weights, llama / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(Unavailable, match=r"lack 1 of the model's tensors, such as lm_head\.weight"):
        load_base(entry(llama))


def test_weights_that_are_not_finite_or_of_another_size_are_refused(folder):
    weights = load_file(folder / "model.safetensors")
    for value in (float("nan"), float("inf")):
        weights["transformer.h.1.mlp.c_fc.bias"][0] = value
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(Unavailable, match="not finite in float32"):
            load_base(entry(folder))
    change_config(folder, n_embd=64)
    with pytest.raises(Unavailable, match="cannot be loaded"):
        load_base(entry(folder))


def test_a_tokenizer_beyond_the_embeddings_is_refused(tmp_path):
    folder = build_tiny_base(tmp_path / "base", vocab_size=280)
    shutil.copy(build_tiny_base(tmp_path / "other", vocab_size=300) / "tokenizer.json", folder / "tokenizer.json")
    with pytest.raises(Unavailable, match="300 tokens, but its embeddings have 280 rows"):
        load_base(entry(folder))


def test_a_special_token_without_an_embedding_is_refused_in_texts_alone(folder):
    base = load_base(entry(with_special(folder, "<image>")))
    assert base.tokenize("The <image")[0] == 0
    for text in ("The <image> fox", "The fox " * 200 + "<image>"):
        with pytest.raises(InvalidParameter, match="special token '<image>', for which the base model has no"):
            base.tokenize(text)


@pytest.mark.parametrize("name", ["bos_token", "eos_token"])
def test_a_bos_or_eos_without_an_embedding_is_refused(folder, name):
    change_config(with_special(folder, "<image>"), "tokenizer_config.json", **{name: "<image>"})
    with pytest.raises(Unavailable, match="301 tokens, but its embeddings have 300 rows"):
        load_base(entry(folder))


def test_a_tokenizer_without_bos_and_eos(folder):
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    base = load_base(entry(folder))
    assert (base.bos_id, base.eos_id) == (None, None)
    ids = base.tokenize("The quick brown fox")
    assert ids == base.tokenize("The quick brown fox", bos=False) == base.tokenize("The quick brown fox", bos=True)
    assert base.tokenize("") == []


# --- chat templates -------------------------------------------------------------------------------


OURS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<|endoftext|>\n{% endfor %}"
NEEDS_SYSTEM = "{% if messages[0].role != 'system' %}{{ raise_exception('a system message comes first') }}{% endif %}"
HELLO = [{"role": "user", "content": "Hi"}]


def with_template(folder: Path, template: str, kind: str = "causal") -> Path:
    """An with_template beside the model."""
    path = folder.parent / "bases.toml"
    path.write_text(f'[bases.tiny]\nsource = "base"\nkind = "{kind}"\nchat_template = {json.dumps(template)}\n')
    return path


def test_a_template_is_text_or_a_file_beside_the_allowlist(folder: Path) -> None:
    inline = read_allowlist(with_template(folder, OURS))["tiny"]
    (folder.parent / "chat.jinja").write_text(OURS)
    named = read_allowlist(with_template(folder, "chat.jinja"))["tiny"]
    assert inline.chat_template == named.chat_template == OURS
    assert inline == named
    assert read_allowlist(with_template(folder, str(folder.parent / "chat.jinja")))["tiny"] == named


@pytest.mark.parametrize(
    ("template", "kind", "reason"),
    [
        ("chat.jinja", "causal", r"chat_template 'chat\.jinja' is neither a template .* \(.*No such file"),
        ("", "causal", "neither a template"),
        ("latin.jinja", "causal", "it is not UTF-8 text"),
        ("~nosuchuser/x", "causal", r"chat_template '~nosuchuser/x' is neither .*\(Could not determine home"),
        ("a\x00b", "causal", r"chat_template 'a\\x00b' is neither .*\(embedded null byte\)"),
        ("a\nb", "causal", r"chat_template 'a\\nb' is neither .*No such file"),
        (OURS, "encoder", "an encoder cannot chat"),
    ],
)
def test_what_is_no_template_is_refused_with_the_allowlist(folder: Path, template: str, kind: str, reason: str) -> None:
    (folder.parent / "latin.jinja").write_bytes(b"caf\xe9")
    with pytest.raises(InvalidParameter, match=reason) as caught:
        read_allowlist(with_template(folder, template, kind))
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{% for m in messages %}\n{{ m.content", r"fails on a user's message \(line 2\): TemplateSyntaxError"),
        ("{{ messages | no_such }}", "No filter named 'no_such'"),
        ("{{ raise_exception('only tools') }}", "only tools"),
        ("{{ raise_exception('only\ntools') }}", "only tools"),
        ("{{ messages[0].nothing.at_all }}", "UndefinedError"),
        (
            "{% for m in messages %}{{ m.role }}{% endfor %}",
            "drops the content of .*: the result is 'user'",
        ),
    ],
)
def test_a_broken_template_is_refused_in_one_sentence(folder: Path, template: str, reason: str) -> None:
    with pytest.raises(Unavailable, match=f"^Base model 'tiny': its chat_template .*(?:{reason})") as caught:
        load_text(entry(folder, chat_template=template))
    assert "\n" not in caught.value.message


def test_the_operators_template_wins_and_changes_no_fingerprint(folder: Path) -> None:
    plain = load_text(entry(folder))
    assert template_of(plain.tokenizer) is None
    (folder / "chat_template.jinja").write_text("{% for m in messages %}theirs {{ m.content }}{% endfor %}")
    theirs, ours = load_text(entry(folder)), load_text(entry(folder, chat_template=OURS))
    assert render(theirs.tokenizer, HELLO) == "theirs Hi"
    assert render(ours.tokenizer, HELLO) == "<user>Hi<|endoftext|>\n"
    assert plain.shape.fingerprint == theirs.shape.fingerprint == ours.shape.fingerprint


def test_of_several_templates_the_one_for_conversations_is_used(folder: Path) -> None:
    tokenizer = load_text(entry(folder)).tokenizer
    tokenizer.chat_template = {"default": OURS, "tool_use": "{{ tools }}"}
    assert template_of(tokenizer) == OURS
    tokenizer.chat_template = {"tool_use": "{{ tools }}"}
    assert template_of(tokenizer) is None


@pytest.mark.parametrize(
    ("template", "ends"),
    [
        (OURS, "<|endoftext|>"),
        ("{% for m in messages %}{{ m.content }}\n  <|turn|>{% endfor %}", "<|turn|>"),
        ("{% for m in messages %}{{ m.content }}\n{% endfor %}", None),
        ("{% for m in messages %}{{ m.content }} over{% endfor %}", None),
        ("{% if messages|length > 1 %}{{ raise_exception('one') }}{% endif %}{{ messages[0].content }}", None),
        (NEEDS_SYSTEM + OURS, "<|endoftext|>"),
        (None, None),
    ],
)
def test_the_special_token_behind_an_answer_ends_it(folder: Path, template: str | None, ends: str | None) -> None:
    with_special(folder, "<|turn|>")
    text = load_text(entry(folder, chat_template=template))
    assert text.turn_id == {None: None, "<|endoftext|>": 0, "<|turn|>": 300}[ends]


@pytest.mark.parametrize(
    ("saved", "ends"),
    [
        ({"eos_token_id": [0, 300]}, (0, 300)),
        ({"eos_token_id": 300}, (300,)),
        ({"eos_token_id": [300, 7]}, (300,)),  # 7 is a letter
        ({"eos_token_id": [True, False, -1, 10**9, 300.0, "300", None, [300]]}, ()),
        ({"eos_token_id": 300, "_from_model_config": True}, ()),
        ({"eos_token_id": 300, "_from_model_config": False}, (300,)),
        ({}, ()),
        (None, ()),
    ],
)
def test_generation_config_names_more_special_tokens_that_end(
    folder: Path, saved: dict[str, Any] | None, ends: tuple[int, ...]
) -> None:
    with_special(folder, "<|turn|>")
    file = folder / "generation_config.json"
    file.unlink(missing_ok=True)
    if saved is not None:
        file.write_text(json.dumps(saved))
    assert load_text(entry(folder)).end_ids == ends


def test_text_that_begins_with_the_bos_gets_no_other(folder: Path) -> None:
    base = load_text(entry(folder))
    bare = base.tokenize("The fox", bos=False)
    assert base.tokenize("<|endoftext|>The fox") == base.tokenize("The fox") == [0, *bare]
    assert base.tokenize("<|endoftext|>The fox", bos=False) == [0, *bare]
    assert base.tokenize("<|endoftext|><|endoftext|>The fox") == [0, 0, *bare]  # what a text says twice stays
    assert base.tokenize(" <|endoftext|>The fox")[1:] == base.tokenize(" <|endoftext|>The fox", bos=False)


def test_text_that_begins_with_an_encoders_cls_gets_no_other(tmp_path: Path) -> None:
    base = load_text(BaseEntry(id="tiny", source=str(build_tiny_encoder(tmp_path)), kind="encoder"))
    assert base.turn_id is None
    assert base.tokenize("<s>The fox") == base.tokenize("The fox")
