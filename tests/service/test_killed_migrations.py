"""`soup migrate`, killed wherever it is: the schema is the one before, every row is there, and the next run ends it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import migrations
from migrations.last_release import REVISION as LAST_RELEASE
from registry.catalogue import Database
from tests.postgres import Databases
from tests.registry.catalogue.test_migrations import fill, refs, schema
from tests.repository import REPOSITORY
from tests.service import killed_migrations

BEFORE = LAST_RELEASE
STATEMENTS = 15


@pytest.mark.long
def test_no_half_schema_and_no_row_lost(databases: Databases, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    with databases.new(data) as database:
        rows = fill(database)
        whole = schema(database)
        migrations.downgrade(database.engine, BEFORE)
        old = schema(database)
        url = database.engine.url.render_as_string(hide_password=False)
        kills = killed_at(data, url, lambda: unchanged(database, old))
        copied = ["killed at copy"] if databases.kind == "sqlite" else []
        assert kills[: len(copied) + 3] == [*copied, "killed at commit", "killed at 0", f"killed at {STATEMENTS}"]
        assert (migrations.current(database.engine), schema(database), refs(database)) == (
            migrations.head(),
            whole,
            rows,
        )
    for copy in (data / "backups").glob("*.db"):
        with closing(Database(f"sqlite:///{copy}")) as backup, backup.engine.connect() as connection:
            assert migrations.current(backup.engine) == BEFORE
            assert connection.exec_driver_sql("SELECT count(*) FROM adapters").scalar() == len(rows)
    names = [path.name for path in (data / "backups").glob("*")]
    assert all(name.endswith(".db") for name in names), names
    assert len(names) == (len(kills) - 1 if databases.kind == "sqlite" else 0)  # one as it ends, none before it is made


def unchanged(database: Database, old: object) -> None:
    assert migrations.current(database.engine) == BEFORE
    assert schema(database) == old


def killed_at(data: Path, url: str, look: Callable[[], None]) -> list[str]:
    """The lines of the runs that were killed; calls `look` after each."""
    environment = {**os.environ, "SOUP_DATABASE_URL": url}
    kills = []
    command = [sys.executable, "-m", killed_migrations.__name__, str(data), str(STATEMENTS)]
    with subprocess.Popen(
        command, cwd=REPOSITORY, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        for line in process.stdout:
            if not line.startswith("killed"):
                continue
            kills.append(line.strip())
            look()
            process.stdin.write("\n")
            process.stdin.flush()
    assert process.returncode == 0
    return kills
