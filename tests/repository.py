"""Where the repository is, for tests that read its files or run its programs."""

from __future__ import annotations

from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
