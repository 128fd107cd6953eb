"""Names say what a thing is, and docstrings what a function returns or does; a canary file holds what is refused."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.repository import REPOSITORY

PACKAGES = ("adaptersoup", "registry", "service", "training", "plots")
REFUSED_NAMES = frozenset(
    "found one ones said told asked given taken known left kept wanted own its before every some others other again "
    "beyond held heard shown tried looked seen led made what why how who whom thing things part parts it this that "
    "these those".split()
)
PUBLISHED = ("registry/spec/", "service/http/schemas/", "service/http/routes/", "registry/evaluate/matrix.py")
"""Docstrings and fields are the API's there, or stored: their words are not changed for the code's sake."""
REFUSED_BEGINNINGS = ("As ", "What ", "The same", "Those ", "Whether ")
CANARY = '''
def told(part: int) -> int:
    """Whether it is the same."""
    found = part
    return found


class Said:
    """What was said."""
'''


def refused(source: str, *, published: bool = False) -> Iterator[str]:
    """The line and the name, or the docstring's beginning, of everything in a module that is refused.

    Where it is `published`, neither docstrings nor fields of classes are looked at.
    """
    tree = ast.parse(source)
    fields = {
        statement.target
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and published
        for statement in node.body
        if isinstance(statement, ast.AnnAssign)
    }
    for node in ast.walk(tree):
        names: list[tuple[int, str]] = []
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node not in fields:
            names = [(node.lineno, node.id)]
        elif isinstance(node, ast.arg):
            names = [(node.lineno, node.arg)]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names = [(node.lineno, node.name)]
        yield from (f"{line}: {name}" for line, name in names if name.strip("_") in REFUSED_NAMES)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module) and not published:
            docstring = ast.get_docstring(node) or ""
            if docstring.startswith(REFUSED_BEGINNINGS):
                yield f"{getattr(node, 'lineno', 1)}: {docstring[:30]}"


@pytest.mark.parametrize("package", PACKAGES)
def test_no_name_or_docstring_is_refused(package: str) -> None:
    places = []
    for path in sorted((REPOSITORY / package).rglob("*.py")):
        name = path.relative_to(REPOSITORY).as_posix()
        places += [f"{name}:{place}" for place in refused(path.read_text(), published=name.startswith(PUBLISHED))]
    assert places == []


def test_a_canary_is_refused() -> None:
    places = {"2: told", "2: part", "2: Whether it is the same.", "4: found", "8: What was said."}
    assert set(refused(CANARY)) == places
