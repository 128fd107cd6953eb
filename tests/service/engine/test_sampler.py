"""Drawing tokens, and turning them into text: seeds, nuclei, stop strings and characters across token borders."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import decoders
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from registry.errors import InvalidParameter, InvalidPrompt
from registry.spec import BaseShape
from service.engine.answer_choice import REPLACEMENT, Choice, Detokenizer, StopChecker, StopCondition
from service.engine.request import GenerateRequest, SamplingParams, ScoreRequest
from service.engine.sampler import (
    Draw,
    RandomStream,
    apply_penalties,
    chosen_log_probs,
    keep_nucleus,
    log_probs,
    sample_tokens,
    top_tokens,
)
from tests.service.sentencepiece import sentencepiece_tokenizer

SHAPE = BaseShape(
    fingerprint="sha256:" + "0" * 64, model_type="gpt2", hidden_size=8, num_layers=1, context=10, vocab_size=300
)


def lossy(ids: Sequence[int]) -> str:
    """A byte-level tokenizer whose tokens are single bytes."""
    return bytes(ids).decode("utf-8", errors="replace")


def test_a_number_depends_on_seed_choice_and_position_alone() -> None:
    assert RandomStream(7, 0).at(3) == RandomStream(7, 0).at(3)
    numbers = {
        RandomStream(seed, index).at(position) for seed in (0, 7, -1, 2**63) for index in (0, 1) for position in (0, 1)
    }
    assert len(numbers) == 16
    assert all(0 <= number < 1 for number in numbers)


def test_numbers_are_uniform_over_positions_and_over_seeds() -> None:
    for numbers in (
        [RandomStream(1, 0).at(i) for i in range(4000)],
        [RandomStream(i, 1).at(0) for i in range(4000)],
    ):
        assert abs(sum(numbers) / 4000 - 0.5) < 0.02
        assert min(Counter(int(number * 10) for number in numbers).values()) > 320


def drawn_alone(logits: torch.Tensor, params: SamplingParams, stream: RandomStream, position: int) -> int:
    [token] = sample_tokens(logits[None], [Draw(params, stream, position)])
    return token


SAMPLING = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    top_p=st.sampled_from([0.3, 0.9, 1.0]),
    top_k=st.sampled_from([None, 1, 5, 100]),
    min_p=st.sampled_from([0.0, 0.2]),
    repetition_penalty=st.sampled_from([1.0, 1.5]),
    presence_penalty=st.sampled_from([0.0, 1.0]),
    logit_bias=st.sampled_from([(), ((3, 5.0),)]),
)


# --- choose ---------------------------------------------------------------------------------------


@given(st.lists(SAMPLING, min_size=1, max_size=6), st.integers(0, 2**32), st.data())
def test_rows_together_get_the_tokens_that_each_gets_alone(
    params: list[SamplingParams], seed: int, data: st.DataObject
) -> None:
    logits = torch.randn(len(params), 40, generator=torch.Generator().manual_seed(seed)) * 3
    draws = [Draw(sampling, RandomStream(seed, n), n, (1, 2, 2, 7), 2) for n, sampling in enumerate(params)]
    broken = data.draw(st.sets(st.integers(0, len(params) - 1), max_size=2))
    for number in broken:
        logits[number, 7] = data.draw(st.sampled_from([math.nan, math.inf]))
    given_logits = logits.clone()
    together = sample_tokens(logits, draws)
    assert together == [sample_tokens(logits[n : n + 1], [draw])[0] for n, draw in enumerate(draws)]
    assert {n for n, token in enumerate(together) if token is None} == broken
    assert torch.equal(logits.nan_to_num(0), given_logits.nan_to_num(0)), "the caller's logits stay"


def test_temperature_zero_is_the_most_likely_whatever_the_seed() -> None:
    logits = torch.tensor([0.0, 3.0, 2.9])
    assert {drawn_alone(logits, SamplingParams(temperature=0), RandomStream(s, 0), s) for s in range(20)} == {1}


def test_frequencies_follow_the_distribution() -> None:
    distribution = torch.tensor([0.5, 0.0, 0.3, 0.2])
    drawn = Counter(drawn_alone(distribution.log(), SamplingParams(), RandomStream(5, 0), i) for i in range(2000))
    assert drawn[1] == 0
    for token, probability in enumerate(distribution.tolist()):
        assert abs(drawn[token] / 2000 - probability) < 0.03


def test_temperature_sharpens_and_flattens() -> None:
    logits = torch.tensor([1.0, 0.0])

    def share(temperature: float) -> float:
        params = SamplingParams(temperature=temperature)
        return sum(drawn_alone(logits, params, RandomStream(1, 0), i) == 0 for i in range(400)) / 400

    assert share(0.25) > share(1.0) > share(10.0) > 0.5
    assert share(1e-6) == 1.0, "next to zero does not overflow"


@pytest.mark.parametrize(("top_p", "count"), [(0.25, 1), (0.5, 1), (0.75, 2), (0.875, 3), (0.9, 4), (1.0, 5)])
def test_tokens_that_reach_top_p_exactly_are_enough(top_p: float, count: int) -> None:
    """Sums of powers of two are exact: one more token than needed would show."""
    probabilities = torch.tensor([0.0625, 0.25, 0.5, 0.0625, 0.125], dtype=torch.float64)
    best = [2, 1, 4, 0, 3]  # of equals the first
    assert sorted(keep_nucleus(probabilities, top_p).nonzero().flatten().tolist()) == sorted(best[:count])


@given(st.lists(st.integers(0, 12), min_size=1, max_size=60), st.floats(0.01, 1.0), st.sampled_from([1, 2, 300]))
def test_it_is_the_same_however_many_are_sorted_first(counts: list[int], top_p: float, first: int) -> None:
    """Whole numbers have equals among them, of which the first in the vocabulary come first."""
    probabilities = torch.tensor([1 + n for n in counts], dtype=torch.float64) / sum(1 + n for n in counts)
    values, order = probabilities.sort(descending=True, stable=True)
    expected = torch.zeros_like(probabilities)
    nucleus = order[values.cumsum(0) - values < top_p]
    expected[nucleus] = probabilities[nucleus]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("service.engine.sampler.FIRST_SORTED", first)
        assert torch.equal(keep_nucleus(probabilities, top_p), expected)


@given(st.integers(0, 2**32), st.integers(0, 50))
def test_a_tiny_change_of_the_logits_leaves_the_draw_or_moves_it_next_door(seed: int, position: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(50, generator=generator) * 3
    noisy = logits + torch.randn(50, generator=generator) * 1e-6
    params = SamplingParams(top_p=0.9)
    token, noisy_token = (drawn_alone(x, params, RandomStream(seed, 0), position) for x in (logits, noisy))
    probabilities = torch.softmax(logits.double(), -1)
    between = probabilities[min(token, noisy_token) + 1 : max(token, noisy_token)]
    nucleus = keep_nucleus(probabilities, 0.9)[min(token, noisy_token) + 1 : max(token, noisy_token)]
    assert token == noisy_token or float(torch.where(nucleus > 0, between, 0).sum()) < 1e-4


def test_the_end_of_the_range_never_draws_an_impossible_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RandomStream, "at", lambda self, position: 1.0)
    assert drawn_alone(torch.tensor([1.0, 2.0, -math.inf]), SamplingParams(), RandomStream(0, 0), 0) == 1


def test_half_precision_logits_are_taken() -> None:
    logits = torch.tensor([0.0, 9.0], dtype=torch.bfloat16)
    assert drawn_alone(logits, SamplingParams(temperature=0.1), RandomStream(0, 0), 0) == 1


LOGITS = torch.randn(60, generator=torch.Generator().manual_seed(3)) * 3
BEFORE, PROMPT = (3, 4, 4, 4, 9, 9, 9), 3


# What changes the draw besides temperature and nucleus, against transformers' own where that has it.


def steered(**params: Any) -> Draw:
    return Draw(SamplingParams(**params), RandomStream(0, 0), 4, BEFORE, PROMPT)


def test_a_repetition_penalty_is_that_of_transformers() -> None:
    penalised = apply_penalties(LOGITS, steered(repetition_penalty=1.7))
    ids = torch.tensor([BEFORE])
    assert torch.equal(penalised, RepetitionPenaltyLogitsProcessor(1.7)(ids, LOGITS[None].clone())[0])


def test_frequency_and_presence_count_what_was_generated() -> None:
    penalties = LOGITS - apply_penalties(LOGITS, steered(frequency_penalty=0.5, presence_penalty=0.25))
    assert {int(i): round(float(penalties[i]), 5) for i in penalties.nonzero()} == {4: 0.75, 9: 1.75}


def test_a_bias_is_added() -> None:
    params = SamplingParams(logit_bias=((5, 100.0), (6, -100.0)), temperature=0)
    assert drawn_alone(LOGITS, params, RandomStream(0, 0), 0) == 5
    bias = apply_penalties(LOGITS, Draw(params, RandomStream(0, 0), 0)) - LOGITS
    assert {int(i) for i in bias.nonzero()} == {5, 6}


@pytest.mark.parametrize(
    ("params", "warper"),
    [
        (SamplingParams(top_k=5), TopKLogitsWarper(5)),
        (SamplingParams(min_p=0.3), MinPLogitsWarper(0.3)),
        (SamplingParams(top_p=0.6), TopPLogitsWarper(0.6)),
    ],
)
def test_what_may_be_drawn_is_what_transformers_leaves(params: SamplingParams, warper: Any) -> None:
    drawable = warper(torch.tensor([[0]]), LOGITS[None].clone())[0].isfinite().nonzero().flatten().tolist()
    drawn = {drawn_alone(LOGITS, params, RandomStream(1, 0), position) for position in range(1000)}
    assert drawn <= set(drawable)
    likely = [i for i in drawable if torch.softmax(LOGITS, 0)[i] > 0.01]
    assert set(likely) <= drawn


def test_of_equals_the_first_stay() -> None:
    params = SamplingParams(top_k=2)
    assert {drawn_alone(torch.ones(5), params, RandomStream(1, 0), position) for position in range(100)} == {0, 1}


def test_what_changes_nothing_changes_nothing() -> None:
    assert apply_penalties(LOGITS, steered()) is LOGITS
    original = LOGITS.clone()
    apply_penalties(LOGITS, steered(repetition_penalty=2, presence_penalty=1))
    assert torch.equal(LOGITS, original), "the caller's logits, of which log-probabilities are made, stay"


def test_log_probs_are_normalised_and_the_best_is_the_very_same_float() -> None:
    scores = log_probs(torch.randn(5, 70, generator=torch.Generator().manual_seed(0)) * 5)
    assert torch.allclose(scores.exp().sum(-1), torch.ones(5), atol=1e-5)
    best = scores.argmax(-1).tolist()
    tops = top_tokens(scores, 3)
    assert chosen_log_probs(scores, best) == [top[0][1] for top in tops]
    assert [top[0][0] for top in tops] == best
    assert all(a[1] >= b[1] for top in tops for a, b in pairwise(top))


def test_more_alternatives_than_tokens_and_none() -> None:
    scores = log_probs(torch.tensor([[0.0, 1.0]]))
    assert len(top_tokens(scores, 9)[0]) == 2
    assert top_tokens(scores, 0) == [()]


# --- detokenizer ----------------------------------------------------------------------------------


@given(st.text(max_size=30), st.binary(max_size=12), st.text(max_size=10))
def test_joined_pieces_are_the_text_without_half_a_character_at_its_end(first: str, noise: bytes, last: str) -> None:
    data = first.encode() + noise + last.encode()
    detokenizer = Detokenizer(lossy)
    pieces = [detokenizer.push(byte) for byte in data]
    whole = lossy(data)
    joined = "".join(pieces)
    assert whole.startswith(joined)
    assert set(whole[len(joined) :]) <= {REPLACEMENT}
    assert len(whole) - len(joined) <= 3


def test_a_tokenizer_that_drops_the_first_space_keeps_the_others() -> None:
    words = [" a", " b", "c", " d"]
    detokenizer = Detokenizer(lambda ids: "".join(words[i] for i in ids).lstrip())
    assert [detokenizer.push(i) for i in range(4)] == ["a", " b", "c", " d"]


@pytest.mark.parametrize("text", ["日本 a", "\N{GRINNING FACE}" * 3, "a日b é日\N{GRINNING FACE}b"])
def test_characters_spelled_in_byte_tokens_do_not_hide_each_other(text: str) -> None:
    tokenizer = sentencepiece_tokenizer()
    detokenizer = Detokenizer(tokenizer.decode)
    assert "".join(map(detokenizer.push, tokenizer.encode(text).ids)) == text


def test_an_invalid_byte_spoils_neither_the_prompt_nor_the_answer_before_it() -> None:
    tokenizer = sentencepiece_tokenizer()
    letter, *character = (tokenizer.token_to_id(word) for word in ("a", "<0xE6>", "<0x97>", "<0xA5>"))
    invalid = tokenizer.token_to_id("<0xFF>")
    after_prompt, alone = Detokenizer(tokenizer.decode, character), Detokenizer(tokenizer.decode)
    assert "".join(map(after_prompt.push, [invalid, letter])) == "\ufffda"
    assert "".join(map(alone.push, [*character, *[invalid] * 5, letter])) == "日" + 5 * "\ufffd" + "a"


@pytest.mark.parametrize("decoder", ["SentencePiece", "Metaspace"])
@pytest.mark.parametrize(
    ("prompt", "text"),
    [("a", " ab"), ("a", "b"), ("日本日本", " a"), ("日本日本", "日"), ("\N{REPLACEMENT CHARACTER}", "b")],
)
def test_text_continues_the_prompt_with_its_space(decoder: str, prompt: str, text: str) -> None:
    tokenizer = sentencepiece_tokenizer()
    if decoder == "Metaspace":
        tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    ids = tokenizer.encode(prompt).ids
    detokenizer = Detokenizer(tokenizer.decode, ids)
    assert "".join(map(detokenizer.push, tokenizer.encode(prompt + text).ids[len(ids) :])) == text


def test_work_per_token_stays_small() -> None:
    longest = 0

    def decode(ids: Sequence[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return lossy(ids)

    detokenizer = Detokenizer(decode)
    for byte in ("naïve café 日本 " * 50).encode():
        detokenizer.push(byte)
    assert longest <= 8


def first_stop(text: str, stops: Sequence[str]) -> str:
    """The rule, one character at a time: cut where a stop is complete first, the longest of those."""
    for end in range(1, len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return text[: min(starts)]
    return text


pieces_and_stops = st.tuples(
    st.lists(st.text("abc", max_size=4), max_size=12), st.lists(st.text("abc", min_size=1, max_size=4), max_size=3)
)


@given(pieces_and_stops)
@example((["abc"], ["b", "a"]))  # two stop strings in one piece
def test_the_cut_does_not_depend_on_the_pieces(case: tuple[list[str], list[str]]) -> None:
    pieces, stops = case
    expected = first_stop("".join(pieces), stops)
    cutter = StopChecker(stops)
    emitted = ""
    for piece in pieces:
        emitted += cutter.push(piece)
        assert expected.startswith(emitted), "nothing of a stop string is shown, not even for a moment"
    assert cutter.stopped == (expected != "".join(pieces))
    assert emitted + cutter.flush() == expected


def test_text_that_cannot_start_a_stop_is_shown_at_once() -> None:
    cutter = StopChecker(["\n\n"])
    assert [cutter.push(piece) for piece in ("a", "\n", "b", "\n")] == ["a", "", "\nb", ""]
    assert cutter.push("\nc") == ""
    assert cutter.stopped
    assert cutter.push("more") == cutter.flush() == ""


def grow(data: bytes, params: SamplingParams, *, limit: int = 99, eos: int | None = 0) -> Choice:
    choice = Choice(0, params, StopCondition(frozenset() if eos is None else frozenset({eos}), limit), lossy)
    for byte in data:
        choice.push(byte, None, ())
        if choice.finish_reason is not None:
            break
    return choice


# --- choice ---------------------------------------------------------------------------------------


def test_a_stop_string_ends_it_and_all_its_tokens_are_listed() -> None:
    done = grow(b"one END two", SamplingParams(stop=("END",))).completion()
    assert (done.text, done.finish_reason) == ("one ", "stop")
    assert (bytes(done.token_ids), done.text_offsets) == (b"one END", (0, 1, 2, 3, 4, 4, 4))


@pytest.mark.parametrize(
    ("data", "limit", "text", "reason"),
    [
        (b"ab\x00cd", 99, "ab", "stop"),
        (b"ab\x00", 3, "ab", "stop"),
        (b"abEN", 4, "abEN", "length"),
        (b"abEN\x00", 99, "abEN", "stop"),
    ],
    ids=["eos", "eos as the last that is allowed", "length and half a stop", "eos and half a stop"],
)
def test_what_ends_it_shows_what_was_no_stop_string(data: bytes, limit: int, text: str, reason: str) -> None:
    done = grow(data, SamplingParams(stop=("END",)), limit=limit).completion()
    assert (done.text, done.finish_reason) == (text, reason)
    assert bytes(done.token_ids) == data.removesuffix(b"cd")


def test_half_a_character_at_the_end_is_not_shown() -> None:
    done = grow("aé".encode()[:2], SamplingParams(), limit=2).completion()
    assert (done.text, done.text_offsets) == ("a", (0, 1))


@given(st.text(max_size=20), st.lists(st.text(min_size=1, max_size=3), max_size=2), st.integers(1, 30))
def test_the_stream_joins_to_the_answer(text: str, stops: list[str], limit: int) -> None:
    choice = Choice(0, SamplingParams(stop=tuple(stops)), StopCondition(frozenset(), limit), lossy)
    deltas = []
    for number, byte in enumerate(text.encode()):
        deltas.append(choice.push(byte, -float(number), ((byte, -float(number)),)))
        if choice.finish_reason is not None:
            break
    if choice.finish_reason is None:
        return
    done = choice.completion()
    assert "".join(delta.text for delta in deltas) == done.text
    assert tuple(delta.token_id for delta in deltas) == done.token_ids
    assert tuple(delta.logprob for delta in deltas) == done.token_logprobs
    assert tuple(delta.top for delta in deltas) == done.top_logprobs
    assert tuple(min(delta.offset, len(done.text)) for delta in deltas) == done.text_offsets
    assert [delta.finish_reason for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert deltas[-1].finish_reason == done.finish_reason


@pytest.mark.parametrize(
    ("request_", "error", "words"),
    [
        (GenerateRequest("b", (1,) * 11), InvalidPrompt, r"11 tokens .* context of the base model is 10"),
        (GenerateRequest("b", ()), InvalidPrompt, "empty"),
        (GenerateRequest("b", (1, 300)), InvalidPrompt, r"300 is not in the vocabulary .*299"),
        (ScoreRequest("b", ((1,), (1, -1))), InvalidPrompt, "-1"),
        (ScoreRequest("b", ()), InvalidPrompt, "nothing to score"),
        (
            GenerateRequest("b", (1,) * 8, params=SamplingParams(max_tokens=3)),
            InvalidParameter,
            r"8 tokens and max_tokens is 3, together 11, .* 10: request at most 2",
        ),
    ],
)
def test_what_the_base_model_cannot_take_is_refused_with_the_numbers(
    request_: GenerateRequest | ScoreRequest, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        request_.check(SHAPE)


def test_a_prompt_may_fill_the_context_where_nothing_is_generated() -> None:
    GenerateRequest("b", (1,) * 10, params=SamplingParams(max_tokens=0)).check(SHAPE)
