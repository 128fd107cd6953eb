"""Fixtures of the servers of journeys."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.service.servers import BASE_ID, write_bases


@pytest.fixture
def allowlist(tiny_base_dir: Path, tmp_path: Path) -> Path:
    """The file that names the tiny base model."""
    return write_bases(tmp_path / "bases.toml", {BASE_ID: tiny_base_dir})
