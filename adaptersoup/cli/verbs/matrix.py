"""`soup matrix`: how well every adapter of a pool predicts the samples of all of them, against the base model."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from adaptersoup.cli.flags import ParsedFlags
from adaptersoup.cli.output import progress_bar, talk
from adaptersoup.cli.remote import Remote, verb
from adaptersoup.cli.selection_flags import POOL, SELECTION, pool_of
from registry.spec import PoolRequest


@verb
def matrix(
    remote: Remote,
    flags: Annotated[ParsedFlags, SELECTION.only(*POOL)],
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
    pool = pool_of(flags)
    failed: dict[str, str] = {}
    if not show:
        with progress_bar("evaluating") as report:
            done = remote.client.evaluate_pool(pool=pool, passages=passages, wait=wait, progress=report)
        if done.get("object") == "job":
            remote.answer(done, done["id"], note=f"It goes on as a job: `soup jobs watch {done['id']}`.")
            return
        failed = done["failed"]
    rows = _known(remote, pool)
    rows.sort(key=lambda row: (row["domain"], row["difference"]))
    shown = [
        (row["domain"], row["adapter"], f"{row['difference']:+.4f}", f"{row['standard_error']:.4f}", row["passages"])
        for row in rows
    ]
    header = ("domain", "adapter", "difference", "standard error", "passages")
    remote.answer_rows(rows, header, shown, empty="Nothing is evaluated yet.")
    for ref, why in failed.items():
        talk(f"{ref}: {why}")
    if failed:
        raise typer.Exit(1)


def _known(remote: Remote, pool: PoolRequest | None) -> list[dict[str, Any]]:
    """What is known of the adapters of a pool on its samples; of all that the key sees where no pool is named."""
    if pool is None:
        return list(remote.client.evaluations())
    spaces = pool.namespaces or (None,)
    rows = remote.client.evaluations(base_model=pool.base_model, namespace=spaces[0] if len(spaces) == 1 else None)
    meant = [
        one
        for space in spaces
        for one in remote.client.adapters(
            base_model=pool.base_model,
            namespace=space,
            method=pool.method,
            tag=pool.tag,
            kind=None if pool.include_soups else "adapter",
        )
    ]
    digests = {one["digest"] for one in meant}
    samples = {one["sample"]["digest"] for one in meant if one.get("sample")}
    return [row for row in rows if row["digest"] in digests and row["sample"] in samples]
