"""The database and blobs of a data folder, for verbs that work on the server's machine: backup, blobs and check."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from adaptersoup.cli.output import answer, data_width
from adaptersoup.tables import columns
from registry.errors import NotFound
from service.settings import Settings

if TYPE_CHECKING:
    from registry.blobs import ServerBlobs
    from registry.catalogue.database import Database
    from service.operations.blob_hashes import Unsound


@contextmanager
def open_storage(settings: Settings) -> Iterator[tuple[Database, ServerBlobs]]:
    """Open the database and blobs of these settings; raises NotFound if there is no database."""
    from registry.blobs import open_blobs
    from registry.catalogue.database import Database

    if settings.database_url is None and not (settings.data / "soup.db").is_file():  # opening would create it
        raise NotFound(f"There is no database in {settings.data} (--data or SOUP_DATA).", param="data")
    with closing(Database(settings.database)) as database:
        yield database, open_blobs(settings.blob_place, make=False)


def print_blobs(value: dict[str, Any], unsound: Sequence[Unsound], *, json: bool, note: str) -> None:
    """Print the result of a verb and a table of missing or damaged blobs; exits with 1 if there are any."""
    rows = [(blob.digest, blob.problem, ", ".join(blob.named_by) or "nothing") for blob in unsound]
    table = [columns(("blob", "problem", "needed by"), rows, within=data_width())] if rows else []
    answer({**value, "unsound": [asdict(blob) for blob in unsound]}, *table, json=json, note=note)
    if unsound:
        raise typer.Exit(1)
