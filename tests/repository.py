"""Where the repository is, for tests that read its files or run its programs, and what of it is shipped."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
PATTERNS = (
    "*.py",
    "py.typed",
    "*.mako",
    "swagger/*",
    "soup.1",
    "static/*",
    "templates/*",
    "vendored/*",
)


def shipped_files(packages: Iterable[str]) -> set[str]:
    """The files that a wheel of these packages holds, by their paths in the repository."""
    return {
        path.relative_to(REPOSITORY).as_posix()
        for package in packages
        for pattern in PATTERNS
        for path in (REPOSITORY / package).rglob(pattern)
    }
