"""The Dockerfile, as far as it can be held to something without a container engine.

It is parsed. The rules of the image stand as functions with canaries; the lines that need no network are run as they
stand there: the list of dependencies, the wheel from exactly what the image copies, and the health check.
"""

from __future__ import annotations

import http.server
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
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from service.cli.app import VERBS
from service.settings import Settings
from tests.project.dockerfile import COMPOSE, DOCKERFILE, environment, lines, rests, settings_from, stages
from tests.repository import REPOSITORY, shipped_files
from tests.service.servers import open_live, open_world, write_bases

pytestmark = pytest.mark.slow

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
PACKAGES = {"adaptersoup", "plots", "registry", "training", "service", "migrations"}

Found = list[str]


# --- the Dockerfile -----------------------------------------------------------------------------------


def loose_images(text: str) -> Found:
    """Images that are not pinned to a version of three numbers, or to a digest."""
    arguments = dict(rest.split("=", 1) for name, rest in lines(text) if name == "ARG" and "=" in rest)
    made = {rest.split(" AS ")[1] for name, rest in lines(text) if name == "FROM" and " AS " in rest}
    named = [rest.split(" ")[0] for name, rest in lines(text) if name == "FROM"]
    images = [re.sub(r"\$\{(\w+)\}", lambda found: arguments.get(found[1], ""), name) for name in named]
    return [name for name in images if name not in made and not re.search(r":\d+\.\d+\.\d+|@sha256:[0-9a-f]{64}", name)]


def rooted(text: str) -> Found:
    """What runs as root: the last USER of the image has to be a number other than 0, and nothing may run after it."""
    last = stages(text)[-1]
    users = rests(last, "USER")
    if not users or not re.fullmatch(r"[1-9]\d*:[1-9]\d*", users[-1]):
        return [f"USER {users[-1] if users else 'root'}"]
    after = last[last.index(("USER", users[-1])) :]
    return [f"{name} {rest}" for name, rest in after if name in ("RUN", "COPY", "ADD")]


def secrets(text: str) -> Found:
    """Variables of a build or an image that look like secrets: they would lie in a layer, or in its history."""
    named = [rest for name, rest in lines(text) if name in ("ARG", "ENV")]
    return [rest for rest in named if re.search(r"(PASSWORD|SECRET|TOKEN|_KEY|DATABASE_URL)\b", rest)]


def fetched(text: str) -> Found:
    """ADD, which fetches and unpacks, and tools that do."""
    return [
        f"{name} {rest}"
        for name, rest in lines(text)
        if name == "ADD" or (name == "RUN" and re.search(r"\b(curl|wget|git)\b", rest))
    ]


def unpinned_installs(text: str) -> Found:
    """Calls of pip that take anything from an index without the constraints."""
    calls = [call for name, rest in lines(text) if name == "RUN" for call in rest.split("&&") if " install " in call]
    return [call.strip() for call in calls if "pip" in call and not re.search(r"-c constraints.txt|--no-index", call)]


def shell_forms(text: str) -> Found:
    """What starts in a shell, which would take the signals."""
    last = stages(text)[-1]
    return [
        f"{name} {rest}" for name in ("ENTRYPOINT", "CMD") for rest in rests(last, name) if not rest.startswith("[")
    ]


CANARIES: list[tuple[Callable[[str], Found], str]] = [
    (loose_images, "FROM python:latest"),
    (loose_images, "ARG IMAGE=python:3\nFROM ${IMAGE} AS build\nFROM build"),
    (rooted, "FROM a"),
    (rooted, "FROM a\nUSER 10001:10001\nUSER 0:0"),
    (rooted, "FROM a\nUSER 10001:10001\nRUN id"),
    (secrets, "FROM a\nENV SOUP_BOOTSTRAP_KEY=sk-soup-1"),
    (fetched, "FROM a\nADD https://example.com/x /x"),
    (fetched, "FROM a\nRUN true \\\n && curl -O x"),
    (unpinned_installs, "FROM a\nRUN python -m pip install torch"),
    (shell_forms, "FROM a\nCMD soup serve"),
]
RULES = list(dict.fromkeys(rule for rule, _ in CANARIES))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule_of_the_image(rule: Callable[[str], Found]) -> None:
    assert rule(DOCKERFILE) == []


@pytest.mark.parametrize(("rule", "text"), CANARIES, ids=lambda value: getattr(value, "__name__", ""))
def test_the_rule_notices(rule: Callable[[str], Found], text: str) -> None:
    assert len(rule(text)) == 1


def copied() -> list[str]:
    """What the build copies out of the tree."""
    copies = [rest.split(" ") for stage in stages(DOCKERFILE) for rest in rests(stage, "COPY")]
    return [source for words in copies if not words[0].startswith("--from=") for source in words[:-1]]


def in_context(path: str) -> bool:
    """Whether .dockerignore lets a path through to the engine: the last pattern that fits it or a parent decides."""
    patterns = [line for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    parts = path.split("/")
    candidates = ["/".join(parts[: end + 1]) for end in range(len(parts))]
    allowed = True
    for pattern in patterns:
        name = pattern.removeprefix("!")
        if any(fnmatch(part, name) for part in candidates) or (
            name.startswith("**/") and any(fnmatch(part, name[3:]) for part in parts)
        ):
            allowed = pattern.startswith("!")
    return allowed


def test_the_context_is_what_is_copied() -> None:
    assert all((REPOSITORY / name).exists() for name in copied())
    top = {path.name for path in REPOSITORY.iterdir() if in_context(path.name)}
    assert top == set(copied())
    assert set(copied()) >= PACKAGES


@pytest.mark.parametrize(
    "path",
    [".git/config", ".env", ".venv/bin/soup", "soup-data/admin.key", "tests/conftest.py", "service/__pycache__/x.py"]
)  # fmt: skip
def test_what_is_not_for_the_image_never_gets_there(path: str) -> None:
    assert not in_context(path)
    assert in_context("service/cli/app.py")


def test_one_version_of_everything() -> None:
    (wanted,) = re.findall(r"torch==[\d.]+", DOCKERFILE)
    assert wanted in (REPOSITORY / "constraints.txt").read_text().splitlines()
    assert wanted in (REPOSITORY / "Makefile").read_text()
    (python,) = re.findall(r"^ARG PYTHON_IMAGE=python:(\d+\.\d+)\.", DOCKERFILE, re.MULTILINE)
    assert PROJECT["requires-python"] == f">={python}"
    tags = re.findall(r"adaptersoup:([\w.]+)", DOCKERFILE + COMPOSE)
    assert set(tags) == {PROJECT["version"]}


def test_the_image_sets_what_the_server_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = environment(DOCKERFILE)
    ours = {name: value for name, value in variables.items() if name.startswith("SOUP_")}
    assert {name.removeprefix("SOUP_").lower() for name in ours} <= set(Settings.model_fields)
    settings = settings_from(ours, monkeypatch)
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
    """An empty folder with what the image copies, through .dockerignore, and `python` on a path of its own."""
    folder = tmp_path_factory.mktemp("image")
    (folder / "bin").mkdir()
    (folder / "bin" / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (folder / "bin" / "python").chmod(0o755)
    for name in copied():
        target = folder / "src" / name
        target.parent.mkdir(exist_ok=True)
        if (REPOSITORY / name).is_dir():
            shutil.copytree(REPOSITORY / name, target, ignore=_ignored)
        else:
            shutil.copy(REPOSITORY / name, target)
    return folder


def _ignored(folder: str, names: list[str]) -> set[str]:
    return {name for name in names if not in_context((Path(folder) / name).relative_to(REPOSITORY).as_posix())}


def shell(command: str, source: Path) -> None:
    """Run a line of the build where it would run, its absolute folders moved, and without an index."""
    path = f"{source / 'bin'}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-ec", command.replace("/wheels", str(source / "wheels"))], cwd=source / "src", capture_output=True,
        text=True, check=False, env={**os.environ, "PATH": path, "PIP_NO_INDEX": "1"},
    )  # fmt: skip
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


class _Failing(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_error(503)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


def test_the_health_check_fails_where_nothing_or_an_error_answers() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, and listening to nobody
        assert not healthy(taken.getsockname()[1])
    with http.server.HTTPServer(("127.0.0.1", 0), _Failing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert not healthy(server.server_port)
        server.shutdown()
