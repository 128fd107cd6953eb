"""The job that fits a selector over a pool, in the fit process (`jobs.fit_process`)."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from registry.select.fitted import record_use
from registry.select.requested import RequestedSelector
from registry.spec import PoolSpec, SelectorSpec
from service.jobs.contract import JobContext, JobKind, namespaces_of

SPEC: TypeAdapter[SelectorSpec] = TypeAdapter(SelectorSpec)


def _run(context: JobContext) -> dict[str, Any]:
    arguments = context.row.arguments
    pool, spec = PoolSpec.model_validate(arguments["pool"]), SPEC.validate_python(arguments["spec"])
    requested = RequestedSelector(context.services.bases[arguments["base"]], pool, spec)
    row = context.fit(pool, spec, requested.encoder_digest)
    if arguments.get("asked"):  # by a caller, and not by a push
        record_use(context.services.registry, row, arguments["base"], created_by=context.row.created_by)
    return {"selector": row.id}


FIT = JobKind(
    run=_run,
    reach=lambda row: namespaces_of(row.arguments["pool"]["namespaces"]),
    lane="fit",
    is_maintenance=lambda row: not row.arguments.get("asked"),
)
