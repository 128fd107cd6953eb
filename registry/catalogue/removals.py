"""What goes for good: purged versions, soups and selectors that nobody needs, and blobs that nothing names.

A blob goes in two transactions. The first takes its row away and notes when its file is to go; the second, under the
turn to write and so never beside a push, removes the file of what is still noted. Named again in between, it stays.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, Connection, Select, String, and_, cast, delete, exists, func, insert, or_, select

from registry.catalogue.evaluations import evaluations
from registry.catalogue.repository import now, seen_by
from registry.catalogue.rows import AdapterRow, Namespaces
from registry.catalogue.tables import (
    adapter_tags,
    adapters,
    aliases,
    blob_grants,
    blob_removals,
    blob_uploads,
    blobs,
    embeddings,
    evidence,
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


class Removals:
    """Removes rows; what the removed rows named is left to `release` and `unreferenced`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    # --- versions of adapters -------------------------------------------------------------------

    def purged_at(self, visible: Namespaces, ref: NameRef | DigestRef) -> datetime | None:
        """When what a ref means was purged, the latest of several; None where nothing was."""
        if isinstance(ref, NameRef) and ref.alias is not None:
            return None  # while an alias points at a version that is not purged
        if isinstance(ref, DigestRef):
            meant = purged_adapters.c.digest == ref.digest
        else:
            version = purged_adapters.c.version == ref.version
            named = and_(purged_adapters.c.namespace == ref.namespace, purged_adapters.c.name == ref.name)
            meant = named if ref.version is None else and_(named, version)
        query = select(purged_adapters.c.purged_at).where(meant, seen_by(visible, purged_adapters.c.namespace))
        return self._connection.scalars(query.order_by(purged_adapters.c.purged_at.desc()).limit(1)).first()

    def gone(self, ids: Collection[int]) -> set[int]:
        """Those of these ids of versions that are no more: they were purged, or collected."""
        left = set(ids)
        for part in _parts(sorted(left)):
            left -= set(self._connection.scalars(select(adapters.c.id).where(adapters.c.id.in_(part))))
        return left

    def count_purged(self) -> int:
        """How many versions were removed for good: more than before where one has gone since."""
        return int(self._connection.execute(select(func.count()).select_from(purged_adapters)).scalar_one())

    def aliases_of(self, row: AdapterRow) -> list[str]:
        """Aliases that point at a version, in alphabetical order."""
        return sorted(self._connection.scalars(select(aliases.c.alias).where(_points_at(row))))

    def purge(self, row: AdapterRow) -> list[str]:
        """Remove a version with its evidence, and recipes where no other soup is of them; its number stays used.

        Returns the blobs that it named: those of its weights, its sample, of the sample's embeddings where no other
        version has that sample, and of statistics where no other version has these weights and that sample.
        """
        run = self._connection.execute
        found = select(evidence.c.recipe_digest).where(evidence.c.adapter_id == row.id)
        cooked = {row.recipe_digest, *self._connection.scalars(found)} - {None}
        run(delete(evidence).where(evidence.c.adapter_id == row.id))
        run(delete(adapter_tags).where(adapter_tags.c.adapter_id == row.id))
        run(delete(adapter_words).where(adapter_words.c.adapter_id == row.id))
        run(delete(adapters).where(adapters.c.id == row.id))
        run(
            insert(purged_adapters).values(
                namespace=row.namespace, name=row.name, version=row.version, digest=row.digest, purged_at=now()
            )
        )
        named = [row.weights_blob, *(blob for digest in cooked for blob in self._drop_recipe(digest))]
        if row.sample is not None:
            named += [row.sample.digest, *self._drop_embeddings(embeddings.c.sample_digest == row.sample.digest)]
            named += self._drop_statistics(statistics.c.adapter_digest == row.digest)
            self._drop_evaluations(evaluations.c.sample_digest == row.sample.digest)
        self._drop_evaluations(evaluations.c.adapter_digest == row.digest)
        return named

    def _drop_recipe(self, digest: str | None) -> list[str]:
        """Remove a recipe that no version is of; gives the blob of what it gave."""
        others = exists().where(adapters.c.recipe_digest == digest) | exists().where(evidence.c.recipe_digest == digest)
        if self._connection.execute(select(others)).scalar_one():
            return []
        found = list(self._connection.scalars(select(recipes.c.weights_blob).where(recipes.c.digest == digest)))
        self._connection.execute(delete(recipe_ingredients).where(recipe_ingredients.c.recipe_digest == digest))
        self._connection.execute(delete(recipes).where(recipes.c.digest == digest))
        return found

    def _drop_embeddings(self, which: ColumnElement[bool]) -> list[str]:
        """Remove embeddings of samples that no version has; gives their blobs."""
        orphaned = and_(which, ~exists().where(adapters.c.sample_digest == embeddings.c.sample_digest))
        found = list(self._connection.scalars(select(embeddings.c.blob_digest).where(orphaned)))
        self._connection.execute(delete(embeddings).where(orphaned))
        return found

    def _drop_statistics(self, which: ColumnElement[bool]) -> list[str]:
        """Remove statistics of weights and samples that no version has together; gives their blobs."""
        together = exists().where(
            adapters.c.digest == statistics.c.adapter_digest, adapters.c.sample_digest == statistics.c.sample_digest
        )
        orphaned = and_(which, ~together)
        found = list(self._connection.scalars(select(statistics.c.blob_digest).where(orphaned)))
        self._connection.execute(delete(statistics).where(orphaned))
        return found

    def _drop_evaluations(self, which: ColumnElement[bool]) -> None:
        """Remove evaluations of weights or on samples that no version has."""
        gone = ~exists().where(adapters.c.digest == evaluations.c.adapter_digest)
        gone |= ~exists().where(adapters.c.sample_digest == evaluations.c.sample_digest)
        self._connection.execute(delete(evaluations).where(which, gone))

    # --- what nobody needs ----------------------------------------------------------------------

    def soup_namespaces(self) -> list[str]:
        """Namespaces with live unnamed soups, in alphabetical order."""
        query = select(adapters.c.namespace).where(_unnamed(), adapters.c.retired_at.is_(None)).distinct()
        return sorted(self._connection.scalars(query))

    def unused_soups(self, namespace: str, since: datetime, *, limit: int) -> list[int]:
        """Live unnamed soups that nobody cooked, used or pointed an alias at since then, oldest first, by id."""
        asked = exists().where(evidence.c.adapter_id == adapters.c.id, evidence.c.created_at >= since)
        ref = adapters.c.namespace + "/" + adapters.c.name + "@" + cast(adapters.c.version, String)
        used = exists().where(
            usage.c.namespace == namespace, usage.c.day >= since.date().isoformat(), usage.c.model == ref
        )
        query = select(adapters.c.id).where(
            _unnamed(), adapters.c.namespace == namespace, adapters.c.retired_at.is_(None),
            adapters.c.created_at < since, ~asked, ~used, ~exists().where(_points()),
        )  # fmt: skip
        return list(self._connection.scalars(query.order_by(adapters.c.id).limit(limit)))

    def retired_soups(self, before: datetime, *, limit: int) -> list[int]:
        """Unnamed soups that were retired before then and are in no other soup, oldest first, by id."""
        ingredient = exists().where(recipe_ingredients.c.adapter_digest == adapters.c.digest)
        query = select(adapters.c.id).where(
            _unnamed(), adapters.c.retired_at < before, ~ingredient, ~exists().where(_points())
        )
        return list(self._connection.scalars(query.order_by(adapters.c.id).limit(limit)))

    def drop_selectors(self, before: datetime) -> int:
        """Remove selectors that were fitted before then, serve no pool, and are no soup's evidence; how many."""
        cited = evidence.c.evidence["selector"].as_string()
        query = select(selectors.c.sequence).where(
            selectors.c.fitted_at < before,
            ~exists().where(selector_targets.c.selector == selectors.c.sequence),
            ~exists().where(cited == selectors.c.id),
        )
        found = list(self._connection.scalars(query))
        for part in _parts(found):
            self._connection.execute(delete(selector_namespaces).where(selector_namespaces.c.selector.in_(part)))
            self._connection.execute(delete(selectors).where(selectors.c.sequence.in_(part)))
        return len(found)

    def drop_embeddings(self) -> None:
        """Remove embeddings of samples that no version has any more."""
        self._drop_embeddings(embeddings.c.sample_digest.is_not(None))

    def drop_statistics(self) -> None:
        """Remove statistics of weights and samples that no version has together any more."""
        self._drop_statistics(statistics.c.sample_digest.is_not(None))

    # --- blobs ----------------------------------------------------------------------------------

    def release(self, namespace: str, digests: Iterable[str]) -> None:
        """Take a namespace's sight of these blobs away, where no version of its is made of them."""
        for digest in digests:
            made = _made_of(digest).where(adapters.c.namespace == namespace)
            if self._connection.execute(made.limit(1)).first() is None:
                self._connection.execute(
                    delete(blob_grants).where(blob_grants.c.namespace == namespace, blob_grants.c.digest == digest)
                )

    def unreferenced(self, digests: Collection[str]) -> list[str]:
        """Those of these blobs that nothing is made of, and that no namespace has uploaded."""
        granted = exists().where(blob_grants.c.digest == blobs.c.digest)
        query = select(blobs.c.digest).where(blobs.c.digest.in_(sorted(digests)), ~granted, *_unnamed_blob())
        return sorted(self._connection.scalars(query))

    def unseen(self, before: datetime, *, limit: int) -> list[str]:
        """Blobs that nothing is made of, and that nobody has stored or asked for since then."""
        query = select(blobs.c.digest).where(blobs.c.seen_at < before, *_unnamed_blob())
        return sorted(self._connection.scalars(query.order_by(blobs.c.seen_at).limit(limit)))

    def forget(self, digests: Sequence[str], due_at: datetime) -> int:
        """Take the rows of blobs away and note that their files go at `due_at`; how many bytes those are."""
        size = 0
        for part in _parts(digests):
            query = select(func.coalesce(func.sum(blobs.c.size), 0)).where(blobs.c.digest.in_(part))
            size += int(self._connection.execute(query).scalar_one())
            for table in (blob_grants, blob_uploads, blobs):
                self._connection.execute(delete(table).where(table.c.digest.in_(part)))
        if digests:
            self._connection.execute(insert(blob_removals), [{"digest": one, "due_at": due_at} for one in digests])
        return size

    def pending(self) -> set[str]:
        """Blobs whose files are to go."""
        return set(self._connection.scalars(select(blob_removals.c.digest)))

    def count_pending(self) -> int:
        """How many blobs those are."""
        return int(self._connection.execute(select(func.count()).select_from(blob_removals)).scalar_one())

    def count_due(self, moment: datetime) -> int:
        """How many of them go by then."""
        query = select(func.count()).select_from(blob_removals).where(blob_removals.c.due_at <= moment)
        return int(self._connection.execute(query).scalar_one())

    def due(self, moment: datetime, *, limit: int) -> list[str]:
        """Blobs whose files are to go by then."""
        query = select(blob_removals.c.digest).where(blob_removals.c.due_at <= moment)
        return list(self._connection.scalars(query.order_by(blob_removals.c.digest).limit(limit)))

    def removed(self, digests: Sequence[str]) -> None:
        """Note that files are gone."""
        self._connection.execute(delete(blob_removals).where(blob_removals.c.digest.in_(digests)))


def _unnamed() -> ColumnElement[bool]:
    """Whether a row is a soup under the name that unnamed ones get (`cook`), or those that are only compared."""
    unnamed = adapters.c.name == "soup-" + func.substr(adapters.c.digest, 8, 12)
    return and_(adapters.c.kind == "soup", or_(unnamed, adapters.c.name.like(like_temporary())))


def _points() -> ColumnElement[bool]:
    """Whether an alias points at the version of the row."""
    return and_(
        aliases.c.namespace == adapters.c.namespace, aliases.c.name == adapters.c.name,
        aliases.c.version == adapters.c.version,
    )  # fmt: skip


def _points_at(row: AdapterRow) -> ColumnElement[bool]:
    return and_(aliases.c.namespace == row.namespace, aliases.c.name == row.name, aliases.c.version == row.version)


def _made_of(digest: str) -> Select[tuple[int]]:
    """Versions whose weights, sample or embeddings are this blob."""
    embedded = select(embeddings.c.sample_digest).where(embeddings.c.blob_digest == digest)
    return select(adapters.c.id).where(
        (adapters.c.weights_blob == digest)
        | (adapters.c.sample_digest == digest)
        | adapters.c.sample_digest.in_(embedded)
    )


def _unnamed_blob() -> list[ColumnElement[bool]]:
    """Whether no row is made of a blob."""
    return [
        ~exists().where(adapters.c.weights_blob == blobs.c.digest),
        ~exists().where(adapters.c.sample_digest == blobs.c.digest),
        ~exists().where(embeddings.c.blob_digest == blobs.c.digest),
        ~exists().where(selectors.c.state_blob == blobs.c.digest),
        ~exists().where(recipes.c.weights_blob == blobs.c.digest),
        ~exists().where(statistics.c.blob_digest == blobs.c.digest),
    ]


def _parts(values: Sequence[object], size: int = 500) -> Iterable[Sequence[object]]:
    """The values, so many at a time: databases bound what one statement may name."""
    return (values[first : first + size] for first in range(0, len(values), size))
