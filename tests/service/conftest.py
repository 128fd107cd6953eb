"""A server around the tiny base model: in process (`world`), and the same on a real loopback port (`live`).

A module (or in it a class) that says `DATABASES = KINDS` has its tests run on each kind of database, but for those
marked `one_database`, unless the environment sets EVERY_DATABASE; the others run on SQLite, or all on the one that
the environment names as TEST_DATABASE. One that says `PROCESSES = True` has a server that fits, and computes
gradients, in processes of their own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adaptersoup.client.client import SoupClient
from registry.encoders import sbert
from registry.encoders.sbert import CHUNK, DOING, SentenceBertEncoder
from registry.progress import Progress, silent
from tests.postgres import EVERY
from tests.service.servers import BASE_ID, Live, Soup, World, open_live, open_world, write_bases


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of a module on the databases it names."""
    kinds = getattr(metafunc.cls, "DATABASES", getattr(metafunc.module, "DATABASES", ()))
    if metafunc.definition.get_closest_marker("one_database") and not EVERY:
        kinds = kinds[:1]
    if kinds and "database_kind" in metafunc.fixturenames:
        metafunc.parametrize("database_kind", kinds, scope="module", indirect=True)


HASHED: dict[tuple[Path, int, int], str] = {}
"""Digests of the files of Sentence-BERT, by their path, size and time."""
MODELS: dict[str, SentenceBertEncoder] = {}
"""The encoder of this test process that has loaded Sentence-BERT, by its digest."""
EMBEDDED: dict[tuple[str, ...], Any] = {}
"""Its vectors of chunks of sentences: samples of one domain begin alike."""


@pytest.fixture(scope="module", autouse=True)
def _sentences_once() -> Iterator[None]:
    """Embed equal sentences once a test process, by one model whose files are hashed once.

    Each server would load a model of its own for them, and read all its files for its digest.
    """
    real, hashed = SentenceBertEncoder._vectors, sbert.file_digest

    def digest(path: Path) -> str:
        about = path.stat()
        key = (path, about.st_size, about.st_mtime_ns)
        if key not in HASHED:
            HASHED[key] = hashed(path)
        return HASHED[key]

    def vectors(encoder: SentenceBertEncoder, sentences: list[str], progress: Progress) -> Any:
        model, chunks = MODELS.setdefault(encoder.digest, encoder), []
        for start in range(0, len(sentences), CHUNK):
            progress(start, len(sentences), DOING)
            chunk = sentences[start : start + CHUNK]
            key = (encoder.digest, *chunk)
            if key not in EMBEDDED:
                with model._lock:
                    EMBEDDED[key] = real(model, chunk, silent)
            chunks.append(EMBEDDED[key])
        progress(len(sentences), len(sentences), DOING)
        return np.concatenate([matrix for matrix, _ in chunks]), sum(truncated for _, truncated in chunks)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SentenceBertEncoder, "_vectors", vectors)
        patch.setattr(sbert, "file_digest", digest)
        yield


@pytest.fixture(scope="module")
def database_kind(request: pytest.FixtureRequest) -> str:
    """The kind of database that the servers of this module keep their rows in."""
    return str(getattr(request, "param", os.environ.get("TEST_DATABASE", "sqlite")))


@pytest.fixture(scope="module")
def database_settings(request: pytest.FixtureRequest, database_kind: str) -> Iterator[dict[str, Any]]:
    """Settings of a server that has a new database of this kind."""
    if database_kind == "sqlite":
        yield {}
        return
    postgres = request.getfixturevalue("postgres")
    url = postgres.url()
    yield {"database_url": url}
    postgres.drop(url)


@pytest.fixture(scope="module")
def served(tiny_base_dir: Path) -> dict[str, Path]:
    """Folders of the base models that the module's server serves, by id."""
    return {BASE_ID: tiny_base_dir}


@pytest.fixture(scope="module")
def world(
    request: pytest.FixtureRequest,
    served: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
    database_settings: dict[str, Any],
) -> Iterator[World]:
    """A server over `served`, shared by the tests of one module; what the module calls `SETTINGS` are its settings."""
    folder = tmp_path_factory.mktemp("world")
    bases = write_bases(folder / "bases.toml", served)
    settings = {**database_settings, **getattr(request.module, "SETTINGS", {})}
    yield from open_world(folder / "data", bases, processes=getattr(request.module, "PROCESSES", False), **settings)


@pytest.fixture(scope="module")
def live(world: World) -> Iterator[Live]:
    """`world` behind uvicorn on loopback."""
    yield from open_live(world)


@pytest.fixture
def client(live: Live) -> Iterator[SoupClient]:
    """The Python client of `live`, with the admin key."""
    with SoupClient(live.url, live.world.admin) as client:
        yield client


@pytest.fixture
def soup(live: Live, command: Soup) -> Soup:
    """Runs a command line against `live`, with the admin key."""
    return lambda *args: command(*args, "--url", live.url, "--key", live.world.admin)
