"""Evaluation of a store's pool as tasks of a Ray cluster; `Store.evaluate_pool` calls it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adaptersoup.requests import request_of
from registry.context import Caller
from registry.evaluate.matrix import CrossEvaluated, EvaluationPool, cross_evaluate
from registry.progress import Progress
from registry.select.requested import pool_of
from registry.tasks.run import open_pool
from service.engine.score_task import score_samples
from service.http.schemas.evaluations import EvaluationRequest
from service.runtime import Runtime


def evaluate_on(
    on: str,
    runtime: Runtime,
    *,
    pool: Mapping[str, Any] | None,
    passages: int | None,
    parallel: int | None,
    cores: int | None,
    progress: Progress,
) -> CrossEvaluated:
    """Evaluate the missing pairs of a pool as tasks, and store each result as it arrives.

    Raises InvalidParameter for a wrong argument, and the errors of `cross_evaluate` and `open_pool`.
    """
    request = request_of(EvaluationRequest, pool=pool, passages=passages)
    registry, caller = runtime.services.registry, Caller("admin", None, "store")
    base, spec = pool_of(registry, caller, request.pool)
    with registry.database.write() as catalogue:
        caller.audit(catalogue, "evaluation.ask", spec.digest)
    with open_pool(on, at_once=parallel, cores=cores) as tasks:
        workers = EvaluationPool(tasks, score_samples, tasks.threads(of=1))
        return cross_evaluate(
            registry, caller, base, spec, passages=request.passages, progress=progress, workers=workers
        )
