"""Evaluations of adapters on samples, one row a pair of digests, valid for every name of the same bytes.

A key sees a row if it sees a live version of the adapter and one with the sample. Removed with either (`removals`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime

from pydantic import TypeAdapter
from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Float,
    Integer,
    String,
    Subquery,
    Table,
    UniqueConstraint,
    func,
    select,
)

from registry.catalogue.repository import Repository, matching, newest, seen_by
from registry.catalogue.rows import Namespaces, Page
from registry.catalogue.tables import DIGEST, LIVE, Id, Microseconds, adapters, metadata


@dataclass(frozen=True, kw_only=True)
class NewEvaluation:
    """The NLL of an adapter and of its base model on passages of a sample, in nats, summed over `tokens`.

    `standard_error` is that of the mean difference a token, adapter minus base model.
    """

    adapter_digest: str
    sample_digest: str
    passages: int
    tokens: int
    nll: float
    base_nll: float
    standard_error: float
    created_by: str
    evaluated_at: datetime = field(default_factory=lambda: datetime.now(UTC))


@dataclass(frozen=True, kw_only=True)
class EvaluationRow(NewEvaluation):
    """A stored evaluation, with the newest visible versions of the adapter and of the adapter with the sample."""

    adapter: str
    adapter_version: int
    adapter_domain: str
    own_sample: str | None
    """The digest of the sample that this version of the adapter has itself."""
    sample_of: str
    """The name whose version `sample_version` has the sample."""
    sample_version: int
    domain: str
    """The domain of the version with the sample."""
    adapter_names: int
    """Number of visible names (of the namespace asked for, if any) with a live version of these weights."""
    sample_names: int
    """Number of visible names (of the namespace asked for, if any) with a live version with this sample."""


evaluations = Table(
    "evaluations",
    metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("adapter_digest", DIGEST, nullable=False),
    Column("sample_digest", DIGEST, nullable=False, index=True),
    Column("passages", Integer, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    Column("nll", Float(53), nullable=False),  # summed over the tokens, in nats
    Column("base_nll", Float(53), nullable=False),
    Column("standard_error", Float(53), nullable=False),  # of the difference of the two, a token
    Column("created_by", String(64), nullable=False),
    Column("evaluated_at", Microseconds, nullable=False),
    UniqueConstraint("adapter_digest", "sample_digest"),
)


class Evaluations(Repository[EvaluationRow]):
    """Evaluation rows."""

    values = TypeAdapter(EvaluationRow)

    def passages(self, adapter_digests: Collection[str], sample_digests: Collection[str]) -> dict[tuple[str, str], int]:
        """The number of passages that each evaluated pair was scored on, by (adapter, sample)."""
        query = select(evaluations.c.adapter_digest, evaluations.c.sample_digest, evaluations.c.passages).where(
            evaluations.c.adapter_digest.in_(sorted(adapter_digests)),
            evaluations.c.sample_digest.in_(sorted(sample_digests)),
        )
        return {(row[0], row[1]): row[2] for row in self._connection.execute(query)}

    def put(self, new: NewEvaluation) -> None:
        """Store or replace the evaluation of an adapter on a sample."""
        has_sample = evaluations.c.sample_digest == new.sample_digest
        self._delete(evaluations, evaluations.c.adapter_digest == new.adapter_digest, has_sample)
        self._insert(evaluations, **asdict(new))

    def list(
        self,
        visible: Namespaces,
        *,
        base_fingerprint: str | None = None,
        namespace: str | None = None,
        adapter: str | None = None,
        sample: str | None = None,
        limit: int,
        cursor: str | None = None,
    ) -> Page[EvaluationRow]:
        """The visible evaluations that match every filter, newest first; `namespace` filters adapters and samples."""
        namespaces: Namespaces = visible if namespace is None else (namespace,)
        if namespace is not None and visible is not None and namespace not in visible:
            namespaces = ()
        newest_model = _newest_by(adapters.c.digest, evaluations.c.adapter_digest, namespaces)
        newest_sampled = _newest_by(adapters.c.sample_digest, evaluations.c.sample_digest, namespaces)
        model, sampled = adapters.alias("model"), adapters.alias("sampled")
        query = (
            select(
                evaluations,
                (model.c.namespace + "/" + model.c.name).label("adapter"),
                model.c.version.label("adapter_version"),
                model.c.domain.label("adapter_domain"),
                model.c.sample_digest.label("own_sample"),
                (sampled.c.namespace + "/" + sampled.c.name).label("sample_of"),
                sampled.c.version.label("sample_version"),
                sampled.c.domain.label("domain"),
                newest_model.c.names.label("adapter_names"),
                newest_sampled.c.names.label("sample_names"),
            )
            .join(newest_model, newest_model.c.key == evaluations.c.adapter_digest)
            .join(model, model.c.id == newest_model.c.id)
            .join(newest_sampled, newest_sampled.c.key == evaluations.c.sample_digest)
            .join(sampled, sampled.c.id == newest_sampled.c.id)
            .where(*matching(evaluations, adapter_digest=adapter, sample_digest=sample))
        )
        if base_fingerprint is not None:
            query = query.where(model.c.base_fingerprint == base_fingerprint)
        return self._page_of(newest(query, evaluations.c.id, limit=limit, cursor=cursor), limit=limit)


def _newest_by(key: ColumnElement[str], evaluated: ColumnElement[str], visible: Namespaces) -> Subquery:
    """The id of the newest visible live version of each evaluated digest `key`, and the number of names with one.

    Only of digests in the column `evaluated`, since a catalogue may have far more.
    """
    name = adapters.c.namespace + "/" + adapters.c.name
    query = select(key.label("key"), func.max(adapters.c.id).label("id"), func.count(name.distinct()).label("names"))
    is_evaluated = key.in_(select(evaluated))
    return query.where(LIVE, is_evaluated, seen_by(visible, adapters.c.namespace)).group_by(key).subquery()
