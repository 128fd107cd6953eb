"""`soup pull`: writes an adapter or soup to a directory that loads offline and can be pushed again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adaptersoup.cli.output import progress_bar
from adaptersoup.cli.remote import RefArgument, Remote, verb


@verb
def pull(
    remote: Remote,
    ref: RefArgument,
    directory: Annotated[Path, typer.Argument(help="Directory to write.", metavar="DIR")],
    force: Annotated[bool, typer.Option("--force", help="Replace the contents of DIR.")] = False,
) -> None:
    """Write an adapter or soup to a directory.

    Checks the digest of each file, and writes all files or none. A LoRA becomes a PEFT directory.

    \b
    Examples:
      soup pull team/law adapters/law
      soup pull team/soup@3 soup --force
    """
    with progress_bar(f"pulling {ref}") as report:
        folder = remote.client.pull_directory(ref, directory, replace=force, progress=report)
    files = sorted(file.name for file in folder.path.iterdir())
    note = f"{ref}: domain {folder.domain!r}, base model {folder.base_model or 'not named'}."
    remote.answer({"object": "folder", "path": str(folder.path), "files": files}, str(folder.path), note=note)
