"""How fast a large file reaches the blobs of a server, held against hashing it."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.faults.server import Killable
from registry.errors import Internal

CHUNK = 2**20


def uploads(server: Killable, folder: Path, *, megabytes: int, repeats: int) -> list[dict[str, Any]]:
    """Of each repeat, on bytes of its own: seconds to hash them, to send them in one request, and to have
    `SoupClient.upload` send others, which hashes them first and sends them in parts."""
    rows = []
    for repeat in range(repeats):
        first, second = (_file(folder / f"{repeat}-{name}", megabytes) for name in "ab")
        began = time.perf_counter()
        digest = _hashed(first)
        hashed = time.perf_counter()
        _put(server, first, digest)
        put = time.perf_counter()
        with server.client() as client:
            client.upload(second)
        done = time.perf_counter()
        rows.append({
            "part": "uploads", "megabytes": megabytes, "hash_s": hashed - began, "put_s": put - hashed,
            "client_s": done - put, "put_vs_hash": (hashed - began) / (put - hashed),
            "client_vs_hash": (hashed - began) / (done - put),
        })  # fmt: skip
        first.unlink()
        second.unlink()
    return rows


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


def _put(server: Killable, path: Path, digest: str) -> None:
    headers = {
        "authorization": f"Bearer {server.key()}", "content-length": str(path.stat().st_size),
        "content-type": "application/octet-stream",
    }  # fmt: skip
    answer = httpx2.put(f"{server.url}/v1/blobs/{digest}", content=_chunks(path), headers=headers, timeout=600)
    if answer.status_code not in (200, 201):
        raise Internal(f"an upload of {path.stat().st_size} bytes was answered with {answer.text[:500]}")
