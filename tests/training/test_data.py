"""Training text: what is read, packed, drawn, and refused."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.errors import InvalidParameter, NotFound
from registry.spec.passage import encode_lines
from training.data import MIN_TEXTS, draw, pack, read_texts

TEXTS = [f"passage number {i}" for i in range(MIN_TEXTS)]


def tokens(text: str) -> list[int]:
    return [0, *(ord(c) for c in text)]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_texts_are_read_plain_and_gzipped_whatever_the_name(tmp_path, name):
    for number, data in enumerate(
        (encode_lines(["eins", " ", "zwei ü"]), gzip.compress(encode_lines(["eins", "", "zwei ü"])))
    ):
        path = tmp_path / f"{number}-{name}"
        path.write_bytes(data)
        assert read_texts(path) == ["eins", "zwei ü"]


@pytest.mark.parametrize(
    ("data", "said"),
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
def test_broken_files_are_refused_in_one_sentence(tmp_path, data, said):
    path = tmp_path / "t.jsonl"
    path.write_bytes(data)
    with pytest.raises(InvalidParameter, match=said):
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
    ("texts", "block", "said"),
    [
        ([], 8, "holds 0 texts"),
        (TEXTS[:-1], 8, f"holds {MIN_TEXTS - 1} texts"),
        (["a"] * MIN_TEXTS, 41, "40 tokens, less than one block of 41"),
        (TEXTS, 1, "nothing to predict"),
    ],
)
def test_too_little_text_is_refused_with_the_figures(texts, block, said):
    with pytest.raises(InvalidParameter, match=said):
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
