"""What each way of installing brings is what it needs: read from the sources, and run where nothing else is there.

An environment is a folder of links to the distributions that pip would resolve for an extra, and the built wheel.
Python runs in it without site-packages, so that what is not declared cannot be found.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from service.cli.app import VERBS
from service.cli.failures import EXTRAS, OURS
from tests.project.test_packaging import PROJECT, pip, providers
from tests.repository import REPOSITORY

pytestmark = pytest.mark.slow

HEAVY = {"torch", "transformers", "numpy", "sqlalchemy", "fastapi", "scipy", "sklearn", "sentence_transformers"}
CLIENT_VERBS = [verb for verb in VERBS if verb not in EXTRAS]
NOT_IMPORTED = {"psycopg"}
"""Declared and found by its name in a URL."""
OPTIONS = {
    "oidc": ["service.oidc.tokens"],
    "otel": ["service.tracing"],
    "hub": ["service.client.hub_download"],
    "gguf": ["registry.adapters.lora_gguf"],
    "ray": [
        "registry.ray_cluster",
        "registry.pieces.on_ray",
        "service.ray_serving.engine",
        "service.ray_serving.deployment",
    ],
}
"""Extras that a setting of a server, a source of `soup push` or a form of `soup export` needs, and the modules that
alone import what they bring."""
STARTS = {
    "client": ["service.client", *(f"service.cli.verbs.{verb}" for verb in CLIENT_VERBS)],
    **{
        extra: [f"service.cli.verbs.{verb}" for verb, needed in EXTRAS.items() if needed == extra]
        for extra in ("train", "server")
    },
    **OPTIONS,
}


# --- from the sources ----------------------------------------------------------------------------------


class Imported(ast.NodeVisitor):
    """Names of all modules that a module imports, in functions too, but not for type checkers."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def visit_If(self, node: ast.If) -> None:
        """Leave out what stands below TYPE_CHECKING."""
        for child in node.orelse if "TYPE_CHECKING" in ast.dump(node.test) else ast.iter_child_nodes(node):
            self.visit(child)

    def visit_Import(self, node: ast.Import) -> None:
        self.names.update(alias.name for alias in node.names)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        assert node.module is not None
        self.names.update({node.module, *(f"{node.module}.{alias.name}" for alias in node.names)})


def source_of(module: str) -> Path | None:
    path = REPOSITORY / Path(*module.split("."))
    return next((one for one in (path / "__init__.py", path.with_suffix(".py")) if one.is_file()), None)


def imported_on_the_way(starts: Iterable[str]) -> set[str]:
    """Distributions that these modules import, and all of ours that they import on the way, options left out."""
    found: set[str] = set()
    todo = list(starts)
    seen = {module for modules in OPTIONS.values() for module in modules}.difference(todo)
    while todo:
        module = todo.pop()
        top, *_ = parts = module.split(".")
        if top not in OURS:
            if top not in sys.stdlib_module_names:
                found |= providers(module)
            continue
        for length in range(1, len(parts) + 1):
            part = ".".join(parts[:length])
            source = source_of(part)
            if source is not None and part not in seen:
                seen.add(part)
                imports = Imported()
                imports.visit(ast.parse(source.read_text()))
                todo += imports.names
    return found


def declared(extra: str) -> set[str]:
    """What an extra asks for by name, with what a bare install does."""
    wanted = [Requirement(text) for text in (*PROJECT["dependencies"], *PROJECT["optional-dependencies"][extra])]
    ours = [own for one in wanted if one.name == PROJECT["name"] for own in one.extras]
    names = {canonicalize_name(one.name) for one in wanted if one.name != PROJECT["name"]}
    return names.union(*map(declared, ours))


@pytest.mark.parametrize("extra", STARTS)
def test_an_extra_declares_what_its_verbs_import_and_nothing_else(extra: str) -> None:
    needed = imported_on_the_way(name for start in {extra, "client"} for name in STARTS[start])
    assert needed - declared(extra) - (declared("server") if extra in OPTIONS else set()) == set()
    trained = imported_on_the_way(STARTS["train"]) if extra == "server" else set()
    assert declared(extra) - needed - trained - NOT_IMPORTED == set()


# --- in an environment of its own ------------------------------------------------------------------------


def resolved(requirements: Iterable[str]) -> set[str]:
    """Names of the installed distributions that pip would take for these, and for what they need."""
    found: set[str] = set()
    seen: set[tuple[str, frozenset[str]]] = set()
    todo = [Requirement(text) for text in requirements]
    while todo:
        wanted = todo.pop()
        key = (canonicalize_name(wanted.name), frozenset(wanted.extras))
        if key in seen:
            continue
        seen.add(key)
        try:
            known = distribution(wanted.name)
        except PackageNotFoundError:
            assert wanted.name.startswith("nvidia") or wanted.name == "triton", f"{wanted} is not installed"
            continue
        found.add(key[0])
        for text in known.requires or ():
            further = Requirement(text)
            extras = ({"extra": extra} for extra in ("", *wanted.extras))
            if further.marker is None or any(further.marker.evaluate(extra) for extra in extras):
                todo.append(further)
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    sources = folder / "sources"
    sources.mkdir()
    for name in (*OURS, "adaptersoup", "plots", "pyproject.toml", "README.md", "LICENSE"):
        (sources / name).symlink_to(REPOSITORY / name)
    pip("wheel", "--no-deps", "--no-index", "--no-build-isolation", "-w", folder, sources, cwd=folder)
    return next(folder.glob("*.whl"))


Install = Callable[[str], Path]


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is in the wheel, unpacked; Python writes what it compiles of it beside it, for every environment."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def install(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Install:
    """The environment of an extra, as the wheel's own metadata describe it: made once, and nothing is written to it."""

    @cache
    def made(extra: str) -> Path:
        folder = tmp_path_factory.mktemp(extra)
        for one in installed.iterdir():
            (folder / one.name).symlink_to(one)
        (metadata,) = installed.glob("adaptersoup-*.dist-info/METADATA")
        asked = _asked(re.findall(r"^Requires-Dist: (.*)$", metadata.read_text(), re.MULTILINE), extra)
        for name in resolved(asked):
            one = distribution(name)
            for top in {Path(file).parts[0] for file in one.files or ()} - {"..", "__pycache__"}:
                if not (folder / top).exists():
                    (folder / top).symlink_to(Path(str(one.locate_file(top))))
        return folder

    return made


def _asked(requires: Iterable[str], extra: str) -> list[str]:
    """The requirements of the wheel for an extra; where one is the project itself, those of its extras."""
    wanted = [Requirement(text) for text in requires]
    asked = [one for one in wanted if one.marker is None or one.marker.evaluate({"extra": extra})]
    found = [str(one).partition(";")[0] for one in asked if one.name != PROJECT["name"]]
    for one in asked:
        if one.name == PROJECT["name"]:
            found += [text for own in one.extras for text in _asked(requires, own)]
    return found


def python(environment: Path, *arguments: str, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run Python where nothing but this environment is found."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LD_LIBRARY_PATH") if name in os.environ}
    return subprocess.run(
        [sys.executable, "-S", *arguments], cwd=cwd, capture_output=True, text=True, check=False,
        env={**kept, "HOME": str(cwd), "PYTHONPATH": str(environment), "OMP_NUM_THREADS": "1", **more},
    )  # fmt: skip


@pytest.fixture
def address() -> Iterator[str]:
    """A server on this machine that knows one adapter."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """The list of adapters."""
            row = {"ref": "team/law@1", "kind": "adapter", "domain": "law", "base_model": "tiny"}
            self.answer(200, {"object": "list", "data": [row], "next_cursor": None})

        def do_HEAD(self) -> None:
            """Whether a blob is there: none is."""
            self.send_response(404)
            self.end_headers()

        def do_PUT(self) -> None:
            """A blob."""
            self.rfile.read(int(self.headers["content-length"]))
            self.answer(201, {"digest": self.path.rpartition("/")[2]})

        def do_POST(self) -> None:
            """A training."""
            self.rfile.read(int(self.headers["content-length"]))
            self.answer(202, {"object": "job", "id": "job-1", "kind": "train", "state": "queued", "error": None})

        def answer(self, status: int, what: dict[str, object]) -> None:
            """Send a body of JSON."""
            body = json.dumps(what).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_the_client_talks_to_a_server_without_torch(install: Install, address: str, tmp_path: Path) -> None:
    client = install("client")
    found = python(client, "-c", f"import importlib.util as u; print([m for m in {sorted(HEAVY)} if u.find_spec(m)])",
                   cwd=tmp_path)  # fmt: skip
    assert (found.stdout.strip(), found.stderr) == ("[]", "")
    listed = python(client, "-m", "service.cli", "ls", "--url", address, "--key", "k", cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    assert "team/law@1" in listed.stdout
    program = f"from service.client import SoupClient; print(next(SoupClient({address!r}, 'k').adapters())['domain'])"
    assert python(client, "-c", program, cwd=tmp_path).stdout == "law\n"
    program = f"from adaptersoup import Client; print(Client({address!r}, 'k').has_blob('sha256:' + '0' * 64))"
    assert python(client, "-c", program, cwd=tmp_path).stdout == "False\n"
    every = "from service.cli.app import VERBS, run; print([verb for verb in VERBS if run([verb, '--help'])])"
    assert python(client, "-c", every, cwd=tmp_path).stdout.splitlines()[-1] == "[]"
    (tmp_path / "texts.jsonl").write_text('{"text": "a"}\n')
    submitted = python(
        client, "-m", "service.cli", "train", "submit", "--texts", "texts.jsonl", "--name", "team/law", "--base",
        "tiny", "--no-wait", "--url", address, "--key", "k", cwd=tmp_path,
    )  # fmt: skip
    assert (submitted.returncode, submitted.stdout) == (0, "job-1\n"), submitted.stderr
    refused = python(client, "-c", REFUSALS.format(lines=_lines(tmp_path)), cwd=tmp_path)
    said = [line for line in refused.stdout.splitlines() if line.startswith("Error: ")]
    assert [line.split("`")[1].removeprefix("soup ") for line in said] == list(EXTRAS), refused.stderr
    for (verb, extra), line in zip(EXTRAS.items(), said, strict=True):
        assert re.fullmatch(rf"Error: `soup {verb}` needs \w+: pip install 'adaptersoup\[{extra}\]'\.", line), line


REFUSALS = """
import sys
from service.cli.app import run
sys.stderr = sys.stdout
for line in {lines}:
    assert run(line) == 1, line
"""


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
        "route": ["--port", "0", "--database-url", "postgresql+psycopg://soup@127.0.0.1/soup"],
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


def test_train_trains_without_a_server(install: Install, tiny_base_dir: Path, tmp_path: Path) -> None:
    lines = [json.dumps({"text": f"The court held that contract {i * 7} was void."}) for i in range(60)]
    (tmp_path / "texts.jsonl").write_text("\n".join(lines[:40]))
    (tmp_path / "valid.jsonl").write_text("\n".join(lines[40:]))
    done = python(
        install("train"), "-m", "service.cli", "train", "--texts", "texts.jsonl", "--valid", "valid.jsonl", "--out",
        "law", "--base-folder", str(tiny_base_dir), "--steps", "1", "--batch", "2", "--block", "16", cwd=tmp_path,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "law\n"), done.stderr
    assert (tmp_path / "law" / "adapter_model.safetensors").is_file()


@pytest.fixture(scope="module")
def said(install: Install, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What one process of the server's environment says, which starts as `soup serve` does and brings all of it."""
    folder = tmp_path_factory.mktemp("said")
    grant = '[[grants]]\nvalues = ["a"]\nscopes = ["read"]\nnamespaces = "all"\n'
    (folder / "mapping.toml").write_text(grant)
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
    done = python(install("server"), "-c", program, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_server_has_what_a_server_needs(install: Install, said: list[str], tmp_path: Path) -> None:
    assert said[0] == "(1, 384)"
    done = python(install("server"), "-m", "service.cli", "migrate", "--data", str(tmp_path / "data"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_setting_whose_packages_are_missing_is_refused_in_a_sentence(said: list[str]) -> None:
    assert said[1:] == [
        "SOUP_OIDC_ISSUER needs PyJWT and cryptography: pip install 'adaptersoup[oidc]'.",
        "SOUP_OTEL_ENDPOINT needs the OpenTelemetry SDK: pip install 'adaptersoup[otel]'.",
    ]
