"""What `soup train` and the verbs below it share beside the spec's options: base model, files, being stopped.

Torch is imported by nothing here until a base model is asked for.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from registry.errors import Cancelled, NotFound

if TYPE_CHECKING:
    from registry.spec import BaseEntry

BaseFolder = Annotated[
    Path | None, typer.Option("--base-folder", help="Folder of the base model; or --bases and --base.")
]
Bases = Annotated[Path | None, typer.Option("--bases", help="Allowlist of base models (SOUP_BASES).")]
Base = Annotated[str | None, typer.Option("--base", help="Id of the base model in the allowlist.")]
Sample = Annotated[
    int, typer.Option("--sample", min=0, help="Training passages to put beside the weights; 0 for none.")
]
BaseKind = Annotated[
    Literal["causal", "encoder"], typer.Option("--base-kind", help="Of the model in --base-folder: encoder for BERT.")
]


def entry_of(
    base_folder: Path | None, bases: Path | None, base: str | None, kind: Literal["causal", "encoder"] = "causal"
) -> BaseEntry:
    """The base model to train on, from a folder or the allowlist."""
    from registry.base_model import read_allowlist
    from registry.spec import BaseEntry
    from service.settings import Settings

    if base_folder is not None:
        if base is not None or bases is not None:
            raise typer.BadParameter("Give --base-folder, or --bases and --base.")
        if not base_folder.is_dir():
            raise NotFound(f"{base_folder} is not a directory: --base-folder names the folder of a base model.")
        return BaseEntry(id="local", source=str(base_folder.resolve()), kind=kind)
    if kind != "causal":
        raise typer.BadParameter("--base-kind is of the model in --base-folder: an allowlist says 'kind' of its own.")
    path = bases or Settings().bases
    if path is None:
        raise typer.BadParameter("Which base model? Give --base-folder, or --bases (SOUP_BASES) and --base.")
    entries = read_allowlist(path)
    if base is None and len(entries) == 1:
        return next(iter(entries.values()))
    if base not in entries:
        raise NotFound(f"--base must be one of {', '.join(sorted(entries))} ({path}).", param="base")
    return entries[base]


def floats(option: str, text: str) -> list[float]:
    """Numbers separated by commas; raises BadParameter."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{option} takes numbers separated by commas, not {text!r}.") from None


def integers(option: str, text: str) -> list[int]:
    """Whole numbers separated by commas; raises BadParameter."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{option} takes whole numbers separated by commas, not {text!r}.") from None


@contextmanager
def stoppable() -> Iterator[Callable[[], bool]]:
    """While open, a first Ctrl-C (or a request to terminate) is only noted, and what is given says so.

    A second one ends the program as ever. Outside of the main thread nothing is noted.
    """
    asked: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, _frame: FrameType | None) -> None:
        asked.append(number)
        restore()

    try:
        for number in before:
            signal.signal(number, note)
        yield lambda: bool(asked)
    finally:
        restore()


@contextmanager
def saying_how_to_go_on(*, saved: bool) -> Iterator[None]:
    """Ends the sentence of a training that was stopped with what to do."""
    try:
        yield
    except Cancelled as stopped:
        how = "Run the same command again to go on." if saved else "Nothing of it is kept: --checkpoint FOLDER would."
        raise Cancelled(f"{stopped.message} {how}") from None


def needed(**options: Path | None) -> list[Path]:
    """The values; raises BadParameter for those not given, which are needed unless a verb below is called."""
    names = [f"--{name}" for name, value in options.items() if value is None]
    if names:
        raise typer.BadParameter(f"Missing {', '.join(names)}: see `soup train --help`.")
    return [value for value in options.values() if value is not None]


def refuse_before_verb(context: typer.Context) -> None:
    """Raises BadParameter for options that stand before the verb's name, where nothing would heed them."""
    given = [
        name for name in context.params if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
    ]
    if given:
        verb = cast(str, context.invoked_subcommand)
        raise typer.BadParameter(f"Options of `soup train {verb}` go after '{verb}'.")
