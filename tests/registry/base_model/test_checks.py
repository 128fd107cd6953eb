"""What cannot be a base model is refused by name: by its configuration, by its files, or on its first tokens."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2LMHeadModel

from registry.base_model import load_base, shape_of
from registry.errors import Unavailable
from registry.likelihood import hidden_states, lm_logits
from registry.spec import BaseEntry
from tests.tiny_models import build_tiny_base


@pytest.fixture
def folder(tiny_base_dir, tmp_path):
    """A copy that a test may change."""
    return shutil.copytree(tiny_base_dir, tmp_path / "base")


def entry(folder):
    return BaseEntry(id="tiny", source=str(folder))


def change_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    config.update(changes)
    (folder / "config.json").write_text(json.dumps(config))


def written(folder, **config):
    """`folder` with this configuration instead of its own."""
    (folder / "config.json").write_text(json.dumps(config))
    return entry(folder)


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}, "T5ForConditionalGeneration.*encoder"),
        ({"model_type": "t5"}, "family 't5', an encoder-decoder"),
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "BertForMaskedLM.*needs kind = 'encoder'"),
        ({"model_type": "gpt2", "architectures": ["GPT2ForSequenceClassification"]}, "GPT2ForSequenceClassification"),
        ({"model_type": "vit"}, "family 'vit', and not a causal"),
        ({"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"]}, "takes more than text"),
        ({"model_type": "bloom"}, "'bloom'.*has no number 'max_position_embeddings'"),
        ({"model_type": "mamba"}, "'mamba'.*has no number 'max_position_embeddings'"),
        ({"model_type": "opt", "do_layer_norm_before": False}, "norms come after"),
        ({"model_type": "opt", "word_embed_proj_dim": 512}, "embeddings are projected"),
        ({"model_type": "gpt2", "quantization_config": {"quant_method": "bitsandbytes"}}, "quantised"),
        ({"model_type": "gpt2", "n_embd": "many"}, "cannot be used"),
        ({"model_type": "gpt2", "n_embd": 33, "n_head": 2}, "no model can be built"),
        ({"model_type": "llama", "num_attention_heads": 0}, "cannot be used|no model can be built"),
        ({"model_type": "no-such", "auto_map": {"AutoConfig": "evil.Config"}}, "cannot be used"),
        ({}, "cannot be used"),
    ],
)
def test_what_cannot_be_a_base_model_is_refused_by_name(folder, config, match):
    (folder / "evil.py").write_text("raise SystemExit('code of a model was run')")
    for act in (shape_of, load_base):
        with pytest.raises(Unavailable, match=match) as caught:
            act(written(folder, **config))
        assert str(caught.value).startswith("Base model 'tiny'")


def test_all_that_is_wrong_with_an_opt_at_once(folder):
    with pytest.raises(Unavailable) as caught:
        shape_of(written(folder, model_type="opt", do_layer_norm_before=False, word_embed_proj_dim=512))
    assert len(caught.value.problems) == 2


def small(tmp_path, model_type, **settings):
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    settings = {**sizes, "max_position_embeddings": 64, **settings}
    return entry(build_tiny_base(tmp_path / model_type, model_type=model_type, **settings))


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
        found = lm_logits(base.model, hidden_states(base.model, ids, torch.ones_like(ids)))
        assert torch.equal(found, base.model(ids).logits)
        assert not torch.allclose(found, base.model.get_output_embeddings()(base.model.base_model(ids)[0]), rtol=0.01)


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
    with pytest.raises(Unavailable, match=r"lack 1 of the model's tensors, lm_head\.weight"):
        load_base(entry(llama))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(folder, value):
    weights = load_file(folder / "model.safetensors")
    weights["transformer.h.1.mlp.c_fc.bias"][0] = value
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(Unavailable, match="not finite in float32"):
        load_base(entry(folder))


def test_weights_of_another_size_are_refused(folder):
    change_config(folder, n_embd=64)
    with pytest.raises(Unavailable, match="cannot be loaded"):
        load_base(entry(folder))


def test_a_tokenizer_beyond_the_embeddings_is_refused(tmp_path):
    folder = build_tiny_base(tmp_path / "base", vocab_size=280)
    other = build_tiny_base(tmp_path / "other", vocab_size=300)
    shutil.copy(other / "tokenizer.json", folder / "tokenizer.json")
    with pytest.raises(Unavailable, match="300 tokens, and its embeddings are of 280"):
        load_base(entry(folder))


def test_a_tokenizer_without_bos_and_eos(folder):
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    base = load_base(entry(folder))
    assert (base.bos_id, base.eos_id) == (None, None)
    ids = base.tokenize("The quick brown fox")
    assert ids == base.tokenize("The quick brown fox", bos=False) == base.tokenize("The quick brown fox", bos=True)
    assert base.tokenize("") == []
