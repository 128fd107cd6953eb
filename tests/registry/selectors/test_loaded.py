"""Fitted selectors in memory: loaded once, bounded by bytes, the least recently asked for gone first."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import numpy as np
import pytest
from safetensors.numpy import save

from registry.errors import Internal
from registry.selectors.loaded import LoadedSelectors
from registry.selectors.state import dump_state, load_state
from registry.selectors.uniform import UniformSelector
from registry.spec import UniformSpec

DIGESTS = [f"sha256:{number:064x}" for number in range(6)]


class Stored:
    """States of a hundred bytes each; `read` has the digests in the order in which they were read."""

    def __init__(self, size: int = 100) -> None:
        self.size, self.read = size, []

    def get(self, cache: LoadedSelectors, number: int):
        def load():
            self.read.append(number)
            return UniformSelector(UniformSpec()), self.size

        return cache.get(DIGESTS[number], load)


def test_what_was_asked_for_longest_ago_goes_first() -> None:
    cache, stored = LoadedSelectors(300), Stored()
    for number in (0, 1, 2, 0, 3):  # 1 has to go
        stored.get(cache, number)
    for number in (0, 2, 3):
        stored.get(cache, number)
    assert stored.read == [0, 1, 2, 3]
    stored.get(cache, 1)
    assert stored.read == [0, 1, 2, 3, 1]


def test_one_that_is_larger_than_all_may_be_is_kept_alone() -> None:
    cache, small, large = LoadedSelectors(300), Stored(), Stored(301)
    small.get(cache, 0)
    large.get(cache, 1)
    large.get(cache, 1)
    assert large.read == [1]
    small.get(cache, 0)
    assert small.read == [0, 0]


def test_what_cannot_be_read_is_tried_again() -> None:
    cache, stored = LoadedSelectors(), Stored()

    with pytest.raises(Internal):
        cache.get(DIGESTS[0], Mock(side_effect=Internal("a bit fell over")))
    assert stored.get(cache, 0) is stored.get(cache, 0)
    assert stored.read == [0]


def test_of_several_that_ask_at_once_one_reads() -> None:
    cache, begun, go_on, read = LoadedSelectors(), threading.Event(), threading.Event(), []

    def load():
        read.append(0)
        begun.set()
        assert go_on.wait(30)
        return UniformSelector(UniformSpec()), 100

    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(cache.get, DIGESTS[0], load)
        assert begun.wait(30)
        waiting = [pool.submit(cache.get, DIGESTS[0], load) for _ in range(3)]
        go_on.set()
        assert {id(future.result()) for future in (first, *waiting)} == {id(first.result())}
    assert read == [0]


# --- a selector's bytes ---------------------------------------------------------------------------


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
