"""Identities of an issuer of OpenID Connect tokens, as keys without a secret; where jobs were asked for, in traces."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add who they are, and where from."""
    op.add_column("jobs", sa.Column("traceparent", sa.String(length=55), nullable=True))
    op.add_column("keys", sa.Column("issuer", sa.String(length=255), nullable=True))
    op.add_column("keys", sa.Column("subject", sa.String(length=255), nullable=True))


def downgrade() -> None:
    """Drop it, and revoke them: to a release before they are keys that never end, and the last admin among them.

    As of the moment when each was made, by which the catalogue knows those that may come back with their next token.
    """
    revoked = "UPDATE keys SET revoked_at = created_at WHERE issuer IS NOT NULL AND revoked_at IS NULL"
    op.execute(sa.text(revoked))
    op.drop_column("keys", "subject")
    op.drop_column("keys", "issuer")
    op.drop_column("jobs", "traceparent")
