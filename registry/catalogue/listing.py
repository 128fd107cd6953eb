"""Lists of adapters: pages of the live ones that match every filter, newest first, without what lists do not show.

Called by `adapters`. Every filter has an index that ends with the id, so that a page is read from where the last one
ended; where there are words to look for, the index of words is what is read. Which adapters are on a page is found
among ids, which the indexes have, and only then are rows read: few may match both of two filters that many match.
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
        conditions = [LIVE, *([] if visible is None else [seen_by(visible, adapters.c.namespace)]), *_equal(filters)]
        key: ColumnElement[int] = adapters.c.id
        if words or (tags and self._connection.dialect.name == "sqlite"):
            index = self._index(words, visible, filters, tags)
            source, key = index.table.join(source, index.id == adapters.c.id), index.id
            conditions.append(index.found)
        for tag in tags:
            tagged = adapter_tags.alias()
            source = source.join(tagged, tagged.c.adapter_id == adapters.c.id)
            conditions.append(tagged.c.tag == tag)
        ids = select().select_from(source).where(*conditions)
        if len(conditions) == 1:  # SQLite would read the retired as well
            ids = ids.with_hint(adapters, "INDEXED BY ix_adapters_live", "sqlite")
        if filters.get("newest"):
            ids = ids.where(~superseded())
        shown = adapters.c.id.in_(newest(ids, key, limit=limit, cursor=cursor))
        query = select(*LISTED, adapters.c.id.label("page_key")).where(shown)
        return self._page_of(query.order_by(adapters.c.id.desc()), limit=limit)

    def of(self, visible: Namespaces, ids: Sequence[int]) -> dict[int, ListedRow]:
        """The visible live adapters of these ids, by id."""
        seen = (LIVE, seen_by(visible, adapters.c.namespace))
        return {row.id: row for row in self._all(select(*LISTED).where(adapters.c.id.in_(ids), *seen))}

    def _index(
        self, words: Sequence[str], visible: Namespaces, filters: AdapterFilters, tags: Sequence[str]
    ) -> WordIndex:
        """The index of words, asked for these; on SQLite for all else that it knows of what is asked for as well.

        Whatever it leads to there is read to the end of the page: nothing else says how much that would be.
        PostgreSQL counts, and takes the index that leads to fewer rows.
        """
        if self._connection.dialect.name != "sqlite":
            return postgresql_index(words)
        marks = [[mark("namespace", one) for one in visible]] if visible else []
        marks += [[mark("tag", tag)] for tag in tags]
        given = {name: str(filters.get(name) or "") for name in MARKED}
        marks += [[mark(name, value)] for name, value in given.items() if is_part(value)]
        named = words_of(f"{filters.get('name') or ''} {filters.get('domain') or ''}")
        return sqlite_index([*words, *named], marks)


def adapter_of(values: TypeAdapter[Row], row: Any) -> Row:
    """A row of the table as a value; raises Incompatible where its config is of a later version."""
    try:
        config = CONFIG.validate_python(row["config"])
    except ValueError as error:
        raise unreadable(row["namespace"], row["name"]) from error
    learnt = tuple((row["learnt_from"] or "").split())
    known = {"config": config, "learnt_from": learnt, "etag": f"{row['id']}-{row['revision']}"}
    return values.validate_python({**row, **known})


def superseded(*also: ColumnElement[bool]) -> ColumnElement[bool]:
    """Whether a name has a newer live version for which all else holds that is said of NEWER."""
    return exists().where(
        NEWER.c.namespace == adapters.c.namespace,
        NEWER.c.name == adapters.c.name,
        NEWER.c.version > adapters.c.version,
        NEWER.c.retired_at.is_(None),
        *also,
    )


def has_learnt_from(sample_digest: str) -> ColumnElement[bool]:
    """Whether a row has learnt from a sample; few have from any, and those are in an index."""
    return and_(adapters.c.learnt_from.is_not(None), adapters.c.learnt_from.contains(sample_digest, autoescape=True))


def unreadable(namespace: str, name: str) -> Incompatible:
    """The error for a config that a newer server has written."""
    return Incompatible(f"{namespace}/{name} has a config this server cannot read.")


def _tags(filters: AdapterFilters) -> list[str]:
    """The tags that are asked for, each once; raises InvalidName, InvalidParameter for more than a query is made of."""
    tags = [check_part(tag, "tag") for tag in dict.fromkeys(filters.get("tags", ()))]
    if len(tags) > MOST_TAGS:
        raise InvalidParameter(f"{len(tags)} tags were given; a list is filtered by at most {MOST_TAGS}.", param="tag")
    return tags


def _equal(filters: AdapterFilters) -> list[ColumnElement[bool]]:
    """The filters that columns are equal to; raises InvalidName for a name that nothing can have."""
    found = matching(
        adapters, base_model=filters.get("base_model"), method=filters.get("method"), domain=filters.get("domain"),
        owner=filters.get("owner"), kind=filters.get("kind"), namespace=filters.get("namespace"),
    )  # fmt: skip
    if (sample := filters.get("tuned_on")) is not None:
        found.append(has_learnt_from(sample))
    if (name := filters.get("name")) is not None:
        namespace, slash, bare = name.rpartition("/")
        found += matching(adapters, name=check_part(bare, "name"))
        found += matching(adapters, namespace=check_part(namespace, "name")) if slash else []
    return found
