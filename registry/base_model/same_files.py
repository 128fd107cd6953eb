"""Whether a machine that has a part in some work has the base model it is about, said with the machine's name.

Called by pieces of work, which may run anywhere.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager

from registry.errors import Incompatible, Unavailable
from registry.spec import BaseEntry


@contextmanager
def named_machine() -> Iterator[None]:
    """While open, what is raised for a base model's files that cannot be read or loaded names this machine."""
    try:
        yield
    except Unavailable as problem:
        raise Unavailable(
            f"On {platform.node()}: {problem.message} Every machine that has a part in it needs the base model at the "
            "same path."
        ) from problem


def check_same(entry: BaseEntry, found: str, *, wanted: str) -> None:
    """Raises Incompatible where the fingerprint that was found here is not the one that is wanted."""
    if found != wanted:
        raise Incompatible(
            f"On {platform.node()} the base model in {entry.source} is another: its fingerprint is {found}, and "
            f"{wanted} is wanted. Every machine needs the same files."
        )
