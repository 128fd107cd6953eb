"""The disk of the machine that a piece of work runs on, where it refuses something: another machine may have room.

Called by pieces that write files. All that they name lies in a folder of that machine, so that no error of its system
is one of what they were given.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager

from registry.errors import Unavailable
from registry.pieces.contract import MachineProblem


@contextmanager
def own_disk() -> Iterator[None]:
    """While open, an OSError is a MachineProblem with this machine's name, also where a training could not be saved."""
    try:
        yield
    except OSError as error:
        raise _problem(error) from error
    except Unavailable as problem:
        if isinstance(problem.__cause__, OSError):
            raise _problem(problem.__cause__) from problem
        raise


def _problem(error: OSError) -> MachineProblem:
    return MachineProblem(
        Unavailable(f"On {platform.node()} the files of a piece of work cannot be written: {error.strerror or error}.")
    )
