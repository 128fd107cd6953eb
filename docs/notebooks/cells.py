"""The process that runs the cells of one notebook: their sources as a list on stdin, their outputs as one on stdout."""

from __future__ import annotations

import ast
import io
import json
import sys
from contextlib import redirect_stdout
from typing import Any

Json = dict[str, Any]


class Printer:
    """The argument `p` that IPython passes to `_repr_pretty_`."""

    def __init__(self) -> None:
        self.chunks: list[str] = []

    def text(self, text: str) -> None:
        """Add text."""
        self.chunks.append(text)


def execute_result(value: Any) -> Json:
    """A value as a notebook shows it: as text and, if possible, as HTML."""
    data: Json = {}
    if hasattr(value, "_repr_html_"):
        data["text/html"] = lines(value._repr_html_())
    if hasattr(value, "_repr_pretty_"):
        printer = Printer()
        value._repr_pretty_(printer, cycle=False)
        data["text/plain"] = lines("".join(printer.chunks))
    else:
        data["text/plain"] = lines(repr(value))
    return {"output_type": "execute_result", "metadata": {}, "data": data}


def lines(text: str) -> list[str]:
    """Text as notebooks store it."""
    return text.splitlines(keepends=True)


def run_cell(source: str, names: Json) -> list[Json]:
    """The outputs of one cell, whose names stay in `names`."""
    tree = ast.parse(source)
    last = tree.body[-1] if tree.body else None
    if isinstance(last, ast.Expr):
        tree.body.pop()
    value = None
    with redirect_stdout(io.StringIO()) as stdout:
        exec(compile(tree, "<cell>", "exec"), names)  # noqa: S102 - that is what a notebook is
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)  # noqa: S307
    outputs: list[Json] = []
    if stdout.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": lines(stdout.getvalue())})
    return outputs if value is None else [*outputs, execute_result(value)]


def main() -> None:
    """Run the cells that are given as JSON on stdin, and print their outputs as JSON."""
    names: Json = {"__name__": "__main__"}
    print(json.dumps([run_cell(source, names) for source in json.load(sys.stdin)]))  # noqa: T201


if __name__ == "__main__":
    main()
