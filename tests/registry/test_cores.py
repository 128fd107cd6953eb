"""How many threads compute, and when their helpers are there; each case is a process of its own, with two cores."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="helpers of libgomp are counted in /proc"),
]

START = """
import threading, torch
from pathlib import Path
from registry import cores

WIDE = torch.ones(400, 400)
PF_EXITING = 4  # set while the kernel still lists a thread that has ended

def runs(thread):
    try:
        status = (thread / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return not int(status.rpartition(")")[2].split()[6]) & PF_EXITING

def helpers():
    "Threads of this process that run and that Python does not know."
    return sum(map(runs, Path("/proc/self/task").iterdir())) - threading.active_count()

def compute():
    return helpers_after(lambda: (WIDE @ WIDE).exp().sum())

def helpers_after(work):
    work()
    return helpers()

def in_thread(work):
    found = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    while runs(Path("/proc/self/task", str(thread.native_id))):
        pass  # join returns a moment before the kernel's thread ends
    return found[0]
"""


def printed(program: str) -> list[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", START + textwrap.dedent(program)],
        env=environment, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    return done.stdout.split()


def test_helpers_are_there_after_an_operation_and_go_when_they_are_sent_away() -> None:
    program = """
        cores.end_workers()
        none = helpers()
        print(compute() - none)
        cores.end_workers()
        print(helpers() - none)
        print(compute() - none)
    """
    assert printed(program) == ["1", "0", "1"]


def test_threads_of_a_server_have_no_helpers_but_the_one_that_took_all_cores() -> None:
    program = """
        compute()
        cores.use_one_each()
        none = helpers()

        def working():
            cores.use_one()
            return compute() - none

        print(compute() - none, in_thread(working))

        def serving():
            cores.take_all()
            threads, made = torch.get_num_threads(), compute() - none
            cores.release_all()
            return threads, made, helpers() - none, torch.get_num_threads(), compute() - none

        print(*in_thread(serving))
        print(torch.get_num_threads())
    """
    assert printed(program) == ["0", "0", "2", "1", "0", "1", "0", "1"]


def test_spare_cores_are_lent_to_one_thread_and_to_none_while_another_serves() -> None:
    program = """
        cores.use_one_each()

        def borrowed():
            with cores.borrow_spare():
                return torch.get_num_threads()

        print(borrowed(), torch.get_num_threads())
        with cores.borrow_spare():
            print(in_thread(borrowed))
        print(in_thread(borrowed))
        cores.take_all()
        print(in_thread(borrowed))
        cores.release_all()
        print(in_thread(borrowed))
        try:
            with cores.borrow_spare():
                raise ValueError
        except ValueError:
            print(borrowed())
    """
    assert printed(program) == ["2", "1", "1", "2", "1", "2", "2"]


def test_where_nobody_said_one_each_borrowing_takes_nothing_away() -> None:
    program = """
        cores.take_all()
        with cores.borrow_spare():
            print(torch.get_num_threads())
        cores.release_all()
        def other():
            with cores.borrow_spare():
                pass
            return torch.get_num_threads()
        print(in_thread(other))
    """
    assert printed(program) == ["2", "2"]


def test_a_server_may_have_more_cores_or_fewer_than_the_process() -> None:
    program = """
        cores.use_one_each(3)
        cores.take_all()
        print(torch.get_num_threads())
        cores.release_all()
        print(torch.get_num_threads())
    """
    assert printed(program) == ["3", "1"]


def test_matrix_products_use_the_cores_that_were_taken() -> None:
    """fp32 products are MKL's, which has a number of its own."""
    program = """
        cores.use_one_each()
        none = helpers()
        x, w = torch.ones(512, 512), torch.ones(512, 512)
        print(helpers_after(lambda: x @ w) - none)
        cores.take_all()
        print(helpers_after(lambda: x @ w) - none)
    """
    assert printed(program) == ["0", "1"]
