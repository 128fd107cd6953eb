"""The server of the demo: `soup serve` in a separate process, on loopback, always stopped at the end.

The demo uses it like any user: with the command line and the Python client.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from adaptersoup.client.client import SoupClient
from registry.spec import BaseEntry

STOP_SECONDS = 30.0
SOUP = (sys.executable, "-m", "adaptersoup.cli")


class DemoFailed(Exception):
    """The demo cannot continue; the message gives the reason and a remedy."""


@dataclass(frozen=True)
class Server:
    """A running server: its address, its data folder, and the environment in which `soup` finds both."""

    url: str
    data: Path
    environment: Mapping[str, str]

    @property
    def key(self) -> str:
        """The admin key of the data folder."""
        return (self.data / "admin.key").read_text(encoding="ascii").strip()

    def client(self) -> SoupClient:
        """The Python client, with the admin key."""
        return SoupClient(self.url, self.key, timeout=1800.0)

    def soup(self, *arguments: str) -> str:
        """Run `soup` with these arguments and return its stdout; raises DemoFailed with its output."""
        talks = sys.stderr.isatty()
        done = subprocess.run(
            [*SOUP, *arguments],
            env=dict(self.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=None if talks else subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            details = f":\n{done.stderr.strip()}" if done.stderr else "."
            raise DemoFailed(f"`soup {' '.join(arguments)}` failed with exit code {done.returncode}{details}")
        return done.stdout


def environment(data: Path, **more: str) -> dict[str, str]:
    """This process's environment, offline and without settings of other servers."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SOUP_")}
    return {**inherited, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "SOUP_DATA": str(data), **more}


def write_bases(file: Path, base: BaseEntry) -> Path:
    """Write an allowlist with one base model; return its path."""
    fields = base.model_dump(exclude={"id"}, exclude_defaults=True)
    lines = [f"{name} = {json.dumps(value)}" for name, value in fields.items()]  # a JSON string is a TOML string
    file.write_text("\n".join([f"[bases.{json.dumps(base.id)}]", *lines, ""]))
    return file


@contextmanager
def running(
    bases: Path, data: Path, *, database_url: str | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Run a server on `data` while the context is open. Its log is `<data>.log`. SIGTERM and SIGHUP end the demo and
    the server.

    Its database is `database_url`, which is migrated first, or SQLite in `data`. `settings` are further environment
    variables. Raises DemoFailed if it does not start.
    """
    data.parent.mkdir(parents=True, exist_ok=True)
    more = {**(settings or {}), **({} if database_url is None else {"SOUP_DATABASE_URL": database_url})}
    if database_url is not None:
        Server("", data, environment(data, **more)).soup("migrate")
    log = data.with_suffix(".log")
    command = [*SOUP, "serve", "--bases", str(bases), "--data", str(data), "--port", "0", "--json"]
    old_handlers = {number: signal.signal(number, _leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    with log.open("ab") as errors:
        process = subprocess.Popen(
            command, env=environment(data, **more), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
        )
    try:
        url = _address(process, log)
        yield Server(url, data, environment(data, SOUP_URL=url))
    finally:
        stop(process)
        for number, handler in old_handlers.items():
            signal.signal(number, handler)


def _leave(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    """The address that the server prints when it is ready."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if line:
        return str(json.loads(line)["url"])
    last = "\n".join(log.read_text(errors="replace").splitlines()[-5:])
    raise DemoFailed(f"The server ended with exit code {process.wait()}. The end of {log}:\n{last}")


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a server: by SIGTERM, and by SIGKILL after STOP_SECONDS."""
    process.terminate()
    try:
        process.communicate(timeout=STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
