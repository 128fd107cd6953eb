"""Samples: what is dropped is counted, what is drawn is drawn the same way again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.errors import InvalidSample, TooLarge
from registry.samples.sample import clean_sample
from registry.spec.limits import SampleLimits
from registry.spec.passage import decode_lines, encode_lines

WORDS = [f"passage number {i}" for i in range(700)]


def test_what_is_dropped_is_counted():
    sample = clean_sample([*WORDS[:30], "", "  \n", *WORDS[:5]])
    assert (sample.report.received, sample.report.empty, sample.report.duplicates) == (37, 2, 5)
    assert sample.report.kept == 30
    assert "about 100" in sample.report.notes[0]
    assert decode_lines(sample.data) == WORDS[:30]


def test_over_500_are_drawn_with_a_recorded_seed_and_in_order():
    first, second = clean_sample(WORDS), clean_sample(WORDS)
    assert first.report.kept == 500
    assert first.report.seed == 0
    assert first.data == second.data
    assert list(first.texts) == sorted(first.texts, key=WORDS.index)
    assert clean_sample(WORDS[:500]).report.seed is None


@pytest.mark.parametrize(
    ("texts", "error", "sentence"),
    [
        ([*WORDS[:19], WORDS[0], ""], InvalidSample, "has 19 different .* of 21 sent: send at least 20"),
        ([*WORDS[:30], "x" * 101], TooLarge, "101 characters and the limit is 100"),
        ([*WORDS[:30], "bad \ud800"], InvalidSample, "Unicode"),
    ],
    ids=["too few", "an endless one", "a lone surrogate"],
)
def test_texts_that_are_no_sample_are_refused_with_the_reason(texts, error, sentence):
    with pytest.raises(error, match=sentence):
        clean_sample(texts, SampleLimits(max_chars=100))


def test_more_characters_than_a_sample_may_have_are_refused_with_the_numbers():
    limits = SampleLimits(minimum=5, maximum=10, characters=1000)
    with pytest.raises(InvalidSample, match="The 10 passages of the sample have 1010 characters and the limit is 1000"):
        clean_sample([f"{i:>101}" for i in range(10)], limits)
    many = clean_sample([f"{i:>100}" for i in range(200)], limits)
    assert (many.report.received, many.report.kept) == (200, 10), "what is not drawn does not count"


@pytest.mark.parametrize("line", [b"{", b"[1]", b'{"text": 3}', b'{"txt": "a"}', b"\xff", b"[" * 100_000])
def test_a_bad_line_is_named_by_its_number(line):
    with pytest.raises(InvalidSample, match="Line 2 "):
        decode_lines(b'{"text": "a"}\n' + line + b"\n")


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))))
def test_lines_read_back_as_they_were_written(texts):
    assert decode_lines(encode_lines(texts)) == texts
