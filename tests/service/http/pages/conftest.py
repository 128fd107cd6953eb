"""Whoever looks at the pages: Debian's Chromium, and a browser without a screen.

Where Chromium is missing its tests are skipped, and fail where CI is set.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.browser import Browser, chromium
from tests.service.http.pages.signed import Signed
from tests.service.servers import World


@pytest.fixture(scope="session")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser: each page of it has cookies and a cache of its own, so that one is enough for all modules."""
    program = chromium()
    if program is None:
        why = "There is no chromium, which looks at the pages: `make browser` installs it where that is possible."
        (pytest.fail if os.environ.get("CI") else pytest.skip)(why)
    browser = Browser(program, tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def browser(stocked: World) -> Signed:
    """Somebody who has signed in on what the module calls `stocked`, with a key that may do all of it in `acme`."""
    return Signed(stocked, stocked.key(["read", "write", "infer"], ["acme"]))
