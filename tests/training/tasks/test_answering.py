"""Question answering and summaries: windows, spans, what is predicted, what does not fit, and the figures of both."""

from __future__ import annotations

import tracemalloc
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from registry.adapters import attached, create, paper_config
from registry.base_model import load_base
from registry.errors import InvalidParameter
from registry.spec import BaseEntry, PrefixConfig
from tests.tiny_models import TINY_SENTENCES
from tests.training.task_items import QUESTIONS, SUMMARISED
from training.tasks import TASKS
from training.tasks.answering import (
    FAR,
    LEADS,
    LONGEST_ANSWER,
    Question,
    QuestionAnswering,
    _answer,
    _best_span,
    _windows,
)
from training.tasks.contract import with_head
from training.tasks.encoding import PAD, batch_of
from training.tasks.overlap import exact_match, rouge, token_f1
from training.tasks.summarisation import PROMPT, Summarised, summary_of

TASK = TASKS["question_answering"]
WORDS = " ".join(TINY_SENTENCES).split()


@pytest.fixture(scope="module", params=["base", "minilm"])
def either(request):
    return request.getfixturevalue(request.param)


def question_of(context: str, answer: str) -> Question:
    return Question("Which words are these?", context, ((answer, context.index(answer)),))


def answer_of(item: Question, base, block: int, *, may_abstain: bool = False) -> str:
    """The answer of scores that point exactly where each window's row says."""
    read = []
    for window in _windows(base, item, block)[0]:
        scores = np.full((2, len(window.ids)), -5.0)
        scores[0, window.leads[0]] = scores[1, window.leads[1]] = 5.0
        read.append((window, scores))
    return _answer(item, read, may_abstain=may_abstain)


def test_every_token_is_in_a_window_and_every_short_answer_whole_in_one(either):
    """Over contexts of all lengths up to several windows, with an answer at every word."""
    for count in (1, 5, 17, 40, 60):
        context = " ".join(WORDS[:count])
        for first in range(0, count, 7):
            answer = " ".join(WORDS[first : min(first + 2, count)])
            item = Question("Which?", context, ((answer, len(" ".join([*WORDS[:first], ""]))),))
            windows, cut = _windows(either, item, 40)
            assert not cut
            assert all(len(window.ids) <= 40 for window in windows)
            ends = [max(last for _, last in window.offsets) for window in windows]
            starts = [min(begin for begin, _ in window.offsets) for window in windows]
            assert (starts[0], ends[-1]) == (0, len(context))
            assert all(start < end for start, end in zip(starts[1:], ends, strict=False))  # they overlap
            assert answer_of(item, either, 40, may_abstain=True) == answer


def test_an_answer_of_part_of_a_token_is_given_with_all_of_it(minilm):
    assert answer_of(question_of("The onions are golden.", "onion"), minilm, 40) == "onions"


def test_spaces_and_letters_beyond_ascii_are_counted_as_characters(either):
    for answer in ("naïve Ångström", "東京", "🦊 fox", "it’s"):
        assert answer in answer_of(question_of(f"Zoë said “{answer}” again.", answer), either, 60)


def test_no_answer_is_a_place_of_its_own(either):
    item = Question("Who?", "Nobody knows that.", ())
    window = _windows(either, item, 40)[0][0]
    place = 0 if either.shape.kind == "encoder" else len(window.ids) - 1
    assert window.leads[:2] == [place, place]
    assert window.leads[4] == place
    assert not window.leads[2] <= place < window.leads[3]
    assert answer_of(item, either, 40, may_abstain=True) == ""
    assert answer_of(item, either, 40) != ""


def test_an_answer_does_not_depend_on_which_are_right(base, monkeypatch):
    """Of a model that finds "not here" the best everywhere: its task lets it say so, whatever the right answers are."""

    def nowhere(self, base, adapter, rows):
        batch = batch_of(base, rows, leads=LEADS)
        logits = torch.zeros(2, *batch.ids.shape)
        logits[:, torch.arange(len(rows)), batch.leads[:, 4]] = 1.0
        return logits

    monkeypatch.setattr(QuestionAnswering, "_logits", nowhere)
    item, unanswerable = question_of("The red fox", "red"), Question("Who?", "Nobody knows that.", ())
    for task, answer in ((TASK, "The"), (QuestionAnswering(may_abstain=True), "")):
        for items in ([item], [item, unanswerable], [replace(item, answers=()), unanswerable]):
            assert task.predicted(base, None, items, block=40)[0] == answer


def test_windows_are_counted(base):
    long = " ".join(WORDS[:60])
    items = [
        question_of(long, WORDS[-1] if WORDS[-1] in long else WORDS[0]),
        Question("Who?", "Nobody.", ()),
        Question("Why " * 40, "Because.", (("Because", 0),)),
    ]
    counts = TASK.encode(base, items, block=40, at_least=1).counts
    expected = {"questions": 3, "questions_unanswerable": 1, "questions_cut": 1, "contexts_in_windows": 1}
    assert {name: counts[name] for name in expected} == expected
    assert counts["windows"] > 5
    assert 1 <= counts["windows_without_answer"] < counts["windows"]
    with pytest.raises(InvalidParameter, match="no room for a question and a context"):
        TASK.encode(base, items, block=4, at_least=1)


def test_scores_outside_of_the_context_are_not_looked_at(base):
    adapter = create(with_head(paper_config("pfeiffer"), TASK.head(QUESTIONS)), base.shape, seed=0)
    rows = torch.from_numpy(TASK.encode(base, QUESTIONS[:3], block=60, at_least=1).rows)
    with torch.no_grad():
        logits = TASK.scored(base, adapter, rows).states
    for row, scores in zip(rows.tolist() * 2, logits, strict=True):
        places = [place for place, score in enumerate(scores.tolist()) if score > FAR / 2]
        assert places == sorted({*range(row[2], row[3]), row[4]})


@given(st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9)), min_size=1, max_size=45))
@example([(9.0, 0.0), *[(0.0, 0.0)] * (LONGEST_ANSWER - 1), (0.0, 9.0)])  # one token too long
def test_the_best_span_is_the_best_of_all(scores):
    starts, ends = (np.array(column) for column in zip(*scores, strict=True))
    best, first, last = _best_span(starts, ends)
    span_scores = {
        (i, j): starts[i] + ends[j] for i in range(len(starts)) for j in range(i, min(i + LONGEST_ANSWER, len(ends)))
    }
    assert best == max(span_scores.values())
    assert (first, last) == min(place for place, score in span_scores.items() if score == best)


def test_the_memory_for_the_best_span_grows_with_the_context_and_not_with_its_square():
    scores = np.zeros(3000)
    tracemalloc.start()
    _best_span(scores, scores)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 * LONGEST_ANSWER * scores.nbytes


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({"text": ["fox"], "answer_start": [0]}, "says that 'fox' is at character 0"),
        ({"text": ["fox"], "answer_start": [-4]}, "an answer without"),
        ({"text": ["fox"], "answer_start": []}, 'no "answers"'),
        ({"text": [3], "answer_start": [4]}, "an answer without"),
        ({"text": [""], "answer_start": [4]}, "says that '' is at character 4"),
        ([{"text": "fox", "answer_start": True}], "an answer without"),
        ([{"text": "fox", "answer_start": 10**9}], "is at character"),
        (None, 'no "answers"'),
        ([["fox", 4]], 'no "answers"'),
    ],
)
def test_answers_that_are_not_where_they_say_are_refused_with_the_line(answers, message):
    with pytest.raises(InvalidParameter, match=message) as caught:
        TASK.items([(3, {"question": "Who?", "context": "The fox.", "answers": answers})], where="squad.jsonl")
    assert "squad.jsonl, line 3" in caught.value.message


def test_both_forms_of_squads_answers_are_read_and_repeated_ones_count_once():
    fields = {"question": "Who?", "context": "The fox."}
    for answers, expected in (
        ({"text": ["fox", "fox"], "answer_start": [4, 4]}, (("fox", 4),)),
        ([{"text": "fox", "answer_start": 4}], (("fox", 4),)),
        ({"text": [], "answer_start": []}, ()),
        ([], ()),
    ):
        assert TASK.items([(1, {**fields, "answers": answers})], where="f")[0].answers == expected


def test_figures_take_the_best_right_answer_and_none_where_there_is_none(base, monkeypatch):
    items = [
        Question("a?", "The red fox", (("red fox", 4), ("fox", 8))),
        Question("b?", "The red fox", (("red", 4),)),
        Question("c?", "The red fox", ()),
        Question("d?", "The red fox", ()),
    ]
    monkeypatch.setattr(type(TASK), "predicted", lambda *_a, **_k: ["the fox!", "red fox", "", "fox"])
    adapter = create(with_head(paper_config("pfeiffer"), TASK.head(items)), base.shape, seed=0)
    figures = TASK.metrics(base, adapter, items, block=40)
    assert figures["exact_match"] == pytest.approx(2 / 4)
    assert figures["f1"] == pytest.approx((1 + 2 / 3 + 1 + 0) / 4)
    assert (figures["questions"], figures["questions_unanswerable"]) == (4, 2)


# --- summaries ------------------------------------------------------------------------------------


SUMMARIES = TASKS["summarisation"]


def test_a_row_is_document_prompt_and_summary_and_only_the_summary_is_predicted(base):
    rows = SUMMARIES.encode(base, [Summarised("The fox jumps.", " lazy "), *SUMMARISED[:2]], block=60, at_least=1).rows
    start, ids = int(rows[0][0]), [token for token in rows[0][1:].tolist() if token != PAD]
    decode = base.tokenizer.backend_tokenizer.decode
    assert decode(ids[:start], skip_special_tokens=False) == f"<|endoftext|>The fox jumps.{PROMPT}"
    assert decode(ids[start:], skip_special_tokens=False) == " lazy<|endoftext|>"
    with torch.no_grad():
        scored = SUMMARIES.scored(base, None, torch.from_numpy(rows))
    assert scored.targets.tolist()[: len(ids) - start] == ids[start:]
    hand = torch.log_softmax(base.model(torch.tensor([ids])).logits[0].float(), -1)
    nll = -sum(hand[place - 1, ids[place]] for place in range(start, len(ids))) / (len(ids) - start)
    assert float(SUMMARIES.loss(base, None, torch.from_numpy(rows[:1]))) == pytest.approx(float(nll), rel=1e-5)


def test_a_document_that_begins_with_the_bos_gets_no_other(base):
    items = [Summarised(bos + "The fox jumps.", "lazy") for bos in ("", "<|endoftext|>")]
    rows = SUMMARIES.encode(base, items, block=60, at_least=1).rows
    assert rows[0].tolist() == rows[1].tolist()


def test_documents_are_cut_and_summaries_that_do_not_fit_left_out_and_counted(base):
    items = [Summarised("word " * 80, "short"), Summarised("fits", "short"), Summarised("word " * 80, "much " * 60)]
    data = SUMMARIES.encode(base, items, block=40, at_least=1)
    assert {name: data.counts[name] for name in data.counts if name != "summary_tokens"} == {
        "documents": 3,
        "documents_cut": 1,
        "documents_left_out": 1,
    }
    assert data.rows.shape[1] == 1 + 40
    assert f"{PROMPT} short" in base.tokenizer.backend_tokenizer.decode(data.rows[0][1:].tolist())
    with pytest.raises(InvalidParameter, match="No summary of the training data fits into a block of 40"):
        SUMMARIES.encode(base, items[2:], block=40, at_least=1)


def test_a_greedy_summary_is_the_models_own_with_and_without_an_adapter(base):
    text = "The fox."
    prefix = create(PrefixConfig(length=3), base.shape, seed=0, init="linear")
    for adapter in (None, create(paper_config("parallel", bottleneck=4), base.shape, seed=1, init="linear"), prefix):
        with torch.no_grad(), nullcontext() if adapter is None else attached(base.model, adapter):
            assert summary_of(base, text, block=56) == _slowly(base, text, 28)


def _slowly(base, text, room):
    """Greedy without a cache."""
    ids = [*base.tokenize(text), *base.tokenize(PROMPT, bos=False)]
    start = len(ids)
    while len(ids) - start < room:
        token = int(base.model(torch.tensor([ids])).logits[0, -1].argmax())
        if token == base.eos_id:
            break
        ids.append(token)
    return base.tokenizer.backend_tokenizer.decode(ids[start:]).strip()


def test_a_base_without_bos_and_one_with_another_context_work_too(base_entry):
    base = load_base(BaseEntry(id="tiny", source=base_entry("llama").source, bos=False))
    assert SUMMARIES.encode(base, SUMMARISED[:3], block=60, at_least=1).rows[0][1] != base.bos_id
    assert SUMMARIES.metrics(base, None, SUMMARISED[:2], block=40)["documents"] == 2
    with pytest.raises(InvalidParameter, match="no room for a document and a summary"):
        summary_of(base, "The fox jumps over all of them.", block=8)


# --- overlap of texts ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("guess", "reference", "match", "f1"),
    [
        ("The Fox!", "fox", 1, 1),
        ("a  red fox", "the red-fox", 0, 0),
        ("red fox", "red dog", 0, 0.5),
        ("", "", 1, 1),
        ("the", "", 1, 1),
        ("fox", "", 0, 0),
        ("fox fox dog", "fox dog dog", 0, 2 / 3),
    ],
)
def test_squads_match_and_f1(guess, reference, match, f1):
    assert exact_match(guess, reference) == match
    assert token_f1(guess, reference) == pytest.approx(f1)


@pytest.mark.parametrize(
    ("guess", "reference", "scores"),
    [
        ("police killed the gunman", "police kill the gunman", (3 / 4, 1 / 3, 3 / 4)),
        ("the gunman kill police", "police kill the gunman", (1, 1 / 3, 2 / 4)),
        ("The cat, the cat.", "the cat", (2 * 2 / 6, 2 * 1 / 4, 2 * 2 / 6)),
        ("", "fox", (0, 0, 0)),
        ("...", "!", (0, 0, 0)),
        ("Ünï 7", "ünï 7", (1, 1, 1)),
    ],
)
def test_rouge_by_hand(guess, reference, scores):
    assert tuple(rouge(guess, reference).values()) == pytest.approx(scores)


WORDS_ = st.lists(st.sampled_from("abcd"), max_size=9)


@given(WORDS_, WORDS_)
def test_rouge_is_symmetric_a_share_and_one_only_for_the_same(ours, theirs):
    scores, mirrored = rouge(" ".join(ours), " ".join(theirs)), rouge(" ".join(theirs), " ".join(ours))
    assert scores == pytest.approx(mirrored)
    assert all(0 <= score <= 1 for score in scores.values())
    assert scores["rougeL"] <= scores["rouge1"] + 1e-12
    assert (scores["rougeL"] == 1) == (ours == theirs != [])


@given(WORDS_, WORDS_)
def test_the_longest_common_subsequence_is_that_of_its_definition(ours, theirs):
    from itertools import combinations

    def within(words):
        return {subsequence for size in range(len(words) + 1) for subsequence in combinations(words, size)}

    longest = max(len(subsequence) for subsequence in within(ours) & within(theirs))
    total = len(ours) + len(theirs)
    assert rouge(" ".join(ours), " ".join(theirs))["rougeL"] == pytest.approx(2 * longest / total if longest else 0)
