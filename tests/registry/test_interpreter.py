"""The command of a child process: whose modules it imports."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from registry.interpreter import module_command


@pytest.mark.parametrize("imports_from_here", [False, True])
def test_a_child_imports_from_the_current_folder_only_if_its_parent_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, imports_from_here: bool
) -> None:
    (tmp_path / "this.py").write_text("print('of the folder')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if imports_from_here:
        monkeypatch.syspath_prepend(tmp_path)
    ran = subprocess.run(module_command("this"), capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("of the folder" if imports_from_here else "The Zen of Python")
