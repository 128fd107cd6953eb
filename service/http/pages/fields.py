"""Query parameters and form fields of the pages: an empty field counts as absent, dates are YYYY-MM-DD."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Annotated

from fastapi import Query

from registry.errors import InvalidParameter

Text = Annotated[str | None, Query(max_length=500)]


def text_or_none(field: str | None) -> str | None:
    """The stripped text of a field, None if it is blank."""
    return (field or "").strip() or None


def parse_date(field: str | None, name: str) -> date | None:
    """The date in the field `name`, None if it is blank; raises InvalidParameter."""
    text = text_or_none(field)
    if text is None:
        return None
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise InvalidParameter(f"'{name}' is a day as YYYY-MM-DD, such as 2026-01-31.", param=name) from None


def parse_midnight(field: str | None, name: str) -> datetime | None:
    """The start, in UTC, of the date in the field `name`, None if it is blank; raises InvalidParameter."""
    day = parse_date(field, name)
    return None if day is None else datetime(day.year, day.month, day.day, tzinfo=UTC)
