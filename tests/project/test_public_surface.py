"""The public surface, frozen: a name that appears, changes or goes is seen in a diff and not by a user.

Names and fields of the shared values, and the methods of the Python clients; what docs/reference holds (routes, error
codes, settings, verbs and their options) is compared by test_docs.py. To accept a change on purpose, run

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


def spec() -> Any:
    """Name -> fields of a value, the kind of thing for others."""
    import registry.spec

    surface: dict[str, Any] = {}
    for name in registry.spec.__all__:
        value = getattr(registry.spec, name)
        fields = getattr(value, "model_fields", None)
        surface[name] = sorted(fields) if fields is not None else type(value).__name__.removeprefix("_")
    return surface


def client() -> Any:
    """Public methods of the Python client and their parameters."""
    from adaptersoup.client.client import SoupClient

    return {
        name: ", ".join(list(inspect.signature(method).parameters)[1:])
        for name, method in inspect.getmembers(SoupClient, inspect.isfunction)
        if not name.startswith("_")
    }


def library() -> Any:
    """The exports of `adaptersoup`, and the parameters of the calls of its clients."""
    import adaptersoup

    calls = {
        name: ", ".join(list(inspect.signature(method).parameters)[1:])
        for name, method in inspect.getmembers(adaptersoup.Client, inspect.isfunction)
        if not name.startswith("_")
    }
    return {"exports": sorted(adaptersoup.__all__), "calls": calls}


@pytest.mark.parametrize("surface", [spec, client, library], ids=lambda surface: surface.__name__)
def test_surface(surface: Callable[[], Any]) -> None:
    file, now = SNAPSHOTS / f"{surface.__name__}.json", json.dumps(surface(), indent=1) + "\n"
    if os.environ.get("UPDATE_SNAPSHOTS") == "1":
        file.write_text(now)
    assert json.loads(now) == json.loads(file.read_text()), HOW


@pytest.mark.slow
def test_the_generated_clients_are_up_to_date(tmp_path: Path) -> None:
    for path in sync_clients.generate(tmp_path):
        assert (REPOSITORY / path).read_text() == (tmp_path / path).read_text(), "run `python -m docs.sync_clients`"
