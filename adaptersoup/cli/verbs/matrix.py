"""`soup matrix`: evaluates every adapter of a pool on the samples of all its adapters, against the base model."""

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
        int | None,
        typer.Option(min=2, max=500, help="Number of passages of each sample, from its start; by default 50."),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the evaluation ends.")] = True,
    show: Annotated[bool, typer.Option("--show", help="Print stored results without evaluating.")] = False,
) -> None:
    """Evaluate the adapters of a pool on each other's samples.

    Prints differences from the base model in mean NLL per token: below zero is better. Stored results are not computed
    again. The page /matrix shows them as a heat map.

    \b
    Examples:
      soup matrix
      soup matrix --pool-namespace acme --passages 100
      soup matrix --show --json
    """
    if show and (passages is not None or not wait):
        raise typer.BadParameter("--show prints stored results: leave out --passages and --no-wait.")
    pool = pool_of(flags)
    failed: dict[str, str] = {}
    if not show:
        if not wait:
            job = remote.client.evaluate_pool(pool=pool, passages=passages, wait=False)
            remote.answer(job, job["id"], note=f"It goes on as a job: `soup jobs watch {job['id']}`.")
            return
        with progress_bar("evaluating") as report:
            job = remote.client.begin_evaluate_pool(pool=pool, passages=passages, progress=report)
        failed = remote.follow("evaluating", job)["failed"]
        for ref, reason in failed.items():
            talk(f"{ref}: {reason}")
    evaluations = sorted(_evaluations(remote, pool), key=lambda row: (row["domain"], row["difference"]))
    rows = [
        (row["domain"], row["adapter"], f"{row['difference']:+.4f}", f"{row['standard_error']:.4f}", row["passages"])
        for row in evaluations
    ]
    header = ("domain", "adapter", "difference", "standard error", "passages")
    remote.answer_rows(evaluations, header, rows, empty="Nothing is evaluated yet.")
    if failed:
        raise typer.Exit(1)


def _evaluations(remote: Remote, pool: PoolRequest) -> list[dict[str, Any]]:
    """The stored evaluations of the adapters of a pool on its samples; a usage error if they have several bases."""
    namespaces = pool.namespaces or (None,)
    rows = remote.client.evaluations(
        base_model=pool.base_model, namespace=namespaces[0] if len(namespaces) == 1 else None
    )
    adapters = [
        adapter
        for namespace in namespaces
        for adapter in remote.client.adapters(
            base_model=pool.base_model,
            namespace=namespace,
            method=pool.method,
            tag=pool.tag,
            kind=None if pool.include_soups else "adapter",
        )
    ]
    bases = {adapter["digest"]: adapter["base_model"] for adapter in adapters}
    samples = {adapter["sample"]["digest"] for adapter in adapters if adapter.get("sample")}
    evaluations = [row for row in rows if row["digest"] in bases and row["sample"] in samples]
    evaluated = sorted({bases[row["digest"]] for row in evaluations})
    if len(evaluated) > 1:
        raise typer.BadParameter(
            f"The results are of several base models, {', '.join(evaluated)}: name one with --base."
        )
    return evaluations
