"""A base model and LoRAs as files that peers read: PEFT's directories, and a GGUF of a Llama with its own tokenizer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from registry.adapters.weights import save_tensors
from registry.base_model import LoadedBase
from registry.formats.peft.writing import peft_config
from registry.spec import LoraConfig
from service.engine import LoadableAdapter

TENSORS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""Of a layer: transformers' name -> llama.cpp's."""

NORMAL, CONTROL = 1, 3
"""Types of tokens in a GGUF."""


def write_peft(folder: Path, base: LoadedBase, lora: LoadableAdapter) -> Path:
    """The LoRA as PEFT writes it, in the dtype of the base."""
    assert isinstance(lora.config, LoraConfig)
    folder.mkdir(parents=True)
    tensors = {name: tensor.to(base.model.dtype) for name, tensor in lora.load().items()}
    (folder / "adapter_config.json").write_text(json.dumps(peft_config(lora.config, shape=base.shape)))
    (folder / "adapter_model.safetensors").write_bytes(save_tensors(tensors))
    return folder


def write_gguf(file: Path, base: LoadedBase) -> Path:
    """A Llama in its own dtype; norms are fp32, as llama.cpp wants them."""
    from gguf import GGMLQuantizationType, GGUFWriter, quantize

    config = base.model.config
    writer: Any = GGUFWriter(file, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    _add_tokenizer(writer, json.loads((Path(base.entry.source) / "tokenizer.json").read_text()), config)
    if template := getattr(base.tokenizer, "chat_template", None):
        writer.add_chat_template(template)
    kind = GGMLQuantizationType.BF16 if base.model.dtype == torch.bfloat16 else GGMLQuantizationType.F32
    for name, tensor in _tensors(base.model):
        of = kind if tensor.ndim == 2 else GGMLQuantizationType.F32
        writer.add_tensor(name, quantize(tensor.float().contiguous().numpy(), of), raw_dtype=of)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _tensors(model: Any) -> Iterator[tuple[str, Tensor]]:
    """llama.cpp's names and tensors of a Llama."""
    config, state = model.config, model.state_dict()
    heads = {"self_attn.q_proj": config.num_attention_heads, "self_attn.k_proj": config.num_key_value_heads}
    yield "token_embd.weight", state["model.embed_tokens.weight"]
    yield "output_norm.weight", state["model.norm.weight"]
    if not config.tie_word_embeddings:
        yield "output.weight", state["lm_head.weight"]
    for layer in range(config.num_hidden_layers):
        for theirs, gguf_name in TENSORS.items():
            tensor = state[f"model.layers.{layer}.{theirs}.weight"]
            yield f"blk.{layer}.{gguf_name}.weight", _interleaved(tensor, heads[theirs]) if theirs in heads else tensor


def _interleaved(tensor: Tensor, heads: int) -> Tensor:
    """Rows of queries or keys in llama.cpp's order: those that are turned together lie side by side."""
    return tensor.view(heads, 2, -1, tensor.shape[1]).transpose(1, 2).reshape(tensor.shape)


def _add_tokenizer(writer: Any, saved: Mapping[str, Any], config: Any) -> None:
    """A byte-level BPE; the server loads no model without one, and texts come as ids."""
    tokens = {number: text for text, number in saved["model"]["vocab"].items()}
    special = {token["id"]: token["content"] for token in saved["added_tokens"]}
    numbers = range(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([special.get(n, tokens.get(n, f"[unused{n}]")) for n in numbers])
    writer.add_token_types([CONTROL if n in special or n not in tokens else NORMAL for n in numbers])
    merges = saved["model"]["merges"]
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.add_bos_token_id(config.bos_token_id)
    writer.add_eos_token_id(config.eos_token_id)
