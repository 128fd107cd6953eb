"""Training text: what is read, packed, drawn, cut and predicted, and what is refused."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.adapters import attached, create, paper_config
from registry.base_model import LoadedBase
from registry.errors import InvalidParameter, NotFound
from registry.spec import Passage, PromptAnswer
from registry.spec.passage import encode_lines
from training.data import MIN_TEXTS, draw, pack, read_lines
from training.passages import add_gradients, rows_of, tokens_of
from training.tasks import LANGUAGE_MODELLING
from training.tasks.language import passage_scores

TEXTS = [f"passage number {i}" for i in range(MIN_TEXTS)]


def tokens(text: str) -> list[int]:
    return [0, *(ord(c) for c in text)]


def read_texts(path: Path) -> list[str]:
    return LANGUAGE_MODELLING.items(read_lines(path), where=str(path))


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_texts_are_read_plain_and_gzipped_whatever_the_name(tmp_path, name):
    for number, data in enumerate(
        (encode_lines(["eins", " ", "zwei ü"]), gzip.compress(encode_lines(["eins", "", "zwei ü"])))
    ):
        path = tmp_path / f"{number}-{name}"
        path.write_bytes(data)
        assert read_texts(path) == ["eins", "zwei ü"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"text": "a"}\n{"text": 3}\n', "line 2"),
        (b'{"text": "a"}\n\nnot json\n', "line 3"),
        (b'["text"]\n', "line 1"),
        (b"[" * 100_000, "line 1"),
        (b'{"text": "\xff"}', "UTF-8"),
        (b'{"text": "a \\ud83d\\ude00"}\n{"text": "a \\uD800"}\n', "line 2, is not valid Unicode"),
        (gzip.compress(encode_lines(["a"] * 1000))[:-9], "gzip"),
    ],
    ids=["a number", "no JSON", "no object", "deep", "no UTF-8", "half a character", "cut short"],
)
def test_broken_files_are_refused_in_one_sentence(tmp_path, data, message):
    path = tmp_path / "t.jsonl"
    path.write_bytes(data)
    with pytest.raises(InvalidParameter, match=message):
        read_texts(path)


def test_a_missing_file_and_a_folder_are_not_found(tmp_path):
    for path in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(NotFound, match="cannot be read"):
            read_texts(path)


def test_blocks_hold_the_texts_end_to_end_with_their_bos():
    blocks = pack(TEXTS, tokens, block=16).rows
    stream = [token for text in TEXTS for token in tokens(text)]
    assert blocks.dtype == np.int64
    assert blocks.ravel().tolist() == stream[: blocks.size]
    assert len(stream) - blocks.size < 16  # only the rest of one block is dropped


@pytest.mark.parametrize(
    ("texts", "block", "message"),
    [
        ([], 8, "holds 0 texts"),
        (TEXTS[:-1], 8, f"holds {MIN_TEXTS - 1} texts"),
        (["a"] * MIN_TEXTS, 41, "40 tokens, less than one block of 41"),
    ],
)
def test_too_little_text_is_refused_with_the_figures(texts, block, message):
    with pytest.raises(InvalidParameter, match=message):
        pack(texts, tokens, block=block, purpose="validation")


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 2**32 - 1))
def test_a_draw_keeps_order_and_repeats_nothing(have, most, seed):
    texts = [str(i) for i in range(have)]
    drawn = draw(texts, most, seed=seed)
    assert len(drawn) == min(have, most)
    assert drawn == sorted(set(drawn), key=texts.index)
    assert drawn == draw(texts, most, seed=seed)


@given(st.lists(st.text("ab", max_size=9), min_size=5, max_size=30), st.integers(2, 12))
def test_every_token_and_text_is_in_a_block_or_counted(texts, block):
    packed = pack([f"x{text}" for text in texts], tokens, block=block, at_least=5)
    lengths = [len(text) + 2 for text in texts]
    counts = packed.counts
    assert counts["texts"] == len(texts)
    assert packed.rows.size + counts["tokens_left_out"] == sum(lengths)
    assert counts["tokens_left_out"] < block
    assert counts["texts_cut"] == sum(length > block for length in lengths)
    in_rest = 0
    while sum(lengths[len(lengths) - in_rest - 1 :]) <= counts["tokens_left_out"]:
        in_rest += 1
    assert counts["texts_left_out"] == in_rest


# --- passages as rows of tokens -------------------------------------------------------------------


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
