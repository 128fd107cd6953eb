"""The subjects of measurements: base models in memory, random adapters for them, and rows of tokens. All are seeded.

A base model is a random GPT-2 (speed does not depend on the values of weights), or any folder, such as SmolLM2's that
`make demo` leaves in `.demo/models`.
"""

from __future__ import annotations

import argparse
import atexit
import copy
import math
import random
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import AutoModelForCausalLM, GPT2Config, PretrainedConfig, PreTrainedTokenizerFast

from demo.results import ROOT
from registry.adapters import Init, create, paper_config
from registry.adapters.weights import adapter_digest
from registry.base_model import LoadedBase, load_base
from registry.base_model.architecture import shape_from
from registry.names import sha256_digest
from registry.spec import AdapterConfig, BaseEntry, BaseShape, LoraConfig, LoraModule

LAYERS, HIDDEN, VOCABULARY = 12, 768, 50257
"""Of the small GPT-2."""
SMALL_VOCABULARY, END = 2048, "<|endoftext|>"
CONTEXT = 256
RANK, BOTTLENECK = 8, 8
TARGETS = ("q_proj", "v_proj", "c_attn")
DTYPES = ("float32", "bfloat16")
STRENGTH = 0.1
"""Standard deviation of an adapter's projections (of a LoRA: of B), so that it is seen in what is written."""

PAGES = ROOT / "docs" / "explanation"
PASSAGE_WORDS = 60

Window = tuple[int, ...]


@dataclass(frozen=True)
class CopiedBases:
    """The engine's source of base models: copies of these, for the engine brings weights into another order."""

    bases: dict[str, LoadedBase]

    def text(self, base_id: str) -> LoadedBase:
        """Its tokenizer and shape."""
        return self.bases[base_id]

    def size(self, base_id: str) -> int:
        """Bytes of its weights."""
        return sum(tensor.nbytes for tensor in self.bases[base_id].model.parameters())

    def load(self, base_id: str) -> LoadedBase:
        """A copy of the base."""
        base = self.bases[base_id]
        return replace(base, model=copy.deepcopy(base.model))


# --- base models ----------------------------------------------------------------------------------


def random_gpt2(
    *, layers: int = LAYERS, hidden: int = HIDDEN, vocabulary: int = VOCABULARY, dtype: str = "float32"
) -> LoadedBase:
    """A GPT-2 with random weights, drawn in fp32, and no tokenizer; by default of the small one's shape."""
    config = GPT2Config(
        vocab_size=vocabulary,
        n_positions=CONTEXT,
        n_embd=hidden,
        n_layer=layers,
        n_head=hidden // 64,
        bos_token_id=0,
        eos_token_id=0,
    )
    base = random_base(config, BaseEntry(id="base", source="gpt2", dtype="float32"))
    entry = base.entry.model_copy(update={"dtype": dtype})
    return replace(base, entry=entry, model=base.model.to(getattr(torch, dtype)))


def random_base(config: PretrainedConfig, entry: BaseEntry) -> LoadedBase:
    """A base model with random weights, drawn in its dtype, and no tokenizer; its token 0 is BOS and EOS."""
    torch.manual_seed(0)
    builder: Any = AutoModelForCausalLM
    with torch.device(entry.device):
        model = builder.from_config(config, dtype=getattr(torch, entry.dtype)).eval().requires_grad_(False)
    shape = shape_from(config, sha256_digest(entry.source.encode()), entry.source)
    return LoadedBase(entry=entry, model=model, tokenizer=None, shape=shape, bos_id=0, eos_id=0)


def write_tokenizer(folder: Path, vocabulary: int) -> None:
    """A byte-level BPE of this project's own pages, whose token 0 is BOS and EOS, into a model's folder."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([page_text()], trainer)
    special = dict.fromkeys(("bos_token", "eos_token", "unk_token"), END)
    fast: Any = PreTrainedTokenizerFast
    fast(tokenizer_object=tokenizer, **special).save_pretrained(folder)


@cache
def small_base() -> Path:
    """The folder of a GPT-2 of two layers of 128 with random weights, which goes when this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="soup-small-"))
    atexit.register(shutil.rmtree, folder)
    random_gpt2(layers=2, hidden=128, vocabulary=SMALL_VOCABULARY).model.save_pretrained(folder)
    write_tokenizer(folder, SMALL_VOCABULARY)
    return folder


def silent(base: LoadedBase) -> LoadedBase:
    """The base, which never ends a text by itself and whose tokens have no text: they are compared as ids."""
    tokenizer = SimpleNamespace(backend_tokenizer=SimpleNamespace(decode=_nothing))
    return replace(base, eos_id=None, end_ids=(), tokenizer=tokenizer)


def _nothing(_ids: Sequence[int], **_options: bool) -> str:
    return ""


def base_options(parser: argparse.ArgumentParser) -> None:
    """The options that `chosen_base` reads."""
    parser.add_argument("--base-folder", type=Path, help="a base model's folder, instead of a random GPT-2 small")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")


def chosen_base(folder: Path | None, dtype: str) -> LoadedBase:
    """The base model of a folder, else a random one of GPT-2 small's shape."""
    if folder is None:
        return random_gpt2(dtype=dtype)
    folder = folder.resolve()
    return load_base(BaseEntry(id=folder.name.lower(), source=str(folder), dtype=dtype))


def about(base: LoadedBase) -> dict[str, Any]:
    """The fields of a result's row about the base model."""
    return {
        "model": Path(base.entry.source).name,
        "family": base.shape.model_type,
        "layers": base.shape.num_layers,
        "hidden": base.shape.hidden_size,
        "dtype": str(base.model.dtype).removeprefix("torch."),
    }


# --- adapters -------------------------------------------------------------------------------------


def lora_of(shape: BaseShape, *, rank: int = RANK) -> LoraConfig:
    """A LoRA on the queries and values of every layer."""
    paths = [path for path in shape.linears if path.endswith(TARGETS)]
    return LoraConfig.of({path: LoraModule(rank=rank, alpha=2.0 * rank) for path in paths})


def bottleneck_of() -> AdapterConfig:
    """A small Bapna-Firat bottleneck after every layer's feed-forward module."""
    return paper_config("bapna_firat", bottleneck=BOTTLENECK)


def drawn_tensors(base: LoadedBase, config: AdapterConfig, seed: int) -> dict[str, Tensor]:
    """Tensors of an adapter that is strong enough to be seen in what is written."""
    init: Init = "small_b" if isinstance(config, LoraConfig) else "near_identity"
    start = create(config, base.shape, seed=seed, init=init, base=base.model).state_dict()
    draw = torch.Generator().manual_seed(seed)
    strong = (".down.weight", ".up.weight", ".lora_B.weight")
    return {
        name: STRENGTH * torch.randn(tensor.shape, generator=draw) if name.endswith(strong) else tensor
        for name, tensor in start.items()
    }


def digest_of(base: LoadedBase, config: AdapterConfig, tensors: dict[str, Tensor]) -> str:
    """The adapter's digest on that base."""
    return adapter_digest(base.shape.fingerprint, config, tensors)


# --- rows of tokens -------------------------------------------------------------------------------


def rows_of(base: LoadedBase, *, rows: int, length: int, seed: int) -> list[Window]:
    """Random token ids (rows, length)."""
    draw = random.Random(seed)
    return [tuple(draw.randrange(5, base.shape.vocab_size) for _ in range(length)) for _ in range(rows)]


def passages(base: LoadedBase, *, rows: int, seed: int = 0) -> list[Window]:
    """Random token ids with the spread of lengths that passages have: log-normal around 100, at most the context."""
    draw = random.Random(seed)
    most = min(CONTEXT, base.shape.context)
    lengths = [min(most, max(8, round(draw.lognormvariate(math.log(100), 0.6)))) for _ in range(rows)]
    return [(0, *(draw.randrange(1, base.shape.vocab_size) for _ in range(length - 1))) for length in lengths]


def page_text() -> str:
    """The text of this project's own pages, which every checkout has."""
    return "\n".join(page.read_text(encoding="utf-8") for page in sorted(PAGES.glob("*.md")))


def page_passages(count: int, *, seed: int) -> list[str]:
    """Passages of PASSAGE_WORDS words out of it."""
    words = page_text().split()
    draw = random.Random(seed)
    starts = [draw.randrange(len(words) - PASSAGE_WORDS) for _ in range(count)]
    return [" ".join(words[start : start + PASSAGE_WORDS]) for start in starts]
