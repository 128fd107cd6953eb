"""Evaluating a store's pool on a Ray cluster, outside of the store's own engine; `Store.evaluate_pool` calls it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adaptersoup.requests import request_of
from registry.context import Caller
from registry.evaluate.matrix import CrossEvaluated, Elsewhere, cross_evaluate
from registry.progress import Progress
from registry.select.select import pool_of
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
    """Evaluate what is missing of a pool as tasks, and store each result as it comes.

    Raises InvalidParameter for a wrong argument, and otherwise as `cross_evaluate` and `open_pool` do.
    """
    given = {"pool": pool, "passages": passages}
    asked = request_of(EvaluationRequest, **{name: value for name, value in given.items() if value is not None})
    registry, caller = runtime.services.registry, Caller("admin", None, "store")
    base, spec = pool_of(registry, caller, asked.pool)
    with registry.database.write() as catalogue:
        caller.audit(catalogue, "evaluation.ask", spec.digest)
    with open_pool(on, at_once=parallel, cores=cores) as tasks:
        elsewhere = Elsewhere(tasks, score_samples, tasks.threads(of=1))
        return cross_evaluate(
            registry, caller, base, spec, passages=asked.passages, progress=progress, elsewhere=elsewhere
        )
