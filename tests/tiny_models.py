"""Tiny base models built from a configuration, one of each family: nothing is downloaded.

The tokenizer is trained here on a few sentences. The same seed, the same bytes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from registry.spec import BaseEntry

TINY_SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "Adapters are small and the base model stays frozen.",
    "A soup is the average of its ingredients; serving it costs what one adapter costs.",
    "Heat the oil, add the onions and stir until they are golden.",
    "The court held that the contract was void for want of consideration.",
    "def main(argv): return sum(int(x) for x in argv)",
]


TINY_CONTEXT = 64
_SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_ROTARY = {**_SIZES, "num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": TINY_CONTEXT}
TINY_CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": {
        "n_positions": TINY_CONTEXT,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 2,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    },
    "llama": {**_ROTARY, "tie_word_embeddings": False},
    "qwen2": {**_ROTARY, "tie_word_embeddings": True},
    "qwen3": {**_ROTARY, "head_dim": 12},
    "mistral": {**_ROTARY, "head_dim": 8, "intermediate_size": 40, "sliding_window": 16},
    "gpt_neox": {**_SIZES, "intermediate_size": 48, "max_position_embeddings": TINY_CONTEXT},
    "opt": {
        **_SIZES,
        "ffn_dim": 48,
        "max_position_embeddings": TINY_CONTEXT,
        "word_embed_proj_dim": 32,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "pad_token_id": None,
    },
}


def build_tiny_base(
    folder: Path, *, seed: int = 0, model_type: str = "gpt2", vocab_size: int = 300, **settings: Any
) -> Path:
    """Write a tiny causal model and a byte-level BPE tokenizer into `folder`; the same seed, the same bytes.

    `settings` are added to the configuration that TINY_CONFIGS has for `model_type`, or replace what is there.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    folder.mkdir(parents=True, exist_ok=True)
    _write_tiny_tokenizer(folder, vocab_size)
    torch.manual_seed(seed)
    fields = {
        "vocab_size": vocab_size,
        "bos_token_id": 0,
        "eos_token_id": 0,
        **TINY_CONFIGS.get(model_type, {}),
        **settings,
    }
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **fields), dtype=torch.float32)
    with torch.no_grad():  # large enough that adapters and prompts visibly change the output
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(4.0)
            elif model_type != "gpt2":  # norms and biases that are not all 1 and 0, so that none can go unnoticed
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    model.save_pretrained(folder)
    return folder


def with_special(folder: Path, text: str, token: int = 300) -> Path:
    """Give the tokenizer of a tiny base model one more special token."""
    file = folder / "tokenizer.json"
    saved = json.loads(file.read_text())
    saved["added_tokens"].append({**saved["added_tokens"][0], "id": token, "content": text})
    file.write_text(json.dumps(saved))
    return folder


TINY_ENCODERS: dict[str, dict[str, Any]] = {
    "bert": {**_SIZES, "intermediate_size": 48, "max_position_embeddings": TINY_CONTEXT, "pad_token_id": 1},
    "roberta": {**_SIZES, "intermediate_size": 48, "max_position_embeddings": TINY_CONTEXT + 2, "pad_token_id": 1},
    "distilbert": {
        "dim": 32,
        "n_layers": 2,
        "n_heads": 4,
        "hidden_dim": 48,
        "max_position_embeddings": TINY_CONTEXT,
        "pad_token_id": 1,
    },
}
_ALTERNATING = {
    "use_sliding_window": True,
    "sliding_window": 5,
    "layer_types": ["sliding_attention", "full_attention"],
}
CAUSAL = tuple(sorted(TINY_CONFIGS))
"""Every family of causal models."""
_LONGROPE = {
    "max_position_embeddings": 2 * TINY_CONTEXT,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "original_max_position_embeddings": TINY_CONTEXT,
        "factor": 2.0,
        "short_factor": [1.0] * 4,
        "long_factor": [4.0] * 4,
    },
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{family: (family, {}) for family in CAUSAL},
    "gpt_neox-sequential": ("gpt_neox", {"use_parallel_residual": False}),
    "llama-dynamic": ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}),
    "llama-longrope": ("llama", _LONGROPE),
    "llama-tied": ("llama", {"tie_word_embeddings": True, "attention_bias": True}),
    "mistral-window-4": ("mistral", {"sliding_window": 4}),
    "qwen2-alternating": ("qwen2", _ALTERNATING),
    "qwen3-alternating": ("qwen3", _ALTERNATING),
}
"""Those, and what its configuration may change: family and settings by the variant's name."""
_ENCODER_TOKENS = {"cls_token": "<s>", "pad_token": "<pad>", "sep_token": "</s>", "mask_token": "<mask>"}


def build_tiny_encoder(
    folder: Path, *, seed: int = 0, model_type: str = "bert", vocab_size: int = 300, **settings: Any
) -> Path:
    """Write a tiny encoder (with a head for masked tokens, as such models are saved) and its tokenizer into `folder`.

    `settings` are added to the configuration that TINY_ENCODERS has for `model_type`. Context 64 for all of them.
    """
    import torch
    from transformers import AutoConfig, AutoModelForMaskedLM

    folder.mkdir(parents=True, exist_ok=True)
    _write_tiny_tokenizer(folder, vocab_size, _ENCODER_TOKENS)
    torch.manual_seed(seed)
    fields = {"vocab_size": vocab_size, **TINY_ENCODERS[model_type], **settings}
    model = AutoModelForMaskedLM.from_config(AutoConfig.for_model(model_type, **fields), dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0) if parameter.ndim == 2 else parameter.add_(torch.randn_like(parameter), alpha=0.1)
    model.save_pretrained(folder)
    return folder


def _write_tiny_tokenizer(folder: Path, vocab_size: int, special: dict[str, str] | None = None) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list((special or {"eos_token": "<|endoftext|>"}).values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TINY_SENTENCES * 3, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                **(special or dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")),
                "model_max_length": TINY_CONTEXT,
                "tokenizer_class": "PreTrainedTokenizerFast",
            }
        )
    )


def build_tiny(folder: Path, name: str) -> BaseEntry:
    """A tiny model of a variant or of a family of encoders, as an entry called `tiny`.

    XLM-RoBERTa is RoBERTa by another name.
    """
    if name in VARIANTS:
        family, settings = VARIANTS[name]
        return BaseEntry(id="tiny", source=str(build_tiny_base(folder, model_type=family, **settings)))
    build_tiny_encoder(folder, model_type=name.removeprefix("xlm-"))
    if name.startswith("xlm-"):
        config = folder / "config.json"
        config.write_text(config.read_text().replace('"roberta"', f'"{name}"').replace("RobertaForM", "XLMRobertaForM"))
    return BaseEntry(id="tiny", source=str(folder), kind="encoder")
