"""The job that fits a selector over a pool, in the fit process (`jobs.fit_process`)."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from registry.select.select import encoder_for, record_use
from registry.spec import PoolSpec, SelectorSpec
from service.jobs.contract import JobContext, JobKind, namespaces_of

SPEC: TypeAdapter[SelectorSpec] = TypeAdapter(SelectorSpec)


def _run(context: JobContext) -> dict[str, Any]:
    arguments = context.row.arguments
    spec = SPEC.validate_python(arguments["spec"])
    encoder = encoder_for(spec, context.services.bases[arguments["base"]].encoders())
    pool = PoolSpec.model_validate(arguments["pool"])
    row = context.fit(pool, spec, None if encoder is None else encoder.digest)
    if arguments.get("asked"):  # by a caller, and not by a push
        record_use(context.services.registry, row, arguments["base"], created_by=context.row.created_by)
    return {"selector": row.id}


FIT = JobKind(
    run=_run,
    reach=lambda row: namespaces_of(row.arguments["pool"]["namespaces"]),
    lane="fit",
    is_maintenance=lambda row: not row.arguments.get("asked"),
)
