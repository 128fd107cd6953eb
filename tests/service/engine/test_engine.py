"""The engine against plain transformers: every row gets what it gets alone, and trouble stays where it arises."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import DEFAULT, Mock

import numpy as np
import pytest
import torch
from torch import Tensor

from registry.adapters import attached, create, from_tensors, paper_config
from registry.base_model import BaseText, LoadedBase, load_base
from registry.base_model.likelihood import Window, score_windows, token_log_probs
from registry.errors import (
    Busy,
    Cancelled,
    Internal,
    InvalidParameter,
    InvalidPrompt,
    InvalidWeights,
    Unavailable,
)
from registry.spec import BaseEntry, PromptAnswer
from service.engine import (
    Delta,
    EngineLimits,
    GenerateRequest,
    LoadableAdapter,
    SamplingParams,
    ScoreRequest,
)
from service.engine.adapter_cache import AdapterCache
from service.engine.engine import Engine
from service.engine.runner import ForwardResult, ForwardTask, Runner
from tests.service.engine.stepping import answered, ended, greedy, run, started, tokens_of
from tests.service.loaded_bases import LoadedBases
from training.tasks.language import passage_scores

CONFIG = paper_config("bapna_firat", bottleneck=4)
TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "A soup",
    "Heat the oil, add the onions and stir until they are golden. " * 4,  # several windows
    "naïve café 日本",
    "x",
]


def tensors_of(base: LoadedBase, seed: int) -> dict[str, Tensor]:
    """An adapter that visibly changes what the model says."""
    generator = torch.Generator().manual_seed(seed)
    state = create(CONFIG, base.shape, seed=seed).state_dict()
    return {name: torch.randn(value.shape, generator=generator) * 0.5 for name, value in state.items()}


def handle_of(base: LoadedBase, seed: int) -> LoadableAdapter:
    return LoadableAdapter(f"sha256:{seed:064x}", CONFIG, lambda: tensors_of(base, seed))


def engine_of(base: LoadedBase, **limits: int) -> Engine:
    return Engine(LoadedBases(base), EngineLimits(**limits))


@pytest.fixture
def engine(base: LoadedBase) -> Iterator[Engine]:
    with started(engine_of(base)) as engine:
        yield engine


def reference(
    base: LoadedBase, prompt: tuple[int, ...], tokens: int, handle: LoadableAdapter | None
) -> tuple[int, ...]:
    """Plain `generate`, one prompt, greedy."""
    ids = torch.tensor([prompt])

    def generate() -> tuple[int, ...]:
        out = base.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False, pad_token_id=0
        )
        return tuple(out[0, len(prompt) :].tolist())

    if handle is None:
        return generate()
    with attached(base.model, from_tensors(handle.config, base.shape, handle.load())):
        return generate()


def prompts_of(base: LoadedBase) -> list[tuple[int, ...]]:
    return [tuple(base.tokenize(text)[:length]) for text, length in zip(TEXTS, (9, 2, 30, 17, 3), strict=True)]


# --- greedy ---------------------------------------------------------------------------------------


def test_the_context_can_be_filled_to_its_end(base: LoadedBase) -> None:
    engine = engine_of(base)
    prompt = tuple(range(5, 65))
    requests = [GenerateRequest("tiny", prompt, params=greedy(tokens)) for tokens in (4, None)]
    assert tokens_of(engine, *requests) == [reference(base, prompt, 4, None)] * 2


@pytest.mark.parametrize("listed", [False, True], ids=["eos", "generation_config"])
def test_eos_and_what_generation_config_lists_end_a_choice(
    base: LoadedBase, monkeypatch: pytest.MonkeyPatch, listed: bool
) -> None:
    prompt = prompts_of(base)[0]
    tokens = reference(base, prompt, 6, None)
    name, value = ("end_ids", (tokens[3],)) if listed else ("eos_id", tokens[3])
    monkeypatch.setitem(base.__dict__, name, value)
    [answer] = answered(engine_of(base), GenerateRequest("tiny", prompt, params=greedy(6)))
    choice = answer.choices[0]
    assert (choice.token_ids, choice.finish_reason) == (tokens[: tokens.index(tokens[3]) + 1], "stop")


# --- sampling -------------------------------------------------------------------------------------


def sampled(prompt: tuple[int, ...], **params: object) -> GenerateRequest:
    return GenerateRequest("tiny", prompt, params=SamplingParams(max_tokens=12, **params))  # type: ignore[arg-type]


def test_a_seed_gives_the_same_tokens_whatever_else_runs(base: LoadedBase) -> None:
    request = sampled(prompts_of(base)[0], seed=3, n=2, top_p=0.9)
    [alone] = answered(engine_of(base), request)
    crowd = engine_of(base, max_running=5)
    tickets = crowd.submit_all([sampled(prompt, seed=i) for i, prompt in enumerate(prompts_of(base))])
    crowd.step()
    crowd.step()
    [beside] = answered(crowd, request)
    assert [c.token_ids for c in alone.choices] == [c.token_ids for c in beside.choices]
    assert all(ticket.done() for ticket in tickets)


def test_choices_differ_and_the_first_is_that_of_a_single_one(base: LoadedBase) -> None:
    prompt = prompts_of(base)[0]
    many, single = answered(engine_of(base), sampled(prompt, seed=3, n=4), sampled(prompt, seed=3))
    choices = [choice.token_ids for choice in many.choices]
    assert len(set(choices)) == 4
    assert single.choices[0].token_ids == choices[0]


def test_without_a_seed_two_requests_differ(base: LoadedBase) -> None:
    first, second = tokens_of(engine_of(base), *[sampled(prompts_of(base)[0])] * 2)
    assert first != second


# --- log probs ------------------------------------------------------------------------------------


def test_prompt_scores_are_those_of_a_direct_pass(base: LoadedBase) -> None:
    params = SamplingParams(max_tokens=0, logprobs=2, prompt_logprobs=True, n=2)
    requests = [GenerateRequest("tiny", prompt, params=params) for prompt in prompts_of(base)]
    for request, answer in zip(requests, answered(engine_of(base), *requests), strict=True):
        ids = torch.tensor([request.prompt])
        direct = token_log_probs(base.model, ids, torch.ones_like(ids))[0].tolist()
        assert answer.prompt.token_logprobs[0] is answer.prompt.top_logprobs[0] is None
        assert list(answer.prompt.token_logprobs[1:]) == pytest.approx(direct, abs=1e-5)
        for token, value, top in zip(
            request.prompt[1:], answer.prompt.token_logprobs[1:], answer.prompt.top_logprobs[1:], strict=True
        ):
            assert value <= top[0][1]
            assert dict(top).get(token, value) == value
        assert [choice.token_ids for choice in answer.choices] == [(), ()]
        assert answer.choices[0].finish_reason == "length"


def test_prompts_are_scored_the_same_in_small_pieces(base: LoadedBase, monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(max_tokens=1, logprobs=1, prompt_logprobs=True, temperature=0)
    request = GenerateRequest("tiny", prompts_of(base)[2], params=params)
    [whole] = answered(engine_of(base), request)
    monkeypatch.setattr("registry.base_model.likelihood._LOGIT_ROWS", 2)
    [pieces] = answered(engine_of(base), request)
    assert whole.prompt.token_logprobs[1:] == pytest.approx(pieces.prompt.token_logprobs[1:], abs=1e-6)
    best, best_in_pieces = ([top[0][0] for top in answer.prompt.top_logprobs[1:]] for answer in (whole, pieces))
    assert best == best_in_pieces


def test_nothing_is_computed_that_was_not_asked_for(base: LoadedBase) -> None:
    [answer] = answered(engine_of(base), GenerateRequest("tiny", prompts_of(base)[0], params=greedy(3)))
    assert answer.prompt is None
    assert answer.choices[0].token_logprobs == answer.choices[0].top_logprobs == ()


# --- texts ----------------------------------------------------------------------------------------


# --- texts ----------------------------------------------------------------------------------------


def direct(base: LoadedBase, text: str) -> tuple[float, int]:
    ids = base.tokenize(text, bos=False)
    step = base.shape.context - 1
    windows = [Window((0, *ids[start : start + step])) for start in range(0, len(ids), step)]
    return sum(score_windows(base.model, windows, max_tokens=1, pad_id=0)), len(ids)


def test_of_a_prompt_with_its_answer_only_the_answer_is_scored(base: LoadedBase) -> None:
    """However a step cuts the texts, and with a prompt longer than the context."""
    passages = [PromptAnswer(prompt=prompt, answer=" It was void.") for prompt in ("", "The court held: ", TEXTS[2])]
    expected = passage_scores(base, passages, block=base.shape.context)
    answer = len(base.tokenize(" It was void.", bos=False))
    for max_step_tokens in (5, 2048):
        with started(engine_of(base, max_step_tokens=max_step_tokens)) as engine:
            scores = engine.score("tiny", passages)
        assert [score.tokens for score in scores] == [answer] * 3
        assert [score.nll for score in scores] == pytest.approx([score.nll for score in expected], rel=1e-5)
    assert scores[0].nll == pytest.approx(direct(base, " It was void.")[0], rel=1e-5)


def test_an_adapter_changes_scores_and_comes_off_again(base: LoadedBase, engine: Engine) -> None:
    handle = handle_of(base, 1)
    without_adapter = engine.score("tiny", TEXTS)
    with_adapter = engine.score("tiny", TEXTS, handle)
    assert engine.score("tiny", TEXTS) == without_adapter
    assert all(abs(a.nll - b.nll) > 1e-3 for a, b in zip(without_adapter, with_adapter, strict=True))
    with attached(base.model, from_tensors(CONFIG, base.shape, handle.load())):
        expected = [direct(base, text)[0] for text in TEXTS]
    assert [score.nll for score in with_adapter] == pytest.approx(expected, rel=1e-5)


def test_empty_texts_score_nothing_and_cannot_be_embedded(engine: Engine) -> None:
    assert [(s.nll, s.tokens, s.windows) for s in engine.score("tiny", ["", ""])] == [(0, 0, 0)] * 2
    assert engine.score("tiny", ["", TEXTS[0]])[1] == engine.score("tiny", TEXTS[:1])[0]
    assert engine.score("tiny", []) == engine.embed("tiny", []) == []
    with pytest.raises(InvalidPrompt, match="Text 1 is empty"):
        engine.embed("tiny", ["a", ""])


def test_an_embedding_is_the_mean_of_the_first_window_without_bos(base: LoadedBase, engine: Engine) -> None:
    embedded = engine.embed("tiny", TEXTS)
    for text, embedding, score in zip(TEXTS, embedded, engine.score("tiny", TEXTS), strict=True):
        ids = torch.tensor([base.tokenize(text)[:64]])
        hidden = base.model.base_model(input_ids=ids).last_hidden_state[0, 1:].mean(dim=0)
        np.testing.assert_allclose(embedding.vector, hidden.detach().numpy(), atol=1e-5)
        assert embedding.vector.dtype == np.float32
        assert (embedding.nll, embedding.tokens) == (pytest.approx(score.nll, rel=1e-6), score.tokens)
        assert embedding.truncated == (score.windows > 1)


def test_for_a_vector_alone_no_more_is_tokenised_and_run_than_its_window(
    base: LoadedBase, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = "The soup was hot and the court was cold. " * 2000
    texts = [*TEXTS, long]
    whole = engine.embed("tiny", texts)
    read: list[int] = []
    tokenize = BaseText.tokenize

    def counted(self: BaseText, text: str, **options: Any) -> list[int]:
        read.append(len(text))
        return tokenize(self, text, **options)

    monkeypatch.setattr(BaseText, "tokenize", counted)
    totals: list[int] = []
    unscored = engine.embed("tiny", texts, scored=False, progress=lambda done, total: totals.append(total))
    assert max(read) < len(long) / 10
    assert totals[-1] == len(texts), "one window each"
    assert [embedding.nll for embedding in unscored] == [None] * len(texts)
    assert [embedding.truncated for embedding in unscored] == [embedding.truncated for embedding in whole]
    for embedding, scored_embedding in zip(unscored, whole, strict=True):
        np.testing.assert_allclose(embedding.vector, scored_embedding.vector, atol=1e-6)


def test_embedding_hears_between_two_texts_that_it_is_to_end(engine: Engine) -> None:
    calls: list[int] = []

    def refuse(done: int, total: int) -> None:
        calls.append(done)
        if len(calls) == 2:
            raise Cancelled("by the operator")

    with pytest.raises(Cancelled, match="by the operator"):
        engine.embed("tiny", TEXTS, progress=refuse)
    assert calls == [0, 0]


def test_a_base_without_bos_scores_all_but_the_first_token(tiny_base_dir: Path) -> None:
    bare = load_base(BaseEntry(id="bare", source=str(tiny_base_dir), bos=False))
    with started(engine_of(bare)) as engine:
        [score] = engine.score("bare", TEXTS[:1])
        [embedded] = engine.embed("bare", TEXTS[:1])
    ids = torch.tensor([bare.tokenize(TEXTS[0])])
    assert score.nll == pytest.approx(-float(token_log_probs(bare.model, ids, torch.ones_like(ids)).sum()), rel=1e-5)
    assert score.tokens == ids.shape[1] - 1
    hidden = bare.model.base_model(input_ids=ids).last_hidden_state[0].mean(dim=0)
    np.testing.assert_allclose(embedded.vector, hidden.detach().numpy(), atol=1e-5)


def test_progress_is_told_and_may_end_it(base: LoadedBase, engine: Engine) -> None:
    progress: list[tuple[int, int]] = []
    engine.score("tiny", TEXTS, progress=lambda done, total: progress.append((done, total)))
    windows = sum(score.windows for score in engine.score("tiny", TEXTS))
    assert progress[-1] == (windows, windows)

    for call in (engine.score, engine.embed):
        with pytest.raises(Cancelled, match="by the operator"):
            call("tiny", TEXTS, progress=Mock(side_effect=Cancelled("by the operator")))
    assert engine.score("tiny", ["x"])


# --- many at once ---------------------------------------------------------------------------------


def test_others_go_on_while_an_adapter_is_loaded_and_it_is_loaded_once(base: LoadedBase) -> None:
    engine, prompt, gate = engine_of(base), prompts_of(base)[0], threading.Event()
    loads = []

    def load() -> Mapping[str, Tensor]:
        loads.append(threading.current_thread().name)
        assert gate.wait(30)
        return tensors_of(base, 1)

    slow = LoadableAdapter("sha256:" + "5" * 64, CONFIG, load)
    waiting = [engine.submit(GenerateRequest("tiny", prompt, slow, greedy(4))) for _ in range(2)]
    gone = engine.submit(GenerateRequest("tiny", prompt, slow, greedy(4)))
    other_ticket = engine.submit(GenerateRequest("tiny", prompt, handle_of(base, 2), greedy(4)))
    with started(engine):
        assert other_ticket.result(30).choices[0].token_ids == reference(base, prompt, 4, handle_of(base, 2))
        assert not any(ticket.done() for ticket in waiting)
        gone.cancel()
        gate.set()
        for ticket in waiting:
            assert ticket.result(30).choices[0].token_ids == reference(base, prompt, 4, handle_of(base, 1))
    assert len(loads) == 1
    assert loads[0].startswith("load-adapter")


def test_adapters_that_wait_to_start_are_loaded_within_the_bank_and_all_requests_are_answered(base: LoadedBase) -> None:
    """While one generates, the adapters of others are loaded: as many as the bank could hold, and no more."""
    size = sum(4 * tensor.numel() for tensor in tensors_of(base, 0).values())
    engine = engine_of(base, adapter_cache_bytes=3 * size, max_running=1)
    loads: list[float] = []
    unused: list[float] = []

    def load(seed: int) -> Mapping[str, Tensor]:
        loads.append(seed)
        unused.append(len(loads) - engine.counters()["adapter_loads_total"])
        return tensors_of(base, seed)

    handles = [LoadableAdapter(f"sha256:{n:064x}", CONFIG, partial(load, n), size) for n in range(12)]
    tickets = engine.submit_all([GenerateRequest("tiny", (1, 2), handle, greedy(20)) for handle in handles])
    with started(engine):
        assert all(ticket.result(60).choices for ticket in tickets)
    assert len(loads) == 12, "each once"
    assert 1 < max(unused) <= 3, "loads overlap with the tokens of others"


def test_an_adapter_larger_than_the_bank_is_refused_with_the_numbers(base: LoadedBase) -> None:
    """Its size as fp32 counts, which is larger than its file."""
    adapter = replace(handle_of(base, 0), size_bytes=2000)
    size = sum(4 * tensor.numel() for tensor in adapter.load().values())
    engine = engine_of(base, adapter_cache_bytes=size - 1)
    with pytest.raises(InvalidParameter, match=f"takes {size} bytes.* of {size - 1} bytes .SOUP_ADAPTER_BANK_BYTES"):
        engine.submit(GenerateRequest("tiny", (1,), adapter))
    assert answered(engine, GenerateRequest("tiny", (1,), None, greedy(2)))
    assert engine.counters()["adapter_bytes"] == 0


# --- streams --------------------------------------------------------------------------------------


@pytest.mark.parametrize("listener", ["on_token", "on_step"])
def test_a_listener_that_raises_fails_its_requests_alone(base: LoadedBase, listener: str) -> None:
    engine, prompts = engine_of(base), prompts_of(base)

    to_broken: dict[str, Any] = {listener: Mock(side_effect=RuntimeError("event loop is closed"))}
    broken_requests = [GenerateRequest("tiny", prompt, params=greedy(5), **to_broken) for prompt in prompts[:2]]
    *bad, good = ended(engine, *broken_requests, GenerateRequest("tiny", prompts[2], params=greedy(5)))
    assert all(isinstance(ticket.exception(0), Internal) for ticket in bad)
    assert good.result(0).choices[0].token_ids == reference(base, prompts[2], 5, None)


def test_a_listener_to_the_end_that_raises_takes_no_answer_from_anybody(
    base: LoadedBase, caplog: pytest.LogCaptureFixture
) -> None:
    broken = Mock(side_effect=RuntimeError("event loop is closed"))
    good = GenerateRequest("tiny", prompts_of(base)[0], params=greedy(5))
    assert all(answered(engine_of(base), replace(good, on_end=broken), good))
    assert "event loop is closed" in caplog.text


def test_who_listens_to_several_requests_is_told_of_a_step_once_behind_its_tokens(base: LoadedBase) -> None:
    engine, prompts = engine_of(base), prompts_of(base)
    events: list[object] = []
    first = GenerateRequest(
        "tiny",
        prompts[0],
        params=greedy(3),
        on_token=lambda delta: events.append(delta.index),
        on_step=lambda: events.append("step"),
    )
    second, alone = replace(first, prompt=prompts[1]), GenerateRequest("tiny", prompts[2], params=greedy(6))
    assert all(answered(engine, first, second, alone))
    assert events == [0, 0, "step"] * 3


# --- refusals -------------------------------------------------------------------------------------


def test_what_never_has_room_for_its_keys_and_values_is_refused_with_the_numbers(base: LoadedBase) -> None:
    each = 2 * 2 * 4 * 32  # bytes of a position: two layers, keys and values, fp32, 32 wide
    engine = engine_of(base, kv_bytes=64 * each - 1)
    request = GenerateRequest("tiny", (1, 2), params=greedy(3))
    with pytest.raises(InvalidParameter, match=f"a KV cache of {64 * each} bytes; this server has {64 * each - 1} "):
        engine.submit(request)
    [tokens] = tokens_of(engine_of(base, kv_bytes=64 * each), request)
    assert len(tokens) == 3


def test_callers_are_told_to_come_back_when_what_is_held_is_computed(base: LoadedBase) -> None:
    engine = engine_of(base, max_requests=2)
    request = GenerateRequest("tiny", (1, 2), params=greedy(40))
    tickets = engine.submit_all([request] * 2)
    sentence = "with 84 tokens to compute; its limit is 2 requests: try again in {} s"
    for tokens_a_second, seconds in ((None, 1), (2.0, 21), (1e-3, 600)):  # one of two requests has to end
        engine._speed = tokens_a_second
        with pytest.raises(Busy, match=sentence.format(seconds)) as busy:
            engine.submit(request)
        assert busy.value.retry_after == seconds
    run(engine)
    assert all(ticket.done() for ticket in tickets)
    assert engine._speed > 1


def test_a_patient_caller_waits_for_its_place(base: LoadedBase) -> None:
    engine = engine_of(base, max_requests=1)
    first = engine.submit(GenerateRequest("tiny", (1, 2), params=greedy(2)))
    with pytest.raises(Busy):
        engine.score("tiny", ["x"])
    with pytest.raises(Cancelled):
        engine.score("tiny", ["x"], patient=True, progress=Mock(side_effect=Cancelled("by the operator")))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(engine.score, "tiny", ["x"], patient=True)
        engine.start()
        assert waiting.result(30)[0].tokens == 1
    assert first.done()
    engine.stop()


def test_a_patient_caller_waits_for_an_engine_that_has_started_meanwhile(
    base: LoadedBase, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = Mock(side_effect=[Unavailable("It is starting."), DEFAULT], wraps=engine.submit)
    monkeypatch.setattr(engine, "submit", submit)
    monkeypatch.setattr(Engine, "preloading", property(lambda _engine: not submit.called))
    assert engine.score("tiny", ["x"], patient=True)


def test_a_cancelled_request_stops_and_the_others_do_not_notice(base: LoadedBase) -> None:
    engine, prompts = engine_of(base), prompts_of(base)
    deltas: list[Delta] = []
    long = engine.submit(GenerateRequest("tiny", prompts[2], params=greedy(30), on_token=deltas.append))
    other_ticket = engine.submit(GenerateRequest("tiny", prompts[0], params=greedy(12)))
    for _ in range(4):
        engine.step()
    deltas_before_cancel = len(deltas)
    assert 0 < deltas_before_cancel < 30
    long.cancel()
    bytes_before = engine.counters()["kv_bytes"]
    engine.step()
    assert engine.counters()["kv_bytes"] == bytes_before / 2, "its memory is free at the next step"
    run(engine)
    assert len(deltas) == deltas_before_cancel
    assert other_ticket.result(0).choices[0].token_ids == reference(base, prompts[0], 12, None)
    with pytest.raises(CancelledError):
        long.result(0)
    assert engine.counters()["requests_cancelled_total"] == 1
    assert engine.step() is False
    assert engine.counters()["kv_bytes"] == 0


def test_cancelling_what_has_ended_takes_its_answer_from_nobody(base: LoadedBase) -> None:
    [late] = ended(engine_of(base), GenerateRequest("tiny", (1,), params=greedy(2)))
    late.cancel()
    assert late.result(0).choices[0].token_ids


# --- trouble --------------------------------------------------------------------------------------


# --- trouble --------------------------------------------------------------------------------------


def failing(base: LoadedBase, load: Callable[[], Mapping[str, Tensor]]) -> LoadableAdapter:
    return LoadableAdapter("sha256:" + "f" * 64, CONFIG, load)


def test_a_failing_load_fails_its_requests_and_never_serves_the_base(base: LoadedBase) -> None:
    engine, prompt = engine_of(base), prompts_of(base)[0]
    load = Mock(side_effect=OSError("the disk is gone"))
    generate = GenerateRequest("tiny", prompt, failing(base, load), greedy(3))
    score = ScoreRequest("tiny", (prompt,), failing(base, load))
    *bad, good = ended(engine, generate, generate, score, GenerateRequest("tiny", prompt, params=greedy(3)))
    for ticket in bad:
        error = ticket.exception(0)
        assert isinstance(error, Unavailable)
        assert "cannot be loaded (OSError)" in error.message
        assert "disk" not in error.message
    assert good.result(0).choices[0].token_ids == reference(base, prompt, 3, None)
    [retried] = ended(engine, generate)
    assert retried.exception(0) is not None
    assert load.call_count == 2, "a failure is not remembered"


def test_tensors_of_another_shape_are_incompatible(base: LoadedBase) -> None:
    handle = failing(base, lambda: {"layers.0.ffn.down.weight": torch.zeros(1)})
    [ticket] = ended(engine_of(base), ScoreRequest("tiny", ((1, 2),), handle))
    error = ticket.exception(0)
    assert error.code == "incompatible"


def test_an_adapter_that_answers_nan_fails_clearly(base: LoadedBase) -> None:
    huge = {name: torch.full_like(value, 3e38) for name, value in tensors_of(base, 0).items()}
    adapter = failing(base, lambda: huge)
    requests = (
        GenerateRequest("tiny", (1, 2), adapter, SamplingParams(max_tokens=2)),
        ScoreRequest("tiny", ((1, 2),), adapter),
    )
    for ticket in ended(engine_of(base), *requests):
        assert isinstance(ticket.exception(0), InvalidWeights)
        assert "not finite" in str(ticket.exception(0))


@pytest.mark.parametrize("step", ["prefill", "decode", "score"])
def test_an_exception_in_a_batch_is_the_end_of_that_batch_only(
    base: LoadedBase, monkeypatch: pytest.MonkeyPatch, step: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine, prompt = engine_of(base), prompts_of(base)[0]
    ended(engine, ScoreRequest("tiny", (prompt,)))  # loads the base model
    real = Runner.run

    def fail(self: Runner, tasks: Sequence[ForwardTask]) -> list[ForwardResult]:
        if step == "decode" and tasks[0].start == 0:
            return real(self, tasks)
        monkeypatch.setattr(Runner, "run", real)
        raise RuntimeError("out of memory, with secret details")

    monkeypatch.setattr(Runner, "run", fail)
    request = ScoreRequest("tiny", (prompt,)) if step == "score" else GenerateRequest("tiny", prompt, params=greedy(4))
    with started(engine):
        error = engine.submit(request).exception(30)
        assert isinstance(error, Internal)
        assert "secret" not in error.message
        assert "secret" in caplog.text
        assert engine.submit(request).result(30)
        assert engine.counters()["requests_failed_total"] == 1


def test_a_bug_in_scheduling_is_survived(base: LoadedBase, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(base)
    monkeypatch.setattr(engine._scheduler, "next_step", lambda: 1 / 0)
    with started(engine):
        assert isinstance(engine.submit(GenerateRequest("tiny", (1,), params=greedy(1))).exception(30), Internal)
        monkeypatch.undo()
        assert engine.submit(GenerateRequest("tiny", (1,), params=greedy(1))).result(30)


def test_a_failure_while_nothing_runs_is_survived_too(
    base: LoadedBase, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once nothing runs, the runner drops the rows of ended requests, which allocates and so may fail."""
    engine = engine_of(base)
    real, failed = Runner.retain, threading.Event()

    def retain(self: Runner, alive: Iterable[object]) -> None:
        if not failed.is_set() and not engine._scheduler.depth:
            failed.set()
            raise MemoryError("no memory left")
        real(self, alive)

    monkeypatch.setattr(Runner, "retain", retain)
    with started(engine):
        assert engine.submit(GenerateRequest("tiny", (1, 2), params=greedy(2))).result(30)
        assert failed.wait(30)
        assert engine.submit(GenerateRequest("tiny", (1, 2), params=greedy(2))).result(30)
    assert "no memory left" in caplog.text


def test_the_base_model_is_called_from_the_engine_thread_alone(base: LoadedBase, engine: Engine) -> None:
    engine.score("tiny", TEXTS)  # where it is loaded, it is tried by the thread that loads
    threads = set()
    hook = base.model.register_forward_pre_hook(lambda *_: threads.add(threading.current_thread().name))
    inner = base.model.base_model.register_forward_pre_hook(lambda *_: threads.add(threading.current_thread().name))
    try:
        engine.score("tiny", TEXTS)
        engine.embed("tiny", TEXTS)
        engine.submit(GenerateRequest("tiny", (1, 2), params=greedy(3))).result(30)
    finally:
        hook.remove()
        inner.remove()
    assert threads == {"engine"}


# --- stop -----------------------------------------------------------------------------------------


def test_stop_lets_running_requests_finish(base: LoadedBase) -> None:
    engine, prompt = engine_of(base), prompts_of(base)[0]
    engine.start()
    ticket = engine.submit(GenerateRequest("tiny", prompt, params=greedy(20)))
    engine.stop(drain=60)
    assert ticket.result(0).choices[0].token_ids == reference(base, prompt, 20, None)
    with pytest.raises(Unavailable, match="shutting down"):
        engine.submit(GenerateRequest("tiny", prompt))


def test_what_does_not_finish_in_time_is_told(base: LoadedBase) -> None:
    engine = engine_of(base)
    gate, entered = threading.Event(), threading.Event()

    def hold(delta: Delta) -> None:
        entered.set()
        gate.wait(30)

    slow = engine.submit(GenerateRequest("tiny", (1,), params=greedy(40), on_token=hold))
    waiting = engine.submit(GenerateRequest("tiny", (1,), handle_of(base, 1), greedy(40)))
    cancelled = engine.submit(GenerateRequest("tiny", (1,), handle_of(base, 2), greedy(40)))
    engine.start()
    assert entered.wait(30)
    cancelled.cancel()
    stopper = threading.Thread(target=engine.stop, kwargs={"drain": 0})
    stopper.start()
    while engine._stop_at is None:
        entered.wait(0)
    gate.set()
    stopper.join(30)
    assert isinstance(slow.exception(0), Unavailable)
    assert isinstance(waiting.exception(0), Unavailable)
    assert cancelled.cancelled()
    engine.stop()


def test_an_engine_that_never_started_tells_its_requests(base: LoadedBase) -> None:
    engine = engine_of(base)
    ticket = engine.submit(GenerateRequest("tiny", (1,)))
    engine.stop()
    assert isinstance(ticket.exception(0), Unavailable)


def test_an_engine_starts_once(base: LoadedBase) -> None:
    with started(engine_of(base)) as engine, pytest.raises(Internal):
        engine.start()


def test_a_waiting_caller_hears_of_the_stop(base: LoadedBase) -> None:
    engine = engine_of(base, max_requests=1)
    engine.submit(GenerateRequest("tiny", (1,)))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(engine.score, "tiny", ["x"], patient=True)
        engine.stop(drain=0)
        with pytest.raises(Unavailable):
            waiting.result(30)


# --- bank -----------------------------------------------------------------------------------------


def test_held_adapters_are_frozen(base: LoadedBase) -> None:
    module = AdapterCache(2**20).get(Runner(base), handle_of(base, 0)).module
    assert not module.training
    assert not any(parameter.requires_grad for parameter in module.parameters())


def test_a_name_is_no_key(base: LoadedBase) -> None:
    bank, runner = AdapterCache(2**20), Runner(base)
    first = LoadableAdapter("sha256:" + "1" * 64, CONFIG, lambda: tensors_of(base, 1))
    same_digest = LoadableAdapter("sha256:" + "1" * 64, CONFIG, lambda: pytest.fail("held already"))
    assert bank.get(runner, first) is bank.get(runner, same_digest)
    assert bank.get(runner, first) is not bank.get(runner, handle_of(base, 2))


def test_an_evicted_base_model_leaves_no_loaded_adapter_behind(base: LoadedBase) -> None:
    """It would edit the modules of the evicted model, and keep them in memory."""
    bank, runner = AdapterCache(2**20), Runner(base)
    loads, loaded = iter(range(2)), threading.Event()
    handle = LoadableAdapter("sha256:" + "1" * 64, CONFIG, lambda: tensors_of(base, next(loads)))
    bank.start_background_loads(loaded.set)
    bank.prefetch(runner, handle)
    assert loaded.wait(20)
    bank.evict_base(base.entry.id)
    bank.get(runner, handle)
    assert next(loads, None) is None, "loaded twice"
    bank.close()
