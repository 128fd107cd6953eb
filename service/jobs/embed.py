"""The job that embeds a pushed sample, enqueues refits of its adapter's pools, and takes the adapter's probe."""

from __future__ import annotations

from typing import Any

from registry.catalogue import Catalogue
from registry.catalogue.rows import JobRow
from registry.samples.sample import embed
from registry.select.pools import enqueue_refits
from service.jobs.contract import JobContext, JobKind
from service.jobs.probes import probe_embedded


def _run(context: JobContext) -> dict[str, Any]:
    registry = context.services.registry
    row = embed(registry, context.row.arguments["adapter_id"], progress=context.progress)
    with registry.database.write() as catalogue:
        refits = enqueue_refits(catalogue, row, created_by=context.row.created_by, refits=registry.refits)
    probe_embedded(context.services, row)
    return {"adapter": row.ref, "digest": row.digest, "refits": refits}


def _not_embedded(catalogue: Catalogue, row: JobRow) -> None:
    if catalogue.adapters.get_or_none(row.arguments["adapter_id"]) is not None:  # else it was purged
        catalogue.adapters.set_sample_state(row.arguments["adapter_id"], "failed")


EMBED = JobKind(
    run=_run,
    reach=lambda row: (row.namespace,),
    ended_without=_not_embedded,
    lane="embed",
    is_maintenance=lambda _row: True,
)
