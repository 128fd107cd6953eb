"""The Dockerfile, as far as it can be held to something without a container engine.

It is parsed, and the lines that need no network are run as they stand there: the list of dependencies, the wheel from
exactly what the image copies, and the health check.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import tomllib
import zipfile
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from sqlalchemy import make_url

from adaptersoup.cli.app import VERBS
from service.settings import Settings
from tests.project.dockerfile import COMPOSE, DOCKERFILE, environment, lines, rests, settings_from, stages
from tests.repository import REPOSITORY, shipped_files
from tests.service.servers import open_live, open_world, write_bases

pytestmark = pytest.mark.slow

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
PACKAGES = {"adaptersoup", "plots", "registry", "training", "service", "migrations"}

# --- the Dockerfile -----------------------------------------------------------------------------------


def test_images_and_what_pip_installs_are_pinned() -> None:
    arguments = dict(rest.split("=", 1) for name, rest in lines(DOCKERFILE) if name == "ARG" and "=" in rest)
    assert {rest.split(" ")[0] for name, rest in lines(DOCKERFILE) if name == "FROM"} == {"${PYTHON_IMAGE}"}
    assert re.fullmatch(r"python:\d+\.\d+\.\d+-slim-bookworm", arguments["PYTHON_IMAGE"])
    runs = [call.strip() for name, rest in lines(DOCKERFILE) if name == "RUN" for call in rest.split("&&")]
    installs = [call for call in runs if " install " in call and "pip" in call]
    assert len(installs) == 4
    assert all("-c constraints.txt" in call or "--no-index" in call for call in installs)
    assert not [call for call in runs if re.search(r"\b(curl|wget|git)\b", call)]
    assert "ADD" not in {name for name, _ in lines(DOCKERFILE)}  # it fetches, and unpacks


def test_what_runs_has_no_root_no_shell_and_no_secret() -> None:
    *_, last = stages(DOCKERFILE)
    names = [name for name, _ in last]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", rests(last, "USER")[-1])
    assert {"RUN", "COPY"}.isdisjoint(names[names.index("USER") :])
    assert all(rest.startswith("[") for name in ("ENTRYPOINT", "CMD") for rest in rests(last, name))
    named = [rest for name, rest in lines(DOCKERFILE) if name in ("ARG", "ENV")]
    assert not [rest for rest in named if re.search(r"(PASSWORD|SECRET|TOKEN|_KEY|DATABASE_URL)\b", rest)]


def copied() -> list[str]:
    """What the build copies out of the tree."""
    copies = [rest.split(" ") for stage in stages(DOCKERFILE) for rest in rests(stage, "COPY")]
    return [source for words in copies if not words[0].startswith("--from=") for source in words[:-1]]


def test_the_context_is_what_is_copied() -> None:
    patterns = [line for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert patterns == ["*", *(f"!{name}" for name in copied()), "**/__pycache__", "**/*.pyc"]
    assert set(copied()) >= PACKAGES
    assert all((REPOSITORY / name).exists() for name in copied())


def test_one_version_of_everything() -> None:
    (wanted,) = re.findall(r"torch==[\d.]+", DOCKERFILE)
    assert wanted in (REPOSITORY / "constraints.txt").read_text().splitlines()
    assert wanted in (REPOSITORY / "Makefile").read_text()
    (python,) = re.findall(r"^ARG PYTHON_IMAGE=python:(\d+\.\d+)\.", DOCKERFILE, re.MULTILINE)
    assert PROJECT["requires-python"] == f">={python}"
    assert set(re.findall(r"adaptersoup:([\w.]+)", DOCKERFILE + COMPOSE)) == {PROJECT["version"]}


def test_the_image_sets_what_the_server_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = environment(DOCKERFILE)
    ours = {name.removeprefix("SOUP_").lower() for name in variables if name.startswith("SOUP_")}
    assert ours <= set(Settings.model_fields)
    settings = settings_from({}, monkeypatch)
    last = stages(DOCKERFILE)[-1]
    assert json.loads(rests(last, "VOLUME")[0]) == [str(settings.data)]
    assert rests(last, "EXPOSE") == [str(settings.port)]
    assert settings.host == "0.0.0.0"
    assert variables["HF_HOME"].startswith(f"{settings.data}/")
    assert json.loads(rests(last, "ENTRYPOINT")[0]) == ["soup"]
    assert json.loads(rests(last, "CMD")[0])[0] in VERBS


# --- its lines, run ------------------------------------------------------------------------------------


def run_line(start: str) -> str:
    """The command of the build that begins like this."""
    (found,) = [
        call.strip()
        for stage in stages(DOCKERFILE)
        for rest in rests(stage, "RUN")
        for call in rest.split("&&")
        if call.strip().startswith(start)
    ]
    return found


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder with what the image copies, and `python` on a path of its own."""
    folder = tmp_path_factory.mktemp("image")
    (folder / "bin").mkdir()
    (folder / "bin" / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (folder / "bin" / "python").chmod(0o755)
    for name in copied():
        target = folder / "src" / name
        target.parent.mkdir(exist_ok=True)
        if (REPOSITORY / name).is_dir():
            shutil.copytree(REPOSITORY / name, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(REPOSITORY / name, target)
    return folder


def shell(command: str, source: Path) -> None:
    """Run a line of the build where it would run, its absolute folders moved, and without an index."""
    done = subprocess.run(
        ["sh", "-ec", command.replace("/wheels", str(source / "wheels"))],
        cwd=source / "src",
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": f"{source / 'bin'}{os.pathsep}{os.environ['PATH']}", "PIP_NO_INDEX": "1"},
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("more", [[], ["ray"], ["ray", "frames"]], ids=",".join)
def test_the_dependencies_are_those_of_the_project(
    source: Path, more: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXTRAS", ",".join(more))  # the build's argument
    shell(run_line('python -c "import os, tomllib'), source)
    extras = PROJECT["optional-dependencies"]
    fixed = ("train", "plots", "server", "oidc", "otel")
    wanted = [*PROJECT["dependencies"], *(requirement for name in fixed for requirement in extras[name])]
    wanted.remove("adaptersoup[plots,train]")
    wanted += [requirement for name in more for requirement in extras[name]]
    assert (source / "src" / "requirements.txt").read_text().splitlines() == wanted


def test_the_wheel_is_built_from_what_is_copied(source: Path) -> None:
    shell(run_line("python -m pip wheel"), source)
    (wheel,) = (source / "wheels").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name and ".data/" not in name}
    assert names == shipped_files(PACKAGES)


def healthy(port: int) -> bool:
    """What the image's health check says of a server on this port."""
    (check,) = rests(stages(DOCKERFILE)[-1], "HEALTHCHECK")
    _, *command = json.loads(check[check.index("CMD ") + 4 :])
    done = subprocess.run(
        [sys.executable, *command], env={**os.environ, "SOUP_PORT": str(port)}, capture_output=True, check=False
    )
    assert done.returncode in (0, 1)
    return done.returncode == 0


def test_the_health_check_passes_on_the_server(tmp_path: Path, tiny_base_dir: Path) -> None:
    for world in open_world(tmp_path / "data", write_bases(tmp_path / "bases.toml", {"tiny": tiny_base_dir})):
        for live in open_live(world):
            assert healthy(make_url(live.url).port or 0)


def test_the_health_check_fails_where_nothing_or_an_error_answers() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and listening to nobody
        assert not healthy(taken.getsockname()[1])
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:  # it answers 501
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert not healthy(server.server_port)
        server.shutdown()
