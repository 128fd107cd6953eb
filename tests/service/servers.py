"""A whole server around the tiny base model, in process and on a real port; `conftest.py` makes fixtures of it."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import uvicorn
from fastapi import FastAPI
from fastapi.testclient import TestClient
from openai import OpenAI
from starlette.types import ASGIApp

from adaptersoup.cli.verbs.serve import listening_socket
from registry.adapters import create
from registry.adapters.loadable import LoadableAdapter
from registry.adapters.weights import save_tensors
from registry.base_model import shape_of
from registry.context import Registry
from registry.names import parse_ref
from registry.spec import BaseEntry, BottleneckConfig, Provenance
from registry.stored.adapters import loadable
from service.http.connections import BoundedServer, server_config
from service.settings import Settings
from tests.postgres import migrated_file
from tests.service.answers import answered

if TYPE_CHECKING:
    from service.runtime import Runtime

BASE_ID = "tiny"
Soup = Callable[..., tuple[int, str, str]]
"""Runs a command line: its arguments -> exit code, stdout, stderr."""
CONFIG = BottleneckConfig(structure="pfeiffer", bottleneck=4, activation="relu")
DECLARED = Provenance(init_hash="sha256:" + "1" * 64, init_source="declared").model_dump()
"""Of adapters that are averaged: their makers say that they had one start."""


def write_bases(path: Path, sources: dict[str, Path]) -> Path:
    """An allowlist naming `sources`."""
    path.write_text("".join(f'[bases.{name}]\nsource = "{source}"\n' for name, source in sources.items()))
    return path


def with_template(base: Path, folder: Path, template: str) -> Path:
    """A copy of a base model whose tokenizer has a chat template."""
    copy = Path(shutil.copytree(base, folder / "chatty"))
    file = copy / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "chat_template": template}))
    return copy


def adapter_weights(runtime: Runtime, *, seed: int, base_id: str = BASE_ID) -> bytes:
    """Weights of an adapter that visibly changes what the tiny base says."""
    return strange_weights(runtime.bases[base_id].entry, seed)


@cache
def strange_weights(entry: BaseEntry, seed: int) -> bytes:
    """Weights of an adapter that visibly changes what a base model says, which no server has to have loaded."""
    module = create(CONFIG, shape_of(entry), seed=seed)
    generator = torch.Generator().manual_seed(seed)
    tensors = {
        name: tensor + 0.5 * torch.randn(tensor.shape, generator=generator)
        for name, tensor in module.state_dict().items()
    }
    return save_tensors(tensors)


@dataclass
class World:
    """A running server; `client` sends the admin key."""

    runtime: Runtime
    app: FastAPI
    client: TestClient
    admin: str
    base_id: str = BASE_ID

    @property
    def registry(self) -> Registry:
        """The server's registry."""
        return self.runtime.services.registry

    def key(self, scopes: Sequence[str], namespaces: Sequence[str] | None = None) -> str:
        """The secret of a new key."""
        body = {
            "name": "test",
            "scopes": list(scopes),
            "namespaces": namespaces if namespaces is None else list(namespaces),
        }
        return str(answered(self.client.post("/v1/keys", json=body), 201)["secret"])

    def headers(self, secret: str) -> dict[str, str]:
        """The header that carries a key."""
        return {"authorization": f"Bearer {secret}"}

    def loadable(self, ref: str) -> LoadableAdapter:
        """A stored adapter as the engine takes it."""
        with self.registry.database.read() as catalogue:
            return loadable(catalogue.adapters.resolve(None, parse_ref(ref)), self.registry.blobs)

    def push(self, name: str, *, seed: int = 0, domain: str = "tests", **manifest: Any) -> dict[str, Any]:
        """Push an adapter with the weights of `seed`; returns the answer."""
        body = {
            "name": name,
            "domain": domain,
            "base_model": self.base_id,
            "config": CONFIG.model_dump(),
            "files": {
                "adapter_model.safetensors": {
                    "base64": base64.b64encode(adapter_weights(self.runtime, seed=seed)).decode()
                }
            },
            **manifest,
        }
        answer = self.client.post("/v1/adapters", json=body)
        assert answer.status_code in {200, 201}, answer.text
        return dict(answer.json())


def open_world(data: Path, bases: Path, *, processes: bool = False, **settings: Any) -> Iterator[World]:
    """A world over `data`, closed afterwards; it fits and computes gradients here, or in `processes` beside it.

    A key that was refused for asking too much is not slowed down: `test_answer_limits.py` tests that it is.
    """
    from service.http.app import create_app
    from service.http.security import throttle
    from service.jobs import runner
    from service.runtime import Runtime
    from tests.service.without_processes import ComputesHere, FitsHere

    quiet = {"default_effort": "instant", **settings}  # `quick` would start a process in each of them
    runtime = Runtime(Settings(data=data, bases=bases, threads=1, **quiet))
    if runtime.settings.database_url is None and not data.exists():
        data.mkdir(mode=0o700, parents=True)
        (data / "soup.db").write_bytes(migrated_file())
    with pytest.MonkeyPatch.context() as patch:
        if not processes:
            patch.setattr(runner, "FitProcess", FitsHere)
            patch.setattr(runner, "GradientProcess", ComputesHere)
        runtime.start()
    try:
        app = create_app(runtime)
        runtime.join()
        admin = "" if settings.get("no_auth") else runtime.settings.admin_key_path.read_text().strip()
        headers = {"authorization": f"Bearer {admin}"} if admin else {}
        with pytest.MonkeyPatch.context() as patch, TestClient(app, headers=headers) as client:
            patch.setattr(throttle, "APART", 0.0)
            yield World(runtime=runtime, app=app, client=client, admin=admin)
    finally:
        runtime.stop()


opened_world = contextmanager(open_world)
"""A world while open."""


@contextmanager
def running(settings: Settings) -> Iterator[Runtime]:
    """A runtime while it runs."""
    from service.runtime import Runtime

    runtime = Runtime(settings)
    runtime.start()
    try:
        yield runtime
    finally:
        runtime.stop()


class _Server(BoundedServer):
    """A server that tells when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = threading.Event()

    async def startup(self, sockets: Any = None) -> None:
        self._loop, self._stops = asyncio.get_running_loop(), asyncio.Event()
        await super().startup(sockets)
        self.listening.set()

    async def main_loop(self) -> None:
        """Uvicorn's loop, but its sleeps of a tenth of a second end with `stop`: hundreds are stopped in a run."""
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stops.wait(), 0.1)

    def stop(self) -> None:
        """Have it end, from another thread."""
        self.should_exit = True
        self._loop.call_soon_threadsafe(self._stops.set)


@dataclass
class Live:
    """The server of `world` on a real port."""

    world: World
    url: str
    clients: dict[str, OpenAI] = field(default_factory=dict)

    def openai(self, secret: str | None = None) -> OpenAI:
        """The real client, pointed at this server; it does not retry."""
        key = secret or self.world.admin
        if key not in self.clients:
            self.clients[key] = OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=60.0)
        return self.clients[key]


@contextmanager
def serving(
    app: ASGIApp, settings: Settings, *, send_buffer: int | None = None, lifespan: str = "off"
) -> Iterator[int]:
    """`app` behind uvicorn on loopback, as `soup serve` has it, stopped afterwards; gives the port.

    `send_buffer` is how many bytes the system keeps of what a client does not take (None: as many as it likes).
    """
    listener = listening_socket("127.0.0.1", 0)
    if send_buffer is not None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    port: int = listener.getsockname()[1]
    server = _Server(server_config(app, settings, lifespan=lifespan))
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    assert server.listening.wait(30)
    try:
        yield port
    finally:
        server.stop()
        thread.join(30)


def open_live(world: World) -> Iterator[Live]:
    """`world` behind uvicorn on loopback, stopped afterwards."""
    with serving(world.app, world.runtime.settings) as port:
        live = Live(world, f"http://127.0.0.1:{port}")
        yield live
        for client in live.clients.values():
            client.close()
