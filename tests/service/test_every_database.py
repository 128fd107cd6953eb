"""Where EVERY_DATABASE is set, tests that say that one kind of database is enough for them run on every kind."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.postgres import KINDS
from tests.repository import REPOSITORY


def asked_for(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, folder: str, every: bool, **test: Any
) -> list[tuple[str, ...]]:
    """The kinds on which the conftest of a folder has a test run."""
    conftest: Any = request.config.pluginmanager.get_plugin(str(REPOSITORY / folder / "conftest.py"))
    monkeypatch.setattr(conftest, "EVERY", every)
    found: list[tuple[str, ...]] = []
    conftest.pytest_generate_tests(
        SimpleNamespace(parametrize=lambda _fixture, kinds, **_: found.append(tuple(kinds)), cls=None, **test)
    )
    return found


@pytest.mark.parametrize(("every", "kinds"), [(False, KINDS[:1]), (True, KINDS)])
def test_a_module_that_names_its_databases(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, every: bool, kinds: tuple[str, ...]
) -> None:
    module = SimpleNamespace(ON_DATABASES=KINDS[:1], ON_BASES=("bert",))
    test = {"module": module, "fixturenames": ["databases", "base"]}
    assert asked_for(request, monkeypatch, "tests", every, **test) == [("bert",), kinds]


@pytest.mark.parametrize(("every", "kinds"), [(False, KINDS[:1]), (True, KINDS)])
def test_a_test_that_is_marked_one_database(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, every: bool, kinds: tuple[str, ...]
) -> None:
    marked = SimpleNamespace(get_closest_marker=lambda name: name == "one_database")
    test = {"module": SimpleNamespace(DATABASES=KINDS), "fixturenames": ["database_kind"], "definition": marked}
    assert asked_for(request, monkeypatch, "tests/service", every, **test) == [kinds]
