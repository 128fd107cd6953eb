"""`make` in a checkout whose .venv is a link to another one's leaves that one as it is."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.repository import REPOSITORY


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with an environment of its own, older than what is to be installed; its pip writes down what it is
    asked."""
    folder = tmp_path / "checkout"
    python = folder / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n')
    python.chmod(0o755)
    for name in (".runtime", ".dev", ".demo"):
        (folder / ".venv" / name).touch()
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copyfile(REPOSITORY / name, folder / name)
    return folder


def make(where: Path, target: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["make", target], cwd=where, capture_output=True, text=True, check=False)


@pytest.fixture
def linked(checkout: Path, tmp_path: Path) -> Path:
    """Another checkout, whose environment is a link to that of the first."""
    folder = shutil.copytree(checkout, tmp_path / "linked", ignore=shutil.ignore_patterns(".venv"))
    (folder / ".venv").symlink_to(checkout / ".venv")
    return folder


@pytest.mark.parametrize("target", ["setup", "demo"])
def test_only_the_checkout_whose_it_is_installs_into_it(
    checkout: Path, linked: Path, tmp_path: Path, target: str
) -> None:
    pip_log = tmp_path / "asked"
    done = make(linked, target)
    assert done.returncode == 0, done.stderr
    assert "pip install" not in (pip_log.read_text() if pip_log.exists() else "")
    done = make(checkout, target)
    assert done.returncode == 0, done.stderr
    assert "-e .[server]" in pip_log.read_text()


@pytest.mark.slow
def test_what_is_not_there_at_all_is_said(checkout: Path, linked: Path, tmp_path: Path) -> None:
    (checkout / ".venv" / ".demo").unlink()
    done = make(linked, "demo")
    assert done.returncode != 0
    assert f".venv is a link to {checkout / '.venv'}, into which nothing is installed from here" in done.stdout
    assert not (tmp_path / "asked").exists()
