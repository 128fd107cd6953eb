"""`soup migrate` and the start of a server on PostgreSQL: empty, behind and ahead."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import make_url

import migrations
from adaptersoup.cli import app as cli
from registry.catalogue import Database
from registry.errors import Unavailable
from service.operations.storage import owned
from service.runtime import Runtime
from service.settings import Settings
from tests.postgres import Postgres
from tests.service.servers import running


@pytest.fixture
def url(postgres: Postgres) -> Iterator[str]:
    """An empty database."""
    url = postgres.url(empty=True)
    yield url
    postgres.drop(url)


@pytest.fixture
def settings(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings of a server on it, which the command line finds in the environment."""
    monkeypatch.setenv("SOUP_DATABASE_URL", url)
    monkeypatch.setenv("SOUP_DATA", str(tmp_path / "data"))
    return Settings(job_workers=0)


def refusal(settings: Settings) -> str:
    """The message of a server that refuses to start; it leaves nothing behind."""
    runtime = Runtime(settings)
    with pytest.raises(Unavailable) as caught:
        runtime.start()
    with owned(settings.data):
        assert not settings.blobs_dir.exists()
    assert "\n" not in caught.value.message
    return caught.value.message


def test_an_empty_database_is_not_filled_by_serving(settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    message = refusal(settings)
    assert "is empty" in message
    assert "run 'soup migrate'" in message
    assert cli.run(["serve", "--port", "0"]) == 1
    assert "soup migrate" in capsys.readouterr().err
    with closing(Database(settings.database)) as database:
        assert migrations.current(database.engine) is None


def test_a_database_in_another_encoding_is_refused(postgres: Postgres, tmp_path: Path) -> None:
    """Else the first name or domain that it cannot hold would be a failure of the server."""
    postgres.sql("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    url = make_url(postgres.url(empty=True)).set(database="latin").render_as_string(hide_password=False)
    settings = Settings(data=tmp_path / "data", database_url=url)
    try:
        message = refusal(settings)
        assert "in LATIN1" in message
        assert "--encoding=UTF8" in message
    finally:
        postgres.drop(settings.database)


def test_migrate_needs_no_data_folder_and_disturbs_nobodys(
    settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["migrate", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "object": "migration",
        "before": None,
        "after": migrations.head(),
        "backup": None,
    }
    assert not settings.data.exists()
    with running(settings) as runtime:
        assert not runtime.sole_owner
        assert cli.run(["migrate"]) == 0
        assert "up to date" in capsys.readouterr().err


def test_a_database_behind_names_the_command(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli.run(["migrate"]) == 0
    head = migrations.head()
    monkeypatch.setattr(migrations, "head", lambda: "9999")  # a later version of the code
    message = refusal(settings)
    assert f"is at revision '{head}'" in message
    assert "needs revision '9999': run 'soup migrate'" in message


@pytest.fixture
def later(settings: Settings, postgres: Postgres, capsys: pytest.CaptureFixture[str]) -> Iterator[Database]:
    """The database of a later version, beside which this one still serves."""
    assert cli.run(["migrate"]) == 0
    capsys.readouterr()
    with closing(Database(settings.database)) as database:
        with database.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
        yield database


def test_a_database_ahead_is_left_alone(
    settings: Settings, later: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    with later.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE oldest_version SET revision = '9998'")
    message = refusal(settings)
    expected = (
        f"'9999' (it serves versions from revision '9998' on), which this version (revision '{migrations.head()}') "
        "does not know: start the version that wrote it"
    )
    assert expected in message
    assert "soup migrate" not in message
    assert cli.run(["migrate"]) == 1
    assert "start the version that wrote it" in capsys.readouterr().err
    assert migrations.current(later.engine) == "9999"


def test_migrate_of_the_version_before_changes_nothing_so_that_its_servers_start(
    settings: Settings, later: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    """In containers servers are started once it has ended without an error: also where one goes back a version."""
    assert cli.run(["migrate"]) == 0
    output = capsys.readouterr()
    assert output.out.strip() == "9999"
    assert "is of a later version, beside which this one serves: nothing was changed" in output.err
    with running(settings):
        pass
