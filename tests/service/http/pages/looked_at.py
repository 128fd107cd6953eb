"""What is asked of every page in a browser: axe finds nothing, nothing is said, nothing comes from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from tests.browser import Browser, Page
from tests.repository import REPOSITORY

AXE = REPOSITORY / "tests" / "axe"
STANDARDS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
COLOURS = ["color-contrast", "link-in-text-block"]
"""axe's rules of which the answer depends on the colours: the others see the same in the light as in the dark."""
LOOKS = ((1280, False, False), (1280, True, True), (320, False, True), (320, True, False))
"""How wide, whether dark, and whether the colours alone are looked at: all else is, once at each width."""


@cache
def axe() -> str:
    return (AXE / "axe.min.js").read_text(encoding="utf-8")


def findings(page: Page, *, colours: bool = False) -> list[str]:
    """What axe finds on the page as it is; with `colours` by the rules about these alone."""
    if page.evaluate("typeof axe") == "undefined":
        page.evaluate(axe() + "; 0")
    only = {"type": "rule", "values": COLOURS} if colours else {"type": "tag", "values": STANDARDS}
    options = {"runOnly": only, "resultTypes": ["violations"]}
    told = "r => r.violations.map(v => v.id + ': ' + v.nodes.map(n => n.html).join(' | '))"
    found = page.evaluate(f"axe.run(document, {options!r}).then({told})")
    return list(found)


def look_at(page: Page, path: str, *, until: str = "true") -> None:
    """Open a page at both widths, light and dark: nothing is wrong with it, and it is no wider than the window.

    It is looked at once the expression `until` is true.
    """
    page.open(path)
    page.until(until)
    for width, dark, colours in LOOKS:
        page.look(width=width, dark=dark)
        found = findings(page, colours=colours)
        assert not found, (path, width, dark, found)
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, (path, width, wide)
    page.look()
    assert not page.said, page.said
    assert not page.foreign, page.foreign


@contextmanager
def signed_in(chrome: Browser, origin: str, secret: str) -> Iterator[Page]:
    """A page that has signed in; nothing may have been said on it, nor asked for elsewhere, when it is closed."""
    with chrome.page(origin) as page:
        page.open("/sign-in")
        page.fill("#key", secret)
        page.press("Enter")
        page.until("location.pathname !== '/sign-in' && document.readyState === 'complete'")
        yield page
        assert page.said == []
        assert page.foreign == []
