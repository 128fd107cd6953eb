"""A bounded cache: values are loaded once, and the least recently asked for goes first."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest

from registry.errors import Internal
from registry.recent import Recent


class Stored:
    """Values of a hundred bytes each; `read` has their numbers in the order in which they were read."""

    def __init__(self, size: int = 100) -> None:
        self.size, self.read = size, []

    def get(self, cache: Recent[object], number: int):
        def load():
            self.read.append(number)
            return object(), self.size

        return cache.get_or_load(str(number), load)


def test_what_was_asked_for_longest_ago_goes_first() -> None:
    cache, stored = Recent(300), Stored()
    for number in (0, 1, 2, 0, 3):  # 1 has to go
        stored.get(cache, number)
    for number in (0, 2, 3):
        stored.get(cache, number)
    assert stored.read == [0, 1, 2, 3]
    stored.get(cache, 1)
    assert stored.read == [0, 1, 2, 3, 1]


def test_one_that_is_larger_than_all_may_be_is_kept_alone() -> None:
    cache, small, large = Recent(300), Stored(), Stored(301)
    small.get(cache, 0)
    large.get(cache, 1)
    large.get(cache, 1)
    assert large.read == [1]
    small.get(cache, 0)
    assert small.read == [0, 0]


def test_what_cannot_be_read_is_tried_again() -> None:
    cache, stored = Recent(300), Stored()

    with pytest.raises(Internal):
        cache.get_or_load("0", Mock(side_effect=Internal("a bit fell over")))
    assert stored.get(cache, 0) is stored.get(cache, 0)
    assert stored.read == [0]


def test_of_several_that_ask_at_once_one_reads() -> None:
    cache, begun, go_on, read = Recent(300), threading.Event(), threading.Event(), []

    def load():
        read.append(0)
        begun.set()
        assert go_on.wait(30)
        return object(), 100

    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(cache.get_or_load, "0", load)
        assert begun.wait(30)
        waiting = [pool.submit(cache.get_or_load, "0", load) for _ in range(3)]
        go_on.set()
        assert {id(future.result()) for future in (first, *waiting)} == {id(first.result())}
    assert read == [0]
