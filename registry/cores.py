"""How many processor cores the tensor operations of a thread use.

Torch shares an operation out to helpers through OpenMP, whose library on Linux, libgomp, keeps some for every thread
that ever shared one out. Once there are more threads and helpers than cores, idle ones included, no helper waits
awake for the next operation any more, and a small one takes many times as long (decision 31 has figures). So in a
server every thread works alone (`one_each`), but for the one that serves, which has all cores as long as it has work
(`take`), and whoever borrows them while nobody has them (`spare`); and helpers are sent away when their thread is done.

Without libgomp (another system's torch), all of this is without effect.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

ALL = torch.get_num_threads()
"""Cores that operations use where nobody said anything: OMP_NUM_THREADS, or all there are."""

_SOFT = 1
"""omp_pause_soft: what the thread has set stays."""


def _found(name: str) -> Callable[[int], int] | None:
    """A function of OpenMP's or MKL's library, as torch uses them."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        found = getattr(library, name)
    except (OSError, AttributeError):
        return None
    found.argtypes, found.restype = [ctypes.c_int], ctypes.c_int
    return found  # type: ignore[no-any-return]


_omp_set_num_threads = _found("omp_set_num_threads")
_omp_pause_resource_all = _found("omp_pause_resource_all")
_mkl_set_num_threads_local = _found("MKL_Set_Num_Threads_Local")

_state = threading.Lock()
_serving = 0
_lent = False
_all = ALL
_remembered = 0
_before = ALL


def one_each(cores: int | None = None) -> None:
    """From now on each thread's operations use one core, unless it takes or borrows all; `cores` says how many.

    A thread whose first operation is a product of matrices learns of it only behind that one: it should call `alone`.
    """
    global _all
    if _omp_set_num_threads is None or _omp_pause_resource_all is None:
        torch.set_num_threads(ALL if cores is None else cores)
        return
    _all = ALL if cores is None else cores
    torch.set_num_threads(1)
    send_helpers_away()


def remember() -> None:
    """Remember what threads use now, before `one_each` in a process that has other work as well."""
    global _remembered, _before
    with _state:
        if not _remembered:
            _before = torch.get_num_threads()
        _remembered += 1


def set_back() -> None:
    """The other end of `remember`: the last of several sets threads back to what was there before the first."""
    global _all, _remembered
    with _state:
        _remembered -= 1
        if not _remembered:
            _all = ALL
            torch.set_num_threads(_before)


def alone() -> None:
    """This thread's operations use one core, from the first on."""
    _use(1)


def take() -> None:
    """This thread, which serves, uses all cores until it gives them back, whatever others do meanwhile."""
    global _serving
    with _state:
        _serving += 1
    _use(_all)


def give_back() -> None:
    """The other end of `take`, in the same thread."""
    global _serving
    with _state:
        _serving -= 1
    _use(1)
    send_helpers_away()


@contextmanager
def spare() -> Iterator[None]:
    """This thread uses all cores while open where no other took or borrowed them, and else as many as before."""
    global _lent
    before = torch.get_num_threads()
    with _state:
        mine = not _serving and not _lent
        _lent = _lent or mine
    if not mine:
        yield
        return
    _use(_all)
    try:
        yield
    finally:
        _use(before)
        send_helpers_away()
        with _state:
            _lent = False


def send_helpers_away() -> None:
    """This thread's helpers end; its next operation that uses several cores makes new ones, in some 50 microseconds."""
    if _omp_pause_resource_all is not None:
        _omp_pause_resource_all(_SOFT)


def _use(cores: int) -> None:
    """Let this thread's operations use so many cores, and no other's."""
    if _omp_set_num_threads is None:
        return
    torch.get_num_threads()  # which sets the thread up with the process's number, once
    _omp_set_num_threads(cores)
    if _mkl_set_num_threads_local is not None:
        _mkl_set_num_threads_local(cores)
