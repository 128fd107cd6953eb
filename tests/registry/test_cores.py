"""How many threads compute, and when their helpers are there; each program has a process of its own, with two cores."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="helpers of libgomp are counted in /proc"),
]

START = """
import json, sys, threading, torch
from multiprocessing import get_context
from pathlib import Path
from registry import cores

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
    wide = torch.ones(400, 400)
    return helpers_after(lambda: (wide @ wide).exp().sum())

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

for name, program in json.load(sys.stdin).items():
    print("program:", name, flush=True)
    process = get_context("fork").Process(target=exec, args=(program, globals()))  # nothing was computed: no helpers
    process.start()
    process.join()
    assert process.exitcode == 0
"""


PROGRAMS = {
    "helpers are there after an operation, and go when they are sent away": ("""
cores.end_workers()
none = helpers()
print(compute() - none)
cores.end_workers()
print(helpers() - none)
print(compute() - none)
""", "1 0 1"),
    "threads of a server have no helpers, but the one that took all cores has": ("""
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
""", "0 0 2 1 0 1 0 1"),
    "spare cores are lent to one thread, and to none while another serves": ("""
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
""", "2 1 1 2 1 2 2"),
    "where nobody said one each, borrowing takes nothing away": ("""
cores.take_all()
with cores.borrow_spare():
    print(torch.get_num_threads())
cores.release_all()
def other():
    with cores.borrow_spare():
        pass
    return torch.get_num_threads()
print(in_thread(other))
""", "2 2"),
    "a server may have more cores or fewer than the process": ("""
cores.use_one_each(3)
cores.take_all()
print(torch.get_num_threads())
cores.release_all()
print(torch.get_num_threads())
""", "3 1"),
    "fp32 matrix products, which have a number of threads of their own, use the cores that were taken": ("""
cores.use_one_each()
none = helpers()
x, w = torch.ones(512, 512), torch.ones(512, 512)
print(helpers_after(lambda: x @ w) - none)
cores.take_all()
print(helpers_after(lambda: x @ w) - none)
""", "0 1"),
}  # fmt: skip
"""Each by what it shows: a program, and what it prints."""


@pytest.fixture(scope="module")
def printed() -> dict[str, list[str]]:
    """What each program prints, in a process of its own; all of them import torch once."""
    done = subprocess.run(
        [sys.executable, "-c", START],
        input=json.dumps({name: program for name, (program, _) in PROGRAMS.items()}),
        env={**os.environ, "OMP_NUM_THREADS": "2"}, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    texts = dict(text.split("\n", 1) for text in done.stdout.split("program: ")[1:])
    return {name: text.split() for name, text in texts.items()}


@pytest.mark.parametrize("name", PROGRAMS)
def test_cores(printed: dict[str, list[str]], name: str) -> None:
    assert printed[name] == PROGRAMS[name][1].split()
