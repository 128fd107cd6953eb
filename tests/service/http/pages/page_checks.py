"""Checks of every page in a browser: axe finds nothing, nothing is said, nothing comes from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from tests.browser import Browser, Page
from tests.repository import REPOSITORY

AXE = REPOSITORY / "tests" / "axe"
STANDARDS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
LOOKS = ((1280, False), (320, True))
"""How wide, and whether dark: the layout depends on the one alone, colours on the other alone."""


@cache
def axe() -> str:
    return (AXE / "axe.min.js").read_text(encoding="utf-8")


def press_on(page: Page, selector: str, key: str = "Enter", times: int = 1) -> None:
    """Press a key on an element that has the focus."""
    page.evaluate(f"document.querySelector({json.dumps(selector)}).focus()")
    page.press(key, times)


def findings(page: Page) -> list[str]:
    """The violations that axe finds on the page as it is."""
    if page.evaluate("typeof axe") == "undefined":
        page.evaluate(axe() + "; 0")
    options = {"runOnly": {"type": "tag", "values": STANDARDS}, "resultTypes": ["violations"]}
    describe = "r => r.violations.map(v => v.id + ': ' + v.nodes.map(n => n.html).join(' | '))"
    return list(page.evaluate(f"axe.run(document, {options!r}).then({describe})"))


def check_looks(page: Page) -> None:
    """Nothing is wrong with the page as it is, wide and narrow, light and dark, and it is no wider than the window."""
    for width, dark in LOOKS:
        page.look(width=width, dark=dark)
        violations = findings(page)
        assert not violations, (page.path, width, dark, violations)
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, (page.path, width, wide)
    page.look()


def look_at(page: Page, path: str) -> None:
    """Open a page: nothing is wrong with it, and it says nothing in the console."""
    page.open(path)
    check_looks(page)
    assert (page.console_messages, page.foreign) == ([], [])


@contextmanager
def signed_in(chrome: Browser, origin: str, secret: str) -> Iterator[Page]:
    """A page that has signed in; nothing may have been said on it, nor asked for elsewhere, when it is closed."""
    with chrome.page(origin) as page:
        page.open("/sign-in")
        page.fill("#key", secret)
        page.press("Enter")
        page.until("location.pathname !== '/sign-in' && document.readyState === 'complete'")
        yield page
        assert (page.console_messages, page.foreign) == ([], [])
