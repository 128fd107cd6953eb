"""`soup blobs`: copies the stored blobs, on the server's machine, whether its server runs or not."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from adaptersoup.cli.commands import command
from adaptersoup.cli.help_sections import Verbs
from adaptersoup.cli.output import progress_bar
from adaptersoup.cli.setting_flags import StorageFlags, settings_of
from adaptersoup.cli.stored_blobs import open_storage, print_blobs
from registry.errors import InvalidParameter
from service.settings import Settings
from service.settings.places import BUCKET, NO_BUCKET

app = Verbs(help="Copy the blobs into another store.", no_args_is_help=True)


@app.callback()
def group() -> None:
    """Copy the blobs into another store."""


@app.command()
@command
def copy(
    url: Annotated[str, typer.Argument(help="Bucket to copy to, as SOUP_BLOBS_URL names it.", metavar="URL")],
    storage: StorageFlags,
    json: Annotated[bool, typer.Option("--json", help="Print the counts and what is not whole as JSON.")] = False,
) -> None:
    """Copy every blob into a bucket.

    Reads the data folder on the server's machine; the server can run meanwhile. A second run copies only new blobs, and
    removes those that the server has removed since. To change to the bucket, stop the server, copy once more, and start
    it with the URL. If a blob is missing or damaged, the command names it, copies the others and fails.

    \b
    Examples:
      soup blobs copy s3://team-adapters/soup
      soup blobs copy s3://team-adapters/soup --data /srv/soup
    """
    if BUCKET.fullmatch(url) is None:
        raise InvalidParameter(f"The argument is not the URL of a bucket: {NO_BUCKET}.", param="url")
    settings = settings_of(Settings, **asdict(storage))
    if settings.blobs_url is not None and settings.blobs_url.rstrip("/") == url.rstrip("/"):
        raise InvalidParameter("The blobs are in this bucket already (SOUP_BLOBS_URL).", param="url")
    from registry.blobs import open_blobs
    from service.operations.blob_copy import copy_store

    place = settings.model_copy(update={"blobs": None, "blobs_url": url}).blob_place
    no_cache = {"cache": place.folder / "copying", "cache_bytes": 0}  # leaves the server's cache unchanged
    with open_storage(settings) as (database, source), progress_bar("copying blobs") as progress:
        copied = copy_store(database, source, open_blobs(place.model_copy(update=no_cache)), progress=progress)
    value = {"object": "copy", "blobs": copied.blobs, "new": copied.new, "removed": copied.removed}
    left_out = f"{len(copied.unsound)} left out (missing or damaged)"
    note = f"{url}: {copied.blobs} blobs, {copied.new} of them new, {left_out}; {copied.removed} removed."
    print_blobs(value, copied.unsound, json=json, note=note)
