"""The bytes of a fitted selector: loaded to the last bit, refused if they are damaged."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import save

from registry.errors import Internal
from registry.selectors.state import dump_state, load_state

ARRAYS = {"means": np.arange(6, dtype=np.float64).reshape(2, 3) / 7, "counts": np.array([1, 2], dtype=np.int64)}
META = {"kind": "gmm", "spec": {"seed": 3}, "report": {"a": [1.5, None, "ü"]}}


@pytest.mark.parametrize("arrays", [ARRAYS, {}])
def test_state_comes_back_to_the_last_bit(arrays):
    loaded, meta = load_state(dump_state(arrays, META))
    assert meta == META
    assert loaded.keys() == arrays.keys()
    for name, array in arrays.items():
        assert (loaded[name].dtype, loaded[name].tobytes()) == (array.dtype, array.tobytes())


def test_the_same_state_is_the_same_bytes():
    assert dump_state(ARRAYS, META) == dump_state(dict(reversed(ARRAYS.items())), dict(reversed(META.items())))


def test_a_transposed_array_keeps_its_meaning():
    array = np.arange(6.0).reshape(2, 3).T
    assert np.array_equal(load_state(dump_state({"a": array}, META))[0]["a"], array)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"short",
        b"\xff" * 40,
        dump_state(ARRAYS, META)[:-1],
        dump_state(ARRAYS, META) + b"x",
        dump_state(ARRAYS, META).replace(b"[2,3]", b"[3,3]"),
        dump_state(ARRAYS, META).replace(b"F64", b"F99"),
        b"\x02" + b"\0" * 7 + b"[]",
    ],
)
def test_damaged_bytes_are_refused_in_words(data):
    with pytest.raises(Internal, match="fit it again"):
        load_state(data)


def test_other_tensors_are_refused():
    with pytest.raises(Internal, match="no description"):
        load_state(save({"x": np.zeros(2)}))
