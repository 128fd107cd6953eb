"""The mark that ties a database to its blob store: one row, none before the first start."""

from __future__ import annotations

from sqlalchemy import select

from registry.catalogue.repository import TableGateway
from registry.catalogue.tables import stores
from registry.spec import StoreMark


class Stores(TableGateway):
    """The row of the store's mark."""

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
            self._insert(stores, id=1, **mark.model_dump())
            return mark
        mark = StoreMark(store=present.store, generation=max(present.generation, after) + 1)
        self._update(stores, generation=mark.generation)
        return mark
