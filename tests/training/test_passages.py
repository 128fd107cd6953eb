"""Passages as rows of tokens: what is cut, what is predicted, and whose loss has gradients."""

from __future__ import annotations

import pytest

from registry.adapters import attached, create, paper_config
from registry.base_model import LoadedBase
from registry.spec import Passage, PromptAnswer
from training.passages import add_gradients, rows_of, tokens_of
from training.tasks.language import passage_scores

PROMPTED = PromptAnswer(prompt="The court held that contract 7", answer=" was void.")


@pytest.mark.parametrize("passage", ["The court held that contract 7 was void.", PROMPTED])
def test_a_text_is_cut_at_its_end_and_a_prompt_at_its_beginning(base: LoadedBase, passage: Passage) -> None:
    ids, prompt = base.tokenize_passage(passage)
    front = base.with_bos([])
    for most in range(len(ids) - prompt + len(front) + 1, len(ids) + 3):
        [row] = rows_of(base, [passage], max_tokens=most)
        room = most - len(front)
        assert row.ids == (*front, *(ids[:room] if isinstance(passage, str) else ids[-room:]))
        assert isinstance(passage, str) or row.scored == len(ids) - prompt


def test_an_answer_that_is_longer_leaves_half_the_row_to_its_prompt(base: LoadedBase) -> None:
    passage = PromptAnswer(prompt="The court held that " * 5, answer="contract 7 was void. " * 9)
    [row] = rows_of(base, [passage], max_tokens=40)
    room = 40 - len(base.with_bos([]))
    assert (len(row.ids), row.scored) == (40, room - room // 2)


def test_the_loss_is_the_mean_over_answers_alone(base: LoadedBase) -> None:
    passages = ["The judge of court 3", PROMPTED, PromptAnswer(prompt="", answer="Heat the oil.")]
    adapter = create(paper_config("bapna_firat", bottleneck=2), base.shape, seed=0)
    rows = rows_of(base, passages, max_tokens=64)
    with attached(base.model, adapter):
        loss = add_gradients(base, rows)
        scores = passage_scores(base, passages, block=64)
    assert tokens_of(rows) == sum(score.tokens for score in scores)
    assert loss == pytest.approx(sum(score.nll for score in scores) / tokens_of(rows), rel=1e-5)
    assert any(value.grad is not None and value.grad.any() for value in adapter.parameters())
