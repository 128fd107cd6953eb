"""Runs a function of a test file in another process, whose environment stands for another processor."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping

from tests.repository import REPOSITORY

SCRIPT = """
import importlib, sys
root, module, name = sys.argv[1:]
sys.path.insert(0, root)
print(getattr(importlib.import_module(module), name)())
"""


def elsewhere(function: Callable[[], str], environment: Mapping[str, str]) -> str:
    """The output of `function`, which a module defines by its own name, under these variables."""
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, str(REPOSITORY), function.__module__, function.__name__],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return run.stdout.strip()
