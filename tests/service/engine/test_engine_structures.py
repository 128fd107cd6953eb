"""Prefixes, MAM and fusions in the engine: rows that generate together get what each gets alone, in what is left of
the context, and what is no language model is refused by what it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import numpy as np
import pytest
import torch

from registry.adapters import attached, expected_tensors, from_tensors
from registry.base_model import LoadedBase
from registry.base_model.likelihood import Window, hidden_states, lm_logits, score_windows
from registry.errors import InvalidParameter, InvalidPrompt, Unavailable
from registry.spec import (
    AdapterConfig,
    BankConfig,
    BottleneckConfig,
    FusionConfig,
    HeadConfig,
    PrefixConfig,
    PromptAnswer,
    UnionConfig,
    scored_text,
)
from service.engine import GenerateRequest, LoadableAdapter, SamplingParams, ScoreRequest
from service.engine.engine import Engine
from service.engine.text_calls import text_windows
from tests.service.engine.stepping import answered, ended, greedy, started, tokens_of
from tests.service.loaded_bases import LoadedBases

PREFIX = PrefixConfig(length=5)
PARALLEL = BottleneckConfig(structure="parallel", bottleneck=4, activation="relu", scale=4.0)
PFEIFFER = BottleneckConfig(structure="pfeiffer", bottleneck=4, activation="relu")
HEAD = HeadConfig(task="classification", labels=("bad", "good"))
SPAN = HeadConfig(task="question_answering", labels=("start", "end"))
STRUCTURES: dict[str, AdapterConfig] = {
    "prefix": PREFIX,
    "mam": UnionConfig(members=(PREFIX, PARALLEL)),
    "fusion": FusionConfig(member=PFEIFFER, members=3),
}


ON_BASES = ("gpt2", "llama")


def handle_of(base: LoadedBase, config: AdapterConfig, seed: int = 1) -> LoadableAdapter:
    """An adapter that visibly changes what the model says."""
    generator = torch.Generator().manual_seed(seed)
    shapes = expected_tensors(config, base.shape)
    tensors = {name: 0.5 * torch.randn(size, generator=generator) for name, size in shapes.items()}
    return LoadableAdapter(f"sha256:{seed:064x}", config, lambda: tensors)


@torch.no_grad()
def reference(
    base: LoadedBase, prompt: tuple[int, ...], tokens: int, handle: LoadableAdapter | None
) -> tuple[int, ...]:
    """One row, every token from a pass over the whole text: no cache, no padding."""
    ids = list(prompt)
    with ExitStack() as stack:
        if handle is not None:
            stack.enter_context(attached(base.model, from_tensors(handle.config, base.shape, handle.load())))
        for _ in range(tokens):
            row = torch.tensor([ids])
            hidden = hidden_states(base.model, row, torch.ones_like(row))
            ids.append(int(lm_logits(base.model, hidden[0, -1]).argmax()))
            if ids[-1] == base.eos_id:
                break
    return tuple(ids[len(prompt) :])


@pytest.mark.parametrize("structure", STRUCTURES)
def test_one_prompt_in_several_choices_and_with_its_own_scores(base: LoadedBase, structure: str) -> None:
    engine, handle = Engine(LoadedBases(base)), handle_of(base, STRUCTURES[structure])
    params = SamplingParams(max_tokens=4, temperature=0.0, n=2, logprobs=1, prompt_logprobs=True)
    prompt = (7, 250, 3, 99)
    requests = [GenerateRequest("tiny", ids, handle, params) for ids in (prompt, (0, *prompt, *prompt))]
    generation, _ = answered(engine, *requests)
    assert {choice.token_ids for choice in generation.choices} == {reference(base, prompt, 4, handle)}
    with attached(base.model, from_tensors(handle.config, base.shape, handle.load())):
        [nll] = score_windows(base.model, [Window(prompt)], max_tokens=100, pad_id=0)
    assert sum(generation.prompt.token_logprobs[1:]) == pytest.approx(-nll, rel=1e-4)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_texts_of_any_length_are_scored_as_they_are_alone(base: LoadedBase, structure: str) -> None:
    handle = handle_of(base, STRUCTURES[structure])
    texts = ["x", "Heat the oil, add the onions. " * 9, PromptAnswer(prompt="A soup is" * 20, answer=" of onions")]
    with started(Engine(LoadedBases(base))) as engine:
        scores = engine.score("tiny", texts, handle)
    for text, score in zip(texts, scores, strict=True):
        windows = text_windows(base, text, handle.config)
        assert (
            sum(window.scored for window in windows) == score.tokens == len(base.tokenize(scored_text(text), bos=False))
        )
        with attached(base.model, from_tensors(handle.config, base.shape, handle.load())):
            alone = [score_windows(base.model, [window], max_tokens=100, pad_id=0)[0] for window in windows]
        assert score.nll == pytest.approx(sum(alone), rel=1e-4)


@pytest.mark.parametrize("structure", ["prefix", "mam"])
def test_a_prefix_takes_its_part_of_the_context(base: LoadedBase, structure: str) -> None:
    engine, handle = Engine(LoadedBases(base)), handle_of(base, STRUCTURES[structure])
    assert max(len(window.ids) for window in text_windows(base, "Heat the oil. " * 50, handle.config)) == 64 - 5
    prompt = tuple(range(5, 55))  # 50 tokens, 5 of the prefix: 9 are left
    tokens = tokens_of(engine, GenerateRequest("tiny", prompt, handle, greedy(None)))
    assert tokens == [reference(base, prompt, 9, handle)]
    with pytest.raises(
        InvalidParameter, match=r"context of the base model is 64, of which .* prefix takes 5: request at most 9\."
    ):
        engine.submit(GenerateRequest("tiny", prompt, handle, greedy(10)))
    with pytest.raises(InvalidPrompt, match=r"60 tokens and the context of the base model is 64, of which .* takes 5"):
        engine.submit(ScoreRequest("tiny", (tuple(range(60)),), handle))
    answered(engine, GenerateRequest("tiny", prompt, None, greedy(14)))  # the base itself has it all


# --- what is no language model --------------------------------------------------------------------

NO_TEXT: dict[str, tuple[AdapterConfig, str]] = {
    "head": (HEAD, r"answers with a head for classification \(labels 'bad', 'good'\) and not with text"),
    "spans": (UnionConfig(members=(PFEIFFER, SPAN)), "answers with a head for question answering and not"),
    "bank": (BankConfig(expert=PFEIFFER, experts=3), r"bank of 3 experts \(AdaMix\).*cook a soup from a recipe of it"),
}


@pytest.mark.parametrize("kind", NO_TEXT)
def test_heads_and_banks_are_refused_by_what_they_are(base: LoadedBase, kind: str) -> None:
    config, match = NO_TEXT[kind]
    engine, handle = Engine(LoadedBases(base)), LoadableAdapter("sha256:" + "a" * 64, config, dict)
    for request in (
        GenerateRequest("tiny", (1, 2), handle, greedy(1)),
        ScoreRequest("tiny", ((1, 2),), handle),
        ScoreRequest("tiny", ((1, 2),), handle, pooled=frozenset({0})),
    ):
        with pytest.raises(InvalidParameter, match=f"^Adapter sha256:aaa.*(?:{match})") as caught:
            engine.submit(request)
        assert caught.value.message.count(". ") == 0, "one sentence"


def test_many_labels_are_not_all_told(base: LoadedBase) -> None:
    config = HeadConfig(task="classification", labels=tuple(f"label {number}" for number in range(40)))
    request = GenerateRequest("tiny", (1,), LoadableAdapter("sha256:" + "a" * 64, config, dict))
    with pytest.raises(InvalidParameter, match=r"'label 4' and 35 more\)"):
        Engine(LoadedBases(base)).submit(request)


@pytest.fixture
def reading(encoder: LoadedBase) -> Iterator[Engine]:
    with started(Engine(LoadedBases(encoder))) as engine:
        yield engine


def test_an_encoder_embeds_and_does_nothing_else(encoder: LoadedBase, reading: Engine) -> None:
    adapter = LoadableAdapter("sha256:" + "a" * 64, PFEIFFER, dict)
    for handle, match in ((None, r"Base model 'bert' is an encoder \(family 'bert'\)"), (adapter, "an adapter of an")):
        for request in (
            GenerateRequest("bert", (0, 5), handle),
            ScoreRequest("bert", ((0, 5), (0, 6)), handle, pooled=frozenset({0})),
        ):
            with pytest.raises(InvalidParameter, match=match):
                reading.submit(request)
    with pytest.raises(InvalidParameter, match="an adapter of an encoder"):
        reading.submit(ScoreRequest("bert", ((0, 5),), adapter, pooled=frozenset({0})))


def test_vectors_of_an_encoder_are_means_between_cls_and_the_end(encoder: LoadedBase, reading: Engine) -> None:
    texts = ["Heat the oil.", "The court held that the contract was void. " * 10]
    embeddings = reading.embed("bert", texts)
    assert [embedding.nll for embedding in embeddings] == [None, None]
    assert [embedding.truncated for embedding in embeddings] == [False, True]
    for text, embedding in zip(texts, embeddings, strict=True):
        ids = torch.tensor([[0, *encoder.tokenize(text, bos=False)[:62], 2]])
        mean = hidden_states(encoder.model, ids, torch.ones_like(ids))[0, 1:].mean(0)
        np.testing.assert_allclose(embedding.vector, mean, rtol=1e-4, atol=1e-5)
    with pytest.raises(InvalidPrompt, match="is empty"):
        reading.embed("bert", ["a", ""])


def test_an_encoder_whose_states_are_no_numbers_says_so(encoder: LoadedBase) -> None:
    engine, request = Engine(LoadedBases(encoder)), ScoreRequest("bert", ((0, 5),), pooled=frozenset({0}))
    ended(engine, request)  # loads the base model
    weight = encoder.model.get_submodule("encoder.layer.1.output.LayerNorm").weight
    intact = weight.data.clone()
    weight.data[0] = float("nan")
    [ticket] = ended(engine, request)
    weight.data.copy_(intact)
    with pytest.raises(Unavailable, match="not finite numbers"):
        ticket.result(0)
