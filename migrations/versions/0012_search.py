"""Words to search adapters by, with an index of each database's own, and indexes of the live for lists.

The words of adapters that are there are made as the catalogue makes them: what it makes otherwise one day, a later
revision makes anew.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import TSVECTOR

from registry.catalogue.words import indexed_columns
from registry.spec import Card

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

ROWS = 500
LIVE = sa.text("retired_at IS NULL")
BY = ("namespace", "name", "domain", "base_model", "method", "kind")
SQLITE_INDEX = (
    """CREATE VIRTUAL TABLE adapter_words_index USING fts5(
        words, content='adapter_words', content_rowid='adapter_id', tokenize="ascii tokenchars '=.-_'", detail='none',
        prefix='1 2 3')""",
    """CREATE TRIGGER adapter_words_added AFTER INSERT ON adapter_words BEGIN
        INSERT INTO adapter_words_index (rowid, words) VALUES (new.adapter_id, new.words); END""",
    """CREATE TRIGGER adapter_words_removed AFTER DELETE ON adapter_words BEGIN
        INSERT INTO adapter_words_index (adapter_words_index, rowid, words)
        VALUES ('delete', old.adapter_id, old.words); END""",
    """CREATE TRIGGER adapter_words_changed AFTER UPDATE ON adapter_words BEGIN
        INSERT INTO adapter_words_index (adapter_words_index, rowid, words)
        VALUES ('delete', old.adapter_id, old.words);
        INSERT INTO adapter_words_index (rowid, words) VALUES (new.adapter_id, new.words); END""",
)
POSTGRESQL_INDEX = "CREATE INDEX adapter_words_index ON adapter_words USING gin (words) WITH (fastupdate = off)"
adapters = sa.table(
    "adapters",
    *(sa.column(name, sa.String()) for name in ("namespace", "name", "domain", "kind", "method", "base_model")),
    sa.column("search", sa.Text()),
    sa.column("id", sa.BigInteger()),
    sa.column("card", sa.JSON()),
)


def upgrade() -> None:
    """Add the table, fill it, index it; the column that was searched before goes."""
    sqlite = op.get_bind().dialect.name == "sqlite"
    op.create_table(
        "adapter_words",
        sa.Column("adapter_id", sa.Integer() if sqlite else sa.BigInteger(), nullable=False, autoincrement=False),
        sa.Column("words", sa.Text() if sqlite else TSVECTOR(), nullable=False),
        sa.ForeignKeyConstraint(["adapter_id"], ["adapters.id"], name=op.f("fk_adapter_words_adapter_id")),
        sa.PrimaryKeyConstraint("adapter_id", name=op.f("pk_adapter_words")),
    )
    for statement in SQLITE_INDEX if sqlite else ():
        op.execute(statement)
    written = ":words" if sqlite else "array_to_tsvector(string_to_array(:words, ' '))"
    add = sa.text(f"INSERT INTO adapter_words (adapter_id, words) VALUES (:id, {written})")  # noqa: S608 (ours)
    for part in _parts():
        op.get_bind().execute(
            add, [{"id": row.id, "words": indexed_columns(row._mapping, Card.model_validate(row.card))} for row in part]
        )
    if not sqlite:
        op.execute(POSTGRESQL_INDEX)
    op.drop_column("adapters", "search")
    op.create_index(op.f("ix_adapters_live"), "adapters", ["id"], sqlite_where=LIVE, postgresql_where=LIVE)
    for one in BY:
        name = op.f(f"ix_adapters_live_{one}")
        op.create_index(name, "adapters", [one, "id"], sqlite_where=LIVE, postgresql_where=LIVE)
    op.drop_index(op.f("ix_adapter_tags_tag"), table_name="adapter_tags")
    op.create_index(op.f("ix_adapter_tags_tag"), "adapter_tags", ["tag", "adapter_id"])


def _parts() -> Any:
    """The adapters, so many at a time: each read is over before something is written."""
    connection, last = op.get_bind(), 0
    while True:
        query = sa.select(adapters).where(adapters.c.id > last).order_by(adapters.c.id).limit(ROWS)
        rows = connection.execute(query).all()
        if not rows:
            return
        yield rows
        last = rows[-1].id


def downgrade() -> None:
    """Drop them, and bring the column back; without a copy of the table, which would lose its checks on SQLite."""
    op.drop_index(op.f("ix_adapter_tags_tag"), table_name="adapter_tags")
    op.create_index(op.f("ix_adapter_tags_tag"), "adapter_tags", ["tag"])
    for one in BY:
        op.drop_index(op.f(f"ix_adapters_live_{one}"), table_name="adapters")
    op.drop_index(op.f("ix_adapters_live"), table_name="adapters")
    op.add_column("adapters", sa.Column("search", sa.Text(), nullable=False, server_default=""))
    for part in _parts():
        for row in part:
            search = "\n".join((row.name, row.domain, row.card.get("description", ""))).casefold()
            op.get_bind().execute(sa.update(adapters).where(adapters.c.id == row.id).values(search=search))
    if op.get_bind().dialect.name == "sqlite":
        op.execute("DROP TABLE adapter_words_index")
    op.drop_table("adapter_words")
