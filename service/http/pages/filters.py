"""Filters of the templates: dates, durations, sizes, numbers and digests as people read them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from urllib.parse import quote

UNITS = ("bytes", "kB", "MB", "GB", "TB")
AGES = (("year", 31_557_600), ("month", 2_629_800), ("day", 86_400), ("hour", 3600), ("minute", 60))
"""Units of an age, with their seconds."""
MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)


def to_utc(value: datetime | str) -> datetime:
    """A date and time, or its ISO form as JSON has it, in UTC."""
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    return moment.astimezone(UTC)


def iso(value: datetime | str) -> str:
    """A date and time for programs: 2026-11-25T01:38:46Z."""
    return to_utc(value).strftime("%Y-%m-%dT%H:%M:%SZ")


def long_date(value: datetime | str) -> str:
    """A date and time for people, with an English month whatever the server's locale: 25 November 2026, 01:38 UTC."""
    moment = to_utc(value)
    return f"{moment.day} {MONTHS[moment.month - 1]} {moment.year}, {moment:%H:%M} UTC"


def elapsed(start: datetime | str, end: datetime | str) -> str:
    """The duration from `start` to `end`."""
    return duration((to_utc(end) - to_utc(start)).total_seconds())


def age(value: datetime | str) -> str:
    """The time since a moment, in the unit that fits: just now, 5 minutes ago, 1 day ago."""
    seconds = (datetime.now(UTC) - to_utc(value)).total_seconds()
    for name, size in AGES:
        count = int(seconds // size)
        if count > 0:
            return f"{count} {name}{'' if count == 1 else 's'} ago"
    return "just now"


def duration(seconds: float) -> str:
    """Seconds in the unit that fits: 0.4 s, 12 s, 3 min 20 s, 2 h 5 min."""
    if seconds < 10:
        return f"{max(seconds, 0):.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def file_size(size: int) -> str:
    """A number of bytes in the unit that fits: 812 bytes, 1.4 MB."""
    number, unit = float(size), 0
    while number >= 999.5 and unit < len(UNITS) - 1:
        number, unit = number / 1000, unit + 1
    return f"{size} bytes" if unit == 0 else f"{number:.{0 if number >= 100 else 1}f} {UNITS[unit]}"


def thousands(value: int) -> str:
    """A whole number with separated thousands: 1,327,104."""
    return f"{value:,}"


def short_digest(digest: str) -> str:
    """The first 12 hexadecimal digits of a digest."""
    return digest.removeprefix("sha256:")[:12]


def signed(value: float) -> str:
    """A difference to three places with its sign, a true minus sign included: −0.123, +0.004."""
    return f"{value:+.3f}".replace("-", "\N{MINUS SIGN}")


def rounded(value: float) -> str:
    """A number to about three significant digits: 0.344, 12.3, 1,234; an integer is not rounded."""
    if isinstance(value, int):
        return thousands(value)
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3f}" if abs(value) < 1 else f"{value:.2f}"


def percent(share: float) -> str:
    """A share of 1 as a percentage: 12.3 %."""
    return f"{100 * share:.1f} %"


def signed_percent(share: float) -> str:
    """A change as a percentage with its sign, a true minus sign included: −43.3 %, +0.4 %."""
    return f"{100 * share:+.1f} %".replace("-", "\N{MINUS SIGN}")


def json_text(text: str) -> str:
    """A text as a JSON string, which shows spaces and control characters: "\\n", " the"."""
    return json.dumps(text, ensure_ascii=False)


def pretty_json(value: object) -> str:
    """A JSON value, indented."""
    return json.dumps(value, indent=2, ensure_ascii=False)


def path_segment(text: str) -> str:
    """A text escaped as one segment of a path."""
    return quote(text, safe="@:")
