"""The engine over every family of base models, against plain transformers running each row alone.

Rows of different lengths generate together, join and leave, with several kinds of adapters; Mistral and Qwen also
with windows shorter than what is generated, so that what slides out of sight matters.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import numpy as np
import pytest
import torch
from torch import Tensor

from registry.adapters import attached, create, from_tensors, paper_config
from registry.base_model import LoadedBase
from registry.base_model.likelihood import token_log_probs
from registry.spec import AdapterConfig, LoraConfig, LoraModule
from service.engine import EngineLimits, GenerateRequest, LoadableAdapter, SamplingParams, ScoreRequest
from service.engine.engine import Engine
from tests.service.engine.stepping import answered, answers_of_joining_rows
from tests.service.loaded_bases import LoadedBases
from tests.tiny_models import VARIANTS

pytestmark = pytest.mark.slow

ON_BASES = tuple(VARIANTS)
TOKENS = 24
END = 0
"""The token that ends a text of the tiny models."""
METHODS = ("base", "bottleneck", "lora")


def config_of(base: LoadedBase, method: str) -> AdapterConfig:
    if method == "bottleneck":
        return paper_config("houlsby", bottleneck=4)
    paths = [path for path in base.shape.linears if not path.endswith(("lm_head", "embed_out"))]
    return LoraConfig.of({path: LoraModule(rank=1 + number % 3, alpha=4.0) for number, path in enumerate(paths)})


def handle_of(base: LoadedBase, method: str) -> LoadableAdapter | None:
    """An adapter that visibly changes what the model says, or None for the base alone.

    Not much more than visibly: a LoRA several times as strong as its base amplifies the rounding of both computations.
    """
    if method == "base":
        return None
    config = config_of(base, method)
    state = create(config, base.shape, seed=1, base=base.model).state_dict()
    generator = torch.Generator().manual_seed(1)
    tensors = {name: value + 0.2 * torch.randn(value.shape, generator=generator) for name, value in state.items()}
    return LoadableAdapter(f"sha256:{METHODS.index(method):064x}", config, lambda: tensors)


def with_adapter(base: LoadedBase, handle: LoadableAdapter | None) -> AbstractContextManager[None]:
    if handle is None:
        return nullcontext()
    return attached(base.model, from_tensors(handle.config, base.shape, handle.load()))


def prompts_of(seed: int) -> list[tuple[int, ...]]:
    """Prompts of 1 to 30 tokens."""
    draw = np.random.default_rng(seed)
    return [tuple(int(i) for i in draw.integers(1, 300, size=length)) for length in (7, 1, 30, 19, 3)]


def alone(base: LoadedBase, prompt: tuple[int, ...], generated: tuple[int, ...]) -> tuple[tuple[int, ...], Tensor]:
    """The greedy tokens of plain transformers, without a cache, and the log-probability (tokens,) of each `generated`.

    They are the likeliest at each place of one pass over `generated`, as long as the tokens before are the same; one
    token more than was generated where that ended too early.
    """
    ids = torch.tensor([[*prompt, *generated]])
    logits = base.model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits[0].detach()
    log_probs = torch.log_softmax(logits[len(prompt) - 1 :].float(), dim=-1)
    likeliest = log_probs.argmax(-1).tolist()[:TOKENS]
    end = likeliest.index(END) + 1 if END in likeliest else TOKENS
    return tuple(likeliest[:end]), log_probs[:-1].gather(-1, ids[0, len(prompt) :, None]).squeeze(-1)


def test_rows_that_join_and_leave_get_what_they_get_alone(base: LoadedBase) -> None:
    engine, draw = Engine(LoadedBases(base), EngineLimits(max_running=4)), np.random.default_rng(1)
    handles = [handle_of(base, method) for method in METHODS]
    params = SamplingParams(max_tokens=TOKENS, temperature=0.0, logprobs=1)
    requests = [GenerateRequest("tiny", prompt, handles[n % 3], params) for n, prompt in enumerate(prompts_of(1))]
    for request, choice in answers_of_joining_rows(engine, requests, draw, most_steps=9):
        with with_adapter(base, request.adapter):
            tokens, log_probs = alone(base, request.prompt, choice.token_ids)
        assert choice.token_ids == tokens
        assert choice.token_logprobs == pytest.approx(log_probs.tolist(), abs=5e-5)  # of 5, summed in another order


def test_scores_and_vectors_of_a_padded_batch_are_those_of_each_row(base: LoadedBase) -> None:
    engine, windows = Engine(LoadedBases(base)), tuple(prompts_of(2))
    pooled = frozenset(range(len(windows)))
    handles = [handle_of(base, method) for method in METHODS]
    requests = [ScoreRequest("tiny", windows, handle, pooled=pooled, bos=False) for handle in handles]
    for handle, scores in zip(handles, answered(engine, *requests), strict=True):
        for number, window in enumerate(windows):
            ids = torch.tensor([window])
            with torch.no_grad(), with_adapter(base, handle):
                nll = -float(token_log_probs(base.model, ids, torch.ones_like(ids)).double().sum())
                hidden = base.model.base_model(input_ids=ids).last_hidden_state[0].mean(dim=0).numpy()
            assert scores.nll[number] == pytest.approx(nll, abs=1e-5 * len(window))
            np.testing.assert_allclose(scores.vectors[number], hidden, atol=2e-5)
