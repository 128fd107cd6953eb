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
        """The mark of `store` in the next generation, after the one that is there and after `beyond`."""
        found = self.mark()
        after = beyond if found is None else max(found.generation, beyond)
        mark = StoreMark(store=store, generation=after + 1)
        if found is None:
            self._connection.execute(insert(stores).values(id=1, **mark.model_dump()))
        else:
            self._connection.execute(update(stores).values(**mark.model_dump()))
        return mark
