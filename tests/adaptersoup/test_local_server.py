"""The server under a store: only this user reaches it, it starts or says why not, and ends what is under way."""

from __future__ import annotations

import stat
import tempfile
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from adaptersoup.local_server import LocalServer
from registry.errors import Unavailable


async def ticks(_: Request) -> StreamingResponse:
    """Pieces without end."""

    async def pieces() -> AsyncIterator[bytes]:
        while True:
            yield b"tick,"

    return StreamingResponse(pieces())


def client_of(server: LocalServer) -> httpx2.Client:
    return httpx2.Client(base_url="http://127.0.0.1", transport=server.transport(), timeout=60)


@pytest.mark.slow
def test_many_requests_are_answered_at_once_and_nobody_else_reaches_the_socket() -> None:
    together = threading.Barrier(120)

    def wait(_: Request) -> PlainTextResponse:
        return PlainTextResponse(str(together.n_waiting >= 0))

    server = LocalServer(Starlette(routes=[Route("/", wait)]))
    server.start()
    folder = Path(server._path).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    with client_of(server) as client, ThreadPoolExecutor(120) as pool:

        def ask(_: int) -> int:
            together.wait(60)
            return client.get("/").status_code

        assert set(pool.map(ask, range(120))) == {200}
    server.close()
    server.close()
    assert not folder.exists()


@pytest.mark.slow
def test_an_application_that_cannot_start_is_unavailable() -> None:
    @asynccontextmanager
    async def fails(_: Any) -> AsyncIterator[None]:
        raise ValueError("no")
        yield

    server = LocalServer(Starlette(lifespan=fails))
    with pytest.raises(Unavailable, match="failed at its start"):
        server.start()
    server.close()


def test_a_temporary_folder_whose_path_is_too_long_for_a_socket_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("long" * 25)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with pytest.raises(Unavailable, match="set TMPDIR"):
        LocalServer(Starlette())
    assert not list(folder.iterdir())


@pytest.mark.slow
def test_an_answer_that_goes_on_is_broken_off_when_the_server_is_closed() -> None:
    server = LocalServer(Starlette(routes=[Route("/", ticks)]))
    server.start()
    with client_of(server) as client, client.stream("GET", "/") as answer:
        pieces = answer.iter_raw()
        assert next(pieces).startswith(b"tick,")
        server.close()
        with pytest.raises(httpx2.TransportError):
            for _ in pieces:
                pass
