"""What modules of this folder ask for by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.service.servers import with_template

TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"


@pytest.fixture(scope="session")
def templated_base(tiny_base_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny GPT-2 with a chat template."""
    return with_template(tiny_base_dir, tmp_path_factory.mktemp("template"), TEMPLATE)
