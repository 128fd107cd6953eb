"""Lists of adapters: pages of the live ones that match every filter, newest first, without what lists do not show.

Called by `adapters`. Every filter has an index that ends with the id, so that a page is read from where the last one
ended; where there are words to look for, the index of words is what is read.
"""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import TypeAdapter
from sqlalchemy import ColumnElement, FromClause, select

from registry.catalogue.repository import Repository, matching, seen_by
from registry.catalogue.rows import AdapterFilters, AdapterRow, ListedRow, Namespaces, Page
from registry.catalogue.tables import LIVE, adapter_tags, adapters
from registry.catalogue.words import index_of, searched
from registry.errors import Incompatible, InvalidParameter
from registry.names import check_part
from registry.spec import AdapterConfig

CONFIG: TypeAdapter[AdapterConfig] = TypeAdapter(AdapterConfig)
HIDDEN = ("provenance",)
LISTED = [column for column in adapters.c if column.name not in HIDDEN]
MOST_TAGS = 8
Row = TypeVar("Row", ListedRow, AdapterRow)


class Listing(Repository[ListedRow]):
    """Pages of adapters."""

    values = TypeAdapter(ListedRow)

    def _row(self, row: Any) -> ListedRow:
        return adapter_of(self.values, row)

    def page(self, visible: Namespaces, filters: AdapterFilters, *, limit: int, cursor: str | None) -> Page[ListedRow]:
        """Live adapters of the visible namespaces that match every filter, newest first."""
        source: FromClause = adapters
        conditions = [LIVE, seen_by(visible, adapters.c.namespace), *_equal(filters)]
        key: ColumnElement[int] = adapters.c.id
        if q := filters.get("q"):
            index = index_of(self._connection.dialect.name, searched(q), visible)
            source, key = index.table.join(source, index.id == adapters.c.id), index.id
            conditions.append(index.has_words)
        for tag in _tags(filters):
            tagged = adapter_tags.alias()
            source = source.join(tagged, tagged.c.adapter_id == adapters.c.id)
            conditions.append(tagged.c.tag == tag)
        return self._page(select(*LISTED).select_from(source).where(*conditions), key, limit=limit, cursor=cursor)


def adapter_of(values: TypeAdapter[Row], row: Any) -> Row:
    """A row of the table as a value; raises Incompatible where its config is of a later version."""
    try:
        config = CONFIG.validate_python(row["config"])
    except ValueError as error:
        raise unreadable(row["namespace"], row["name"]) from error
    return values.validate_python({**row, "config": config, "etag": f"{row['id']}-{row['revision']}"})


def unreadable(namespace: str, name: str) -> Incompatible:
    """The error for a config that a newer server has written."""
    return Incompatible(f"{namespace}/{name} has a config this server cannot read.")


def _tags(filters: AdapterFilters) -> list[str]:
    """The tags that are asked for, each once; raises InvalidParameter for more than a query is made of."""
    tags = list(dict.fromkeys(filters.get("tags", ())))
    if len(tags) > MOST_TAGS:
        raise InvalidParameter(f"{len(tags)} tags were given; a list is filtered by at most {MOST_TAGS}.", param="tag")
    return tags


def _equal(filters: AdapterFilters) -> list[ColumnElement[bool]]:
    """The filters that columns are equal to; raises InvalidName for a name that nothing can have."""
    wanted = {
        column: filters.get(column) for column in ("base_model", "method", "domain", "kind", "namespace", "tuned_on")
    }
    found = matching(adapters, **wanted)
    if (name := filters.get("name")) is not None:
        namespace, slash, bare = name.rpartition("/")
        found += matching(adapters, name=check_part(bare, "name"))
        found += matching(adapters, namespace=check_part(namespace, "name")) if slash else []
    return found
