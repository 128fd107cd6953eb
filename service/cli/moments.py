"""Moments as people type them: dates, and dates with a time; UTC unless they say otherwise."""

from __future__ import annotations

from datetime import UTC, datetime

import typer


def moment(text: str) -> datetime:
    """The moment of an ISO date, with a time or without; raises BadParameter."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"'{text}' is no date (2030-01-31, 2030-01-31T12:00:00Z).") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
