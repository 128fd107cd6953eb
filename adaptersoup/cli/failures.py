"""Errors as sentences for users and exit codes for scripts.

Used by `adaptersoup.cli.app` for the error that ends a command, and by verbs that continue after one of several items
has failed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from adaptersoup.cli.output import talk
from adaptersoup.tables import one_line
from registry.errors import Busy, Forbidden, Incompatible, SoupError, Unauthenticated

OK, FAILED, USAGE, INCOMPATIBLE = 0, 1, 2, 3

EXTRAS = {
    "serve": "server",
    "ray": "server,ray",
    "migrate": "server",
    "check": "server",
    "blobs": "server",
    "backup": "server",
    "restore": "server",
    "train": "train",
    "evaluate": "train",
    "convert": "train",
    "export": "train",
}
"""The extra of pyproject.toml that a verb needs, for verbs that do more than call a server."""
OURS = ("registry", "service", "training", "migrations")
_NEXT: dict[type[SoupError], str] = {
    Unauthenticated: (
        "Give a key with --key or SOUP_KEY: the first start of `soup serve` wrote an admin key to <data>/admin.key "
        "(SOUP_DATA names that folder on the server's machine), and `soup keys create` makes more."
    ),
    Forbidden: "`soup keys create` with an admin key makes a key with other scopes and namespaces.",
    Busy: "Try again in a moment.",
}
_FLAGS = {
    "base_model": "--base",
    "expires_at": "--expires",
    "max_width": "--max-width",
    "mixing.assume_same_init": "--assume-same-init",
}
"""Flags of the fields that the server's sentences name."""


def explain(error: SoupError) -> str:
    """The error's sentence and further problems, and the next step for errors whose sentence does not name one."""
    lines = [f"Error: {one_line(error.message)}"]
    lines += [f"  - {one_line(problem)}" for problem in error.problems if problem not in error.message]
    if error.param not in ("expires_at", "ray_token"):  # the sentence names the next step, and no key would help
        lines += [text for kind, text in _NEXT.items() if isinstance(error, kind)]
    lines += [f"On the command line {field} is {flag}." for field, flag in _FLAGS.items() if _names(error, field)]
    return "\n".join(lines)


def _names(error: SoupError, field: str) -> bool:
    """Return True if the sentence names the field, and not a tensor or module of the same name."""
    return re.search(rf"(?<![\w.]){re.escape(field)}(?!\w|\.\w)", error.message) is not None


def exit_code(error: SoupError) -> int:
    """The exit code for an error: 3 for Incompatible, else 1."""
    return INCOMPATIBLE if isinstance(error, Incompatible) else FAILED


def not_installed(verb: str | None, error: ModuleNotFoundError) -> str:
    """The sentence for a package that a verb lacks; raises the error if the module is ours, or without a verb."""
    module = (error.name or "").partition(".")[0]
    if verb is None or module in OURS:
        raise error
    return f"Error: `soup {verb}` needs {module}: pip install 'adaptersoup[{EXTRAS.get(verb, 'client')}]'."


class Failures(list[SoupError]):
    """The errors of a verb that works on several items and continues after a failure."""

    @contextmanager
    def of(self, item: object) -> Iterator[None]:
        """Collect and print an error of `item` instead of raising it, until `with` ends."""
        try:
            yield
        except SoupError as error:
            talk(f"{item}: {explain(error)}")
            self.append(error)

    def end(self) -> None:
        """Exit if there are any errors: with 3 if all of them are Incompatible, else with 1."""
        if self:
            raise typer.Exit(min(map(exit_code, self), key=lambda code: code == INCOMPATIBLE))
