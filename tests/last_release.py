"""The code of the last release, from the history of the repository."""

from __future__ import annotations

import os
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from migrations.last_release import COMMIT
from tests.repository import REPOSITORY

PACKAGES = ("adaptersoup", "registry", "service", "training", "plots", "migrations")


def last_release(folder: Path) -> Path:
    """`folder` with the packages of the last release.

    Skips the test where there is no checkout, or its history ends before that release; fails where CI is set and a
    whole history does not have it, since nobody reads there what was skipped.
    """
    if not (REPOSITORY / ".git").exists():
        pytest.skip("this is no checkout, so that the code of the last release is not here")
    done = _git("archive", COMMIT, *PACKAGES)
    if done.returncode:
        reason = f"the history here does not have the last release, {COMMIT[:12]}: {done.stderr.decode().strip()}"
        whole = _git("rev-parse", "--is-shallow-repository").stdout.strip() == b"false"
        (pytest.fail if os.environ.get("CI") and whole else pytest.skip)(reason)
    with tarfile.open(fileobj=BytesIO(done.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


def _git(*words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", str(REPOSITORY), *words], capture_output=True, check=False)
