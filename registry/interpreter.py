"""Commands that run a module of ours in another interpreter."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path


def module_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module. It imports from the current folder only if this process does too.

    `python -m` alone would put that folder first: a file there could replace a module of ours.
    """
    folders = {""}
    with suppress(OSError):  # the folder is gone
        folders.add(str(Path.cwd()))
    flags = [] if folders & set(sys.path) else ["-P"]
    return [sys.executable, *flags, "-m", module, *arguments]
