"""The disk of the machine that a piece of work runs on, where it is full, read-only or fails: another may have room.

Called by pieces that write files. Any other error of the system is raised as it is: it may be one of what a piece was
given, or of a connection.
"""

from __future__ import annotations

import errno
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory

from registry.errors import Unavailable
from registry.pieces.contract import MachineProblem

OF_A_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})


@contextmanager
def own_disk() -> Iterator[None]:
    """While open, an error of a disk is a MachineProblem with this machine's name, and where one was raised as an
    Unavailable, as of a training that cannot be saved, its sentence follows the name."""
    try:
        yield
    except OSError as error:
        if error.errno not in OF_A_DISK:
            raise
        raise _problem(error) from error
    except Unavailable as problem:
        if not isinstance(problem.__cause__, OSError) or problem.__cause__.errno not in OF_A_DISK:
            raise
        named = Unavailable(f"On {platform.node()}: {problem.message}", param=problem.param)
        raise MachineProblem(named) from problem


def own_folder(prefix: str) -> TemporaryDirectory[str]:
    """A new folder of this machine, removed when it is closed or let go.

    Raises MachineProblem where none can be made, whatever the reason: on a full disk that may be that Python finds no
    place for temporary files.
    """
    try:
        return TemporaryDirectory(prefix=prefix)
    except OSError as error:
        raise _problem(error) from error


def _problem(error: OSError) -> MachineProblem:
    where = "" if error.filename is None else f" ({error.filename})"
    return MachineProblem(
        Unavailable(
            f"On {platform.node()} the files of a piece of work cannot be read or written: "
            f"{error.strerror or error}{where}."
        )
    )
