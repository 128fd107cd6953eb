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
    attacks_by_path = {
        path.relative_to(REPOSITORY).as_posix(): getattr(module, "ATTACKS", ()) for path, module in modules.items()
    }
    return {path: attacks for path, attacks in attacks_by_path.items() if attacks}


def test_security_md_names_every_group_and_no_other() -> None:
    text = (REPOSITORY / "SECURITY.md").read_text()
    assert set(re.findall(r"tests/attacks/test_\w+\.py", text)) == set(groups())
    linked_tests = set(re.findall(r"\]\((tests/[\w/.]+)\)", text))
    assert linked_tests > set(groups())
    assert [path for path in linked_tests if not (REPOSITORY / path).exists()] == []
