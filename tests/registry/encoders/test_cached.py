"""A cached result is the encoder's own, and only for the same arguments."""

from __future__ import annotations

import numpy as np
import pytest

from registry.encoders import CachedEncoder
from registry.encoders.contract import Embedded
from registry.errors import InvalidSample
from registry.recent import Recent


class Counting:
    """An encoder that counts how often it is asked."""

    name, digest, unit, dimensions = "base", "sha256:" + "5" * 64, "passage", 2

    def __init__(self) -> None:
        self.asked = 0

    def encode(self, texts, *, seed=0, max_units=None, scored=True, progress=None):
        self.asked += 1
        if not texts:
            raise InvalidSample("nothing to embed")
        vectors = np.full((len(texts), 2), seed, np.float32)
        return Embedded(vectors=vectors, source=np.arange(len(texts)), unit="passage", truncated=0)


def test_the_same_question_is_asked_once_and_any_other_again():
    inner = Counting()
    encoder = CachedEncoder(inner, Recent(16))
    first = encoder.encode(["a", "b"])
    assert encoder.encode(("a", "b")) is first
    assert inner.asked == 1
    for other in (
        {"texts": ["ab"]},
        {"texts": ["b", "a"]},
        {"texts": ["a", "b"], "seed": 1},
        {"texts": ["a", "b"], "max_units": 1},
        {"texts": ["a", "b"], "scored": False},
    ):
        encoder.encode(**other)
    assert inner.asked == 6
    assert (encoder.name, encoder.digest, encoder.unit, encoder.dimensions) == ("base", inner.digest, "passage", 2)


def test_encoders_that_share_a_memory_do_not_share_answers():
    one, other, memory = Counting(), Counting(), Recent(16)
    other.digest = "sha256:" + "6" * 64
    CachedEncoder(one, memory).encode(["a"])
    CachedEncoder(other, memory).encode(["a"])
    assert (one.asked, other.asked) == (1, 1)


def test_the_least_recent_result_is_dropped_and_an_error_is_not_cached():
    inner = Counting()
    encoder = CachedEncoder(inner, Recent(2))
    for text in ("a", "b", "a", "c", "a"):
        encoder.encode([text])
    assert inner.asked == 3
    encoder.encode(["b"])
    assert inner.asked == 4
    for _ in range(2):
        with pytest.raises(InvalidSample):
            encoder.encode([])
    assert inner.asked == 6
