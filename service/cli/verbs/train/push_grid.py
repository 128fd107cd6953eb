"""What a grid made, pushed in one go: called by `soup train sweep --push`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from registry.formats import AdapterDirectory, read_directory
from service.cli.failures import Failures
from service.cli.output import talk
from service.client import SoupClient
from service.client.additions import name_of
from service.client.samples import read_texts
from service.client.transfer import push_folder
from training.request import merge_request
from training.spec import BANK

if TYPE_CHECKING:
    from training.sweep import Row


def push_rows(client: SoupClient, rows: Sequence[Row], namespace: str) -> dict[str, str]:
    """Push every adapter of the grid; name and version by cell. One that is refused does not keep the others.

    The better on validation data the later: of a domain selectors look at the newest adapter, which then is the best.
    """
    pushed = {}
    with client:
        for row in sorted(rows, key=_validation_loss, reverse=True):
            if row.folder is None:
                continue
            with Failures().of(row.cell.name):
                pushed[row.cell.name] = _push(client, row.folder, f"{namespace}/{name_of(row.folder.path)}")
                talk(f"{row.cell.name} is {pushed[row.cell.name]}")
    return pushed


def _validation_loss(row: Row) -> float:
    """The lowest that was seen; of a cell that has no adapter infinite."""
    return min((loss for _step, loss in row.record.get("valid_history", ())), default=math.inf)


def _push(client: SoupClient, folder: AdapterDirectory, name: str) -> str:
    """Push one; of a bank its merge is made by the server, which then knows what it was made of."""
    bank = folder.path.with_name(folder.path.name + BANK)
    if "bank" not in folder.provenance.training or not bank.is_dir():
        return str(push_folder(client, folder, name=name)["ref"])
    sample = None if folder.sample is None else read_texts(folder.sample)
    ref = str(push_folder(client, read_directory(bank), name=name + BANK, texts=sample)["ref"])
    return str(client.cook(merge_request(ref, name=name))["model"])
