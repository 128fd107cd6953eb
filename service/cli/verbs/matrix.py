"""`soup matrix`: how well every adapter of a pool predicts the samples of all of them, against the base model."""

from __future__ import annotations

from typing import Annotated

import typer

from service.cli.flags import Given
from service.cli.output import columns, data_width, progress_bar
from service.cli.remote import Remote, verb
from service.cli.selection_flags import POOL, SELECTION, pool_of


@verb
def matrix(
    remote: Remote,
    given: Annotated[Given, SELECTION.only(*POOL)],
    passages: Annotated[
        int | None, typer.Option(min=2, max=500, help="Of each sample, the first so many; by default 50.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until all of it is evaluated.")] = True,
    show: Annotated[bool, typer.Option("--show", help="Evaluate nothing: print what is known.")] = False,
) -> None:
    """Evaluate the adapters of a pool on each other's samples.

    What is known is not computed again. Printed are differences of mean NLL a token to the base model: below zero is
    better. The page /matrix has them as a heat map.

    \b
    Examples:
      soup matrix
      soup matrix --pool-namespace acme --passages 100
      soup matrix --show --json
    """
    pool = pool_of(given)
    if not show:
        with progress_bar("evaluating") as report:
            done = remote.client.evaluate_pool(pool=pool, passages=passages, wait=wait, progress=report)
        if done.get("object") == "job":
            remote.answer(done, done["id"], said=f"It goes on as a job: `soup jobs watch {done['id']}`.")
            return
    base = None if pool is None else pool.base_model
    spaces = None if pool is None else pool.namespaces
    rows = [
        row for namespace in spaces or (None,)
        for row in remote.client.evaluations(base_model=base, namespace=namespace)
    ]  # fmt: skip
    rows.sort(key=lambda row: (row["domain"], row["difference"]))
    shown = [
        (row["domain"], row["adapter"], f"{row['difference']:+.4f}", f"{row['standard_error']:.4f}", row["passages"])
        for row in rows
    ]
    header = ("domain", "adapter", "difference", "standard error", "passages")
    table = [columns(header, shown, within=data_width())] if rows else []
    remote.answer({"object": "list", "data": rows}, *table, said="" if rows else "Nothing is evaluated yet.")
