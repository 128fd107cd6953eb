"""Alembic's entry point: runs the migrations on the connection that `migrations/__init__.py` passes."""

from __future__ import annotations

from alembic import context

from migrations import is_compared
from registry.catalogue.tables import metadata

connection = context.config.attributes["connection"]
if connection is None:
    raise RuntimeError("Migrations run through 'soup migrate', which hands over a connection.")
context.configure(connection=connection, target_metadata=metadata, render_as_batch=True, include_name=is_compared)
context.run_migrations()
