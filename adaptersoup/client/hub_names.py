"""Names of adapters on a model hub: `hub:OWNER/NAME[@revision]`. Works without the hub's client, which is an extra."""

from __future__ import annotations

from pathlib import Path

from registry.errors import InvalidName

HUB = "hub:"


def is_hub(source: Path) -> bool:
    """Return True if a source names a repository on a hub, not a local directory."""
    return str(source).startswith(HUB)


def split_hub(source: str) -> tuple[str, str | None]:
    """The repository and revision (None for the main one) of `hub:OWNER/NAME[@revision]`; raises InvalidName."""
    repository, at, revision = source.removeprefix(HUB).partition("@")
    if not repository or (at and not revision):
        raise InvalidName(f"{source[:80]!r} names no repository: write hub:OWNER/NAME or hub:OWNER/NAME@REVISION.")
    return repository, revision or None
