"""Adapters and soups: versions of names, found by name, alias or digest, listed with filters, retired softly.

A change of what people say is one UPDATE of the revision that was read: of two at the same time none is lost.
"""

from __future__ import annotations

import builtins
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from functools import cache
from typing import Any, Unpack

from pydantic import TypeAdapter
from sqlalchemy import ColumnElement, Select, Table, Text, and_, cast, exists, false, func, insert, select, update

from registry.catalogue.listing import CONFIG, NEWER, Listing, adapter_of, has_learnt_from, superseded, unreadable
from registry.catalogue.removals import Removals
from registry.catalogue.repository import Repository, matching, now, seen_by
from registry.catalogue.rows import (
    AdapterFilters,
    AdapterRow,
    ListedRow,
    Namespaces,
    NewAdapter,
    Page,
    PooledRow,
    SampleState,
    StoredVectors,
)
from registry.catalogue.tables import LIVE, adapter_tags, adapters, aliases, embeddings, purged_adapters
from registry.catalogue.words import adapter_words, indexed
from registry.errors import Internal, NotFound, PreconditionFailed, Retired
from registry.names import BaseRef, DigestRef, NameRef, Ref
from registry.spec import Card, PoolSpec, SampleReport

POOLED = [adapters.c[column.name] for column in fields(PooledRow)]
NEW = TypeAdapter(NewAdapter)


class Adapters(Repository[AdapterRow]):
    """Adapter rows. Lookups by people take the namespaces they see; foreign and unknown are both NotFound."""

    values = TypeAdapter(AdapterRow)

    def _row(self, row: Any) -> AdapterRow:
        return adapter_of(self.values, row)

    # --- writing --------------------------------------------------------------------------------

    def add(self, new: NewAdapter) -> AdapterRow:
        """Store an adapter as the next version of its name; all versions have the owner it brings, else the name's."""
        given = (
            select(func.coalesce(func.max(table.c.version), 0)).where(*_name_of(table, new.namespace, new.name))
            for table in (adapters, purged_adapters)
        )
        version = max(self._connection.execute(query).scalar_one() for query in given) + 1
        owner = new.owner or self.owner_of(new.namespace, new.name)
        result = self._connection.execute(insert(adapters).values(**columns_of(new), version=version))
        key = result.inserted_primary_key
        if key is None:
            raise Internal("the database gave no id for a new adapter")
        row = self.get(key[0])
        if owner is not None:
            row = self.set_owner(row, owner)
        self._insert(adapter_words, adapter_id=row.id, words=indexed(row))
        self._set_tags(row)
        return row

    def attach_sample(self, id: int, sample: SampleReport) -> AdapterRow:
        """Give an adapter that has no sample one, to be embedded."""
        self._change(id, sample=sample.model_dump(mode="json"), sample_digest=sample.digest, sample_state="pending")
        return self.get(id)

    def set_sample_state(
        self, id: int, state: SampleState, *, truncated: Mapping[str, int] | None = None
    ) -> AdapterRow:
        """Record how far the sample is, and what its encoders cut."""
        sample = self.get(id).sample
        if sample is not None and truncated is not None:
            sample = sample.model_copy(update={"truncated": dict(truncated)})
        self._change(id, sample=None if sample is None else sample.model_dump(mode="json"), sample_state=state)
        return self.get(id)

    def update_card(
        self, id: int, *, card: Card | None = None, domain: str | None = None, if_match: str | None = None
    ) -> AdapterRow:
        """Change what people say about an adapter; raises PreconditionFailed if `if_match` is not its etag."""
        row = self.get(id)
        card, domain = card or row.card, domain or row.domain
        changed = self._connection.execute(
            update(adapters)
            .where(adapters.c.id == id, _at(row, if_match))
            .values(
                card=card.model_dump(mode="json"),
                domain=domain,
                revision=adapters.c.revision + 1,
            )
        )
        if changed.rowcount == 0:
            raise PreconditionFailed(
                f"{row.ref} changed since it was read (its etag is {self.get(id).etag}): read it again.",
                param="if-match",
            )
        row = self.get(id)
        self._connection.execute(
            update(adapter_words).where(adapter_words.c.adapter_id == id).values(words=indexed(row))
        )
        self._set_tags(row)
        return row

    def set_owner(self, row: AdapterRow, owner: str | None) -> AdapterRow:
        """Say who answers for the name of a version, None for nobody: all its versions, the retired too, have it then.

        No revision goes on: what was read to change the card of a version is as it was.
        """
        self._connection.execute(
            update(adapters)
            .where(_named(row.namespace, row.name), adapters.c.owner.is_distinct_from(owner))
            .values(owner=owner)
        )
        return self.get(row.id)

    def owner_of(self, namespace: str, name: str) -> str | None:
        """Who answers for a name: a version that a server of the release before stored says nothing of it."""
        query = select(adapters.c.owner).where(_named(namespace, name), adapters.c.owner.is_not(None))
        return self._connection.scalars(query.order_by(adapters.c.id.desc()).limit(1)).one_or_none()

    def retire(self, id: int, *, at: datetime | None = None) -> AdapterRow:
        """Retire a version, now or `at` a moment: names no longer lead to it. Once retired it stays as it was."""
        self._connection.execute(
            update(adapters)
            .where(adapters.c.id == id, adapters.c.retired_at.is_(None))
            .values(retired_at=at or now(), revision=adapters.c.revision + 1)
        )
        return self.get(id)

    def restore(self, id: int, *, if_match: str | None = None) -> AdapterRow:
        """Bring a retired version back: names lead to it again. A live one stays as it is.

        Raises PreconditionFailed if it is retired and `if_match` is not its etag.
        """
        row = self.get(id)
        changed = self._connection.execute(
            update(adapters)
            .where(adapters.c.id == id, adapters.c.retired_at.is_not(None), _at(row, if_match))
            .values(retired_at=None, revision=adapters.c.revision + 1)
        )
        found = self.get(id)
        if changed.rowcount == 0 and found.retired_at is not None:
            raise PreconditionFailed(
                f"{row.ref} changed since it was read (its etag is {found.etag}): read it again.", param="if-match"
            )
        return found

    def _change(self, id: int, **values: Any) -> None:
        self._connection.execute(update(adapters).where(adapters.c.id == id).values(**values))

    def _set_tags(self, row: AdapterRow) -> None:
        self._connection.execute(adapter_tags.delete().where(adapter_tags.c.adapter_id == row.id))
        for tag in dict.fromkeys(row.card.tags):
            self._insert(adapter_tags, adapter_id=row.id, tag=tag)

    # --- finding one ----------------------------------------------------------------------------

    def get(self, id: int) -> AdapterRow:
        """The row with this id, retired or not, whoever owns it; raises Retired where it was purged meanwhile."""
        row = self.known(id)
        if row is None:
            raise Retired("This adapter was purged meanwhile.", param="ref")
        return row

    def known(self, id: int) -> AdapterRow | None:
        """The row with this id, None where it was purged."""
        return self._one(select(adapters).where(adapters.c.id == id))

    def find_same(self, namespace: str, name: str, digest: str) -> AdapterRow | None:
        """The live version of a name that has these bytes already."""
        query = select(adapters).where(_named(namespace, name), LIVE, adapters.c.digest == digest)
        return self._one(_newest_first(query).limit(1))

    def resolve(self, visible: Namespaces, ref: Ref) -> AdapterRow:
        """The adapter a ref means now; raises NotFound, or Retired where every match is retired."""
        row = self.find(visible, ref)
        if row.retired_at is not None:
            raise Retired(f"{ref} was retired.", param="ref")
        return row

    def find(self, visible: Namespaces, ref: Ref) -> AdapterRow:
        """The adapter a ref means, a retired one where none is live; raises NotFound, Retired where it was purged."""
        if isinstance(ref, BaseRef):
            raise NotFound(f"{ref} is a base model, not an adapter.", param="ref")
        meant = adapters.c.digest == ref.digest if isinstance(ref, DigestRef) else self._of_name(ref)
        row = self.newest(visible, meant)
        if row is None:
            purged = Removals(self._connection).purged_at(visible, ref)
            if purged is not None:
                raise Retired(f"{ref} was purged on {purged:%Y-%m-%d}: nothing of it is left.", param="ref")
            raise NotFound(f"There is no adapter {ref}, or this key does not see it.", param="ref")
        return row

    def newest(self, visible: Namespaces, meant: ColumnElement[bool]) -> AdapterRow | None:
        """The newest visible row for which `meant` holds; a retired one only where none is live."""
        query = select(adapters).where(meant, seen_by(visible, adapters.c.namespace))
        return self._one(query.order_by(adapters.c.retired_at.is_not(None), adapters.c.id.desc()).limit(1))

    def live(self, visible: Namespaces, meant: ColumnElement[bool]) -> builtins.list[AdapterRow]:
        """The visible live rows for which `meant` holds, newest first."""
        query = select(adapters).where(meant, LIVE, seen_by(visible, adapters.c.namespace))
        return self._all(query.order_by(adapters.c.id.desc()))

    def of_recipe(self, visible: Namespaces, recipe_digest: str) -> AdapterRow | None:
        """The newest visible live row that was cooked by a recipe."""
        found = self.live(visible, adapters.c.recipe_digest == recipe_digest)
        return found[0] if found else None

    def learnt_from(self, sample_digest: str) -> builtins.list[AdapterRow]:
        """Live soups and adapters of all namespaces that have learnt from a sample, their ingredients' included."""
        return self.live(None, has_learnt_from(sample_digest))

    def learnt_by(self, digests: Collection[str]) -> set[str]:
        """Digests of the samples that any of these tensors has learnt from, under whatever name they are."""
        query = select(adapters.c.learnt_from).where(
            adapters.c.digest.in_(digests), adapters.c.learnt_from.is_not(None)
        )
        return {sample for samples in self._connection.scalars(query) for sample in samples.split()}

    def has_digest(self, digest: str) -> bool:
        """Whether any version, retired or not, has these tensors."""
        return bool(self._connection.execute(select(exists().where(adapters.c.digest == digest))).scalar_one())

    def has_sample(self, digest: str, sample: str) -> bool:
        """Whether any version, retired or not, has these tensors with this sample."""
        both = exists().where(adapters.c.digest == digest, adapters.c.sample_digest == sample)
        return bool(self._connection.execute(select(both)).scalar_one())

    def _of_name(self, ref: NameRef) -> ColumnElement[bool]:
        """Whether a row is of the name, and of the version or alias that the ref says, if any."""
        named = _named(ref.namespace, ref.name)
        if ref.alias is not None:  # in the same statement: what an alias means is one question to the database
            its = (aliases.c.namespace == ref.namespace, aliases.c.name == ref.name, aliases.c.alias == ref.alias)
            return and_(named, adapters.c.version == select(aliases.c.version).where(*its).scalar_subquery())
        return named if ref.version is None else and_(named, adapters.c.version == ref.version)

    def live_versions(self, namespace: str, name: str, *, limit: int | None = None) -> builtins.list[AdapterRow]:
        """Every live version of a name, or the newest of them, newest first."""
        return self._all(_newest_first(select(adapters).where(_named(namespace, name), LIVE)).limit(limit))

    def aliased_versions(self, namespace: str, name: str) -> builtins.list[AdapterRow]:
        """Every live version of a name that an alias points at, newest first."""
        pointed = select(aliases.c.version).where(aliases.c.namespace == namespace, aliases.c.name == name)
        query = select(adapters).where(_named(namespace, name), LIVE, adapters.c.version.in_(pointed))
        return self._all(_newest_first(query))

    # --- finding many ---------------------------------------------------------------------------

    def list(
        self, visible: Namespaces, *, limit: int, cursor: str | None = None, **filters: Unpack[AdapterFilters]
    ) -> Page[ListedRow]:
        """Live adapters of the visible namespaces that match every filter, newest first."""
        return Listing(self._connection).page(visible, filters, limit=limit, cursor=cursor)

    def listed(self, visible: Namespaces, ids: Sequence[int]) -> dict[int, ListedRow]:
        """The visible live adapters of these ids, by id."""
        return Listing(self._connection).of(visible, ids)

    def pool(self, pool: PoolSpec, encoder_digest: str | None = None) -> builtins.list[PooledRow]:
        """The newest live version of each name of a pool, where its sample is ready, and embedded by this encoder.

        A newer version whose sample is still to be embedded does not take the place of the one there is.
        """
        return self._pool(pool, "ready", encoder_digest)

    def pool_is_larger(self, pool: PoolSpec, than: int) -> bool:
        """Whether more than so many names of a pool have a ready sample; no more than that are looked at."""
        found = select(adapters.c.id).where(*_of_pool(pool, "ready", None)).limit(than + 1).subquery()
        return self._connection.execute(select(func.count()).select_from(found)).scalar_one() > than

    def waiting(self, pool: PoolSpec) -> builtins.list[PooledRow]:
        """The newest live versions whose sample is still to be embedded."""
        return self._pool(pool, "pending")

    def live_ids(self, pool: PoolSpec) -> set[int]:
        """The ids of all live adapters of a pool's base and namespaces, that have its tag if it has one."""
        query = select(adapters.c.id).where(
            adapters.c.base_fingerprint == pool.base_fingerprint,
            seen_by(pool.namespaces, adapters.c.namespace),
            LIVE,
        )
        return set(self._connection.scalars(query if pool.tag is None else query.where(_tagged(pool.tag))))

    def vectors(
        self, base_fingerprint: str, encoder_digest: str, ids: Collection[int] | None = None
    ) -> dict[int, StoredVectors]:
        """Where the vectors of a base's adapters are, retired or not, by adapter id: of all, or of some hundreds."""
        joined = embeddings.c.sample_digest == adapters.c.sample_digest
        its = embeddings.c.blob_digest, embeddings.c["count"], embeddings.c.dimensions
        query = select(adapters.c.id, *its).join(embeddings, joined)
        query = query.where(
            adapters.c.base_fingerprint == base_fingerprint, embeddings.c.encoder_digest == encoder_digest
        )
        if ids is not None:
            query = query.where(adapters.c.id.in_(ids))
        return {id: StoredVectors(*its) for id, *its in self._connection.execute(query)}

    def _pool(self, pool: PoolSpec, state: SampleState, encoder_digest: str | None = None) -> builtins.list[PooledRow]:
        """Adapters with a head and banks of experts are none of it: a soup for a sample is a language model."""
        query = select(*POOLED, cast(adapters.c.config, Text).label("config"))
        query = query.where(*_of_pool(pool, state, encoder_digest))
        read, rows = cache(CONFIG.validate_json), []  # thousands of rows have few configurations
        for *values, config in self._connection.execute(query.order_by(adapters.c.id)):
            row = PooledRow(*values)
            try:
                if read(config).is_language_model:
                    rows.append(row)
            except ValueError as error:
                raise unreadable(row.namespace, row.name) from error
        return rows


def _of_pool(pool: PoolSpec, state: SampleState, encoder_digest: str | None) -> Iterator[ColumnElement[bool]]:
    """What the rows of a pool have in common whose samples are in this state."""
    newer = () if state == "pending" else (NEWER.c.sample_state != "pending",)
    yield seen_by(pool.namespaces, adapters.c.namespace)
    yield LIVE
    yield from matching(adapters, base_fingerprint=pool.base_fingerprint, sample_state=state, method=pool.method)
    yield ~superseded(*newer)
    if pool.tag is not None:
        yield _tagged(pool.tag)
    if not pool.include_soups:
        yield adapters.c.kind == "adapter"
    if encoder_digest is not None:
        embedded = embeddings.c.sample_digest == adapters.c.sample_digest
        yield exists().where(embedded, embeddings.c.encoder_digest == encoder_digest)


def _named(namespace: str, name: str) -> ColumnElement[bool]:
    return and_(*_name_of(adapters, namespace, name))


def _name_of(table: Table, namespace: str, name: str) -> tuple[ColumnElement[bool], ...]:
    return table.c.namespace == namespace, table.c.name == name


def _tagged(tag: str) -> ColumnElement[bool]:
    return exists().where(adapter_tags.c.adapter_id == adapters.c.id, adapter_tags.c.tag == tag)


def _newest_first(query: Select[Any]) -> Select[Any]:
    return query.order_by(adapters.c.version.desc())


def _at(row: AdapterRow, if_match: str | None) -> ColumnElement[bool]:
    """Whether the row is still as it was read, and as the caller says it was."""
    same = adapters.c.revision == int(row.etag.rpartition("-")[2])
    return same if if_match is None or if_match == row.etag else false()


def columns_of(new: NewAdapter) -> dict[str, Any]:
    """A new adapter as the columns of its row, all but the version."""
    return {
        **NEW.dump_python(new, mode="json", exclude={"config"}),
        "config": new.config.model_dump(mode="json"),
        "method": new.config.method,
        "learnt_from": " ".join(new.learnt_from) or None,
        "sample_digest": None if new.sample is None else new.sample.digest,
        "created_at": now(),
        "revision": 1,
    }
