"""Samples and their embeddings: what is dropped is counted, draws and files are the same again, all else is refused."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps
from safetensors.numpy import load, save

from registry.errors import InvalidSample, TooLarge
from registry.samples.embeddings_file import read_embeddings, save_embeddings
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
    assert (first.report.kept, first.report.seed, first.data) == (500, 0, second.data)
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


# --- embeddings as files --------------------------------------------------------------------------


MAX_BYTES = 10**6


@given(
    nps.arrays(np.float32, nps.array_shapes(min_dims=2, max_dims=2, max_side=6), elements=st.floats(-10, 10, width=32))
)
def test_embeddings_come_back_as_they_were(array):
    data = save_embeddings(array)
    back = read_embeddings(data, max_bytes=MAX_BYTES)
    assert back.dtype == np.float32
    assert back.tobytes() == np.ascontiguousarray(array).tobytes()
    assert load(data)["embeddings"].tobytes() == back.tobytes()
    assert save_embeddings(back) == data


def test_half_and_double_precision():
    array = np.arange(6, dtype=np.float64).reshape(2, 3) / 8
    assert np.array_equal(read_embeddings(save({"embeddings": array.astype(np.float16)}), max_bytes=MAX_BYTES), array)
    assert np.array_equal(read_embeddings(save_embeddings(array), max_bytes=MAX_BYTES), array)
    with pytest.raises(InvalidSample, match="F64; F32 and F16"):
        read_embeddings(save({"embeddings": array}), max_bytes=MAX_BYTES)


def test_result_is_writable_and_its_own():
    data = save_embeddings(np.ones((2, 2), dtype=np.float32))
    read_embeddings(data, max_bytes=MAX_BYTES)[0, 0] = 5
    assert read_embeddings(data, max_bytes=MAX_BYTES)[0, 0] == 1


def test_strided_arrays_are_saved_row_major():
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    assert np.array_equal(read_embeddings(save_embeddings(array), max_bytes=MAX_BYTES), array)


@pytest.mark.parametrize(
    ("tensors", "match"),
    [
        ({}, "found none"),
        ({"vectors": np.ones((2, 2), dtype=np.float32)}, "found vectors"),
        ({"embeddings": np.ones((2, 2), dtype=np.float32), "x": np.ones(1, dtype=np.float32)}, "found embeddings, x"),
        ({"embeddings": np.ones(4, dtype=np.float32)}, r"shape \[4\]"),
        ({"embeddings": np.ones((1, 2, 2), dtype=np.float32)}, r"shape \[1, 2, 2\]"),
        ({"embeddings": np.ones((0, 4), dtype=np.float32)}, "above zero"),
        ({"embeddings": np.ones((4, 0), dtype=np.float32)}, "above zero"),
        ({"embeddings": np.array([[1, np.nan], [np.inf, 0]], dtype=np.float32)}, "2 of their values are NaN"),
        ({"embeddings": np.array([[np.inf]], dtype=np.float16)}, "1 of their values"),
    ],
)
def test_tensors_that_are_no_embeddings_are_refused(tensors, match):
    with pytest.raises(InvalidSample, match=match):
        read_embeddings(save(tensors), max_bytes=MAX_BYTES)


def test_attacks_are_errors_of_the_sample():
    for data in (pickle.dumps([1]), b"", bytes(100), save_embeddings(np.ones((2, 2)))[:-1]):
        with pytest.raises(InvalidSample, match="embeddings"):
            read_embeddings(data, max_bytes=MAX_BYTES)
    with pytest.raises(TooLarge):
        read_embeddings(bytes(100), max_bytes=99)


def test_bad_arrays_are_not_saved():
    for array in (np.ones(3), np.ones((0, 3)), np.ones((1, 1, 1))):
        with pytest.raises(InvalidSample, match="units, dimensions"):
            save_embeddings(array)


@given(st.binary(max_size=80))
def test_random_bytes_are_no_embeddings(data):
    with pytest.raises(InvalidSample):
        read_embeddings(data, max_bytes=MAX_BYTES)
