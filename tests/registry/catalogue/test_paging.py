"""Laws of lists: whatever the filters and the page size, paging visits each row once; cursors are ours alone."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.catalogue.rows import AdapterRow, ListedRow, Page, SelectorRow
from registry.errors import InvalidParameter
from registry.names import sha256_digest
from registry.spec import UniformSpec
from tests.registry.catalogue_rows import add, member_of, pool_of, undone

ON_DATABASES = ("sqlite",)  # `test_adapters`, `test_search` and `test_use_limits` ask one of each kind for pages
NAMESPACES = ("acme", "other")
scopes = st.sampled_from([None, (), ("acme",), ("other",), NAMESPACES])
page_sizes = st.integers(1, 7)
adapters = st.lists(
    st.fixed_dictionaries(
        {
            "name": st.sampled_from(["acme/a", "acme/b", "other/a"]),
            "kind": st.sampled_from(["adapter", "soup"]),
            "domain": st.sampled_from(["law", "Law", "food"]),
            "tags": st.sampled_from([(), ("x",), ("x", "y")]),
            "description": st.sampled_from(["", "50%", "lawyer", "a_b"]),
            "retired": st.booleans(),
        }
    ),
    max_size=14,
)
filters = st.fixed_dictionaries(
    {},
    optional={
        "kind": st.sampled_from(["adapter", "soup"]),
        "domain": st.sampled_from(["law", "food", "none"]),
        "name": st.sampled_from(["a", "acme/a", "other/b"]),
        "namespace": st.sampled_from(NAMESPACES),
        "tags": st.sampled_from([(), ("x",), ("y", "x"), ("z",)]),
        "q": st.sampled_from(["LAW", "la", "b", "50%", "y lawyer", "aw"]),
        "method": st.sampled_from(["bottleneck", "lora"]),
        "base_model": st.sampled_from(["tiny", "big"]),
        "newest": st.booleans(),
    },
)


def pages(read: Callable[..., Page[Any]], size: int) -> Iterator[Page[Any]]:
    cursor = None
    while True:
        page = read(limit=size, cursor=cursor)
        yield page
        cursor = page.next_cursor
        if cursor is None:
            return


def all_rows(read: Callable[..., Page[Any]], size: int) -> list[Any]:
    """Every row, page by page; only the last page may be short, and none is empty unless there is nothing."""
    visited = list(pages(read, size))
    assert all(len(page.rows) == size for page in visited[:-1])
    assert len(visited) == 1 or visited[-1].rows
    return [row for page in visited for row in page.rows]


def matches(row: AdapterRow, scope: tuple[str, ...] | None, conditions: dict[str, Any]) -> bool:
    """The filters once more, in plain Python."""
    text = " ".join((row.namespace, row.name, row.domain, *row.card.tags, row.card.description)).lower()
    words = re.findall("[a-z0-9]+", text)
    return (
        row.retired_at is None
        and (scope is None or row.namespace in scope)
        and conditions.get("kind", row.kind) == row.kind
        and conditions.get("domain", row.domain) == row.domain
        and conditions.get("namespace", row.namespace) == row.namespace
        and conditions.get("name", row.name) in (row.name, f"{row.namespace}/{row.name}")
        and conditions.get("base_model", "tiny") == "tiny"
        and conditions.get("method", "bottleneck") == "bottleneck"
        and set(conditions.get("tags", ())) <= set(row.card.tags)
        and all(
            any(word.startswith(prefix) for word in words)
            for prefix in conditions.get("q", "").lower().strip("%").split()
        )
    )


def as_listed(row: AdapterRow) -> ListedRow:
    return ListedRow(**{field.name: getattr(row, field.name) for field in fields(ListedRow)})


@given(pushes=adapters, scope=scopes, conditions=filters, size=page_sizes)
def test_adapters_are_visited_once_newest_first(empty_database, pushes, scope, conditions, size):
    with undone(empty_database) as catalogue:
        rows = []
        for fields in pushes:
            retired = fields.pop("retired")
            row = add(catalogue, digest=str(len(rows)), **fields)
            rows.append(catalogue.adapters.retire(row.id) if retired else row)
        newest = {row.ref.partition("@")[0]: row for row in rows if row.retired_at is None}
        candidates = [row for row in reversed(rows) if not conditions.get("newest") or row in newest.values()]
        expected = [as_listed(row) for row in candidates if matches(row, scope, conditions)]
        assert all_rows(lambda **page: catalogue.adapters.list(scope, **conditions, **page), size) == expected


@given(initial_count=st.integers(1, 12), size=page_sizes, data=st.data())
def test_rows_that_come_and_go_between_pages_shift_nothing(empty_database, initial_count, size, data):
    """Rows that were there all the time are seen exactly once; later ones are not seen; nothing is seen twice."""
    with undone(empty_database) as catalogue:
        there = {add(catalogue, digest=str(number)).id for number in range(initial_count)}
        gone: set[int] = set()
        ids: list[int] = []
        for page in pages(lambda **where: catalogue.adapters.list(None, **where), size):
            ids += [row.id for row in page.rows]
            if data.draw(st.booleans()):
                add(catalogue)
            if data.draw(st.booleans()):
                gone.add(data.draw(st.sampled_from(sorted(there))))
                catalogue.adapters.retire(max(gone))
        assert len(ids) == len(set(ids))
        assert there - gone <= set(ids) <= there


@given(namespaces=st.lists(st.sampled_from(["acme", "other", "third"]), max_size=12), scope=scopes, size=page_sizes)
def test_jobs_and_audit_entries_are_visited_once(empty_database, namespaces, scope, size):
    with undone(empty_database) as catalogue:
        for number, namespace in enumerate(namespaces):
            catalogue.jobs.enqueue("embed", {"number": number}, namespace=namespace, created_by="key-1")
            subject = f"{namespace}/name" if number % 3 else "key-1"
            catalogue.audit.record("push", subject, key_id=None, request_id=None, detail={"number": number})
        visible = [n for n, namespace in enumerate(namespaces) if scope is None or namespace in scope][::-1]
        jobs = all_rows(lambda **page: catalogue.jobs.list(scope, **page), size)
        assert [row.arguments["number"] for row in jobs] == visible
        entries = all_rows(lambda **page: catalogue.audit.list(scope, **page), size)
        assert [row.detail["number"] for row in entries] == [n for n in visible if scope is None or n % 3]


@given(pools=st.lists(scopes, max_size=12), scope=scopes, size=page_sizes)
def test_selectors_are_visited_once_and_only_with_their_whole_pool(empty_database, pools, scope, size):
    with undone(empty_database) as catalogue:
        member = member_of(add(catalogue))
        blob = sha256_digest(b"weights of acme/law")
        for number, namespaces in enumerate(pools):
            pool = pool_of().model_copy(update={"namespaces": namespaces})
            row = SelectorRow(
                id=f"sel-{number}",
                pool_id=sha256_digest(str(namespaces).encode()),
                pool=pool,
                spec=UniformSpec(),
                spec_digest=sha256_digest(b"u"),
                encoder_digest=None,
                state_blob=blob,
                members=(member,),
                report={},
                fitted_at=datetime.now(UTC),
            )
            catalogue.selectors.add(row)
        visible = [
            f"sel-{number}"
            for number, pool in enumerate(pools)
            if scope is None or (pool is not None and set(pool) <= set(scope))
        ]
        listed = all_rows(lambda **page: catalogue.selectors.list(scope, **page), size)
        assert [row.id for row in listed] == visible[::-1]


def cursor_of(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode()


WRONG_CURSORS = (
    "",
    "1",
    "no cursor",
    "ä",
    "=",
    "A",
    "after:1",
    "\0",
    cursor_of(""),
    cursor_of("after:"),
    cursor_of("after:-1"),
    cursor_of("after:1.5"),
    cursor_of("after:١"),
    cursor_of("after:1 OR 1=1"),
    cursor_of("before:1"),
    cursor_of("after:" + "9" * 19),
    cursor_of("after:" + "9" * 5000),
    "A" * 100_000,
)


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        *(({"limit": 1, "cursor": cursor}, "cursor") for cursor in WRONG_CURSORS),
        *(({"limit": limit}, "at least one row") for limit in (0, -1)),
    ],
)
def test_a_cursor_that_is_not_ours_and_a_page_without_rows_are_refused(catalogue, page, sentence):
    for table in (catalogue.adapters, catalogue.jobs, catalogue.audit, catalogue.selectors):
        with pytest.raises(InvalidParameter, match=sentence):
            table.list(None, **page)


def test_a_cursor_beyond_everything_is_an_empty_or_a_full_page(catalogue):
    add(catalogue)
    for cursor, count in ((cursor_of("after:0"), 0), (cursor_of("after:" + "9" * 18), 1)):
        page = catalogue.adapters.list(None, limit=10, cursor=cursor)
        assert (len(page.rows), page.next_cursor) == (count, None)


@given(
    key_namespaces=st.lists(st.sampled_from([None, ("acme",), ("other",), ("acme", "other"), ()]), max_size=12),
    scope=scopes,
    size=page_sizes,
    moments=st.integers(1, 3),
)
def test_keys_that_one_may_manage_are_visited_once_oldest_first(empty_database, key_namespaces, scope, size, moments):
    """Also where several were made at one moment, and where those in between are not one's own."""

    def manages(namespaces: tuple[str, ...] | None) -> bool:
        return scope is None or (namespaces is not None and set(namespaces) <= set(scope))

    with undone(empty_database) as catalogue, pytest.MonkeyPatch.context() as monkey:
        monkey.setattr("registry.catalogue.keys.BATCH", 2)
        for number, namespaces in enumerate(key_namespaces):
            at = datetime(2030, 1, 1, 0, 0, number % moments, tzinfo=UTC)
            monkey.setattr("registry.catalogue.keys.now", lambda at=at: at)
            catalogue.keys.add("k", str(number), namespaces=namespaces, scopes={"read"}, prefix="sk")
        expected = [row for row in catalogue.keys.list() if manages(row.namespaces)]
        assert [row.id for row in expected] == [
            row.id for row in sorted(expected, key=lambda row: (row.created_at, row.id))
        ]
        assert all_rows(lambda **page: catalogue.keys.page(manages, **page), size) == expected


@pytest.mark.parametrize("last", ["key-unknown", "", "\0", "x" * 400, "1"])
def test_a_cursor_that_names_no_key_is_refused(catalogue, last):
    with pytest.raises(InvalidParameter, match="cursor is not valid"):
        catalogue.keys.page(lambda _: True, limit=1, cursor=cursor_of(f"after:{last}"))
