"""The job that evaluates the adapters of a pool on each other's samples; it resumes pair by pair."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from registry.evaluate.matrix import cross_evaluate
from registry.spec import PoolSpec
from service.jobs.contract import JobContext, JobKind, namespaces_of


def _run(context: JobContext) -> dict[str, Any]:
    arguments, services = context.row.arguments, context.services
    pool = PoolSpec.model_validate(arguments["pool"])
    evaluated = cross_evaluate(
        services.registry,
        context.caller,
        services.bases[arguments["base"]],
        pool,
        passages=arguments["passages"],
        progress=context.progress,
    )
    return asdict(evaluated)


EVALUATE = JobKind(run=_run, reach=lambda row: namespaces_of(row.arguments["pool"]["namespaces"]), lane="evaluate")
