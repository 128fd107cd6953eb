"""Fixtures every test may use: tiny base models, databases of every kind, command lines, and a network that is off."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
from hypothesis import HealthCheck, settings

from adaptersoup.cli import app as cli
from registry.base_model import LoadedBase, load_base
from registry.catalogue import Database
from registry.spec import BaseEntry
from tests import order, quick
from tests.browser import Browser, chromium
from tests.object_store import FaultProxy, ObjectStore, fault_proxy, object_store_server
from tests.postgres import EVERY, KINDS, Databases, Postgres, postgres_server
from tests.temporary import keep_in_memory
from tests.tiny_models import build_tiny

settings.register_profile(
    "ci", deadline=None, derandomize=True, max_examples=25, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ci")
keep_in_memory()
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as for `make test &` in a script
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what `make quick` leaves out, and put the longest files first."""
    quick.mark(items)
    order.longest_first(items)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Leave all that is imported and collected out of the garbage collector's rounds, then and later.

    Those are some million objects that live as long as the process. A round over them takes a second, and the engine
    makes one for each base model that it drops, as the benchmarks do before each time they take. The oldest generation
    is collected a tenth as often as by default.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()
        gc.set_threshold(700, 10, 100)


@pytest.fixture(scope="session", autouse=True)
def _no_process(request: pytest.FixtureRequest) -> None:
    """Without slow tests nothing starts a process or a server."""
    if "not slow" in request.config.option.markexpr:
        quick.refuse_processes()


@pytest.fixture(scope="session")
def base_entry(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], BaseEntry]:
    """The entry of a tiny base model by its variant or family, built when it is first asked for."""
    folder = tmp_path_factory.mktemp("tiny")
    return cache(lambda name: build_tiny(folder / name, name))


@pytest.fixture(scope="session")
def tiny_base_dir(base_entry: Callable[[str], BaseEntry]) -> Path:
    """A folder with a tiny GPT-2: 2 layers, hidden 32, 2 heads, context 64, vocabulary 300."""
    return Path(base_entry("gpt2").source)


@pytest.fixture(scope="module")
def bases(base_entry: Callable[[str], BaseEntry]) -> Callable[[str], LoadedBase]:
    """A loaded tiny base model by its variant or family, once a module: tests leave it as it was."""
    return cache(lambda name: load_base(base_entry(name)))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what uses `databases` on every kind, and what uses `base` on the tiny GPT-2.

    A module that says `ON_DATABASES = (...)` or `ON_BASES = (...)` has it run on these: on one kind of database what
    asks it nothing that other tests do not ask of each. Where the environment sets EVERY_DATABASE, `ON_DATABASES` is
    passed over.
    """
    for variable, fixture, scope, otherwise in (
        ("ON_BASES", "base", "module", ()),
        ("ON_DATABASES", "databases", "session", KINDS),
    ):
        names = otherwise if EVERY and variable == "ON_DATABASES" else getattr(metafunc.module, variable, otherwise)
        if names and fixture in metafunc.fixturenames:
            metafunc.parametrize(fixture, names, scope=scope, indirect=True)


@pytest.fixture(scope="module")
def base(request: pytest.FixtureRequest, bases: Callable[[str], LoadedBase]) -> LoadedBase:
    """The tiny GPT-2, or each of the module's `ON_BASES` in turn."""
    return bases(getattr(request, "param", "gpt2"))


@pytest.fixture(scope="module")
def gpt2(bases: Callable[[str], LoadedBase]) -> LoadedBase:
    """The tiny GPT-2, also where `base` is each of several."""
    return bases("gpt2")


@pytest.fixture(scope="module")
def encoder(bases: Callable[[str], LoadedBase]) -> LoadedBase:
    """The tiny BERT."""
    return bases("bert")


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """The PostgreSQL of this test process, started by the first test that asks for it."""
    with postgres_server() as server:
        yield server


@pytest.fixture
def postgres_url(postgres: Postgres) -> Iterator[str]:
    """A new database of PostgreSQL."""
    url = postgres.url()
    yield url
    postgres.drop(url)


@pytest.fixture(scope="session")
def object_store() -> Iterator[ObjectStore]:
    """The S3 server of this test process, started by the first test that asks for it."""
    with object_store_server() as server:
        yield server


@pytest.fixture
def proxy(object_store: ObjectStore) -> Iterator[FaultProxy]:
    """A proxy before the object store, which fails as a test says."""
    with fault_proxy(object_store) as proxy:
        yield proxy


@pytest.fixture(scope="session")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Chromium, whose pages have cookies and a cache of their own. Without it the test is skipped, and fails in CI."""
    program = chromium()
    if program is None:
        reason = "There is no chromium, which looks at the pages: `make browser` installs it where that is possible."
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    browser = Browser(program, tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.close()


@pytest.fixture(scope="session")
def databases(request: pytest.FixtureRequest) -> Databases:
    """Every test that asks for this runs on each kind of database."""
    return Databases(request.param, request.getfixturevalue("postgres") if request.param == "postgresql" else None)


@pytest.fixture
def database(databases: Databases, tmp_path: Path) -> Iterator[Database]:
    """A migrated database of the test's own, of each kind."""
    with databases.new(tmp_path) as database:
        yield database


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs a command line in this process: exit code, stdout, stderr."""

    def run(*args: object, **options: Any) -> tuple[int, str, str]:
        capsys.readouterr()
        code = cli.run([str(arg) for arg in args], **options)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def signal_handlers() -> Iterator[None]:
    """Afterwards SIGINT and SIGTERM are handled as before the test."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _loopback_only(socket_enabled: None) -> None:
    """Sockets to loopback only (pytest-socket's --allow-hosts in addopts refuses all others)."""


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names, in order, of everything that is synced or renamed."""
    events: list[str] = []
    real_sync, real_replace = os.fsync, Path.replace

    def sync(descriptor: int) -> None:
        events.append("sync " + Path(f"/proc/self/fd/{descriptor}").readlink().name)
        real_sync(descriptor)

    def replace(self: Path, target: Path) -> Path:
        events.append(f"rename {self.name} {target.name}")
        return real_replace(self, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "replace", replace)
    return events
