"""Names say what a thing is, and docstrings what a function returns or does; a canary file holds what is refused."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.repository import REPOSITORY

PACKAGES = ("adaptersoup", "registry", "service", "training", "plots", "benchmarks", "demo", "docs", "tests")
REFUSED_NAMES = frozenset(
    "found one ones said told asked given taken known left kept wanted own its before every some others other again "
    "beyond held heard shown tried looked seen led made what why how who whom thing things part parts it this that "
    "these those".split()
)
PUBLISHED = (
    *("registry/spec/", "service/http/schemas/", "service/http/routes/", "registry/evaluate/matrix.py"),
    *("benchmarks/papers/variants.py", "benchmarks/shelf/pools.py"),
)
"""Docstrings and fields are the API's there, or stored: their words are not changed for the code's sake."""
REFUSED_BEGINNINGS = ("As ", "What ", "The same", "Those ", "Whether ")
CANARY = '''
def told(part: int) -> int:
    """Whether it is the same."""
    found = part
    return found


class Said:
    """What was said."""

    def __init__(self) -> None:
        self._heard = True
        try:
            self.words = []
        except OSError as what:
            raise ValueError from what
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
        match node:
            case (
                ast.Name(id=name, ctx=ast.Store(), lineno=line)
                | ast.Attribute(attr=name, ctx=ast.Store(), lineno=line)
                | ast.arg(arg=name, lineno=line)
                | ast.ExceptHandler(name=str(name), lineno=line)
                | ast.FunctionDef(name=name, lineno=line)
                | ast.AsyncFunctionDef(name=name, lineno=line)
            ) if node not in fields and name.strip("_") in REFUSED_NAMES:
                yield f"{line}: {name}"
            case ast.ClassDef(name=name, lineno=line) if name.strip("_").lower() in REFUSED_NAMES:
                yield f"{line}: {name}"
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
    names = {"2: told", "2: part", "4: found", "8: Said", "12: _heard", "15: what"}
    assert set(refused(CANARY)) == names | {"2: Whether it is the same.", "8: What was said."}
