"""The templates of the pages: everything that is put into one is escaped, and a name that is not given is an error."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from service.http.pages import assets, words

FOLDER = Path(__file__).with_name("templates")
FILTERS = (
    *(words.iso, words.in_words, words.seconds, words.size, words.count),
    *(words.short, words.signed, words.percent, words.figure, words.quoted),
)


@cache
def environment() -> Environment:
    """Where templates come from, and what they know."""
    found = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters |= {one.__name__: one for one in FILTERS}
    found.filters |= {"part": part, "pretty": pretty}
    found.globals |= {"asset": assets.address, "query": query, "lasted": words.lasted}
    return found


def drawn(name: str, **values: Any) -> str:
    """A template with these values."""
    return environment().get_template(name).render(**values)


def part(text: str) -> str:
    """A text as one part of a path."""
    return quote(text, safe="@:")


def pretty(value: Any) -> str:
    """A JSON value on many lines."""
    return json.dumps(value, indent=2, ensure_ascii=False)


def query(path: str, **values: Any) -> str:
    """A path with a query of those values that say something."""
    given = [(name, value) for name, value in values.items() if value not in (None, "", (), [])]
    return f"{path}?{urlencode(given, doseq=True)}" if given else path
