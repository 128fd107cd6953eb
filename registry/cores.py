"""The number of processor cores that the tensor operations of a thread use.

Torch parallelises an operation with worker threads, which it keeps for each thread that computes. Idle ones count: with
more than there are cores, workers sleep between operations, and small operations take many times as long (decision 14
has figures). So each thread uses one core, except for the engine's and those that only live for a large computation.
"""

from __future__ import annotations

import threading

import torch

ALL = torch.get_num_threads()
"""The default number of cores: OMP_NUM_THREADS, or all of the machine."""


def use_cores(cores: int) -> None:
    """Set the number of cores of this thread's tensor operations; threads that start later use one."""
    torch.get_num_threads()  # initialises the thread: torch would replace the number at its first operation
    torch.set_num_threads(cores)
    later = threading.Thread(target=torch.set_num_threads, args=(1,))  # also sets the default of later threads
    later.start()
    later.join()
