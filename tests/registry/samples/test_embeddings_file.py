"""Embeddings as files: exact round trips; everything else is refused as a sample."""

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

LIMIT = 10**6


@given(
    nps.arrays(np.float32, nps.array_shapes(min_dims=2, max_dims=2, max_side=6), elements=st.floats(-10, 10, width=32))
)
def test_round_trip(array):
    data = save_embeddings(array)
    back = read_embeddings(data, max_bytes=LIMIT)
    assert back.dtype == np.float32
    assert back.tobytes() == np.ascontiguousarray(array).tobytes()
    assert load(data)["embeddings"].tobytes() == back.tobytes()
    assert save_embeddings(back) == data


def test_half_and_double_precision():
    array = np.arange(6, dtype=np.float64).reshape(2, 3) / 8
    assert np.array_equal(read_embeddings(save({"embeddings": array.astype(np.float16)}), max_bytes=LIMIT), array)
    assert np.array_equal(read_embeddings(save_embeddings(array), max_bytes=LIMIT), array)
    with pytest.raises(InvalidSample, match="F64; F32 and F16"):
        read_embeddings(save({"embeddings": array}), max_bytes=LIMIT)


def test_result_is_writable_and_its_own():
    data = save_embeddings(np.ones((2, 2), dtype=np.float32))
    read_embeddings(data, max_bytes=LIMIT)[0, 0] = 5
    assert read_embeddings(data, max_bytes=LIMIT)[0, 0] == 1


def test_strided_arrays_are_saved_row_major():
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    assert np.array_equal(read_embeddings(save_embeddings(array), max_bytes=LIMIT), array)


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
def test_refused(tensors, match):
    with pytest.raises(InvalidSample, match=match):
        read_embeddings(save(tensors), max_bytes=LIMIT)


def test_attacks_are_errors_of_the_sample():
    for data in (pickle.dumps([1]), b"", bytes(100), save_embeddings(np.ones((2, 2)))[:-1]):
        with pytest.raises(InvalidSample, match="embeddings"):
            read_embeddings(data, max_bytes=LIMIT)
    with pytest.raises(TooLarge):
        read_embeddings(bytes(100), max_bytes=99)


def test_bad_arrays_are_not_saved():
    for array in (np.ones(3), np.ones((0, 3)), np.ones((1, 1, 1))):
        with pytest.raises(InvalidSample, match="units, dimensions"):
            save_embeddings(array)


@given(st.binary(max_size=80))
def test_random_bytes(data):
    with pytest.raises(InvalidSample):
        read_embeddings(data, max_bytes=LIMIT)
