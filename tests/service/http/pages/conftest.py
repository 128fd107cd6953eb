"""A browser without a screen, signed in; `chrome` is in tests/conftest.py."""

from __future__ import annotations

import pytest

from tests.service.http.pages.page_session import PageSession
from tests.service.servers import World


@pytest.fixture(scope="module")
def browser(stocked: World) -> PageSession:
    """Somebody who has signed in on what the module calls `stocked`, with a key that may do all of it in `acme`."""
    return PageSession(stocked, stocked.key(["read", "write", "infer"], ["acme"]))
