"""The mark that ties a database to its blob store: one row, none before the first start."""

from __future__ import annotations

from sqlalchemy import Connection, insert, select, update

from registry.catalogue.tables import stores
from registry.spec import StoreMark


class Stores:
    """The row of the store's mark."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def mark(self) -> StoreMark | None:
        """The mark of this database, None before the first start."""
        row = self._connection.execute(select(stores.c.store, stores.c.generation)).first()
        return None if row is None else StoreMark(store=row.store, generation=row.generation)

    def advance(self, store: str, *, after: int) -> StoreMark:
        """Store and return a mark whose generation is later than the present one and `after`; `store` if it is new.

        Called in a write transaction, so that servers that start together see each other's mark.
        """
        present = self.mark()
        if present is None:
            mark = StoreMark(store=store, generation=after + 1)
            self._connection.execute(insert(stores).values(id=1, **mark.model_dump()))
            return mark
        mark = StoreMark(store=present.store, generation=max(present.generation, after) + 1)
        self._connection.execute(update(stores).values(generation=mark.generation))
        return mark
