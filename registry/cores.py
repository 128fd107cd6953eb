"""The number of processor cores that the tensor operations of a thread use.

Torch parallelises an operation with OpenMP worker threads, which libgomp on Linux keeps for each calling thread. With
more threads than cores, including idle ones, workers no longer spin while they wait for the next operation. A small
operation then takes many times as long (decision 14 has figures). So in a server each thread uses one core
(`use_one_each`), with two exceptions. The engine's thread uses all while it has work (`take_all`), and a thread can
borrow all cores while none uses them (`borrow_spare`). Workers end when their thread is done.

Without libgomp, as in torch of other systems, all of this has no effect.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

ALL = torch.get_num_threads()
"""The default number of cores: OMP_NUM_THREADS, or all of the machine."""

_SOFT = 1
"""omp_pause_soft: settings of the thread are kept."""


def _library_function(name: str) -> Callable[[int], int] | None:
    """A function of the OpenMP or MKL library that torch uses; None where it is missing."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        function: Callable[[int], int] = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)((name, library))
    except (OSError, AttributeError):
        return None
    return function


_omp_set_num_threads = _library_function("omp_set_num_threads")
_omp_pause_resource_all = _library_function("omp_pause_resource_all")
_mkl_set_num_threads_local = _library_function("MKL_Set_Num_Threads_Local")

_state = threading.Lock()
_takers = 0
_borrowed = False
_all = ALL
_restoring = 0
_original = ALL


def use_one_each(cores: int | None = None) -> None:
    """Make each thread's operations use one core, unless it takes or borrows all, which are `cores`.

    Call `use_one` in a thread whose first operation is a matrix product, which does not respect this.
    """
    global _all
    if _omp_set_num_threads is None or _omp_pause_resource_all is None:
        torch.set_num_threads(ALL if cores is None else cores)
        return
    _all = ALL if cores is None else cores
    torch.set_num_threads(1)
    end_workers()


@contextmanager
def restored() -> Iterator[None]:
    """Restore the process's number of cores on exit, for `use_one_each` in a process that does other work as well.

    Of several that overlap the last to exit restores the number before the first.
    """
    global _all, _restoring, _original
    with _state:
        if not _restoring:
            _original = torch.get_num_threads()
        _restoring += 1
    try:
        yield
    finally:
        with _state:
            _restoring -= 1
            if not _restoring:
                _all = ALL
                torch.set_num_threads(_original)


def use_one() -> None:
    """Make this thread's operations use one core."""
    _use(1)


def take_all() -> None:
    """Make this thread's operations use all cores until `release_all`; no other thread can borrow them meanwhile."""
    global _takers
    with _state:
        _takers += 1
    _use(_all)


def release_all() -> None:
    """Make this thread's operations use one core again, after `take_all` in the same thread."""
    global _takers
    with _state:
        _takers -= 1
    _use(1)
    end_workers()


@contextmanager
def borrow_spare() -> Iterator[None]:
    """Make this thread's operations use all cores, unless another thread has taken or borrowed them."""
    global _borrowed
    original = torch.get_num_threads()
    with _state:
        is_free = not _takers and not _borrowed
        _borrowed = _borrowed or is_free
    if not is_free:
        yield
        return
    _use(_all)
    try:
        yield
    finally:
        _use(original)
        end_workers()
        with _state:
            _borrowed = False


def end_workers() -> None:
    """End this thread's OpenMP workers; its next parallel operation starts new ones, in some 50 microseconds."""
    if _omp_pause_resource_all is not None:
        _omp_pause_resource_all(_SOFT)


def _use(cores: int) -> None:
    """Set the number of cores of this thread's operations alone."""
    if _omp_set_num_threads is None:
        return
    torch.get_num_threads()  # initialises the thread with the process's number, once
    _omp_set_num_threads(cores)
    if _mkl_set_num_threads_local is not None:
        _mkl_set_num_threads_local(cores)
