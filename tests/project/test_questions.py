"""The benchmark of answers: what it asks, and how it scores."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.questions import CONTEXT, CONTROL, figures, nearest_sentence, passage_of, prompt_of, scores
from benchmarks.report import Result

ITEM = {
    "context": "The pan is large. It costs ten dollars in the shop. It is red.",
    "question": "How much does it cost in the shop?",
    "answers": [{"text": "ten dollars", "answer_start": 27}, {"text": "ten", "answer_start": 27}],
}


@pytest.mark.parametrize("words_before", [0, 500, 5000])
def test_a_long_context_is_cut_around_the_answer(words_before):
    context = "x " * words_before + ITEM["context"] + " y" * 3000
    item = {**ITEM, "context": context, "answers": [{"text": "ten dollars", "answer_start": 2 * words_before + 27}]}
    prompt = prompt_of(item)
    assert "ten dollars" in prompt
    assert len(prompt) == CONTEXT + len("\nQuestion: \nAnswer:") + len(item["question"])


def test_the_loss_is_on_the_answer_and_its_end():
    assert passage_of(ITEM).answer == " ten dollars\n"
    assert passage_of(ITEM).prompt.endswith("\nAnswer:")


def test_an_answer_is_scored_by_its_best_reference():
    f1, exact = scores([" Ten.", "ten dollars today", "red"], [ITEM] * 3)
    assert exact.tolist() == [1, 0, 0]
    assert f1.tolist() == pytest.approx([1, 0.8, 0])


def test_what_needs_no_model_is_the_sentence_with_most_words_of_the_question():
    assert nearest_sentence(ITEM) == "It costs ten dollars in the shop."


def test_figures_are_differences_with_their_paired_errors():
    result = Result()
    worse, better = np.array([[0.0, 0.5, 0.2, 0.1]] * 2), np.array([[0.5, 1.0, 0.7, 0.9]] * 2)
    figures(result, {"adapter a": worse, "adapter b": worse - 0.1, "quick": better, "tune": better, CONTROL: worse})
    for name in ("quick_over_single", "tune_over_control"):
        assert result.figures[name].value == pytest.approx(0.575)
        assert result.figures[name].goal == pytest.approx(0.15 / 2)
