"""Evaluating a store's pool on a Ray cluster, outside of the store's own engine; `Store.evaluate_pool` calls it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adaptersoup.calls import request_of
from registry.cross_evaluate import CrossEvaluated, Elsewhere, cross_evaluate
from registry.pieces.places import place_of_work
from registry.progress import Progress
from registry.registry import Caller
from registry.select import pool_of
from service.engine.score_pieces import score_samples
from service.http.schemas.evaluations import EvaluationRequest
from service.runtime import Runtime


def evaluate_on(
    on: str, runtime: Runtime, *, pool: Mapping[str, Any] | None, passages: int | None, parallel: int | None,
    cores: int | None, progress: Progress,
) -> CrossEvaluated:  # fmt: skip
    """Evaluate what is missing of a pool as pieces of work, and keep it in the store as it comes.

    Raises InvalidParameter for what is asked for wrongly, and otherwise as `cross_evaluate` and `place_of_work` do.
    """
    given = {"pool": pool, "passages": passages}
    asked = request_of(EvaluationRequest, **{name: value for name, value in given.items() if value is not None})
    registry, caller = runtime.parts.registry, Caller("admin", None, "store")
    base, spec = pool_of(registry, caller, asked.pool)
    with registry.database.write() as catalogue:
        caller.audit(catalogue, "evaluation.ask", spec.digest)
    with place_of_work(on, at_once=parallel, cores=cores) as place:
        elsewhere = Elsewhere(place, score_samples, place.threads(of=1))
        return cross_evaluate(
            registry, caller, base, spec, passages=asked.passages, progress=progress, elsewhere=elsewhere
        )  # fmt: skip
