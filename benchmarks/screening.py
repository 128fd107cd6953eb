"""What it takes to find candidates in a large pool, in passes of the base model over the sample (F).

Called by `benchmarks.selection`. The pool is ranked from the sample's embeddings, which takes no pass; the best of the
ranking are screened by the gradient of the loss at coefficients of 0, side by side in one block, as an effort does. The
base model has random weights in the shape of SmolLM2's layers, and some of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from statistics import median
from types import SimpleNamespace
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.report import Result, interleaved, ratios, repeated
from benchmarks.subjects import drawn_tensors
from registry.adapters import paper_config
from registry.base_model import LoadedBase
from registry.base_model.architecture import shape_from
from registry.cook.choose import MOST
from registry.names import sha256_digest
from registry.spec import BaseEntry, StoredAdapter, WeighingRequest
from training.coefficients import weigh
from training.tasks.language import passage_scores

VOCABULARY, CONTEXT, WORDS, PASSAGES = 8192, 512, 100, 100
BOTTLENECK = 48


def base_of(layers: int, *, hidden: int = 576) -> LoadedBase:
    """A random base model of SmolLM2's layers, whose text is numbers of tokens."""
    config: Any = LlamaConfig(
        hidden_size=hidden, intermediate_size=hidden * 8 // 3, num_attention_heads=hidden // 64,
        num_key_value_heads=max(1, hidden // 192), num_hidden_layers=layers, vocab_size=VOCABULARY,
        max_position_embeddings=CONTEXT, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model: Any = LlamaForCausalLM(config).requires_grad_(False)
    tokenizer = SimpleNamespace(backend_tokenizer=SimpleNamespace(encode=_encoded))
    return LoadedBase(
        entry=BaseEntry(id="base", source="random"), model=model.eval(), tokenizer=tokenizer,
        shape=shape_from(config, sha256_digest(b"screening"), "llama"), bos_id=0, eos_id=0,
    )  # fmt: skip


def _encoded(text: str, **_how: bool) -> SimpleNamespace:
    return SimpleNamespace(ids=[int(word) for word in text.split()])


def sample_of(passages: int, *, words: int) -> list[str]:
    """Passages of so many tokens."""
    draw = random.Random(0)
    return [" ".join(str(draw.randrange(1, VOCABULARY)) for _ in range(words)) for _ in range(passages)]


def measure_screening(
    result: Result, base: LoadedBase, rank: Callable[[], object], *, adapters: int, candidates: int = MOST,
    passages: int = PASSAGES, words: int = WORDS, repeats: int,
) -> None:  # fmt: skip
    """A ranking of `adapters` and a screen of the best of them, over a pass of the base over all passages."""
    texts, config = sample_of(passages, words=words), paper_config("bapna_firat", bottleneck=BOTTLENECK)
    tensors = [drawn_tensors(base, config, seed) for seed in range(candidates)]
    stored = {sha256_digest(str(number).encode()): one for number, one in enumerate(tensors)}
    request = WeighingRequest(
        texts=tuple(texts), candidates=tuple(StoredAdapter(config=config, blob=blob) for blob in stored),
        steps=1, batch=1, keep=1,
    )  # fmt: skip

    def found() -> None:
        rank()
        weigh(base, request, lambda one: stored[one.blob])

    def scored() -> Sequence[object]:
        return passage_scores(base, texts, block=CONTEXT)

    times = interleaved({"screen": found, "pass": scored, "rank": rank}, repeats=repeats)
    note = (
        f"{adapters} adapters ranked, the best {candidates} (bottlenecks of {BOTTLENECK}) screened on "
        f"{min(request.screened, passages)} of {passages} passages, and one step of weighing"
    )
    result.figures["screening_passes"] = repeated(ratios(times["screen"], times["pass"]), "F", goal=3.0, note=note)
    result.rows.append(
        {"screened": candidates, "ranked": adapters, **{f"{name}_s": median(found) for name, found in times.items()}}
    )
