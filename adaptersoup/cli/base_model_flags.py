"""The options that name a base model on this machine: a folder, or an entry of the allowlist.

For verbs that need no server. Does not import torch; `BaseModelOptions.entry` imports the reader of allowlists.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import typer

from adaptersoup.cli.setting_flags import settings_of
from registry.errors import NotFound
from registry.spec import BaseEntry
from service.settings import Settings


@dataclass(frozen=True)
class BaseModelOptions:
    """The options that name a base model."""

    SECTION: ClassVar[str] = "Base model"
    base_folder: Annotated[
        Path | None, typer.Option(help="Folder of the base model, instead of --bases and --base.")
    ] = None
    base_kind: Annotated[
        Literal["causal", "encoder"], typer.Option(help="Kind of the model in --base-folder: encoder for BERT.")
    ] = "causal"
    bases: Annotated[Path | None, typer.Option(help="Allowlist of base models (SOUP_BASES).")] = None
    base: Annotated[str | None, typer.Option(help="Id of the base model in the allowlist.")] = None

    def entry(self) -> BaseEntry:
        """The base model that the options name; raises BadParameter or NotFound if there is none."""
        from registry.base_model import read_allowlist

        folder, base = self.base_folder, self.base
        if folder is not None:
            if base is not None or self.bases is not None:
                raise typer.BadParameter("Give --base-folder, or --bases and --base.")
            if not folder.is_dir():
                raise NotFound(f"{folder} is not a directory: --base-folder names the folder of a base model.")
            return BaseEntry(id="local", source=str(folder.resolve()), kind=self.base_kind)
        if self.base_kind != "causal":
            raise typer.BadParameter(
                "--base-kind describes the model in --base-folder; an allowlist has its own 'kind'."
            )
        path = self.bases or settings_of(Settings).bases
        if path is None:
            raise typer.BadParameter("No base model is named: give --base-folder, or --bases (SOUP_BASES) and --base.")
        entries = read_allowlist(path)
        if base is None and len(entries) == 1:
            return next(iter(entries.values()))
        if base not in entries:
            raise NotFound(f"--base must be one of {', '.join(sorted(entries))} ({path}).", param="base")
        return entries[base]
