"""Renders the templates of the pages: every value is escaped, and a value that is missing is an error."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from service.http.pages import assets, filters

FOLDER = Path(__file__).with_name("templates")
FILTERS = (
    *(filters.iso, filters.long_date, filters.duration, filters.file_size, filters.thousands, filters.short_digest),
    *(filters.signed, filters.rounded, filters.percent, filters.signed_percent),
    *(filters.json_text, filters.pretty_json, filters.path_segment, filters.age),
)


@cache
def environment() -> Environment:
    """The Jinja environment with the filters and functions that templates use."""
    jinja = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    jinja.filters |= {function.__name__: function for function in FILTERS}
    jinja.globals |= {"asset_url": assets.asset_url, "url": url, "elapsed": filters.elapsed}
    return jinja


def render_template(name: str, **values: Any) -> str:
    """The HTML of a template with these values."""
    return environment().get_template(name).render(**values)


def url(path: str, **query: Any) -> str:
    """A path with a query string; values that are None or empty are left out, a list is repeated."""
    pairs = [(name, value) for name, value in query.items() if value not in (None, "", (), [])]
    return f"{path}?{urlencode(pairs, doseq=True)}" if pairs else path
