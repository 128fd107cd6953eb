"""How well adapters predict samples: a row for each pair, of digests, so that every name of the same bytes has it.

A key sees a row where it sees a live version of the adapter and one with the sample. Removed with either (`removals`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict

from pydantic import TypeAdapter
from sqlalchemy import ColumnElement, Subquery, delete, func, select

from registry.catalogue.evaluation_rows import EvaluationRow, NewEvaluation
from registry.catalogue.evaluation_tables import evaluations
from registry.catalogue.repository import Repository, newest, seen_by
from registry.catalogue.rows import Namespaces, Page
from registry.catalogue.tables import LIVE, adapters


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
