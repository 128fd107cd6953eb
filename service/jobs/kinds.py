"""Every kind of job by its name in the queue, and the jobs that take a few calls. `jobs.runner` runs them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from pydantic import TypeAdapter

from registry.catalogue import Catalogue
from registry.catalogue.rows import JobRow, Namespaces
from registry.evaluate.matrix import cross_evaluate
from registry.samples.sample import embed
from registry.select.fitted import record_use
from registry.select.pools import enqueue_refits
from registry.select.requested import RequestedSelector
from registry.spec import PoolSpec, SelectorSpec
from service.jobs.contract import JobContext, JobKind, namespaces_of
from service.jobs.cook import COOK, SEARCH
from service.jobs.probes import probe_embedded
from service.jobs.train import TRAIN

SPEC: TypeAdapter[SelectorSpec] = TypeAdapter(SelectorSpec)


def _embed(context: JobContext) -> dict[str, Any]:
    """Embed a pushed sample, enqueue refits of its adapter's pools, and take the adapter's probe."""
    registry = context.services.registry
    row = embed(registry, context.row.arguments["adapter_id"], progress=context.progress)
    with registry.database.write() as catalogue:
        refits = enqueue_refits(catalogue, row, created_by=context.row.created_by, refits=registry.refits)
    probe_embedded(context.services, row)
    return {"adapter": row.ref, "digest": row.digest, "refits": refits}


def _not_embedded(catalogue: Catalogue, row: JobRow) -> None:
    if catalogue.adapters.get_or_none(row.arguments["adapter_id"]) is not None:  # else it was purged
        catalogue.adapters.set_sample_state(row.arguments["adapter_id"], "failed")


def _fit(context: JobContext) -> dict[str, Any]:
    """Fit a selector over a pool, in the fit process (`jobs.fit_process`)."""
    arguments = context.row.arguments
    pool, spec = PoolSpec.model_validate(arguments["pool"]), SPEC.validate_python(arguments["spec"])
    requested = RequestedSelector(context.services.bases[arguments["base"]], pool, spec)
    row = context.fit(pool, spec, requested.encoder_digest)
    if context.row.is_requested:
        record_use(context.services.registry, row, arguments["base"], created_by=context.row.created_by)
    return {"selector": row.id}


def _evaluate(context: JobContext) -> dict[str, Any]:
    """Evaluate the adapters of a pool on each other's samples; it resumes pair by pair."""
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


def _of_pool(row: JobRow) -> Namespaces:
    return namespaces_of(row.arguments["pool"]["namespaces"])


KINDS: dict[str, JobKind] = {
    "embed": JobKind(run=_embed, reach=lambda row: (row.namespace,), on_unsuccessful_end=_not_embedded, lane="embed"),
    "fit": JobKind(run=_fit, reach=_of_pool, lane="fit"),
    "train": TRAIN,
    "cook": COOK,
    "search": SEARCH,
    "evaluate": JobKind(run=_evaluate, reach=_of_pool, lane="evaluate"),
}
