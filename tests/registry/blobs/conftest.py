"""Short waits for the tests of blobs."""

from __future__ import annotations

import pytest

from registry.blobs import bucket


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that fails is tried again at once: how long is waited between tries matters to no test here."""
    monkeypatch.setattr(bucket, "FIRST_WAIT", 0.005)
    monkeypatch.setattr(bucket, "LONGEST_WAIT", 0.05)
