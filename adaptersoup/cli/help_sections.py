"""The help of a verb: its options are listed in sections, those of the server last.

An option is in the section of its `rich_help_panel`, without one among the first, "Options". `adaptersoup.cli.commands`
and `adaptersoup.cli.flags` set it for groups of options.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

SETTINGS: dict[str, Any] = {"rich_markup_mode": None, "pretty_exceptions_enable": False}
FIRST = "Options"


def write_options(command: TyperCommand | TyperGroup, context: Any, formatter: Any) -> None:
    """Write the arguments of a command, then its options by section, in the order of their first option."""
    sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], FIRST: []}
    for parameter in command.get_params(context):
        is_argument = parameter.param_type_name == "argument"
        title = "Arguments" if is_argument else getattr(parameter, "rich_help_panel", None) or FIRST
        record = parameter.get_help_record(context)
        if record is not None:
            sections.setdefault(title, []).append(record)
    for title, records in sections.items():
        if records:
            with formatter.section(title):
                formatter.write_dl(records)


class Command(TyperCommand):
    """A verb."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options by section."""
        write_options(self, ctx, formatter)


class Group(TyperGroup):
    """A verb with verbs below it."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options by section, then the verbs."""
        write_options(self, ctx, formatter)
        self.format_commands(ctx, formatter)


class Verbs(typer.Typer):
    """A verb, or the verbs below one."""

    def __init__(self, **options: Any) -> None:
        super().__init__(cls=Group, add_completion=False, **SETTINGS, **options)

    def command(self, name: str | None = None, **options: Any) -> Callable[[Any], Any]:
        """Add a verb."""
        return super().command(name, cls=Command, **options)
