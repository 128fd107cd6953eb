"""Whether a machine that runs a task has the same base model as the machine that sent it."""

from __future__ import annotations

from registry.errors import Unavailable
from registry.spec import BaseEntry


def check_same(entry: BaseEntry, fingerprint: str, *, expected: str) -> None:
    """Raises Unavailable where the fingerprint of the base model here is another than expected."""
    if fingerprint != expected:
        raise Unavailable(
            f"The base model in {entry.source} is another: its fingerprint is {fingerprint}, and {expected} is needed. "
            "Every machine needs the same files."
        )
