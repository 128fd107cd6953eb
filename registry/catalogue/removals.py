"""Permanent removal of purged versions, unused soups and selectors, and unreferenced blobs.

A blob is removed in two transactions. The first deletes its row and schedules the removal of its file. The second
removes the files that are still scheduled; it holds the write lock, so no push runs meanwhile. A blob that is
referenced again in between stays.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime

from sqlalchemy import (
    ColumnElement,
    Select,
    String,
    Table,
    and_,
    cast,
    exists,
    func,
    insert,
    literal,
    or_,
    select,
)

from registry.catalogue.evaluations import evaluations
from registry.catalogue.repository import TableGateway, now, seen_by
from registry.catalogue.rows import AdapterRow, Namespaces
from registry.catalogue.tables import (
    HAS_TEXT,
    adapter_tags,
    adapters,
    aliases,
    blob_grants,
    blob_removals,
    blob_uploads,
    blobs,
    embeddings,
    evidence,
    probes,
    purged_adapters,
    recipe_ingredients,
    recipes,
    selector_namespaces,
    selector_targets,
    selectors,
    statistics,
    usage,
)
from registry.catalogue.words import adapter_words
from registry.names import DigestRef, NameRef, like_temporary


class Removals(TableGateway):
    """Removes rows; blobs of removed rows are left to `release` and `unreferenced`."""

    # --- versions of adapters -------------------------------------------------------------------

    def purged_at(self, visible: Namespaces, ref: NameRef | DigestRef) -> datetime | None:
        """The last moment when a version that the ref names was purged; None if none was."""
        if isinstance(ref, NameRef) and ref.alias is not None:
            return None  # a version that an alias points at is never purged
        if isinstance(ref, DigestRef):
            condition = purged_adapters.c.digest == ref.digest
        else:
            condition = and_(purged_adapters.c.namespace == ref.namespace, purged_adapters.c.name == ref.name)
            if ref.version is not None:
                condition = and_(condition, purged_adapters.c.version == ref.version)
        query = select(purged_adapters.c.purged_at).where(condition, seen_by(visible, purged_adapters.c.namespace))
        return self._connection.scalars(query.order_by(purged_adapters.c.purged_at.desc()).limit(1)).first()

    def missing_ids(self, ids: Collection[int]) -> set[int]:
        """The given ids whose versions were purged or collected."""
        missing = set(ids)
        for batch in _batches(sorted(missing)):
            missing -= set(self._connection.scalars(select(adapters.c.id).where(adapters.c.id.in_(batch))))
        return missing

    def count_purged(self) -> int:
        """The number of versions ever purged; it grows when another is purged."""
        return self._count(purged_adapters)

    def aliases_of(self, row: AdapterRow) -> list[str]:
        """Aliases that point at a version, in alphabetical order."""
        return sorted(self._connection.scalars(select(aliases.c.alias).where(_points_at(row))))

    def purge(self, row: AdapterRow) -> list[str]:
        """Remove a version with its evidence, and its recipes unless another soup has them; its number stays used.

        Returns the blobs of its weights and its sample. Also returns the blobs of the sample's embeddings, unless
        another version has that sample, and of statistics, unless another version has these weights with that sample.
        """
        evidence_recipes = select(evidence.c.recipe_digest).where(evidence.c.adapter_id == row.id)
        recipe_digests = {row.recipe_digest, *self._connection.scalars(evidence_recipes)} - {None}
        for table in (evidence, adapter_tags, adapter_words):
            self._delete(table, table.c.adapter_id == row.id)
        self._delete(adapters, adapters.c.id == row.id)
        purged = {"namespace": row.namespace, "name": row.name, "version": row.version, "digest": row.digest}
        self._insert(purged_adapters, **purged, purged_at=now())
        blob_digests = [row.weights_blob, *(blob for digest in recipe_digests for blob in self._drop_recipe(digest))]
        if row.sample is not None:
            blob_digests += [row.sample.digest, *self._drop_embeddings(embeddings.c.sample_digest == row.sample.digest)]
            blob_digests += self._drop_statistics(statistics.c.adapter_digest == row.digest)
            self._drop_evaluations(evaluations.c.sample_digest == row.sample.digest)
        self._drop_evaluations(evaluations.c.adapter_digest == row.digest)
        self._drop_probes(row)
        return blob_digests

    def _drop_recipe(self, digest: str | None) -> list[str]:
        """Remove a recipe that no soup has; returns the blob of its weights."""
        if self._exists(adapters.c.recipe_digest == digest) or self._exists(evidence.c.recipe_digest == digest):
            return []
        weights = list(self._connection.scalars(select(recipes.c.weights_blob).where(recipes.c.digest == digest)))
        self._delete(recipe_ingredients, recipe_ingredients.c.recipe_digest == digest)
        self._delete(recipes, recipes.c.digest == digest)
        return weights

    def _drop_embeddings(self, condition: ColumnElement[bool]) -> list[str]:
        """Remove embeddings that meet `condition` and whose sample no version has; returns their blobs."""
        is_used = exists().where(adapters.c.sample_digest == embeddings.c.sample_digest)
        return self._drop_orphans(embeddings, condition, is_used)

    def _drop_statistics(self, condition: ColumnElement[bool]) -> list[str]:
        """Remove statistics that meet `condition` and whose weights and sample no version has; returns their blobs."""
        is_used = exists().where(
            adapters.c.digest == statistics.c.adapter_digest, adapters.c.sample_digest == statistics.c.sample_digest
        )
        return self._drop_orphans(statistics, condition, is_used)

    def _drop_orphans(self, table: Table, condition: ColumnElement[bool], is_used: ColumnElement[bool]) -> list[str]:
        orphaned = and_(condition, ~is_used)
        orphans = list(self._connection.scalars(select(table.c.blob_digest).where(orphaned)))
        self._delete(table, orphaned)
        return orphans

    def _drop_probes(self, row: AdapterRow) -> None:
        """Remove the probe of an adapter that no version has, and that of its base model with the last one."""
        if not self._exists(adapters.c.digest == row.digest):
            self._delete(probes, probes.c.digest == row.digest)
        if not self._exists(adapters.c.base_fingerprint == row.base_fingerprint):
            self._delete(probes, probes.c.digest == row.base_fingerprint)

    def _drop_evaluations(self, condition: ColumnElement[bool]) -> None:
        """Remove evaluations that meet `condition` and whose weights or sample no version has."""
        orphaned = ~exists().where(adapters.c.digest == evaluations.c.adapter_digest)
        orphaned |= ~exists().where(adapters.c.sample_digest == evaluations.c.sample_digest)
        self._delete(evaluations, condition, orphaned)

    # --- unused soups and selectors -------------------------------------------------------------

    def soup_namespaces(self) -> list[str]:
        """Namespaces with live unnamed soups, in alphabetical order."""
        query = select(adapters.c.namespace).where(_unnamed(), adapters.c.retired_at.is_(None)).distinct()
        return sorted(self._connection.scalars(query))

    def unused_soups(self, namespace: str, since: datetime, *, limit: int | None = None) -> list[int]:
        """Ids of live unnamed soups without an alias that were neither cooked nor used since then, oldest first."""
        is_cooked = exists().where(evidence.c.adapter_id == adapters.c.id, evidence.c.created_at >= since)
        ref = adapters.c.namespace + "/" + adapters.c.name + "@" + cast(adapters.c.version, String)
        used = select(usage.c.model).where(usage.c.namespace == namespace, usage.c.day >= since.date().isoformat())
        query = select(adapters.c.id).where(
            _unnamed(),
            adapters.c.namespace == namespace,
            adapters.c.retired_at.is_(None),
            adapters.c.created_at < since,
            ~is_cooked,
            ref.not_in(used.distinct()),  # distinct, as PostgreSQL does not hash too many rows
            ~_has_alias(),
        )
        return list(self._connection.scalars(query.order_by(adapters.c.id).limit(limit)))

    def retired_soups(self, cutoff: datetime, *, limit: int) -> list[int]:
        """Ids of unnamed soups retired before `cutoff` that are no ingredient of a soup, oldest first."""
        is_ingredient = exists().where(recipe_ingredients.c.adapter_digest == adapters.c.digest)
        query = select(adapters.c.id).where(_unnamed(), adapters.c.retired_at < cutoff, ~is_ingredient, ~_has_alias())
        return list(self._connection.scalars(query.order_by(adapters.c.id).limit(limit)))

    def drop_selectors(self, cutoff: datetime) -> int:
        """Remove selectors fitted before `cutoff` that serve no pool and are in no evidence; returns their number."""
        cited = evidence.c.evidence["selector"].as_string()
        query = select(selectors.c.sequence).where(
            selectors.c.fitted_at < cutoff,
            ~exists().where(selector_targets.c.selector == selectors.c.sequence),
            selectors.c.id.not_in(select(cited).where(cited.is_not(None)).distinct()),
        )
        sequences = list(self._connection.scalars(query))
        for batch in _batches(sequences):
            self._delete(selector_namespaces, selector_namespaces.c.selector.in_(batch))
            self._delete(selectors, selectors.c.sequence.in_(batch))
        return len(sequences)

    def drop_embeddings(self) -> None:
        """Remove embeddings whose sample no version has."""
        self._drop_embeddings(embeddings.c.sample_digest.is_not(None))

    def drop_statistics(self) -> None:
        """Remove statistics whose weights and sample no version has."""
        self._drop_statistics(statistics.c.sample_digest.is_not(None))

    # --- blobs ----------------------------------------------------------------------------------

    def release(self, namespace: str, digests: Iterable[str]) -> None:
        """Revoke a namespace's grant of each of these blobs that none of its versions refers to."""
        for digest in digests:
            referring = _referring_versions(digest).where(adapters.c.namespace == namespace)
            if self._connection.execute(referring.limit(1)).first() is None:
                self._delete(blob_grants, blob_grants.c.namespace == namespace, blob_grants.c.digest == digest)

    def unreferenced(self, digests: Collection[str]) -> list[str]:
        """The given blobs that no row refers to and no namespace has uploaded."""
        is_granted = exists().where(blob_grants.c.digest == blobs.c.digest)
        query = select(blobs.c.digest).where(blobs.c.digest.in_(sorted(digests)), ~is_granted, *_unreferenced())
        return sorted(self._connection.scalars(query))

    def unseen(self, since: datetime, *, limit: int) -> list[str]:
        """Blobs that no row refers to and that were neither stored nor requested since then, at most `limit`."""
        query = select(blobs.c.digest).where(blobs.c.seen_at < since, *_unreferenced())
        return sorted(self._connection.scalars(query.order_by(blobs.c.seen_at).limit(limit)))

    def forget(self, digests: Sequence[str], due_at: datetime) -> int:
        """Delete the rows of blobs and schedule the removal of their files at `due_at`; returns their bytes."""
        size = 0
        for batch in _batches(digests):
            query = select(func.coalesce(func.sum(blobs.c.size), 0)).where(blobs.c.digest.in_(batch))
            size += int(self._connection.execute(query).scalar_one())
            for table in (blob_grants, blob_uploads, blobs):
                self._delete(table, table.c.digest.in_(batch))
        if digests:
            self._connection.execute(
                insert(blob_removals), [{"digest": digest, "due_at": due_at} for digest in digests]
            )
        return size

    def cancel_all(self) -> None:
        """Cancel the scheduled removals of files, in an older copy of a database: they may be in use since."""
        self._delete(blob_removals)

    def pending(self) -> set[str]:
        """Blobs whose files are scheduled for removal."""
        return set(self._connection.scalars(select(blob_removals.c.digest)))

    def count_pending(self) -> int:
        """The number of blobs whose files are scheduled for removal."""
        return self._count(blob_removals)

    def count_due(self, moment: datetime) -> int:
        """The number of blobs whose files are due for removal by `moment`."""
        return self._count(blob_removals, blob_removals.c.due_at <= moment)

    def due(self, moment: datetime, *, limit: int) -> list[str]:
        """Blobs whose files are due for removal by `moment`, at most `limit`."""
        query = select(blob_removals.c.digest).where(blob_removals.c.due_at <= moment)
        return list(self._connection.scalars(query.order_by(blob_removals.c.digest).limit(limit)))

    def check_session(self) -> None:
        """Raise if the session of this transaction has ended, and its write lock with it."""
        self._connection.execute(select(literal(1)))

    def record_removed(self, digests: Sequence[str]) -> None:
        """Record that the files of these blobs are removed."""
        self._delete(blob_removals, blob_removals.c.digest.in_(digests))


def _unnamed() -> ColumnElement[bool]:
    """The condition that a row is a soup with a generated name, of a cook without a name or of a comparison."""
    has_generated_name = adapters.c.name == "soup-" + func.substr(adapters.c.digest, 8, 12)
    return and_(adapters.c.kind == "soup", or_(has_generated_name, adapters.c.name.like(like_temporary())))


def _has_alias() -> ColumnElement[bool]:
    """The condition that an alias points at the version of the row."""
    return exists().where(
        aliases.c.namespace == adapters.c.namespace,
        aliases.c.name == adapters.c.name,
        aliases.c.version == adapters.c.version,
    )


def _points_at(row: AdapterRow) -> ColumnElement[bool]:
    return and_(aliases.c.namespace == row.namespace, aliases.c.name == row.name, aliases.c.version == row.version)


def _referring_versions(digest: str) -> Select[tuple[int]]:
    """Versions whose weights, text of the sample or embeddings are this blob."""
    embedded = select(embeddings.c.sample_digest).where(embeddings.c.blob_digest == digest)
    return select(adapters.c.id).where(
        (adapters.c.weights_blob == digest)
        | and_(adapters.c.sample_digest == digest, HAS_TEXT)
        | adapters.c.sample_digest.in_(embedded)
    )


def _unreferenced() -> list[ColumnElement[bool]]:
    """The conditions that no row refers to a blob."""
    return [
        ~exists().where(adapters.c.weights_blob == blobs.c.digest),
        ~exists().where(adapters.c.sample_digest == blobs.c.digest, HAS_TEXT),
        ~exists().where(embeddings.c.blob_digest == blobs.c.digest),
        ~exists().where(selectors.c.state_blob == blobs.c.digest),
        ~exists().where(recipes.c.weights_blob == blobs.c.digest),
        ~exists().where(statistics.c.blob_digest == blobs.c.digest),
    ]


def _batches(values: Sequence[object], size: int = 500) -> Iterable[Sequence[object]]:
    """Batches of the values, since databases limit the parameters of a statement."""
    return (values[first : first + size] for first in range(0, len(values), size))
