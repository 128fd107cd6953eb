"""Notebooks with their outputs: `python -m docs.notebooks` runs their cells, in one process per notebook, and stores
the outputs.

Cells contain only Python and run in order, as in a notebook's kernel. Their outputs are printed text and the value of
the last line. Jupyter's own runner would add 26 packages (decision 23).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Json = dict[str, Any]
FOLDER = Path(__file__).parent


def notebooks() -> list[Path]:
    """All notebooks, by name."""
    return sorted(FOLDER.glob("*.ipynb"))


def code_of(notebook: Json) -> list[str]:
    """The sources of its code cells."""
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


def run(path: Path, *, instead: Mapping[str, str] = {}) -> list[list[Json]]:
    """The outputs of each code cell, run in the notebook's folder; raises RuntimeError with the output of a failure.

    Each text of `instead` must be in the code once, and is replaced: tests reduce amounts in this way.
    """
    cells = code_of(json.loads(path.read_text(encoding="utf-8")))
    for old, new in instead.items():
        times = sum(cell.count(old) for cell in cells)
        if times != 1:
            raise RuntimeError(f"{path.name} has {old!r} {times} times, and once is expected.")
        cells = [cell.replace(old, new) for cell in cells]
    done = subprocess.run(
        [sys.executable, "-m", "docs.notebooks.cells"],
        input=json.dumps(cells),
        cwd=path.parent,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(FOLDER.parent.parent)},
    )
    if done.returncode:
        raise RuntimeError(f"{path.name} fails:\n{done.stderr[-3000:]}")
    outputs: list[list[Json]] = json.loads(done.stdout.splitlines()[-1])
    return outputs


def executed(path: Path) -> str:
    """The notebook's file with new outputs."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, (cell, outputs) in enumerate(zip(code, run(path), strict=True), start=1):
        for output in outputs:
            if output["output_type"] == "execute_result":
                output["execution_count"] = number
        cell["execution_count"], cell["outputs"] = number, outputs
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
