"""`soup check`: the stored blobs against their digests, on the data folder itself; beside its server or without one."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.commands import command
from service.cli.output import as_json, progress_bar, talk
from service.cli.setting_flags import Places, settings_of
from service.cli.stored_blobs import opened, print_unsound
from service.settings import Settings

if TYPE_CHECKING:
    from service.blob_hashes import Checked

RATE = 50 * 1024 * 1024


@command
def check(
    places: Places,
    every: Annotated[bool, typer.Option("--all", help="Read and hash all bytes; else sizes are compared.")] = False,
    rate: Annotated[int, typer.Option(min=1, help="With --all: bytes read a second.", metavar="BYTES")] = RATE,
    json: Annotated[bool, typer.Option("--json", help="Print counts and blobs as JSON.")] = False,
) -> None:
    """Check the stored blobs.

    Says which are missing or damaged, and what needs them: adapters, samples, selectors. Reads the data folder on the
    server's machine and writes nothing, so that the server may run meanwhile. Fails where any blob is not whole.

    \b
    Examples:
      soup check
      soup check --all --rate 200000000
      soup check --all --data /srv/soup --json
    """
    found = _checked(settings_of(Settings, **asdict(places)), every=every, rate=rate)
    _tell(found, json=json)
    if found.unsound:
        raise typer.Exit(1)


def _checked(settings: Settings, *, every: bool, rate: int) -> Checked:
    from service import storage
    from service.blob_hashes import Pace, check_hashes

    with opened(settings) as (database, blobs), progress_bar("checking blobs") as progress:
        storage.check_serves(database)
        return check_hashes(database, blobs, whole=every, pace=Pace(rate), progress=progress)


def _tell(found: Checked, *, json: bool) -> None:
    counts = {problem: found.count(problem) for problem in ("missing", "damaged", "unreadable")}
    if json:
        unsound = [asdict(one) for one in found.unsound]
        as_json({"object": "check", "blobs": found.blobs, "bytes": found.bytes, **counts, "unsound": unsound})
        return
    print_unsound(found.unsound)
    told = ", ".join(f"{count} {problem}" for problem, count in counts.items())
    talk(f"{found.blobs} blobs, {found.bytes} bytes read: {told}.")
