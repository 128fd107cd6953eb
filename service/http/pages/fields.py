"""Fields of the queries that pages take: what a form leaves empty is not asked for, days are as browsers send them."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Annotated

from fastapi import Query

from registry.errors import InvalidParameter

Text = Annotated[str | None, Query(max_length=500)]


def given(text: str | None) -> str | None:
    """What stands in a field; None where that is nothing."""
    return (text or "").strip() or None


def day(text: str | None, name: str) -> date | None:
    """The day in a field; raises InvalidParameter."""
    found = given(text)
    if found is None:
        return None
    try:
        return date.fromisoformat(found)
    except ValueError:
        raise InvalidParameter(f"'{name}' is a day as YYYY-MM-DD, such as 2026-01-31.", param=name) from None


def begin_of(text: str | None, name: str) -> datetime | None:
    """The moment at which the day in a field begins, of UTC; raises InvalidParameter."""
    found = day(text, name)
    return None if found is None else datetime(found.year, found.month, found.day, tzinfo=UTC)
