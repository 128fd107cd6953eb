"""What each kind of job does: embed a pushed sample, fit a pool, cook a soup, train. `service/jobs.py` runs them.

Arguments are ids and small parameters; texts wait in a blob of their own that is deleted when the job ends, so that
no sample of a novel domain outlives its request.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import TypeAdapter

from registry.catalogue import Catalogue
from registry.catalogue.rows import JobRow, Scope, SelectorRow
from registry.cook import Candidate, Kitchen, cook
from registry.cook.choose import by_hand
from registry.embed import embed
from registry.errors import Unavailable
from registry.names import split_name
from registry.pools import enqueue_refits, pool_base
from registry.registry import Caller
from registry.select import encoder_for
from registry.spec import (
    CookRequest,
    HandRecipe,
    MergeMixing,
    PassageScore,
    PoolSpec,
    SelectorSpec,
    WeightedRef,
)
from service.engine import AdapterHandle
from service.jobs.train import Training, train
from service.limits import intake_limits
from training.request import TrainingRequest

if TYPE_CHECKING:
    from service.jobs.fit_process import FitProcess
    from service.runtime import Runtime

Progress = Callable[[int, int, str], None]
Lane = Literal["quick", "training"]
SPEC: TypeAdapter[SelectorSpec] = TypeAdapter(SelectorSpec)


@dataclass(frozen=True)
class JobContext:
    """A job at work: where it runs, its row, and what it reports to (which raises when it is cancelled)."""

    runtime: Runtime
    fitting: FitProcess
    row: JobRow
    progress: Progress


@dataclass(frozen=True)
class JobKind:
    """What the runner and the routes need to know of a kind of job.

    `run` does it; `ended_without` is told, in the transaction that ends it, that there will be no result; `clean`
    removes what only the job needed, and may be called again; `reach` is the namespaces it works on (None: all).
    Jobs of one `lane` keep only each other waiting: a training takes hours.
    """

    run: Callable[[JobContext], dict[str, Any]]
    ended_without: Callable[[Catalogue, JobRow], None]
    clean: Callable[[Runtime, JobRow], None]
    reach: Callable[[JobRow], Scope]
    lane: Lane = "quick"


def _nothing(where: object, row: JobRow) -> None:
    """Nothing to do."""


def _embed(context: JobContext) -> dict[str, Any]:
    runtime = context.runtime
    row = embed(
        context.row.arguments["adapter_id"],
        database=runtime.database,
        blobs=runtime.blobs,
        encoders=runtime.encoders,
        progress=context.progress,
    )
    with runtime.database.write() as catalogue:
        delay = runtime.settings.refit_delay_seconds
        refits = enqueue_refits(catalogue, row, created_by=context.row.created_by, delay=delay)
    return {"adapter": row.ref, "digest": row.digest, "refits": refits}


def _not_embedded(catalogue: Catalogue, row: JobRow) -> None:
    catalogue.adapters.set_sample_state(row.arguments["adapter_id"], "failed")


def _fit(context: JobContext) -> dict[str, Any]:
    arguments = context.row.arguments
    pool = PoolSpec.model_validate(arguments["pool"])
    spec = SPEC.validate_python(arguments["spec"])
    encoder = encoder_for(spec, context.runtime.encoders(arguments["base"]))
    digest = None if encoder is None else encoder.digest
    row = context.fitting.fit(pool, spec, digest, progress=context.progress)
    return {"selector": row.id}


def _cook(context: JobContext) -> dict[str, Any]:
    runtime, arguments = context.runtime, context.row.arguments
    stored = json.loads(runtime.blobs.read(arguments["request"]))
    request = CookRequest.model_validate(stored["request"])
    scope = _namespaces(arguments["scope"])
    caller = Caller(key_id=context.row.created_by, scope=scope, request_id=arguments["request_id"])
    if request.recipe is not None:
        base_id, _ = by_hand(request.recipe, scope=caller.scope, database=runtime.database, blobs=runtime.blobs)
    else:
        base_id = pool_base(request.pool, runtime.shapes())
    kitchen = _kitchen(context, base_id)
    cooked = cook(request, kitchen=kitchen, caller=caller, namespace=arguments["namespace"], progress=context.progress)
    return cooked.model_dump(mode="json")


def _kitchen(context: JobContext, base_id: str) -> Kitchen:
    runtime = context.runtime
    if base_id not in runtime.bases:
        raise Unavailable(f"The adapters need base model {base_id!r}, which this server no longer serves.")

    def advance(done: int, total: int) -> None:
        context.progress(done, total, "scoring the sample")

    def score(texts: Sequence[str], candidate: Candidate | None) -> list[PassageScore]:
        handle = None if candidate is None else _handle(candidate)
        return runtime.engine.score(base_id, texts, handle, progress=advance, patient=True)

    def fit(pool: PoolSpec, spec: SelectorSpec, encoder_digest: str | None) -> SelectorRow:
        return context.fitting.fit(pool, spec, encoder_digest, progress=context.progress)

    return Kitchen(
        database=runtime.database,
        blobs=runtime.blobs,
        base_id=base_id,
        shape=runtime.shape(base_id),
        encoders=runtime.encoders(base_id),
        score=score,
        fit=fit,
        limits=intake_limits(runtime.settings),
        refit_delay=runtime.settings.refit_delay_seconds,
    )


def _train(context: JobContext) -> dict[str, Any]:
    arguments = context.row.arguments
    request = TrainingRequest.model_validate(arguments["request"])
    training = Training(context.runtime, request, arguments, context.row.created_by, context.progress)
    pushed = train(training)
    found: dict[str, Any] = {
        "adapter": pushed.row.ref, "digest": pushed.row.digest, "created": pushed.created,
        "warnings": list(pushed.warnings),
    }  # fmt: skip
    if request.spec.adamix is None:
        return found
    merge = CookRequest(
        recipe=HandRecipe(ingredients=(WeightedRef(ref=pushed.row.ref),)), mixing=MergeMixing(), name=request.name,
        verify=False,
    )  # fmt: skip
    cooked = cook(
        merge, kitchen=_kitchen(context, request.base_model), caller=training.caller,
        namespace=split_name(request.name)[0], progress=context.progress,
    )  # fmt: skip
    return {**found, "bank": found["adapter"], "adapter": cooked.model, "digest": cooked.digest}


def _handle(candidate: Candidate) -> AdapterHandle:
    return AdapterHandle(candidate.digest, candidate.config, candidate.load, candidate.size_bytes)


def _clean_cook(runtime: Runtime, row: JobRow) -> None:
    runtime.blobs.delete(row.arguments["request"])


def _namespaces(found: Sequence[str] | None) -> Scope:
    return None if found is None else tuple(found)


KINDS: dict[str, JobKind] = {
    "embed": JobKind(_embed, _not_embedded, _nothing, lambda row: (row.namespace,)),
    "fit": JobKind(_fit, _nothing, _nothing, lambda row: _namespaces(row.arguments["pool"]["namespaces"])),
    "train": JobKind(_train, _nothing, _nothing, lambda row: _namespaces(row.arguments["reach"]), lane="training"),
    "cook": JobKind(_cook, _nothing, _clean_cook, lambda row: _namespaces(row.arguments["scope"])),
}
