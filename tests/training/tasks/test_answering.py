"""Extractive question answering: windows, spans, "no answer", and SQuAD's figures."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from registry.adapters import create, paper_config
from registry.errors import InvalidParameter
from tests.tiny_models import TINY_SENTENCES
from tests.training.task_items import QUESTIONS
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
from training.tasks.encoding import batch_of

TASK = TASKS["question_answering"]
WORDS = " ".join(TINY_SENTENCES).split()


@pytest.fixture(scope="module", params=["base", "minilm"])
def either(request):
    return request.getfixturevalue(request.param)


def asked(context: str, answer: str) -> Question:
    return Question("Which words are these?", context, ((answer, context.index(answer)),))


def told(item: Question, base, block: int, *, may_abstain: bool = False) -> str:
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
            assert told(item, either, 40, may_abstain=True) == answer


def test_an_answer_of_part_of_a_token_is_given_with_all_of_it(minilm):
    assert told(asked("The onions are golden.", "onion"), minilm, 40) == "onions"


def test_spaces_and_letters_beyond_ascii_are_counted_as_characters(either):
    for answer in ("naïve Ångström", "東京", "🦊 fox", "it’s"):
        assert answer in told(asked(f"Zoë said “{answer}” again.", answer), either, 60)


def test_no_answer_is_a_place_of_its_own(either):
    item = Question("Who?", "Nobody knows that.", ())
    window = _windows(either, item, 40)[0][0]
    place = 0 if either.shape.kind == "encoder" else len(window.ids) - 1
    assert window.leads[:2] == [place, place]
    assert window.leads[4] == place
    assert not window.leads[2] <= place < window.leads[3]
    assert told(item, either, 40, may_abstain=True) == ""
    assert told(item, either, 40) != ""


def test_an_answer_does_not_depend_on_which_are_right(base, monkeypatch):
    """Of a model that finds "not here" the best everywhere: whether it may say so is told, not read off the answers."""

    def nowhere(self, base, adapter, rows):
        batch = batch_of(base, rows, leads=LEADS)
        logits = torch.zeros(2, *batch.ids.shape)
        logits[:, torch.arange(len(rows)), batch.leads[:, 4]] = 1.0
        return logits

    monkeypatch.setattr(QuestionAnswering, "_logits", nowhere)
    item, other = asked("The red fox", "red"), Question("Who?", "Nobody knows that.", ())
    for task, said in ((TASK, "The"), (QuestionAnswering(may_abstain=True), "")):
        for items in ([item], [item, other], [replace(item, answers=()), other]):
            assert task.predicted(base, None, items, block=40)[0] == said


def test_windows_are_counted(base):
    long = " ".join(WORDS[:60])
    items = [
        asked(long, WORDS[-1] if WORDS[-1] in long else WORDS[0]),
        Question("Who?", "Nobody.", ()),
        Question("Why " * 40, "Because.", (("Because", 0),)),
    ]
    counts = TASK.encode(base, items, block=40, at_least=1).counts
    assert counts["questions"] == 3
    assert counts["questions_unanswerable"] == 1
    assert counts["questions_cut"] == 1
    assert counts["contexts_in_windows"] == 1
    assert counts["windows"] > 5
    assert 1 <= counts["windows_without_answer"] < counts["windows"]
    with pytest.raises(InvalidParameter, match="no room for a question and a context"):
        TASK.encode(base, items, block=4, at_least=1)


def test_scores_outside_of_the_context_are_not_looked_at(base):
    adapter = create(with_head(paper_config("pfeiffer"), TASK.head(QUESTIONS)), base.shape, seed=0)
    rows = torch.from_numpy(TASK.encode(base, QUESTIONS[:3], block=60, at_least=1).rows)
    with torch.no_grad():
        logits = TASK.scored(base, adapter, rows).states
    for row, found in zip(rows.tolist() * 2, logits, strict=True):
        seen = [place for place, score in enumerate(found.tolist()) if score > FAR / 2]
        assert seen == sorted({*range(row[2], row[3]), row[4]})


@given(st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9)), min_size=1, max_size=45))
@example([(9.0, 0.0), *[(0.0, 0.0)] * (LONGEST_ANSWER - 1), (0.0, 9.0)])  # one token too long
def test_the_best_span_is_the_best_of_all(scores):
    starts, ends = (np.array(column) for column in zip(*scores, strict=True))
    found, first, last = _best_span(starts, ends)
    every = {
        (i, j): starts[i] + ends[j] for i in range(len(starts)) for j in range(i, min(i + LONGEST_ANSWER, len(ends)))
    }
    assert found == max(every.values())
    assert (first, last) == min(place for place, score in every.items() if score == found)


def test_the_memory_for_the_best_span_grows_with_the_context_and_not_with_its_square():
    scores = np.zeros(3000)
    tracemalloc.start()
    _best_span(scores, scores)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 * LONGEST_ANSWER * scores.nbytes


@pytest.mark.parametrize(
    ("answers", "said"),
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
def test_answers_that_are_not_where_they_say_are_refused_with_the_line(answers, said):
    with pytest.raises(InvalidParameter, match=said) as caught:
        TASK.items([(3, {"question": "Who?", "context": "The fox.", "answers": answers})], where="squad.jsonl")
    assert "squad.jsonl, line 3" in caught.value.message


def test_both_forms_of_squads_answers_are_read_and_repeated_ones_count_once():
    fields = {"question": "Who?", "context": "The fox."}
    for answers in [{"text": ["fox", "fox"], "answer_start": [4, 4]}, [{"text": "fox", "answer_start": 4}]]:
        assert TASK.items([(1, {**fields, "answers": answers})], where="f")[0].answers == (("fox", 4),)
    for answers in ({"text": [], "answer_start": []}, []):
        assert TASK.items([(1, {**fields, "answers": answers})], where="f")[0].answers == ()


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
