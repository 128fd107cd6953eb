"""The synchronous clients are what `python -m docs.sync_clients` makes of the asynchronous ones."""

from __future__ import annotations

from pathlib import Path

from docs.sync_clients import generate
from tests.repository import REPOSITORY


def test_the_generated_clients_are_up_to_date(tmp_path: Path) -> None:
    for path in generate(tmp_path):
        assert (REPOSITORY / path).read_text() == (tmp_path / path).read_text(), "run `python -m docs.sync_clients`"
