"""The command of a child process: whose modules it imports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from registry.interpreter import module_command


@pytest.mark.slow
@pytest.mark.parametrize("imports_from_here", [False, True])
def test_a_child_imports_from_the_current_folder_only_if_its_parent_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, imports_from_here: bool
) -> None:
    (tmp_path / "this.py").write_text("print('of the folder')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if imports_from_here:
        monkeypatch.syspath_prepend(tmp_path)
    ran = subprocess.run(module_command("this"), capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("of the folder" if imports_from_here else "The Zen of Python")


PROGRAM = """
import re, threading, torch
from registry import cores

def numbers():
    "Of torch's own loops, and of MKL's products."
    text = torch.__config__.parallel_info()
    mkl = re.search(r"mkl_get_max_threads\\(\\) : (\\d+)", text)
    torch.ones(300, 300) @ torch.ones(300, 300)  # the first operation of a thread may change its number
    return torch.get_num_threads(), int(mkl[1]) if mkl else torch.get_num_threads()

def in_thread(work):
    found = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]

def engine():
    cores.use_cores(2)
    later = in_thread(numbers)
    in_thread(lambda: cores.use_cores(1))
    return numbers(), later

print(cores.ALL, numbers(), in_thread(engine), numbers(), in_thread(numbers))
"""


@pytest.mark.slow
def test_a_thread_keeps_its_number_and_those_that_start_later_use_one() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "2 (2, 2) ((2, 2), (1, 1)) (2, 2) (1, 1)"
