"""The beginning of a text decides its vector; the rest is never handed to a tokenizer."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from registry.encoders import SentenceBertEncoder
from registry.encoders.contract import CHARACTERS, beginning


def words(text: str) -> int:
    return len(text.split())


@pytest.mark.parametrize("text", ["", "short", "a few words " * 3])
def test_what_is_short_is_read_whole_without_a_count(text):
    def never(_: str) -> int:
        raise AssertionError("nothing is to be counted")

    assert beginning(text, never, tokens=10) == text


def test_of_what_is_long_a_start_with_twice_the_tokens():
    found = beginning("word " * 100_000, words, tokens=10)
    assert found == ("word " * 100_000)[: CHARACTERS * 10]
    assert words(found) >= 20


@pytest.mark.parametrize("text", ["x" * 100_000, " " * 50_000 + "word " * 40])
def test_few_tokens_in_many_characters_are_looked_for_further_on(text):
    assert beginning(text, words, tokens=10) == text


class TestSentenceBert:
    SENTENCES = ("word " * 60_000, "supercalifragilistic " * 9_000, "x" * 40_000 + " and more" * 500, "short one")

    def test_a_huge_sentence_is_not_tokenised_whole(self, monkeypatch):
        encoder = SentenceBertEncoder()
        model = encoder._loaded()
        tokenizer, lengths = model.tokenizer, []

        def counted(text, **options):
            lengths.extend(map(len, [text] if isinstance(text, str) else text))
            return tokenizer(text, **options)

        def encoded(sentences, **options):
            lengths.extend(map(len, sentences))
            return model.encode(sentences, **options)

        shown = SimpleNamespace(tokenizer=counted, encode=encoded, max_seq_length=model.max_seq_length)
        monkeypatch.setattr(encoder, "_model", shown)
        assert encoder.encode(["word " * 200_000]).truncated == 1
        assert 0 < max(lengths) <= 2 * CHARACTERS * model.max_seq_length

    def test_its_vector_is_that_of_the_whole(self):
        encoder = SentenceBertEncoder()
        model = encoder._loaded()
        whole = model.encode(list(self.SENTENCES), normalize_embeddings=True)
        found = encoder.encode(self.SENTENCES)
        assert found.truncated == 3
        np.testing.assert_allclose(found.vectors, whole, atol=1e-6)
