"""A disk that fails, or takes no new file; permissions would not do, since tests may run as root."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest


def failing(number: int) -> Mock:
    """A function of the system that always fails with this error."""
    return Mock(side_effect=OSError(number, os.strerror(number)))


def refuse_new_files(patch: pytest.MonkeyPatch, number: int) -> None:
    """Have the system refuse to make files, with this error; what is there can be read."""
    opened = Path.open

    def refusing(self: Path, mode: str = "r", *args: Any, **options: Any) -> Any:
        if mode == "xb":
            raise OSError(number, os.strerror(number), str(self))
        return opened(self, mode, *args, **options)

    patch.setattr(Path, "open", refusing)
