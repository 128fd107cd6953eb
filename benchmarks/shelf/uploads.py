"""How fast a large file reaches the blobs of a server, held against hashing it."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.faults.server import Killable
from benchmarks.shelf.dropping import dropping
from registry.errors import Internal

CHUNK = 2**20


def uploads(server: Killable, folder: Path, *, megabytes: int, repeats: int) -> list[dict[str, Any]]:
    """Of each repeat, on bytes of its own: seconds to hash them, to send them in one request, and to have
    `SoupClient.upload` send others, which hashes them first and sends them in parts. Beside them what no server of ours
    is in: the same request to one that keeps nothing, and a copy of the file that is synced to the disk."""
    rows = []
    with dropping() as nowhere:
        _put(nowhere, {}, _file(folder / "first", 1), "warm")
        for repeat in range(repeats):
            first, second = (_file(folder / f"{repeat}-{name}", megabytes) for name in "ab")
            took: dict[str, float] = {}
            with _timed(took, "hash"):
                digest = _hashed(first)
            with _timed(took, "put"):
                _put(server.url, {"authorization": f"Bearer {server.key()}"}, first, digest)
            with _timed(took, "client"), server.client() as client:
                client.upload(second)
            with _timed(took, "dropped"):
                _put(nowhere, {}, first, digest)
            with _timed(took, "written"):
                _written(first, folder / "copy")
            seconds = {f"{name}_s": value for name, value in took.items()}
            ratios = {f"{name}_vs_hash": took["hash"] / value for name, value in took.items() if name != "hash"}
            rows.append({"part": "uploads", "megabytes": megabytes, **seconds, **ratios})
            for path in (first, second, folder / "copy"):
                path.unlink()
    return rows


@contextmanager
def _timed(took: dict[str, float], name: str) -> Iterator[None]:
    began = time.perf_counter()
    yield
    took[name] = time.perf_counter() - began


def _file(path: Path, megabytes: int) -> Path:
    """A file of random bytes, which no memory holds twice."""
    with path.open("wb") as file:
        for _ in range(megabytes):
            file.write(os.urandom(1_000_000))
    return path


def _hashed(path: Path) -> str:
    seen = hashlib.sha256()
    for chunk in _chunks(path):
        seen.update(chunk)
    return f"sha256:{seen.hexdigest()}"


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            yield chunk


def _written(path: Path, to: Path) -> None:
    with to.open("wb") as file:
        for chunk in _chunks(path):
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())


def _put(url: str, headers: dict[str, str], path: Path, digest: str) -> None:
    headers = {
        **headers, "content-length": str(path.stat().st_size), "content-type": "application/octet-stream",
    }  # fmt: skip
    answer = httpx2.put(f"{url}/v1/blobs/{digest}", content=_chunks(path), headers=headers, timeout=600)
    if answer.status_code not in (200, 201):
        raise Internal(f"an upload of {path.stat().st_size} bytes was answered with {answer.text[:500]}")
