"""What a failure is for people and for scripts: one sentence that says what to do next, and an exit code.

Used by `adaptersoup.cli.app` for the error that ends a command, and by verbs that go on after one of several failed.
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
"""The verbs that do more than talk to a server, and the extra of pyproject.toml that each of them needs."""
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
"""Fields that the server's sentences name, and the flag that people give them by."""


def explain(error: SoupError) -> str:
    """The error's sentence, every further problem it carries, and what to do next where the sentence does not say."""
    lines = [f"Error: {one_line(error.message)}"]
    lines += [f"  - {one_line(problem)}" for problem in error.problems if problem not in error.message]
    if error.param not in ("expires_at", "ray_token"):  # the sentence says what to give, and no key would help
        lines += [text for kind, text in _NEXT.items() if isinstance(error, kind)]
    lines += [f"On the command line {field} is {flag}." for field, flag in _FLAGS.items() if _names(error, field)]
    return "\n".join(lines)


def _names(error: SoupError, field: str) -> bool:
    """Whether the sentence names the field, and not a tensor or module that is called like it."""
    return re.search(rf"(?<![\w.]){re.escape(field)}(?!\w|\.\w)", error.message) is not None


def exit_code(error: SoupError) -> int:
    """3 for what cannot go together, else 1."""
    return INCOMPATIBLE if isinstance(error, Incompatible) else FAILED


def not_installed(verb: str | None, error: ModuleNotFoundError) -> str:
    """The sentence for a package that a verb needs; raises the error for a module of ours, or without a verb."""
    module = (error.name or "").partition(".")[0]
    if verb is None or module in OURS:
        raise error
    return f"Error: `soup {verb}` needs {module}: pip install 'adaptersoup[{EXTRAS.get(verb, 'client')}]'."


class Failures(list[SoupError]):
    """The errors of some of several things that a verb does: one does not keep the others."""

    @contextmanager
    def of(self, what: object) -> Iterator[None]:
        """While open, an error is told as one of `what`, and noted instead of raised."""
        try:
            yield
        except SoupError as error:
            talk(f"{what}: {explain(error)}")
            self.append(error)

    def end(self) -> None:
        """End the command where there are any: with 3 only where all of them are incompatibilities, else 1."""
        if self:
            raise typer.Exit(min(map(exit_code, self), key=lambda code: code == INCOMPATIBLE))
