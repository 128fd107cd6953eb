"""How well adapters predict samples: a row for each pair, of digests, so that every name of the same bytes has it.

A key sees a row where it sees a live version of the adapter and one with the sample. Removed with either (`removals`).
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
    delete,
    func,
    select,
)

from registry.catalogue.repository import Repository, newest, seen_by
from registry.catalogue.rows import Namespaces, Page
from registry.catalogue.tables import DIGEST, LIVE, Id, Microseconds, adapters, metadata


@dataclass(frozen=True, kw_only=True)
class NewEvaluation:
    """How well an adapter predicts some passages of a sample: NLL in nats summed over `tokens`, beside the base's.

    `standard_error` is that of the difference a token, adapter minus base.
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
    """A stored one, with names of the newest visible versions of the adapter and of the sample."""

    adapter: str
    adapter_version: int
    adapter_domain: str
    own_sample: str | None
    """The digest of the sample of that version of the adapter."""
    sample_of: str
    sample_version: int
    domain: str
    """Of the version that has the sample."""
    adapter_names: int
    """How many visible names have a live version with these weights, the one that is named among them; of one namespace
    where one was asked for."""
    sample_names: int
    """The same of the sample."""


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
        """How many passages each of these pairs was evaluated on, by adapter and sample; others are not in it."""
        query = select(evaluations.c.adapter_digest, evaluations.c.sample_digest, evaluations.c.passages)
        its = (
            evaluations.c.adapter_digest.in_(sorted(adapter_digests)),
            evaluations.c.sample_digest.in_(sorted(sample_digests)),
        )
        return {(row[0], row[1]): row[2] for row in self._connection.execute(query.where(*its))}

    def put(self, new: NewEvaluation) -> None:
        """Record an evaluation, in the place of another of the same pair."""
        same = (
            evaluations.c.adapter_digest == new.adapter_digest, evaluations.c.sample_digest == new.sample_digest
        )  # fmt: skip
        self._connection.execute(delete(evaluations).where(*same))
        self._insert(evaluations, **asdict(new))

    def list(
        self, visible: Namespaces, *, base_fingerprint: str | None = None, namespace: str | None = None,
        adapter: str | None = None, sample: str | None = None, limit: int, cursor: str | None = None,
    ) -> Page[EvaluationRow]:  # fmt: skip
        """What is visible, newest first: of a base model, of versions of one namespace, of an adapter or a sample.

        Each is named by the newest live version that is visible, and how many names have these bytes is said.
        """
        spaces: Namespaces = visible if namespace is None else (namespace,)
        if namespace is not None and visible is not None and namespace not in visible:
            spaces = ()
        own = _newest_by(adapters.c.digest, evaluations.c.adapter_digest, spaces)
        of = _newest_by(adapters.c.sample_digest, evaluations.c.sample_digest, spaces)
        model, sampled = adapters.alias("model"), adapters.alias("sampled")
        query = (
            select(
                evaluations, (model.c.namespace + "/" + model.c.name).label("adapter"),
                model.c.version.label("adapter_version"), model.c.domain.label("adapter_domain"),
                model.c.sample_digest.label("own_sample"),
                (sampled.c.namespace + "/" + sampled.c.name).label("sample_of"),
                sampled.c.version.label("sample_version"), sampled.c.domain.label("domain"),
                own.c.names.label("adapter_names"), of.c.names.label("sample_names"),
            )
            .join(own, own.c.key == evaluations.c.adapter_digest).join(model, model.c.id == own.c.id)
            .join(of, of.c.key == evaluations.c.sample_digest).join(sampled, sampled.c.id == of.c.id)
        )  # fmt: skip
        wanted = {
            model.c.base_fingerprint: base_fingerprint, evaluations.c.adapter_digest: adapter,
            evaluations.c.sample_digest: sample,
        }  # fmt: skip
        query = query.where(*(column == value for column, value in wanted.items() if value is not None))
        return self._page_of(newest(query, evaluations.c.id, limit=limit, cursor=cursor), limit=limit)


def _newest_by(key: ColumnElement[str], evaluated: ColumnElement[str], visible: Namespaces) -> Subquery:
    """The id of the newest visible live version of each digest of this kind, and how many names have one.

    Of what was evaluated alone: a catalogue may have far more.
    """
    name = adapters.c.namespace + "/" + adapters.c.name
    query = select(
        key.label("key"), func.max(adapters.c.id).label("id"), func.count(name.distinct()).label("names")
    )  # fmt: skip
    its = key.in_(select(evaluated))
    return query.where(LIVE, its, seen_by(visible, adapters.c.namespace)).group_by(key).subquery()
