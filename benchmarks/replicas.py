"""Several `soup serve` and a `soup route` as processes over one PostgreSQL, and adapters that write different texts."""

from __future__ import annotations

import base64
import json
import secrets
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.faults.server import BASE, Stoppable, postgresql
from benchmarks.subjects import bottleneck_of, digest_of, drawn_tensors, small_base
from demo.results import ROOT
from demo.server import SOUP, environment
from registry.adapters.weights import save_tensors
from registry.base_model import LoadedBase, load_base
from registry.errors import Internal
from registry.spec import BaseEntry

TIMEOUT = 120.0
FOLDER = small_base()


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@dataclass
class Process:
    """A server or router that answers at `url`; its command and variables, to start it again."""

    url: str
    process: subprocess.Popen[bytes]
    verb: str
    variables: dict[str, str]
    log: Path

    def end(self, how: signal.Signals) -> None:
        """Send a signal, and wait until it is gone."""
        self.process.send_signal(how)
        self.process.communicate()


@dataclass
class Place:
    """Where processes are started; `settings` are variables of all of them."""

    folder: Path
    settings: dict[str, str]
    started: list[Process] = field(default_factory=list)

    @property
    def key(self) -> str:
        """The secret of the admin key."""
        return self.settings["SOUP_BOOTSTRAP_KEY"]

    def replica(self, **more: str) -> Process:
        """Start a server that routers reach; `more` are variables of its own."""
        port = str(free_port())
        return self._start("serve", SOUP_PORT=port, SOUP_REPLICA_URL=f"http://127.0.0.1:{port}", **more)

    def router(self) -> Process:
        """Start a router."""
        return self._start("route", SOUP_PORT="0")

    def soup(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `soup` beside the servers, whatever its exit code."""
        variables = environment(self.folder / "data", **self.settings)
        return subprocess.run([*SOUP, *arguments], env=variables, capture_output=True, text=True, check=False)

    def again(self, one: Process) -> None:
        """Start a process that has ended again, over its own data folder; raises Internal where it does not start."""
        one.process = _begun(one.verb, one.variables, one.log)
        one.url = _address(one.process, one.log)

    def _start(self, verb: str, **more: str) -> Process:
        number = len(self.started)
        variables = environment(self.folder / f"data-{number}", **{**self.settings, **more})
        log = self.folder / f"log-{number}"
        self.started.append(Process("", _begun(verb, variables, log), verb, variables, log))
        self.started[-1].url = _address(self.started[-1].process, log)
        return self.started[-1]

    def client(self, of: Process) -> httpx2.Client:
        """A client with the admin key."""
        return httpx2.Client(
            base_url=of.url, headers={"authorization": f"Bearer {self.key}"}, timeout=TIMEOUT, trust_env=False
        )


def _begun(verb: str, variables: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as errors:
        return subprocess.Popen(
            [*SOUP, verb, "--json"], env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
        )


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    """Where it answers, once it does; raises Internal where it ends before."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        process.communicate()
        raise Internal(f"a process did not start: {log.read_text(errors='replace')[-2000:]}")
    return str(json.loads(line)["url"])


@contextmanager
def place(
    folder: Path, source: Path = FOLDER, *, settings: Mapping[str, str], database: Stoppable | None = None
) -> Iterator[Place]:
    """A place for the base model of a folder; all is killed at the end.

    It is over a new PostgreSQL, unless one is given, and a folder of blobs, unless `settings` name a bucket.
    """
    bases = folder / "bases.toml"
    bases.write_text(f"[bases.{BASE}]\nsource = {json.dumps(str(source))}\n")
    with postgresql() if database is None else nullcontext(database.url) as url:
        own = {
            "SOUP_DATABASE_URL": url, "SOUP_BASES": str(bases),
            **({} if "SOUP_BLOBS_URL" in settings else {"SOUP_BLOBS": str(folder / "blobs")}),
            "SOUP_BOOTSTRAP_KEY": f"sk-soup-{secrets.token_urlsafe(32)}", "SOUP_ROLE": "api", "SOUP_THREADS": "1",
            "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "SOUP_PAGES": "false", "SOUP_LOG_LEVEL": "warning",
        }  # fmt: skip
        found = Place(folder, {**own, **settings})
        done = found.soup("migrate")
        if done.returncode:
            raise Internal(f"`soup migrate` failed: {done.stderr}")
        try:
            yield found
        finally:
            for one in found.started:
                if one.process.poll() is None:
                    one.end(signal.SIGKILL)


@dataclass(frozen=True)
class Pushed:
    """An adapter on the servers."""

    name: str
    digest: str


def the_base() -> LoadedBase:
    """The base model of the servers."""
    return load_base(BaseEntry(id=BASE, source=str(FOLDER)))


def adapter_size(base: LoadedBase) -> int:
    """The bytes that one of the adapters takes in memory."""
    return sum(tensor.nbytes for tensor in drawn_tensors(base, bottleneck_of(), 0).values())


def push_adapters(client: httpx2.Client, base: LoadedBase, count: int) -> list[Pushed]:
    """Push so many adapters that write different texts."""
    config, found = bottleneck_of(), []
    for seed in range(count):
        tensors = drawn_tensors(base, config, seed)
        data = base64.b64encode(save_tensors(tensors)).decode()
        body: dict[str, Any] = {
            "name": f"canary/a{seed}", "domain": "scale", "base_model": BASE, "config": config.model_dump(mode="json"),
            "files": {"adapter_model.safetensors": {"base64": data}},
        }  # fmt: skip
        answered(client.post("/v1/adapters", json=body))
        found.append(Pushed(f"canary/a{seed}", digest_of(base, config, tensors)))
    return found


def answered(answer: httpx2.Response) -> dict[str, Any]:
    """The JSON of an answer; raises Internal for a refusal."""
    if answer.is_error:
        raise Internal(f"{answer.request.url.path} was answered with {answer.status_code}: {answer.text[:300]}")
    value: dict[str, Any] = answer.json()
    return value


def figure_of(client: httpx2.Client, name: str) -> float:
    """A plain figure of a server's metrics."""
    for line in client.get("/metrics").text.splitlines():
        if line.startswith(f"{name} "):
            return float(line.split()[1])
    raise Internal(f"the metrics have no {name}")


def figures_of(clients: Sequence[httpx2.Client], name: str) -> float:
    """Its sum over servers."""
    return sum(figure_of(client, name) for client in clients)
