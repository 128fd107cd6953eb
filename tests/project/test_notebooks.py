"""Notebooks: stored as they run, small, without places of one machine; run again they give outputs alike."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from docs import notebooks
from docs.notebooks.cells import run_cell

SMALLER = {
    "comparing-selectors": {"PASSAGES, SCORED = 25, 15": "PASSAGES, SCORED = 6, 3", '"steps": 20': '"steps": 4'},
    "first-soup": {"[:40]": "[:20]", '"test.jsonl")': '"test.jsonl")[:20]', '"steps": 20': '"steps": 4'},
}
"""Fewer passages and steps, by notebook: every cell runs, and nobody reads the numbers."""
each = pytest.mark.parametrize("path", notebooks.notebooks(), ids=lambda path: path.stem)


def stored(path: Path) -> list[dict[str, Any]]:
    """The cells of code of a notebook."""
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


def kinds(outputs: list[dict[str, Any]]) -> list[Any]:
    """Return the kind of each output, its forms, whether it has a picture, and its columns, without its numbers."""
    summary: list[Any] = []
    for output in outputs:
        html = "".join(output.get("data", {}).get("text/html", ()))
        columns = re.findall(r"<th scope=\"col\">([^<]*)</th>", html)
        summary.append((output["output_type"], sorted(output.get("data", ())), "<img" in html, columns))
    return summary


@each
def test_it_is_stored_whole_and_small_and_shows_its_pictures_and_tables(path: Path) -> None:
    cells = stored(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    fragments = ["".join(output.get("data", {}).get("text/html", ())) for cell in cells for output in cell["outputs"]]
    assert any("<table>" in html for html in fragments)
    assert sum("data:image/svg+xml;base64," in html for html in fragments) >= 3
    text = path.read_text(encoding="utf-8")
    assert len(text.encode()) < 200 * 1024
    assert not re.search(r"/(home|root|tmp|work|Users)/", text)
    assert "Traceback" not in text


@pytest.mark.long
@pytest.mark.slow
@each
def test_run_again_it_gives_outputs_of_the_same_kinds(path: Path) -> None:
    second_outputs = notebooks.run(path, instead=SMALLER[path.stem])
    assert [kinds(outputs) for outputs in second_outputs] == [kinds(cell["outputs"]) for cell in stored(path)]


def test_names_stay_and_the_last_value_is_shown() -> None:
    names: dict[str, Any] = {}
    assert run_cell("a = 2\nprint('said', a)", names) == [
        {"output_type": "stream", "name": "stdout", "text": ["said 2\n"]}
    ]
    assert run_cell("a + 1", names)[0]["data"] == {"text/plain": ["3"]}
    assert run_cell("None", names) == run_cell("", names) == []


def test_a_value_shows_itself_as_html_and_as_text() -> None:
    source = """
class Both:
    def _repr_html_(self): return "<b>x</b>"
    def _repr_pretty_(self, printer, cycle): printer.text("x")
Both()
"""
    assert run_cell(source, {})[0]["data"] == {"text/html": ["<b>x</b>"], "text/plain": ["x"]}


@pytest.mark.slow
def test_a_cell_that_fails_fails_the_notebook_and_says_where(tmp_path: Path) -> None:
    (tmp_path / "bad.ipynb").write_text(json.dumps({"cells": [{"cell_type": "code", "source": ["1 / 0"]}]}))
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        notebooks.run(tmp_path / "bad.ipynb")
    with pytest.raises(RuntimeError, match="has '2 / 1' 0 times"):
        notebooks.run(tmp_path / "bad.ipynb", instead={"2 / 1": "1"})
