"""A store leaves the number of threads that its program's tensor operations use."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from adaptersoup import Store
from registry.errors import Unavailable

pytestmark = pytest.mark.slow


def test_a_store_leaves_the_threads_of_its_program(tmp_path: Path, tiny_base_dir: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with Store(tmp_path / "a", tiny_base_dir, base_id="tiny"):
            assert torch.get_num_threads() == 2
        with (
            pytest.raises(Unavailable),
            Store(tmp_path / "a", database_url="postgresql+psycopg://nobody@127.0.0.1:1/x"),
        ):
            pass
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
