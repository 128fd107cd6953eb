"""A disk that fails, or takes no new file; permissions would not do, since tests may run as root."""

from __future__ import annotations

import os
from typing import Any
from unittest.mock import Mock

import pytest


def failing(number: int) -> Mock:
    """A function of the system that always fails with this error."""
    return Mock(side_effect=OSError(number, os.strerror(number)))


def refuse_new_files(patch: pytest.MonkeyPatch, number: int) -> None:
    """Have the system refuse to make files, with this error; what is there can be read."""
    opened = os.open

    def refusing(path: Any, flags: int, *args: Any, **options: Any) -> int:
        if flags & os.O_EXCL:
            raise OSError(number, os.strerror(number), str(path))
        return opened(path, flags, *args, **options)

    patch.setattr(os, "open", refusing)
