"""The samples that an adapter has learnt from, through what it is mixed of as well."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

INDEX = "ix_adapters_learnt_from"


def upgrade() -> None:
    """Add the column and its index, and fill it: a tuned soup has its sample, a mixture those of its ingredients."""
    op.add_column("adapters", sa.Column("learnt_from", sa.Text(), nullable=True))
    _fill()
    there = sa.text("learnt_from IS NOT NULL")
    op.create_index(INDEX, "adapters", ["id"], unique=False, sqlite_where=there, postgresql_where=there)


def _fill() -> None:
    """Down the generations, until no mixture learns of a sample any more."""
    connection = op.get_bind()
    rows = connection.execute(sa.text("SELECT id, digest, recipe_digest, tuned_on FROM adapters")).all()
    edges = connection.execute(sa.text("SELECT recipe_digest, adapter_digest FROM recipe_ingredients")).all()
    learnt = {row.id: {row.tuned_on} - {None} for row in rows}
    ingredients: dict[str, set[str]] = {}
    for recipe, digest in edges:
        ingredients.setdefault(recipe, set()).add(digest)
    changed = any(learnt.values())
    while changed:
        changed = False
        by_digest: dict[str, set[str]] = {}
        for row in rows:
            by_digest.setdefault(row.digest, set()).update(learnt[row.id])
        for row in rows:
            of_parents = (by_digest.get(digest, set()) for digest in ingredients.get(row.recipe_digest, ()))
            found = learnt[row.id].union(*of_parents)
            changed |= found != learnt[row.id]
            learnt[row.id] = found
    update = sa.text("UPDATE adapters SET learnt_from = :learnt WHERE id = :id")
    for id, samples in learnt.items():
        if samples:
            connection.execute(update, {"id": id, "learnt": " ".join(sorted(samples))})


def downgrade() -> None:
    """Drop both. The column goes by itself: a copy of the table would lose its checks on SQLite."""
    op.drop_index(INDEX, table_name="adapters")
    op.drop_column("adapters", "learnt_from")
