"""Sessions of browsers that signed in with a key, by the hash of the session token."""

from __future__ import annotations

from datetime import datetime

from pydantic import TypeAdapter
from sqlalchemy import select

from registry.catalogue.repository import Repository, now
from registry.catalogue.rows import SessionRow
from registry.catalogue.tables import sessions


class Sessions(Repository[SessionRow]):
    """Session rows; expired sessions are not found."""

    values = TypeAdapter(SessionRow)

    def add(self, token_sha256: str, *, secret_sha256: str, key_id: str, expires_at: datetime, most: int) -> None:
        """Store a session; deletes expired sessions, and the oldest of the key so that it has at most `most`."""
        self._delete(sessions, sessions.c.expires_at <= now())
        newest_first = (
            select(sessions.c.token_sha256)
            .where(sessions.c.key_id == key_id)
            .order_by(sessions.c.created_at.desc(), sessions.c.token_sha256)
        )
        excess = list(self._connection.scalars(newest_first.offset(most - 1)))
        self._delete(sessions, sessions.c.token_sha256.in_(excess))
        self._insert(
            sessions,
            token_sha256=token_sha256,
            secret_sha256=secret_sha256,
            key_id=key_id,
            created_at=now(),
            expires_at=expires_at,
        )

    def find(self, token_sha256: str) -> SessionRow | None:
        """The session with this token's hash, None if there is none or it has expired."""
        query = select(sessions).where(sessions.c.token_sha256 == token_sha256, sessions.c.expires_at > now())
        return self._first(query)

    def remove(self, token_sha256: str) -> None:
        """Delete a session, if it exists."""
        self._delete(sessions, sessions.c.token_sha256 == token_sha256)

    def remove_all(self) -> None:
        """Delete all sessions."""
        self._delete(sessions)
