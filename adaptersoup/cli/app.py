"""The command `soup`: imports and runs a verb, and turns errors into one sentence and an exit code.

Data goes to stdout, messages to stderr. Exit codes: 0 ok, 1 failed, 2 usage, 3 incompatible. A verb is in the module of
`adaptersoup.cli.verbs` that `module_of` names, and is imported when it is called, so that `soup --help` starts quickly.
The summaries are here for the same reason; a test compares them with the verbs' own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group

from adaptersoup.cli.failures import FAILED, OK, exit_code, explain, not_installed
from adaptersoup.cli.help_sections import SETTINGS, Verbs
from registry.errors import SoupError

SECTIONS = {
    "Commands": {
        "serve": "Start the server.",
        "push": "Push adapter directories.",
        "ls": "List adapters and soups.",
        "show": "Show one adapter or soup.",
        "cook": "Cook a soup for a sample, or by a recipe.",
        "select": "Show which adapters fit a sample, and why.",
        "generate": "Continue a prompt.",
        "chat": "Chat with a model whose base has a chat template.",
        "ppl": "Compute the perplexity of texts under a model.",
        "train": "Train an adapter on texts of a domain.",
    },
    "More for adapters and soups": {
        "pull": "Write an adapter or soup to a directory.",
        "export": "Write an adapter for another program.",
        "open": "Open the page of a model in the browser.",
        "edit": "Change card, domain and owner of adapters and soups.",
        "alias": "List, set and remove aliases of versions.",
        "rm": "Retire adapters or soups.",
        "purge": "Remove versions for good.",
        "collect": "Remove expired data, as the server does every hour.",
        "convert": "Convert AdapterHub checkpoints to adapter directories, and back.",
    },
    "More for selection and evaluation": {
        "fit": "Fit a selector over a pool of adapters.",
        "compare": "Cook with every strategy, and compare the results on a test set.",
        "matrix": "Evaluate the adapters of a pool on each other's samples.",
        "evaluate": "Evaluate a trained adapter on data of its task.",
    },
    "More for inference": {
        "models": "List the models that generate text.",
        "embed": "Embed texts with a model.",
        "ray": "Generate on a Ray cluster.",
        "doctor": "Check which adapters a server really serves.",
    },
    "Administration": {
        "keys": "Create, list, change and revoke keys.",
        "namespaces": "Show and change the settings of namespaces.",
        "limits": "Show and change the limits of keys and namespaces.",
        "usage": "Sum requests and tokens, newest day first.",
        "jobs": "List, show, watch and cancel jobs.",
        "audit": "List who did what, newest first.",
    },
    "Operation of a server": {
        "migrate": "Update the schema of the database.",
        "check": "Check the stored blobs.",
        "blobs": "Copy the blobs into another store.",
        "backup": "Back up database and blobs into a folder.",
        "restore": "Restore a backup.",
    },
}
"""The verbs of each section of `soup --help` with their summaries, the most used section first."""
VERBS = {name: summary for section in SECTIONS.values() for name, summary in section.items()}

SHARED_MODULES = {
    "inference": ("models", "generate", "embed", "ppl"),
    "removal": ("rm", "purge", "collect"),
    "data_folder": ("backup", "restore", "check"),
    "adapters": ("ls", "show", "open"),
    "selection": ("fit", "select"),
    "activity": ("audit", "usage"),
}
"""Modules with several verbs; any other verb is in the module of its name."""


class LazyGroup(TyperGroup):
    """The verbs of VERBS, each imported when it is called."""

    def list_commands(self, _: Any) -> list[str]:
        """The names of all verbs, in the order of use."""
        return list(VERBS)

    def get_command(self, _: Any, cmd_name: str) -> Any:
        """The command of a verb, None for an unknown name."""
        return command_of(cmd_name) if cmd_name in VERBS else None

    def format_commands(self, _: Any, formatter: Any) -> None:
        """Write the sections of `soup --help`, without importing the verbs."""
        for title, verbs in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(list(verbs.items()))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Resolve a verb; fills `commands` for an unknown name, from which the base class suggests similar ones."""
        if args and args[0] not in VERBS:
            self.commands = cast(Any, dict.fromkeys(VERBS))
        return super().resolve_command(ctx, args)


def module_of(name: str) -> str:
    """The dotted name of the module that holds a verb."""
    module = next((module for module, verbs in SHARED_MODULES.items() if name in verbs), name)
    return f"adaptersoup.cli.verbs.{module}"


def command_of(name: str) -> Any:
    """The command of one verb: the module's `app` (a group) or its function of that name."""
    module = import_module(module_of(name))
    if isinstance(getattr(module, "app", None), typer.Typer):
        return get_group(module.app)
    app = Verbs()
    app.command(name)(getattr(module, name))
    return get_command(app)


app = typer.Typer(cls=LazyGroup, no_args_is_help=True, **SETTINGS)


def _version(is_set: bool) -> None:
    if is_set:
        try:
            typer.echo(version("adaptersoup"))
        except PackageNotFoundError:
            typer.echo("not installed")
        raise typer.Exit


@app.callback()
def _soup(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Adapter registry and model soups: push adapters, cook a soup for a new domain, use it.

    \b
    Examples:
      soup serve --bases bases.toml
      soup push adapters/law adapters/medicine --namespace team --wait
      soup cook --sample contracts.jsonl
      soup generate team/law "The court held that"

    Commands talk to the server at --url or SOUP_URL (http://127.0.0.1:8000). They take the key from --key or SOUP_KEY.
    Otherwise they send the key in admin.key of the data folder (SOUP_DATA), but only to a server on this machine.
    """


def run(args: Sequence[str], *, connect: object = None) -> int:
    """Run one command line and return its exit code. `connect` replaces the factory of clients in tests."""
    try:
        get_command(app).main(list(args), prog_name="soup", obj=connect)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else FAILED
    except SoupError as error:
        typer.echo(explain(error), err=True)
        return exit_code(error)
    except ModuleNotFoundError as error:
        typer.echo(not_installed(next((name for name in args if name in VERBS), None), error), err=True)
        return FAILED
    except UnicodeError as error:
        typer.echo(
            f"Error: text of an argument, the input or the output cannot be converted ({error}): use UTF-8.", err=True
        )
        return FAILED
    except OSError as error:
        typer.echo(f"Error: {error.filename or 'a file'}: {error.strerror or error}.", err=True)
        return FAILED
    return OK


def main() -> None:
    """The entry point `soup`; a closed standard stream becomes an empty one."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115
    sys.exit(run(sys.argv[1:]))
