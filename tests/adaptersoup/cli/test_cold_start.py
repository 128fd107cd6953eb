"""Fast starts: the command line and the client load nothing heavy, other processes only what they need."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Set

import pytest

pytestmark = pytest.mark.slow

HEAVY = {
    "torch",
    "transformers",
    "accelerate",
    "llguidance",
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
MODULES = (
    "adaptersoup",
    "adaptersoup.synchronous.client",
    "adaptersoup.client.client",
    "adaptersoup.client.transfer",
    "adaptersoup.cli.app",
    "service.settings",
)
VERBS = ("push", "serve", "cook", "train", "convert")


def loaded(program: str, packages: Set[str] = HEAVY) -> set[str]:
    """The top-level packages, of those to look for, that a program loads in a fresh interpreter."""
    program += "\nimport sys; print('\\n' + ' '.join(sorted({name.split('.')[0] for name in sys.modules})))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return packages & set(done.stdout.splitlines()[-1].split())


def test_the_client_and_help_and_a_verb_without_a_server_load_nothing_heavy() -> None:
    program = f"""
import {", ".join(MODULES)}
from adaptersoup.cli.app import run
assert not any(run([verb, "--help"]) for verb in {VERBS})
assert run(["ls", "--url", "http://127.0.0.1:9", "--key", "k"]) == 1
"""
    assert loaded(program) == set()


def test_the_command_line_starts_without_the_client() -> None:
    program = "import adaptersoup; from adaptersoup.cli.app import run; assert run(['--help']) == 0"
    assert loaded(program, HEAVY | CLIENT) == set()


SCHEMAS = """import importlib, pkgutil
from service.http import schemas
[importlib.import_module(f"service.http.schemas.{module.name}") for module in pkgutil.iter_modules(schemas.__path__)]"""


@pytest.mark.parametrize(
    ("program", "packages"),
    [
        (SCHEMAS, {"torch", "transformers", "sklearn", "sqlalchemy", "numpy"}),
        (
            "import registry.encoders; encoder = registry.encoders.SentenceBertEncoder()\n"
            "encoder.digest, encoder.dimensions",
            {"torch", "transformers", "sentence_transformers"},
        ),
        *(
            pytest.param(f"import {modules}", packages, marks=pytest.mark.long)
            for modules, packages in (
                ("service.jobs.fit_process", {"torch", "transformers", "sentence_transformers"}),
                ("service.ray_serving.replica, service.engine_process.program", {"sklearn", "sqlalchemy", "fastapi"}),
                ("service.http.app, service.runtime", {"accelerate", "llguidance"}),  # the engine brings them
            )
        ),
    ],
    ids=["schemas", "encoders", "fit", "engines", "server"],
)
def test_other_modules_load_what_they_need_alone(program: str, packages: set[str]) -> None:
    assert loaded(program, packages) == set()
