"""Sessions of browsers that signed in with a key, by the hash of what each of them holds."""

from __future__ import annotations

from datetime import datetime

from pydantic import TypeAdapter
from sqlalchemy import delete, select

from registry.catalogue.repository import Repository, now
from registry.catalogue.rows import SessionRow
from registry.catalogue.tables import sessions


class Sessions(Repository[SessionRow]):
    """Session rows. One that has expired is as good as none to whoever asks for it."""

    values = TypeAdapter(SessionRow)

    def add(self, token_sha256: str, *, secret_sha256: str, key_id: str, expires_at: datetime, most: int) -> None:
        """Store a session; what has expired goes, and of the key's own all but the newest `most`, this one included."""
        self._connection.execute(delete(sessions).where(sessions.c.expires_at <= now()))
        mine = select(sessions.c.token_sha256).where(sessions.c.key_id == key_id)
        newest_first = mine.order_by(sessions.c.created_at.desc(), sessions.c.token_sha256)
        beyond = list(self._connection.scalars(newest_first.offset(most - 1)))
        self._connection.execute(delete(sessions).where(sessions.c.token_sha256.in_(beyond)))
        self._insert(
            sessions,
            token_sha256=token_sha256,
            secret_sha256=secret_sha256,
            key_id=key_id,
            created_at=now(),
            expires_at=expires_at,
        )

    def find(self, token_sha256: str) -> SessionRow | None:
        """The session of what a browser holds."""
        alive = (sessions.c.token_sha256 == token_sha256, sessions.c.expires_at > now())
        return self._first(select(sessions).where(*alive))

    def remove(self, token_sha256: str) -> None:
        """End a session; one that is not there is at its end already."""
        self._connection.execute(delete(sessions).where(sessions.c.token_sha256 == token_sha256))

    def remove_all(self) -> None:
        """End every session."""
        self._connection.execute(delete(sessions))
