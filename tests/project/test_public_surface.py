"""What others rely on, frozen: a name that appears, changes or goes is seen in a diff and not by a user.

Error codes and their statuses, names and fields of the shared values, HTTP routes, verbs and options of the command
line, settings, and the methods of the Python clients. To accept a change on purpose, run

    UPDATE_SNAPSHOTS=1 .venv/bin/python -m pytest tests/project/test_public_surface.py

and commit the changed files of tests/snapshots together with the change and its line in CHANGELOG.md.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from docs import sync_clients
from tests.repository import REPOSITORY

SNAPSHOTS = REPOSITORY / "tests" / "snapshots"
HOW = "run UPDATE_SNAPSHOTS=1 .venv/bin/python -m pytest tests/project/test_public_surface.py if this change is meant"


def errors() -> Any:
    """code -> class and HTTP status."""
    from registry.errors import BY_CODE
    from service.http.problems import status_of

    return {code: f"{cls.__name__} {status_of(cls('x'))}" for code, cls in BY_CODE.items()}


def spec() -> Any:
    """Name -> fields of a value, the kind of thing for others."""
    import registry.spec

    found: dict[str, Any] = {}
    for name in registry.spec.__all__:
        value = getattr(registry.spec, name)
        fields = getattr(value, "model_fields", None)
        found[name] = sorted(fields) if fields is not None else type(value).__name__.removeprefix("_")
    return found


def routes() -> Any:
    """Method and path of every route of the application, without starting anything."""
    from service.http.app import create_app
    from service.runtime import Runtime
    from service.settings import Settings

    app = create_app(Runtime(Settings(data=Path("/nowhere"))))
    paths = app.openapi()["paths"]
    return sorted(f"{path} {method.upper()}" for path, methods in paths.items() for method in methods)


def command_line() -> Any:
    """Verb -> its arguments and options; groups have one entry a command."""
    from adaptersoup.cli.app import VERBS, command_of

    def shape(command: Any) -> list[str]:
        return [
            " / ".join([*parameter.opts, *parameter.secondary_opts])
            if parameter.param_type_name == "option"
            else str(parameter.name).upper()
            for parameter in command.params
        ]

    found = {}
    for verb in VERBS:
        command = command_of(verb)
        for name, inner in getattr(command, "commands", {"": command}).items():
            found[f"{verb} {name}".strip()] = shape(inner)
    return found


def settings() -> Any:
    """Variables of the environment."""
    from adaptersoup.client.vllm_settings import VllmSettings
    from service.settings import ClientSettings, Settings

    kinds = (Settings, ClientSettings, VllmSettings)
    return {cls.__name__: sorted(f"SOUP_{name.upper()}" for name in cls.model_fields) for cls in kinds}


def client() -> Any:
    """Public methods of the Python client and their parameters."""
    from adaptersoup.client.client import SoupClient

    return {
        name: ", ".join(list(inspect.signature(method).parameters)[1:])
        for name, method in inspect.getmembers(SoupClient, inspect.isfunction)
        if not name.startswith("_")
    }


def library() -> Any:
    """What `adaptersoup` exports, and the parameters of the calls of its clients."""
    import adaptersoup

    calls = {
        name: ", ".join(list(inspect.signature(method).parameters)[1:])
        for name, method in inspect.getmembers(adaptersoup.Client, inspect.isfunction)
        if not name.startswith("_")
    }
    return {"exports": sorted(adaptersoup.__all__), "calls": calls}


SURFACES: list[Callable[[], Any]] = [errors, spec, routes, command_line, settings, client, library]


@pytest.mark.parametrize("surface", SURFACES, ids=lambda surface: surface.__name__)
def test_surface(surface: Callable[[], Any]) -> None:
    file, now = SNAPSHOTS / f"{surface.__name__}.json", json.dumps(surface(), indent=1) + "\n"
    if os.environ.get("UPDATE_SNAPSHOTS") == "1":
        file.write_text(now)
    assert json.loads(now) == json.loads(file.read_text()), HOW


def test_the_generated_clients_are_up_to_date(tmp_path: Path) -> None:
    for path in sync_clients.generate(tmp_path):
        assert (REPOSITORY / path).read_text() == (tmp_path / path).read_text(), "run `python -m docs.sync_clients`"


def test_there_is_no_snapshot_of_something_gone() -> None:
    assert {file.stem for file in SNAPSHOTS.iterdir()} == {surface.__name__ for surface in SURFACES}
