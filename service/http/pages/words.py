"""Values as people read them: moments, sizes, numbers, digests. Filters of the templates."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

UNITS = ("bytes", "kB", "MB", "GB", "TB")
MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)


def moment(value: datetime | str) -> datetime:
    """A moment of UTC, which JSON has as text."""
    found = datetime.fromisoformat(value) if isinstance(value, str) else value
    return found.astimezone(UTC)


def iso(value: datetime | str) -> str:
    """A moment for programs: 2026-11-25T01:38:46Z."""
    return moment(value).strftime("%Y-%m-%dT%H:%M:%SZ")


def in_words(value: datetime | str) -> str:
    """A moment for people: 25 November 2026, 01:38 UTC. Months are English wherever the server stands."""
    found = moment(value)
    return f"{found.day} {MONTHS[found.month - 1]} {found.year}, {found:%H:%M} UTC"


def lasted(begin: datetime | str, end: datetime | str) -> str:
    """How long it was from one moment to the other."""
    return seconds((moment(end) - moment(begin)).total_seconds())


def seconds(value: float) -> str:
    """So many seconds: 0.4 s, 12 s, 3 min 20 s, 2 h 5 min."""
    if value < 10:
        return f"{max(value, 0):.1f} s"
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    span = timedelta(seconds=whole)
    hours, rest = divmod(int(span.total_seconds()), 3600)
    minutes, left = divmod(rest, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {left} s"


def size(value: int) -> str:
    """So many bytes: 812 bytes, 1.4 MB."""
    number, unit = float(value), 0
    while number >= 999.5 and unit < len(UNITS) - 1:
        number, unit = number / 1000, unit + 1
    return f"{value} bytes" if unit == 0 else f"{number:.{0 if number >= 100 else 1}f} {UNITS[unit]}"


def count(value: int) -> str:
    """A number with its thousands apart: 1,327,104."""
    return f"{value:,}"


def short(digest: str) -> str:
    """The beginning of a digest, by which people tell one from another."""
    return digest.removeprefix("sha256:")[:12]


def signed(value: float) -> str:
    """A difference with its sign, and a minus that is one: −0.123, +0.004."""
    return f"{value:+.3f}".replace("-", "\N{MINUS SIGN}")


def figure(value: float) -> str:
    """A number with as many places as say something: 0.344, 12.3, 1,234; a whole one is as it is."""
    if isinstance(value, int):
        return count(value)
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3f}" if abs(value) < 1 else f"{value:.2f}"


def percent(value: float) -> str:
    """A share: 12.3 %."""
    return f"{100 * value:.1f} %"


def quoted(text: str) -> str:
    """A text between quotes, with what cannot be seen of it as JSON writes it: "\\n", " the"."""
    return json.dumps(text, ensure_ascii=False)
