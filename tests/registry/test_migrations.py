"""Migrations: up, down and up again, and the tables are what the migrations make."""

from __future__ import annotations

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect

import migrations
from registry.catalogue import Database
from registry.catalogue.tables import metadata


def test_up_down_and_up_again(tmp_path):
    database = Database(f"sqlite:///{tmp_path / 'soup.db'}")
    assert migrations.current(database.engine) is None
    for _ in range(2):
        migrations.upgrade(database.engine)
        assert migrations.current(database.engine) == migrations.head()
        assert set(metadata.tables) < set(inspect(database.engine).get_table_names())
        migrations.downgrade(database.engine, "base")
        assert inspect(database.engine).get_table_names() == ["alembic_version"]
    database.close()


def test_the_migrations_make_exactly_the_tables(tmp_path):
    database = Database(f"sqlite:///{tmp_path / 'soup.db'}")
    migrations.upgrade(database.engine)
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, metadata) == []
    database.close()
