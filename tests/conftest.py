"""Fixtures every test may use: a tiny base model built from a config, and a network that is off.

Nothing is downloaded; the tokenizer is trained here on a few sentences.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "ci", deadline=None, derandomize=True, max_examples=40, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ci")

TINY_SENTENCES = [
    "The quick brown fox jumps over the lazy dog.",
    "Adapters are small and the base model stays frozen.",
    "A soup is the average of its ingredients; serving it costs what one adapter costs.",
    "Heat the oil, add the onions and stir until they are golden.",
    "The court held that the contract was void for want of consideration.",
    "def main(argv): return sum(int(x) for x in argv)",
]


def build_tiny_base(folder: Path, *, seed: int = 0, model_type: str = "gpt2", vocab_size: int = 300) -> Path:
    """Write a tiny causal model and a byte-level BPE tokenizer into `folder`; the same seed, the same bytes."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import GPT2Config, GPT2LMHeadModel

    assert model_type == "gpt2"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TINY_SENTENCES * 3, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "bos_token": "<|endoftext|>",
                "eos_token": "<|endoftext|>",
                "unk_token": "<|endoftext|>",
                "model_max_length": 64,
                "tokenizer_class": "PreTrainedTokenizerFast",
            }
        )
    )
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=vocab_size, n_positions=64, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    with torch.no_grad():  # large enough that adapters and prompts visibly change the output
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(4.0)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_base_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny GPT-2: 2 layers, hidden 32, 2 heads, context 64, vocabulary 300."""
    return build_tiny_base(tmp_path_factory.mktemp("tiny-base"))


@pytest.fixture(autouse=True)
def _loopback_only(socket_enabled: None) -> None:
    """Sockets to loopback only (pytest-socket's --allow-hosts in addopts refuses all others)."""
