"""What the tasks have in common when they read their data: fields of JSON lines, and too little of it.

Called by the tasks.
"""

from __future__ import annotations

from typing import Any

from registry.errors import InvalidParameter

SHOWN = 20
"""Problems that are listed."""


def fields_of(value: object, where: str, line: int, *, needs: str) -> dict[str, Any]:
    """The JSON object of a line; raises InvalidParameter saying what it `needs`."""
    if not isinstance(value, dict):
        raise wrong_line(where, line, f"is no JSON object: it needs {needs}")
    return value


def string(value: dict[str, Any], name: str, where: str, line: int, *, needs: str, empty: bool = False) -> str:
    """A field that is text, and not blank unless `empty`; raises InvalidParameter with the line."""
    found = value.get(name)
    if not isinstance(found, str) or not (empty or found.strip()):
        raise wrong_line(where, line, f'has no string "{name}": it needs {needs}')
    try:
        found.encode()
    except UnicodeEncodeError:
        raise wrong_line(where, line, f'has a "{name}" that is not valid Unicode') from None
    return found


def wrong_line(where: str, line: int, said: str) -> InvalidParameter:
    """What to raise for a line of data."""
    return InvalidParameter(f"{where}, line {line}, {said}.", param="texts")


def place(line: int, index: int) -> str:
    """Where an item is: its line, or its number where it came from no file."""
    return f"line {line}" if line else f"item {index + 1}"
