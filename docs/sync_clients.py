"""Generates the synchronous clients from the asynchronous ones with unasync: `python -m docs.sync_clients`.

Every module of `asynchronous` becomes the one of the same name in `synchronous`. A test compares them.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import unasync

ROOT = Path(__file__).parent.parent
SOURCES = (Path("adaptersoup/client/asynchronous"), Path("adaptersoup/asynchronous"))
NAMES = {
    "asynchronous": "synchronous",
    "AsyncBaseTransport": "BaseTransport",
    "AsyncClient": "Client",
    "AsyncBlobs": "Blobs",
    "AsyncCalls": "Calls",
    "AsyncClosing": "Closing",
    "AsyncConnection": "Connection",
    "AsyncOperatorCalls": "OperatorCalls",
    "AsyncPause": "Pause",
    "AsyncStream": "Stream",
    "aclose": "close",
    "aiter_bytes": "iter_bytes",
    "anext": "next",
    "aread": "read",
    "async_sleep": "sleep",
    "in_thread": "directly",
}


def generate(target: Path = ROOT) -> list[Path]:
    """Write the synchronous modules below `target`; their paths, relative to it."""
    written = []
    for folder in SOURCES:
        rule = unasync.Rule(f"{ROOT / folder}/", f"{target / folder.parent}/synchronous/", NAMES)
        sources = sorted(path for path in (ROOT / folder).glob("*.py") if path.name != "__init__.py")
        unasync.unasync_files([str(path) for path in sources], [rule])
        written += [folder.parent / "synchronous" / path.name for path in sources]
    config = ROOT / "pyproject.toml"
    for command in (["check", "--fix", "--select", "I,UP,F401"], ["format"]):
        subprocess.run(  # noqa: S603 - ruff of this environment
            [
                sys.executable,
                "-m",
                "ruff",
                *command,
                "--quiet",
                "--config",
                config,
                *(target / path for path in written),
            ],
            check=True,
        )
    return written


if __name__ == "__main__":
    generate()
