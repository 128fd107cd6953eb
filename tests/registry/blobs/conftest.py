"""Short waits for the tests of blobs."""

from __future__ import annotations

import errno
import fcntl
import os

import pytest

from registry.blobs import bucket


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that fails is tried again at once: how long is waited between tries matters to no test here."""
    monkeypatch.setattr(bucket, "FIRST_WAIT", 0.005)
    monkeypatch.setattr(bucket, "LONGEST_WAIT", 0.05)


@pytest.fixture
def nfs_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exclusive locks of files as on NFS, where only a file that is open for writing can have one (flock(2))."""
    flock = fcntl.flock

    def lock(file, operation: int) -> None:
        if operation & fcntl.LOCK_EX and fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", lock)
