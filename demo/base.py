"""The demo's base model: a GPT-2 of 2 layers of 128 with a vocabulary of 2,048, and the recipe that made it.

`demo/base_model` holds it, so that the demo need not spend its minutes on it; `python -m demo.base` makes it again
from the docstrings of the installed packages (`demo.packages`; the three held-back packages are never read).
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from demo.packages import MIXED, NOVEL, TRAINING, Domain, collect, version
from registry.likelihood import token_log_probs
from registry.progress import Progress, silent
from training.data import pack
from training.hyperparameters import Hyperparameters
from training.loop import Outcome, optimise
from training.state import Objective, TrainingState

SHIPPED = Path(__file__).parent / "base_model"
BASE_ID = "docs-2x128"
VOCABULARY, HIDDEN, LAYERS, HEADS, CONTEXT = 2048, 128, 2, 4, 512
CHARACTERS = 1_500_000
"""Of each package, at most this much goes into the base model's text."""
RECIPE = Hyperparameters(
    steps=4000, batch=8, block=CONTEXT, learning_rate=4e-3, warmup=0.03, weight_decay=0.1, beta2=0.98, evaluations=12
)
_END = "<|endoftext|>"


def train_tokenizer(texts: Sequence[str], vocabulary: int = VOCABULARY) -> Tokenizer:
    """A byte-level BPE; token 0 is BOS and EOS."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def train_base(
    texts: Sequence[str], valid_texts: Sequence[str], folder: Path, *, recipe: Hyperparameters = RECIPE, seed: int = 0,
    progress: Progress = silent,
) -> Outcome:  # fmt: skip
    """Train tokenizer and model on `texts` and write both into `folder`, the weights in fp16."""
    tokenizer = train_tokenizer(texts)

    def tokens(text: str) -> list[int]:
        return [0, *tokenizer.encode(text).ids]

    mixed = random.Random(seed).sample(list(texts), len(texts))
    train = pack(mixed, tokens, block=recipe.block).rows
    valid = pack(valid_texts, tokens, block=recipe.block, what="validation").rows
    torch.manual_seed(seed)
    model = GPT2LMHeadModel(_config())

    def mean_nll(blocks: Tensor) -> Tensor:  # (batch, block)
        return -token_log_probs(model, blocks, torch.ones_like(blocks)).mean()

    state = TrainingState(model, Objective(mean_nll), train=train, valid=valid, hyperparameters=recipe)
    outcome = optimise(state, progress=progress)
    _save(model, tokenizer, folder)
    return outcome


def _config() -> GPT2Config:
    return GPT2Config(
        vocab_size=VOCABULARY, n_positions=CONTEXT, n_embd=HIDDEN, n_layer=LAYERS, n_head=HEADS, bos_token_id=0,
        eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip


def _save(model: GPT2LMHeadModel, tokenizer: Tokenizer, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    half: Any = model
    half.to(torch.float16).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    about = {
        "bos_token": _END, "eos_token": _END, "unk_token": _END, "model_max_length": CONTEXT,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(about, indent=2) + "\n")


def base_texts(domains: dict[str, Domain]) -> tuple[list[str], list[str]]:
    """What the base model is trained on, and what its training is watched on: nothing of the held-back packages."""
    texts = [text for domain in domains.values() for text in domain.parts.get("base", [])]
    valid = [text for name in TRAINING for text in domains[name].parts["valid"]]
    return texts, random.Random(0).sample(valid, min(150, len(valid)))


def _readme(texts: Sequence[str], outcome: Outcome, recipe: Hyperparameters) -> str:
    saw = ", ".join(f"{name} {version(name)}" for name in sorted(TRAINING + MIXED))
    history = "; ".join(f"step {step}: {nll:.3f}" for step, nll in outcome.history)
    return f"""# The demo's base model

GPT-2 architecture, {LAYERS} layers of {HIDDEN}, {HEADS} heads, context {CONTEXT}, byte-level BPE of {VOCABULARY} tokens
(`{_END}`, id 0, is BOS and EOS), weights in fp16. Made by `python -m demo.base`.

**What it saw:** {sum(map(len, texts)):,} characters of docstrings in {len(texts):,} passages: two fifths of the modules
of each training package of the demo (the other modules are for its adapter and for validation), and packages that only
it saw. In all: {saw}.

**What it never saw:** {", ".join(NOVEL)}, the demo's novel domains, nor what other packages copied from them.

Recipe: {recipe.model_dump_json()}
Tokens trained on: {outcome.train_tokens:,}. Mean NLL on validation passages, nats a token: {history}.

The text belongs to the authors of those packages (BSD, MIT, Apache-2.0, PSF and similar licences); the model holds
statistics of it and is made for this demo alone.
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """`python -m demo.base`: make the base model again."""
    parser = argparse.ArgumentParser(prog="python -m demo.base", description=main.__doc__)
    parser.add_argument("--out", type=Path, default=SHIPPED, help="folder to write; by default %(default)s")
    parser.add_argument("--steps", type=int, default=RECIPE.steps)
    options = parser.parse_args(arguments)
    recipe = RECIPE.model_copy(update={"steps": options.steps})
    texts, valid = base_texts(collect(base_characters=CHARACTERS))
    print(f"{len(texts):,} passages, {sum(map(len, texts)):,} characters", flush=True)

    def told(step: int, steps: int, message: str) -> None:
        if step % max(1, steps // 100) == 0:
            print(f"step {step} of {steps}: {message}", flush=True)

    outcome = train_base(texts, valid, options.out, recipe=recipe, progress=told)
    (options.out / "README.md").write_text(_readme(texts, outcome, recipe))
    size = sum(p.stat().st_size for p in options.out.iterdir())
    print(f"{options.out}: {size:,} bytes, {np.exp(outcome.valid_best):.1f} perplexity on validation passages")


if __name__ == "__main__":
    main()
