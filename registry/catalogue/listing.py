"""Pages of live adapters that match every filter, newest first, without their provenance.

Called by `adapters`. Every filter has an index that ends with the id, so that a page is read from the end of the
previous one. A search by words reads the index of words instead. The ids of a page are selected first, from indexes
alone, and rows are read for these only: few rows may match both of two filters that match many each.

A filter is a field of `rows.AdapterFilters`. Another order needs a stored column, an index that ends with the id, and a
cursor of two values (that of `repository.newest` is one id).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import TypeAdapter
from sqlalchemy import ColumnElement, FromClause, and_, exists, select

from registry.catalogue.repository import Repository, matching, newest, seen_by
from registry.catalogue.rows import AdapterFilters, AdapterRow, ListedRow, Namespaces, Page
from registry.catalogue.tables import LIVE, adapter_tags, adapters
from registry.catalogue.words import MARKED, WordIndex, mark, postgresql_index, searched, sqlite_index, words_of
from registry.errors import Incompatible, InvalidParameter
from registry.names import check_part, is_part
from registry.spec import AdapterConfig

CONFIG: TypeAdapter[AdapterConfig] = TypeAdapter(AdapterConfig)
HIDDEN = ("provenance",)
LISTED = [column for column in adapters.c if column.name not in HIDDEN]
NEWER = adapters.alias("newer")
MOST_TAGS = 8
Row = TypeVar("Row", ListedRow, AdapterRow)


class Listing(Repository[ListedRow]):
    """Pages of adapters."""

    values = TypeAdapter(ListedRow)

    def _row(self, row: Any) -> ListedRow:
        return adapter_of(self.values, row)

    def page(self, visible: Namespaces, filters: AdapterFilters, *, limit: int, cursor: str | None) -> Page[ListedRow]:
        """Live adapters of the visible namespaces that match every filter, newest first."""
        tags, words = _tags(filters), searched(filters.get("q"))
        source: FromClause = adapters
        conditions = [LIVE, *([] if visible is None else [seen_by(visible, adapters.c.namespace)]), *_equals(filters)]
        key: ColumnElement[int] = adapters.c.id
        if words or (tags and self._connection.dialect.name == "sqlite"):
            index = self._index(words, visible, filters, tags)
            source, key = index.table.join(source, index.id == adapters.c.id), index.id
            conditions.append(index.matches)
        for tag in tags:
            tagged = adapter_tags.alias()
            source = source.join(tagged, tagged.c.adapter_id == adapters.c.id)
            conditions.append(tagged.c.tag == tag)
        ids = select().select_from(source).where(*conditions)
        if len(conditions) == 1:  # without the hint SQLite reads the retired rows too
            ids = ids.with_hint(adapters, "INDEXED BY ix_adapters_live", "sqlite")
        if filters.get("newest"):
            ids = ids.where(~superseded())
        is_on_page = adapters.c.id.in_(newest(ids, key, limit=limit, cursor=cursor))
        query = select(*LISTED, adapters.c.id.label("page_key")).where(is_on_page)
        return self._page_of(query.order_by(adapters.c.id.desc()), limit=limit)

    def by_ids(self, visible: Namespaces, ids: Sequence[int]) -> dict[int, ListedRow]:
        """The visible live adapters of these ids, by id."""
        query = select(*LISTED).where(adapters.c.id.in_(ids), LIVE, seen_by(visible, adapters.c.namespace))
        return {row.id: row for row in self._all(query)}

    def _index(
        self, words: Sequence[str], visible: Namespaces, filters: AdapterFilters, tags: Sequence[str]
    ) -> WordIndex:
        """The index of words with its condition; on SQLite the condition includes every filter that has a mark.

        SQLite reads all matches of this index whatever other filters there are, so it has to be as narrow as possible.
        PostgreSQL has statistics, and chooses the index with fewer matches.
        """
        if self._connection.dialect.name != "sqlite":
            return postgresql_index(words)
        marks = [[mark("namespace", namespace) for namespace in visible]] if visible else []
        marks += [[mark("tag", tag)] for tag in tags]
        values = {name: str(filters.get(name) or "") for name in MARKED}
        marks += [[mark(name, value)] for name, value in values.items() if is_part(value)]
        name_words = words_of(f"{filters.get('name') or ''} {filters.get('domain') or ''}")
        return sqlite_index([*words, *name_words], marks)


def adapter_of(values: TypeAdapter[Row], row: Any) -> Row:
    """The value of a row of the table; raises Incompatible if a newer server wrote its config."""
    try:
        config = CONFIG.validate_python(row["config"])
    except ValueError as error:
        raise unreadable(row["namespace"], row["name"]) from error
    learnt_from = tuple((row["learnt_from"] or "").split())
    etag = f"{row['id']}-{row['revision']}"
    return values.validate_python({**row, "config": config, "learnt_from": learnt_from, "etag": etag})


def superseded(*conditions: ColumnElement[bool]) -> ColumnElement[bool]:
    """The condition that the name has a newer live version that meets `conditions` on NEWER."""
    return exists().where(
        NEWER.c.namespace == adapters.c.namespace,
        NEWER.c.name == adapters.c.name,
        NEWER.c.version > adapters.c.version,
        NEWER.c.retired_at.is_(None),
        *conditions,
    )


def has_learnt_from(sample_digest: str) -> ColumnElement[bool]:
    """The condition that a row has learnt from a sample; the few rows with any `learnt_from` have an index."""
    return and_(adapters.c.learnt_from.is_not(None), adapters.c.learnt_from.contains(sample_digest, autoescape=True))


def unreadable(namespace: str, name: str) -> Incompatible:
    """The error for a config that a newer server has written."""
    return Incompatible(f"{namespace}/{name} has a config this server cannot read.")


def _tags(filters: AdapterFilters) -> list[str]:
    """The distinct tags to filter by; raises InvalidName, or InvalidParameter for more than MOST_TAGS."""
    tags = [check_part(tag, "tag") for tag in dict.fromkeys(filters.get("tags", ()))]
    if len(tags) > MOST_TAGS:
        raise InvalidParameter(f"The list has {len(tags)} tags to filter by; the maximum is {MOST_TAGS}.", param="tag")
    return tags


def _equals(filters: AdapterFilters) -> list[ColumnElement[bool]]:
    """Conditions of the filters that compare one column; raises InvalidName for a name outside the grammar."""
    conditions = matching(
        adapters,
        base_model=filters.get("base_model"),
        method=filters.get("method"),
        domain=filters.get("domain"),
        owner=filters.get("owner"),
        kind=filters.get("kind"),
        namespace=filters.get("namespace"),
    )
    if (sample := filters.get("tuned_on")) is not None:
        conditions.append(has_learnt_from(sample))
    if (name := filters.get("name")) is not None:
        namespace, slash, bare_name = name.rpartition("/")
        conditions += matching(adapters, name=check_part(bare_name, "name"))
        conditions += matching(adapters, namespace=check_part(namespace, "name")) if slash else []
    return conditions
