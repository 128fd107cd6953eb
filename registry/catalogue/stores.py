"""The mark of the store that a database is part of: one row, or none before the first start."""

from __future__ import annotations

from sqlalchemy import Connection, insert, select, update

from registry.catalogue.tables import stores
from registry.spec import StoreMark


class Stores:
    """The row of the mark."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def mark(self) -> StoreMark | None:
        """What this database says."""
        row = self._connection.execute(select(stores.c.store, stores.c.generation)).first()
        return None if row is None else StoreMark(store=row.store, generation=row.generation)

    def advance(self, store: str, *, beyond: int) -> StoreMark:
        """The mark of the next generation, after the one that is there and `beyond`; of `store` if it is the first.

        In the turn to write, so that of servers that start together each sees what the other made.
        """
        found = self.mark()
        if found is None:
            mark = StoreMark(store=store, generation=beyond + 1)
            self._connection.execute(insert(stores).values(id=1, **mark.model_dump()))
            return mark
        mark = StoreMark(store=found.store, generation=max(found.generation, beyond) + 1)
        self._connection.execute(update(stores).values(generation=mark.generation))
        return mark
