"""Pools: which adapters a selector is fitted over, and which of them it does not know yet.

Called by the verbs, and by routes after which a pool is another. Members are the newest live version of each name with
a ready sample; of one domain label the newest adapter of each namespace. What is pushed into one namespace never takes
the place of what lies in another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from registry.catalogue.database import Catalogue
from registry.catalogue.rows import AdapterRow, JobRow, MemberRow, PooledRow, SelectorRow
from registry.context import Refits
from registry.errors import Forbidden, InvalidParameter, Unavailable
from registry.spec import BaseShape, PoolRequest, PoolSpec, SelectorSpec

EMBEDDED_AFTER = 2
"""Seconds after which it is worth asking again whether a sample is embedded."""


def pool_base(request: PoolRequest, bases: Collection[str]) -> str:
    """The base id a pool is over: the named one, or the only one there is."""
    if request.base_model is not None and request.base_model in bases:
        return request.base_model
    if request.base_model is None and len(bases) == 1:
        return next(iter(bases))
    listed = ", ".join(sorted(bases)) or "none"
    asked = "is not given" if request.base_model is None else f"{request.base_model!r} is not on the allowlist"
    raise InvalidParameter(f"The pool's base_model {asked}; this server has: {listed}.", param="pool.base_model")


def pool_spec(request: PoolRequest, shape: BaseShape, visible: Sequence[str] | None) -> PoolSpec:
    """The pool a caller means: the namespaces asked for, else all that the key may read."""
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
    """The adapters that a fit of a pool would use now, and those whose place another has, each with the reason."""

    rows: list[PooledRow]
    superseded: list[tuple[PooledRow, str]]


def members_of(catalogue: Catalogue, pool: PoolSpec, encoder_digest: str | None) -> Members:
    """The members of a pool, in the order of their domains, and who was superseded, the newest first.

    They are the newest of each domain label in each namespace. Bytes that were pushed under several names count once:
    as the newest of them in the namespace that had them first, so that no other can give them another label and sample.
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


def current_members(catalogue: Catalogue, pool: PoolSpec, encoder_digest: str | None) -> list[PooledRow]:
    """The adapters a fit of this pool would use now, in the order of their domains (`members_of`)."""
    return members_of(catalogue, pool, encoder_digest).rows


def check_not_empty(catalogue: Catalogue, pool: PoolSpec, rows: Sequence[PooledRow]) -> None:
    """Raises InvalidParameter where the pool has no member, and Unavailable where it will have some in a moment."""
    if rows:
        return
    what = "No adapter of this pool can be selected"
    waiting = len(catalogue.adapters.pending(pool))
    if waiting:
        raise Unavailable(
            f"{what}: {waiting} wait for their sample to be embedded. Try again in a while.",
            param="pool", retry_after=EMBEDDED_AFTER,
        )  # fmt: skip
    raise InvalidParameter(f"{what}: push adapters with a sample first.", param="pool")


def as_members(rows: Sequence[PooledRow]) -> tuple[MemberRow, ...]:
    """What a fitted selector remembers of its adapters.

    A label that several namespaces have is told apart by theirs (`acme/law`). So is one with a stroke of its own, which
    could otherwise be taken for such a label.
    """
    often = Counter(row.domain for row in rows)
    return tuple(
        MemberRow(
            adapter_id=row.id, ref=row.ref, digest=row.digest,
            domain=f"{row.namespace}/{row.domain}" if often[row.domain] > 1 or "/" in row.domain else row.domain,
        )
        for row in rows
    )  # fmt: skip


def missing_members(members: Members, selector: SelectorRow) -> tuple[str, ...]:
    """Refs of the pool's members now that were not there when the selector was fitted."""
    known = {member.adapter_id for member in selector.members}
    return tuple(row.ref for row in members.rows if row.id not in known)


def gone_members(catalogue: Catalogue, selector: SelectorRow) -> dict[str, str]:
    """Digests of members that may no longer be chosen, with the reason.

    One that a newer version has replaced stays until the refit: the old selector goes on serving its domain.
    """
    pool = selector.pool
    live = catalogue.adapters.live_ids(pool.model_copy(update={"tag": None}))
    tagged = live if pool.tag is None else catalogue.adapters.live_ids(pool)
    gone = {}
    away = [member.adapter_id for member in selector.members if member.adapter_id not in live]
    purged = catalogue.removals.gone(away) if away else set()
    for member in selector.members:
        if member.adapter_id in purged:
            gone[member.digest] = "purged since the fit"
        elif member.adapter_id not in live:
            gone[member.digest] = "retired since the fit"
        elif member.adapter_id not in tagged:
            gone[member.digest] = f"no longer tagged {pool.tag!r}"
    return gone


def _may_hold(pool: PoolSpec, row: AdapterRow) -> bool:
    """Whether the adapter can be, or can have been, in the pool; tags come and go, so they are not looked at."""
    return (
        (pool.namespaces is None or row.namespace in pool.namespaces)
        and pool.method in (None, row.config.method)
        and (pool.include_soups or row.kind == "adapter")
        and row.config.is_language_model
    )


def enqueue_refits(catalogue: Catalogue, changed: AdapterRow, *, created_by: str, refits: Refits) -> list[str]:
    """Queue a fit of every fitted pool this adapter came to or left, and that is not idle; returns the job ids.

    The old selectors keep serving. The delay debounces: a fit that is queued already is not queued twice.
    """
    jobs, since = [], refits.asked_since(datetime.now(UTC))
    for pool, spec in catalogue.selectors.targets(changed.base_fingerprint, asked_since=since):
        if not _may_hold(pool, changed):
            continue
        job = enqueue_fit(
            catalogue, changed.base_model, pool, spec, namespace=changed.namespace, created_by=created_by,
            delay=refits.delay,
        )  # fmt: skip
        jobs.append(job.id)
    return jobs


def enqueue_fit(
    catalogue: Catalogue, base_model: str, pool: PoolSpec, spec: SelectorSpec, *, namespace: str, created_by: str,
    delay: float = 0.0, asked: bool = False,
) -> JobRow:  # fmt: skip
    """Queue a fit of a pool; returns the job, or the one for it that is queued already.

    With `asked` somebody wants the selector, of which others than those of `namespace` do not see the job; without it
    the pool has changed.
    """
    arguments = {
        "base": base_model, "pool": pool.model_dump(mode="json"), "spec": spec.model_dump(mode="json"), "asked": asked
    }  # fmt: skip
    key = f"fit:{pool.digest}:{spec.digest}" + (f":{namespace}" if asked else "")
    return catalogue.jobs.enqueue(
        "fit", arguments, namespace=namespace, created_by=created_by, dedupe_key=key, delay=delay
    )
