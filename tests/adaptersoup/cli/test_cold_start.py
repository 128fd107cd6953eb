"""What starts at once: the command line and the client load nothing heavy, other processes only what they need."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Set

import pytest

pytestmark = pytest.mark.slow

HEAVY = {
    "torch",
    "transformers",
    "sklearn",
    "scipy",
    "sqlalchemy",
    "sentence_transformers",
    "fastapi",
    "numpy",
    "obstore",
}
CLIENT = {"pydantic", "httpx2"}
"""What the client needs, but not the start of the command line."""
HELP = "from adaptersoup.cli.app import run; import sys; code = run({args!r}); assert code == 0, code"


def loaded(program: str, packages: Set[str] = HEAVY) -> set[str]:
    """The top-level packages, of those to look for, that a program loads in a fresh interpreter."""
    program += "\nimport sys; print('\\n' + ' '.join(sorted({name.split('.')[0] for name in sys.modules})))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return packages & set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "module",
    [
        "adaptersoup",
        "adaptersoup.synchronous.client",
        "adaptersoup.client.client",
        "adaptersoup.client.transfer",
        "adaptersoup.cli.app",
        "service.settings",
    ],
)
def test_modules(module: str) -> None:
    assert loaded(f"import {module}") == set()


@pytest.mark.parametrize(
    "args", [["--help"], ["push", "--help"], ["serve", "--help"], ["cook", "--help"], ["train", "--help"]]
)
def test_help(args: list[str]) -> None:
    assert loaded(HELP.format(args=args)) == set()


@pytest.mark.parametrize("program", ["import adaptersoup", "import adaptersoup.cli.app", HELP.format(args=["--help"])])
def test_the_command_line_starts_without_the_client(program: str) -> None:
    assert loaded(program, CLIENT) == set()


@pytest.mark.parametrize(
    ("module", "packages"),
    [
        ("service.jobs.fit_process", {"torch", "transformers", "sentence_transformers"}),
        ("service.ray_serving.replica", {"sklearn", "sqlalchemy", "fastapi"}),
    ],
)
def test_processes_beside_the_server(module: str, packages: set[str]) -> None:
    assert loaded(f"import {module}", packages) == set()


def test_a_verb_that_finds_no_server() -> None:
    program = (
        "from adaptersoup.cli.app import run; assert run(['ls', '--url', 'http://127.0.0.1:9', '--key', 'k']) == 1"
    )
    assert loaded(program) == set()


def test_the_guard_sees_what_it_guards_against() -> None:
    assert loaded("import numpy") == {"numpy"}
    assert loaded("from adaptersoup import Client", CLIENT) == CLIENT
