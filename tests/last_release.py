"""The code of the last release, from the history of the repository."""

from __future__ import annotations

import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from migrations.last_release import COMMIT
from tests.repository import REPOSITORY

PACKAGES = ("adaptersoup", "registry", "service", "training", "migrations")


def last_release(folder: Path) -> Path:
    """`folder` with the packages of the last release; skips the test where there is no history that has it."""
    if not (REPOSITORY / ".git").exists():
        pytest.skip("this is no checkout, so that the code of the last release is not here")
    archive = ["git", "-C", str(REPOSITORY), "archive", COMMIT, *PACKAGES]
    done = subprocess.run(archive, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"the history here does not have the last release, {COMMIT[:12]}: {done.stderr.decode().strip()}")
    with tarfile.open(fileobj=BytesIO(done.stdout)) as found:
        found.extractall(folder, filter="data")
    return folder
