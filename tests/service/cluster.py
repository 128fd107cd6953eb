"""`soup serve` as processes, one over its data folder or several over one PostgreSQL and one folder of blobs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import httpx2

KEY = "sk-soup-" + "c" * 43
FINAL = frozenset({"succeeded", "failed", "cancelled"})

PATIENCE = 180.0
"""Seconds of waiting."""


def until(done: Callable[[], Any], description: str = "it") -> Any:
    """The value of `done` once it is true; called again and again, ever more seldom, and not for ever.

    An answer costs the server some 5 ms of processor time, which the awaited work may need.
    """
    waited, pause = 0.0, 0.01
    while waited < PATIENCE:
        if value := done():
            return value
        Event().wait(pause)
        waited, pause = waited + pause, min(1.2 * pause, 0.1)
    raise AssertionError(f"{description} never came about")


def ended(client: Any, job: str) -> dict[str, Any]:
    """A job, as the server of this client sees it, once it is over."""
    path = f"/v1/jobs/{job}"
    return dict(until(lambda: (row := client.get(path).json())["state"] in FINAL and row, f"the end of {job}"))


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@dataclass
class Process:
    """A server, or another command of `soup`."""

    url: str
    process: subprocess.Popen[bytes]

    def wait(self) -> None:
        """Return once it answers."""
        line = self.process.stdout.readline().decode()
        assert line.startswith("http"), line
        self.url = line.strip()

    def end(self, signum: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal, and wait until the process is gone."""
        self.process.send_signal(signum)
        self.process.communicate(timeout=60)


@dataclass
class Cluster:
    """The processes, and where their data is."""

    folder: Path
    settings: dict[str, Any]
    running: list[Process] = field(default_factory=list)

    def start(self, *words: str, code: Path | None = None, **settings: Any) -> Process:
        """Begin a process; its `wait` returns once it answers. `code` is the folder of another version's."""
        merged = {**self.settings, **settings}
        variables = {f"SOUP_{name.upper()}": str(value) for name, value in merged.items() if value is not None}
        log = (self.folder / f"log-{len(self.running)}").open("wb")
        with log:
            process = subprocess.Popen(
                [sys.executable, "-m", "adaptersoup.cli", *words],
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=code,
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                    "SOUP_THREADS": "1",
                    **({} if code is None else {"PYTHONPATH": str(code)}),  # imported before what is installed
                    **variables,
                },
            )
        self.running.append(Process("", process))
        return self.running[-1]

    def server(self, *, code: Path | None = None, **settings: Any) -> Process:
        """Begin a server."""
        data = self.folder / f"data-{len(self.running)}"
        return self.start("serve", code=code, **{"data": data, "port": 0, **settings})

    def migrate(self, *, code: Path | None = None) -> None:
        """Run `soup migrate` to its end."""
        process = self.start("migrate", code=code, data=self.folder / "migrate")
        process.process.communicate(timeout=120)
        assert process.process.returncode == 0, self.logs()

    def logs(self) -> str:
        """The logs of all processes."""
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("log-*")))


@contextmanager
def cluster(folder: Path, **settings: Any) -> Iterator[Cluster]:
    """A cluster without a process yet; all are killed afterwards."""
    folder.mkdir(exist_ok=True)
    processes = Cluster(folder, {"bootstrap_key": KEY, "blobs": folder / "blobs", "pages": False, **settings})
    try:
        yield processes
    finally:
        for process in processes.running:
            if process.process.poll() is None:
                process.process.kill()
            process.process.communicate()


def client_of(url: str, key: str = KEY) -> httpx2.Client:
    """A client with a key."""
    return httpx2.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=60, trust_env=False)


@contextmanager
def one_server(data: Path, bases: Path) -> Iterator[Process]:
    """A server over a data folder that outlives it."""
    with cluster(data.with_name("processes"), bases=bases, blobs=None) as processes:
        server = processes.server(data=data)
        server.wait()
        yield server
