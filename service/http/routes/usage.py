"""`GET /v1/usage`: requests and tokens by day, key, namespace and model, as JSON or as CSV."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import date
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Response
from fastapi.responses import StreamingResponse

from registry.catalogue.usage import GROUPS, UsageFilter
from service.http.answers.usage import header_line, usage_lines
from service.http.app_parts import AppParts
from service.http.auth import needs
from service.http.bodies import CheckedRoute
from service.http.paging import Cursor, Limit, page_size
from service.http.schemas.usage import Group, UsageEntry, UsageList, UsageTotal
from service.keys import Principal
from service.parts import Parts

router = APIRouter(prefix="/v1/usage", tags=["keys"], route_class=CheckedRoute)
Anyone = Annotated[Principal, Depends(needs("read", "write", "infer", "admin"))]
"""Every key may know what it has used."""

Word = Annotated[str | None, Query(max_length=200)]
_CSV: dict[int | str, dict[str, Any]] = {200: {"content": {"text/csv": {"schema": {"type": "string"}}}}}


@router.get("", response_model=UsageList, responses=_CSV)
def get_usage(
    parts: AppParts,
    who: Anyone,
    since: Annotated[date | None, Query(description="Only from this day on (UTC).")] = None,
    until: Annotated[date | None, Query(description="Only before this day (UTC).")] = None,
    key_id: Word = None,
    namespace: Word = None,
    model: Word = None,
    by: Annotated[list[Group] | None, Query(max_length=8, description="What sums are told apart by; all four.")] = None,
    format: Annotated[Literal["json", "csv"], Query(description="`csv` is all of it, as a file.")] = "json",
    limit: Limit = None,
    cursor: Cursor = None,
) -> Response | UsageList:
    """What this key has used; with scope admin, what was used in its namespaces. All-seeing admins see everything.

    Days are UTC. What the running server has counted is in it; other servers on the database write theirs every few
    seconds.
    """
    parts.usage.write()
    which = UsageFilter(
        who.key_id, who.namespaces if who.has("admin") else (), since=since, until=until,
        wanted={"key_id": key_id, "namespace": namespace, "model": model},
    )  # fmt: skip
    groups = tuple(by or GROUPS)
    if format == "csv":
        headers = {"content-disposition": 'attachment; filename="usage.csv"'}
        return StreamingResponse(_csv(parts, which, groups), media_type="text/csv", headers=headers)
    with parts.registry.database.read() as catalogue:
        page = catalogue.usage.list(which, by=groups, limit=page_size(limit, parts), cursor=cursor)
        total = catalogue.usage.total(which)
    return UsageList(
        data=[UsageEntry(**asdict(row)) for row in page.rows],
        total=UsageTotal(**asdict(total)),
        next_cursor=page.next_cursor,
    )


def _csv(parts: Parts, which: UsageFilter, by: tuple[str, ...]) -> Iterator[str]:
    """The lines of all pages, each read by itself."""
    yield header_line(by)
    cursor: str | None = None
    while True:
        with parts.registry.database.read() as catalogue:
            page = catalogue.usage.list(which, by=by, limit=parts.settings.max_page_size, cursor=cursor)
        yield usage_lines(page.rows, by)
        cursor = page.next_cursor
        if cursor is None:
            return
