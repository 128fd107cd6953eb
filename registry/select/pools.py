"""Pools: the adapters that selectors are fitted over, and refits when they change.

Called by the verbs, and by routes that change pools. Members are the newest live version of each name with a ready
sample; of one domain label the newest adapter of each namespace. An adapter never replaces one of another namespace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from registry.catalogue.database import Catalogue
from registry.catalogue.rows import AdapterRow, JobRow, MemberRow, PooledRow, SelectorRow
from registry.context import Refits
from registry.errors import Forbidden, InvalidParameter, Unavailable
from registry.spec import BaseShape, PoolRequest, PoolSpec, SelectorSpec

RETRY_AFTER = 2
"""Seconds after which a client should retry while samples are being embedded."""


def pool_base(request: PoolRequest, bases: Collection[str]) -> str:
    """The id of a pool's base model: the requested one, or the only one; raises InvalidParameter."""
    if request.base_model is not None and request.base_model in bases:
        return request.base_model
    if request.base_model is None and len(bases) == 1:
        return next(iter(bases))
    listed = ", ".join(sorted(bases)) or "none"
    problem = "is not given" if request.base_model is None else f"{request.base_model!r} is not on the allowlist"
    raise InvalidParameter(f"The pool's base_model {problem}; this server has: {listed}.", param="pool.base_model")


def pool_spec(request: PoolRequest, shape: BaseShape, visible: Sequence[str] | None) -> PoolSpec:
    """The pool of a request: its namespaces, by default all `visible` ones; raises Forbidden for others."""
    namespaces = request.namespaces if request.namespaces is not None else visible
    if visible is not None and not set(namespaces or ()) <= set(visible):
        foreign = sorted(set(namespaces or ()) - set(visible))
        raise Forbidden(f"This key may not read namespace {foreign[0]!r}.", param="pool.namespaces")
    return PoolSpec(
        base_fingerprint=shape.fingerprint,
        namespaces=None if namespaces is None else tuple(sorted(set(namespaces))),
        method=request.method,
        tag=request.tag,
        include_soups=request.include_soups,
    )


@dataclass(frozen=True)
class Members:
    """The current members of a pool, and the superseded adapters, each with the reason."""

    rows: list[PooledRow]
    superseded: list[tuple[PooledRow, str]]


def members_of(catalogue: Catalogue, pool: PoolSpec, encoder_digest: str | None) -> Members:
    """The current members of a pool, sorted by domain, and the superseded adapters, newest first.

    Members are the newest of each domain label in each namespace. Bytes that were pushed under several names count
    once, as the newest of these names in the namespace that had them first: no other can change their label or sample.
    """
    rows = catalogue.adapters.pool(pool, encoder_digest)
    first: dict[str, PooledRow] = {}
    for row in rows:
        first.setdefault(row.digest, row)
    newest: dict[tuple[str, str], PooledRow] = {}
    by_digest: dict[str, PooledRow] = {}
    superseded: list[tuple[PooledRow, str]] = []
    for row in reversed(rows):
        label = (row.domain, row.namespace)
        if first[row.digest].namespace != row.namespace:
            superseded.append((row, f"{first[row.digest].ref} has the same bytes and was there before."))
        elif label in newest:
            superseded.append((row, f"{newest[label].ref} is newer and has the same domain label."))
        elif row.digest in by_digest:
            superseded.append((row, f"{by_digest[row.digest].ref} is newer and has the same bytes."))
        else:
            newest[label] = by_digest[row.digest] = row
    return Members([newest[label] for label in sorted(newest)], superseded)


def check_not_empty(catalogue: Catalogue, pool: PoolSpec, rows: Sequence[PooledRow]) -> None:
    """Raise Unavailable where a pool has no member but samples are being embedded, else InvalidParameter."""
    if rows:
        return
    waiting = len(catalogue.adapters.pending(pool))
    if waiting:
        raise Unavailable(
            f"No adapter of this pool can be selected: {waiting} wait for their sample to be embedded. Try again in a "
            "while.",
            param="pool",
            retry_after=RETRY_AFTER,
        )
    raise InvalidParameter("No adapter of this pool can be selected: push adapters with a sample first.", param="pool")


def as_members(rows: Sequence[PooledRow]) -> tuple[MemberRow, ...]:
    """The members as a fitted selector stores them.

    Their domain is qualified by the namespace (`acme/law`) where several namespaces have the label, or it has a slash
    itself and could be confused with a qualified one.
    """
    counts = Counter(row.domain for row in rows)
    members = []
    for row in rows:
        needs_namespace = counts[row.domain] > 1 or "/" in row.domain
        domain = f"{row.namespace}/{row.domain}" if needs_namespace else row.domain
        members.append(MemberRow(adapter_id=row.id, ref=row.ref, digest=row.digest, domain=domain))
    return tuple(members)


def missing_members(rows: Iterable[PooledRow], selector: SelectorRow) -> tuple[str, ...]:
    """Refs of those of the pool's adapters that the selector was not fitted on."""
    fitted = {member.adapter_id for member in selector.members}
    return tuple(row.ref for row in rows if row.id not in fitted)


def gone_members(catalogue: Catalogue, selector: SelectorRow) -> dict[str, str]:
    """Digests of a selector's members that may no longer be chosen, with the reason.

    A member replaced by a newer version stays until the refit, so that its domain is still served.
    """
    pool = selector.pool
    live = catalogue.adapters.live_ids(pool.model_copy(update={"tag": None}))
    tagged = live if pool.tag is None else catalogue.adapters.live_ids(pool)
    gone = {}
    dead = [member.adapter_id for member in selector.members if member.adapter_id not in live]
    purged = catalogue.removals.missing_ids(dead) if dead else set()
    for member in selector.members:
        if member.adapter_id in purged:
            gone[member.digest] = "purged since the fit"
        elif member.adapter_id not in live:
            gone[member.digest] = "retired since the fit"
        elif member.adapter_id not in tagged:
            gone[member.digest] = f"no longer tagged {pool.tag!r}"
    return gone


def _may_contain(pool: PoolSpec, row: AdapterRow) -> bool:
    """Return True if the adapter may be, or may have been, in the pool; tags are ignored, as they change."""
    return (
        (pool.namespaces is None or row.namespace in pool.namespaces)
        and pool.method in (None, row.config.method)
        and (pool.include_soups or row.kind == "adapter")
        and row.config.is_language_model
    )


def enqueue_refits(catalogue: Catalogue, changed: AdapterRow, *, created_by: str, refits: Refits) -> list[str]:
    """Queue a fit of each fitted pool that is not idle and may contain the adapter; returns the job ids.

    The old selectors keep serving. The delay debounces: a fit that is queued already is not queued twice.
    """
    jobs, since = [], refits.idle_before(datetime.now(UTC))
    for pool, spec in catalogue.selectors.targets(changed.base_fingerprint, requested_since=since):
        if not _may_contain(pool, changed):
            continue
        target = FitTarget(changed.base_model, pool, spec)
        job = enqueue_fit(catalogue, target, namespace=changed.namespace, created_by=created_by, delay=refits.delay)
        jobs.append(job.id)
    return jobs


@dataclass(frozen=True)
class FitTarget:
    """A pool to fit, the id of its base model, and the selector spec."""

    base_model: str
    pool: PoolSpec
    spec: SelectorSpec


def enqueue_fit(
    catalogue: Catalogue,
    target: FitTarget,
    *,
    namespace: str,
    created_by: str,
    delay: float = 0.0,
    is_requested: bool = False,
) -> JobRow:
    """Queue a fit of a pool; returns the job, or the one for it that is queued already.

    With `is_requested` a caller waits for the selector, and callers of other namespaces do not share the job; without
    it the pool has changed.
    """
    pool, spec = target.pool, target.spec
    arguments = {
        "base": target.base_model,
        "pool": pool.model_dump(mode="json"),
        "spec": spec.model_dump(mode="json"),
        "asked": is_requested,
    }
    key = f"fit:{pool.digest}:{spec.digest}" + (f":{namespace}" if is_requested else "")
    return catalogue.jobs.enqueue(
        "fit", arguments, namespace=namespace, created_by=created_by, dedupe_key=key, delay=delay
    )


def is_fit_active(catalogue: Catalogue, pool: PoolSpec, spec: SelectorSpec) -> bool:
    """Return True if a fit of this pool and spec is queued or running."""
    subject = {"pool": pool.model_dump(mode="json"), "spec": spec.model_dump(mode="json")}
    return any(subject.items() <= row.arguments.items() for row in catalogue.jobs.active("fit"))
