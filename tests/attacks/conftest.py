"""One server for all attacks of this folder: started for the first, stopped after the last."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.attacks.target", "tests.attacks.attack")  # before they are imported

from tests.attacks.target import Target  # noqa: E402
from tests.attacks.target_server import attacked  # noqa: E402


@pytest.fixture(scope="package")
def target(tiny_base_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """The server; what is asked of it stays in the queue."""
    with attacked(tiny_base_dir, tmp_path_factory, job_workers=0) as target:
        yield target
