"""Threads that begin at one moment."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


def together(number: int, work: Callable[[int], Result]) -> list[Result]:
    """The results of `work(0)` to `work(number - 1)`, each in a thread of its own; the first error is raised here."""
    start = threading.Barrier(number)

    def run(index: int) -> Result:
        start.wait()
        return work(index)

    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(run, range(number)))
