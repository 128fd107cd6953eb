"""The texts of a probe: the same for a vocabulary, whole words where there are enough, and whole after tokenising."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from registry.errors import Unavailable
from registry.probes.texts import WORDS, probe_texts
from registry.spec import PROBE_TEXTS

VOCABULARY = [
    "<s>",
    "the",
    "1",
    *(f" w{'ab'[i % 2]}{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(200)),
    " No",
    "é",
]


def encode(text: str) -> list[int]:
    return [VOCABULARY.index(f" {word}") for word in text.split(" ")]


def decode(ids: Sequence[int]) -> str:
    return "".join(VOCABULARY[token] for token in ids).removeprefix(" ") if len(ids) > 1 else VOCABULARY[ids[0]]


def test_texts_are_whole_words_and_the_same_each_time() -> None:
    texts = probe_texts(len(VOCABULARY), encode, decode)
    assert texts == probe_texts(len(VOCABULARY), encode, decode)
    assert len(set(texts)) == PROBE_TEXTS
    assert all(len(text.split()) == WORDS and "No" not in text.split() for text in texts)
    assert all(decode(encode(text)) == text for text in texts)


def test_a_vocabulary_of_which_no_text_survives_is_an_error() -> None:
    with pytest.raises(Unavailable, match="0 texts can be made"):
        probe_texts(len(VOCABULARY), encode, lambda ids: VOCABULARY[ids[0]])
