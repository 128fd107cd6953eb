"""The attacks as a list: where SECURITY.md says they are."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

from tests.repository import REPOSITORY

HERE = Path(__file__).parent


def groups() -> dict[str, tuple[Any, ...]]:
    """The attacks of each module of this folder that has some, by its path in the repository."""
    modules = {path: importlib.import_module(f"tests.attacks.{path.stem}") for path in sorted(HERE.glob("test_*.py"))}
    found = {path.relative_to(REPOSITORY).as_posix(): getattr(one, "ATTACKS", ()) for path, one in modules.items()}
    return {path: attacks for path, attacks in found.items() if attacks}


def test_security_md_names_every_group_and_no_other() -> None:
    text = (REPOSITORY / "SECURITY.md").read_text()
    assert set(re.findall(r"tests/attacks/test_\w+\.py", text)) == set(groups())
    others = set(re.findall(r"\]\((tests/[\w/.]+)\)", text))
    assert others > set(groups())
    assert [path for path in others if not (REPOSITORY / path).exists()] == []
