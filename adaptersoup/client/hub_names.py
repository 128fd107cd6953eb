"""The names of adapters on a model hub as a command line gives them: `hub:OWNER/NAME[@revision]`.

Known without the hub's client, which is an extra.
"""

from __future__ import annotations

from pathlib import Path

from registry.errors import InvalidName

HUB = "hub:"


def is_hub(source: Path) -> bool:
    """Whether a source is on a hub and no directory here."""
    return str(source).startswith(HUB)


def split_hub(source: str) -> tuple[str, str | None]:
    """Repository and revision (None for its main one) of `hub:OWNER/NAME[@revision]`; raises InvalidName."""
    repository, at, revision = source.removeprefix(HUB).partition("@")
    if not repository or (at and not revision):
        raise InvalidName(f"{source[:80]!r} names no repository: write hub:OWNER/NAME or hub:OWNER/NAME@REVISION.")
    return repository, revision or None
