"""The cache of blobs, beside other processes that have the same folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from registry.blobs.cache import BlobCache
from registry.names import sha256_digest

DATA = b"bytes that were just verified"
DIGEST = sha256_digest(DATA)


def kept(cache: BlobCache) -> bytes:
    """What is given of a file that the cache takes in."""
    with cache.fetching(DIGEST) as (path, file):
        file.write(DATA)
        file.flush()
        found = cache.keep(path, DIGEST)
    assert found is not None
    with found:
        return found.read()


def test_what_was_kept_is_known_and_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = BlobCache(tmp_path / "cache", 2**20)
    assert kept(cache) == DATA
    monkeypatch.setattr("registry.blobs.cache.hashlib.file_digest", None)  # it is not hashed again
    found = cache.open(DIGEST)
    assert found is not None
    with found:
        assert found.read() == DATA


def test_what_another_process_puts_in_its_place_is_not_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the name and the first look at it."""
    cache, replace = BlobCache(tmp_path / "cache", 2**20), Path.replace

    def replaced(path: Path, target: Path) -> Path:
        found = replace(path, target)
        (tmp_path / "other").write_bytes(b"other bytes, of the same name")
        replace(tmp_path / "other", target)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", replaced)
        assert kept(cache) == DATA
    assert cache.open(DIGEST) is None
