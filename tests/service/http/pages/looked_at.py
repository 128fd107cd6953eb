"""What is asked of every page in a browser: axe finds nothing, nothing is said, nothing comes from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from tests.browser import Browser, Page
from tests.repository import REPOSITORY

AXE = REPOSITORY / "tests" / "axe"
STANDARDS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
LOOKS = [(width, dark) for width in (1280, 320) for dark in (False, True)]


@cache
def axe() -> str:
    return (AXE / "axe.min.js").read_text(encoding="utf-8")


def findings(page: Page) -> list[str]:
    """What axe finds on the page as it is."""
    page.evaluate(axe() + "; 0")
    options = {"runOnly": {"type": "tag", "values": STANDARDS}, "resultTypes": ["violations"]}
    told = "r => r.violations.map(v => v.id + ': ' + v.nodes.map(n => n.html).join(' | '))"
    found = page.evaluate(f"axe.run(document, {options!r}).then({told})")
    return list(found)


def look_at(page: Page, path: str, *, until: str = "true") -> None:
    """Open a page at both widths, light and dark: nothing is wrong with it, and it is no wider than the window.

    It is looked at once the expression `until` is true.
    """
    page.open(path)
    page.until(until)
    for width, dark in LOOKS:
        page.look(width=width, dark=dark)
        found = findings(page)
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
