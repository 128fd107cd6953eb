"""Fixtures of the tests in this folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.service.servers import BASE_ID, Live, with_template


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """The event loop that runs coroutine tests."""
    return "asyncio"


@pytest.fixture(scope="module")
def served(
    request: pytest.FixtureRequest, tiny_base_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """The tiny base; where the module says TEMPLATES, copies of it under these ids have these chat templates."""
    templates: dict[str, str] = getattr(request.module, "TEMPLATES", {})
    copies = {id: with_template(tiny_base_dir, tmp_path_factory.mktemp(id), text) for id, text in templates.items()}
    return {BASE_ID: tiny_base_dir, **copies}


@pytest.fixture
def openai_client(live: Live) -> Any:
    """The real client, whose answers are not narrowed down."""
    return live.openai()
