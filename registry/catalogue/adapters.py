"""Adapters and soups: versions of a name, looked up by name, alias or digest, listed with filters, retired softly.

Cards are changed by one UPDATE of the revision that was read, so that no concurrent change is lost.
"""

from __future__ import annotations

import builtins
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from functools import cache
from typing import Any, Unpack

from pydantic import TypeAdapter
from sqlalchemy import ColumnElement, Select, Table, Text, and_, cast, exists, false, func, insert, select, tuple_

from registry.catalogue.listing import CONFIG, NEWER, Listing, adapter_of, has_learnt_from, superseded, unreadable
from registry.catalogue.removals import Removals
from registry.catalogue.repository import Repository, is_expected, matching, now, seen_by
from registry.catalogue.rows import (
    AdapterFilters,
    AdapterRow,
    Etags,
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
from registry.names import BaseRef, DigestRef, NameRef, Ref, parse_ref
from registry.spec import Card, PoolSpec, SampleReport

POOLED = [adapters.c[column.name] for column in fields(PooledRow)]
NEW = TypeAdapter(NewAdapter)


class Adapters(Repository[AdapterRow]):
    """Adapter rows. Lookups for a caller take the namespaces it sees; foreign and unknown are both NotFound."""

    values = TypeAdapter(AdapterRow)

    def _row(self, row: Any) -> AdapterRow:
        return adapter_of(self.values, row)

    # --- writing --------------------------------------------------------------------------------

    def add(self, new: NewAdapter) -> AdapterRow:
        """Store an adapter as the next version of its name; its owner, if any, becomes the owner of all versions."""
        latest_versions = (
            select(func.coalesce(func.max(table.c.version), 0)).where(_has_name(new.namespace, new.name, table))
            for table in (adapters, purged_adapters)
        )
        version = max(self._connection.execute(query).scalar_one() for query in latest_versions) + 1
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

    def replace_weights(self, id: int, weights_blob: str) -> AdapterRow:
        """Set the file of an adapter's weights to another one with the same tensors."""
        self._update(adapters, adapters.c.id == id, weights_blob=weights_blob)
        return self.get(id)

    def attach_sample(self, id: int, sample: SampleReport) -> AdapterRow:
        """Add a sample to an adapter that has none; its state is `pending` until it is embedded."""
        values = {"sample": sample.model_dump(mode="json"), "sample_digest": sample.digest, "sample_state": "pending"}
        self._update(adapters, adapters.c.id == id, **values)
        return self.get(id)

    def set_sample_state(
        self, id: int, state: SampleState, *, truncated: Mapping[str, int] | None = None
    ) -> AdapterRow:
        """Set the state of the sample, and the number of units that each encoder truncated."""
        sample = self.get(id).sample
        if sample is not None and truncated is not None:
            sample = sample.model_copy(update={"truncated": dict(truncated)})
        values = {"sample": None if sample is None else sample.model_dump(mode="json"), "sample_state": state}
        self._update(adapters, adapters.c.id == id, **values)
        return self.get(id)

    def update_card(
        self, id: int, *, card: Card | None = None, domain: str | None = None, if_match: Etags = None
    ) -> AdapterRow:
        """Change the card or the domain of an adapter; raises PreconditionFailed if `if_match` has not its etag."""
        row = self.get(id)
        card, domain = card or row.card, domain or row.domain
        values = {"card": card.model_dump(mode="json"), "domain": domain, "revision": adapters.c.revision + 1}
        if self._update(adapters, adapters.c.id == id, _is_unchanged(row, if_match), **values) == 0:
            raise _changed_since_read(row, self.get(id).etag)
        row = self.get(id)
        self._update(adapter_words, adapter_words.c.adapter_id == id, words=indexed(row))
        self._set_tags(row)
        return row

    def set_owner(self, row: AdapterRow, owner: str | None) -> AdapterRow:
        """Set the owner of a name (None: no owner) on all its versions, including retired ones.

        Revisions do not change: an etag that was read before still allows a change of the card.
        """
        is_other = adapters.c.owner.is_distinct_from(owner)
        self._update(adapters, _has_name(row.namespace, row.name), is_other, owner=owner)
        return self.get(row.id)

    def owner_of(self, namespace: str, name: str) -> str | None:
        """The owner of a name, None without one; versions that the previous release stored do not have it."""
        query = select(adapters.c.owner).where(_has_name(namespace, name), adapters.c.owner.is_not(None))
        return self._connection.scalars(query.order_by(adapters.c.id.desc()).limit(1)).one_or_none()

    def retire(self, id: int, *, at: datetime | None = None) -> AdapterRow:
        """Retire a version, now or `at` a moment: names no longer resolve to it. A retired one stays as it is."""
        self._update(adapters, adapters.c.id == id, LIVE, retired_at=at or now(), revision=adapters.c.revision + 1)
        return self.get(id)

    def restore(self, id: int, *, if_match: Etags = None) -> AdapterRow:
        """Restore a retired version, so that names resolve to it again; a live one stays as it is.

        Raises PreconditionFailed if it is retired and `if_match` has not its etag.
        """
        row = self.get(id)
        is_restorable = and_(adapters.c.id == id, adapters.c.retired_at.is_not(None), _is_unchanged(row, if_match))
        changed = self._update(adapters, is_restorable, retired_at=None, revision=adapters.c.revision + 1)
        restored = self.get(id)
        if changed == 0 and restored.retired_at is not None:
            raise _changed_since_read(row, restored.etag)
        return restored

    def _set_tags(self, row: AdapterRow) -> None:
        self._delete(adapter_tags, adapter_tags.c.adapter_id == row.id)
        for tag in dict.fromkeys(row.card.tags):
            self._insert(adapter_tags, adapter_id=row.id, tag=tag)

    # --- looking up one -------------------------------------------------------------------------

    def get(self, id: int) -> AdapterRow:
        """The row with this id, live or retired, of any namespace; raises Retired if it was purged."""
        row = self.get_or_none(id)
        if row is None:
            raise Retired("This adapter was purged meanwhile.", param="ref")
        return row

    def get_or_none(self, id: int) -> AdapterRow | None:
        """The row with this id, live or retired, of any namespace; None if it was purged."""
        return self._first(select(adapters).where(adapters.c.id == id))

    def find_by_digest(self, namespace: str, name: str, digest: str) -> AdapterRow | None:
        """The newest live version of a name with this adapter digest."""
        query = select(adapters).where(_has_name(namespace, name), LIVE, adapters.c.digest == digest)
        return self._first(_newest_first(query).limit(1))

    def resolve(self, visible: Namespaces, ref: Ref) -> AdapterRow:
        """The live adapter that a ref names; raises NotFound, or Retired if every match is retired."""
        row = self.find(visible, ref)
        if row.retired_at is not None:
            raise Retired(f"{ref} was retired.", param="ref")
        return row

    def find(self, visible: Namespaces, ref: Ref) -> AdapterRow:
        """The adapter that a ref names, a retired one if none is live; raises NotFound, or Retired if it was purged."""
        if isinstance(ref, BaseRef):
            raise NotFound(f"{ref} is a base model, not an adapter.", param="ref")
        condition = adapters.c.digest == ref.digest if isinstance(ref, DigestRef) else _matches(ref)
        row = self.newest(visible, condition)
        if row is None:
            purged = Removals(self._connection).purged_at(visible, ref)
            if purged is not None:
                raise Retired(f"{ref} was purged on {purged:%Y-%m-%d} and cannot be restored.", param="ref")
            raise NotFound(f"There is no adapter {ref}, or this key does not see it.", param="ref")
        return row

    def newest(self, visible: Namespaces, condition: ColumnElement[bool]) -> AdapterRow | None:
        """The newest visible row that meets `condition`; a retired one only if none is live."""
        query = select(adapters).where(condition, seen_by(visible, adapters.c.namespace))
        return self._first(query.order_by(adapters.c.retired_at.is_not(None), adapters.c.id.desc()).limit(1))

    def live(
        self, visible: Namespaces, condition: ColumnElement[bool], *, most: int | None = None
    ) -> builtins.list[PooledRow]:
        """The visible live adapters that meet `condition`, newest first, at most `most`."""
        query = select(*POOLED).where(condition, LIVE, seen_by(visible, adapters.c.namespace))
        rows = self._connection.execute(query.order_by(adapters.c.id.desc()).limit(most))
        return [PooledRow(*row) for row in rows]

    def find_by_recipe(self, visible: Namespaces, recipe_digest: str) -> AdapterRow | None:
        """The newest visible live soup of a recipe."""
        is_cooked = adapters.c.recipe_digest == recipe_digest
        query = select(adapters).where(is_cooked, LIVE, seen_by(visible, adapters.c.namespace))
        return self._first(query.order_by(adapters.c.id.desc()).limit(1))

    def learnt_from(self, sample_digest: str) -> builtins.list[PooledRow]:
        """Live soups and adapters of all namespaces that were trained on a sample, or mixed from such ingredients."""
        return self.live(None, has_learnt_from(sample_digest))

    def training_samples(self, digests: Collection[str]) -> set[str]:
        """Digests of the samples that adapters with these digests, of any name, were trained on."""
        query = select(adapters.c.learnt_from).where(
            adapters.c.digest.in_(digests), adapters.c.learnt_from.is_not(None)
        )
        return {sample for samples in self._connection.scalars(query) for sample in samples.split()}

    def has_digest(self, digest: str) -> bool:
        """Return True if any version, live or retired, has this adapter digest."""
        return self._exists(adapters.c.digest == digest)

    def has_sample(self, digest: str, sample: str) -> bool:
        """Return True if any version, live or retired, has this adapter digest and this sample digest."""
        return self._exists(adapters.c.digest == digest, adapters.c.sample_digest == sample)

    def live_versions(self, namespace: str, name: str, *, limit: int | None = None) -> builtins.list[AdapterRow]:
        """Live versions of a name, newest first, at most `limit`."""
        return self._all(_newest_first(select(adapters).where(_has_name(namespace, name), LIVE)).limit(limit))

    def aliased_versions(self, namespace: str, name: str) -> builtins.list[AdapterRow]:
        """Live versions of a name that an alias points at, newest first."""
        pointed = select(aliases.c.version).where(aliases.c.namespace == namespace, aliases.c.name == name)
        query = select(adapters).where(_has_name(namespace, name), LIVE, adapters.c.version.in_(pointed))
        return self._all(_newest_first(query))

    # --- looking up many ------------------------------------------------------------------------

    def list(
        self, visible: Namespaces, *, limit: int, cursor: str | None = None, **filters: Unpack[AdapterFilters]
    ) -> Page[ListedRow]:
        """Live adapters of the visible namespaces that match every filter, newest first."""
        return Listing(self._connection).page(visible, filters, limit=limit, cursor=cursor)

    def list_by_ids(self, visible: Namespaces, ids: Sequence[int]) -> dict[int, ListedRow]:
        """The visible live adapters with these ids, by id."""
        return Listing(self._connection).by_ids(visible, ids)

    def pool(self, pool: PoolSpec, encoder_digest: str | None = None) -> builtins.list[PooledRow]:
        """The newest live version of each name of a pool whose sample is ready, and embedded by this encoder.

        A newer version whose sample is still pending does not replace the ready one.
        """
        return self._pool(pool, "ready", encoder_digest)

    def pool_is_larger(self, pool: PoolSpec, than: int) -> bool:
        """Return True if more than `than` names of a pool have a ready sample; reads at most one more than that."""
        members = select(adapters.c.id).where(*_pool_conditions(pool, "ready", None)).limit(than + 1).subquery()
        return self._connection.execute(select(func.count()).select_from(members)).scalar_one() > than

    def pending(self, pool: PoolSpec) -> builtins.list[PooledRow]:
        """The newest live version of each name of a pool whose sample is still to be embedded."""
        return self._pool(pool, "pending")

    def live_ids(self, pool: PoolSpec) -> set[int]:
        """Ids of all live adapters of a pool's base model and namespaces, with its tag if it has one."""
        query = select(adapters.c.id).where(
            adapters.c.base_fingerprint == pool.base_fingerprint, seen_by(pool.namespaces, adapters.c.namespace), LIVE
        )
        return set(self._connection.scalars(query if pool.tag is None else query.where(_has_tag(pool.tag))))

    def live_refs(self, refs: Collection[str]) -> set[str]:
        """The refs, each with a version, whose adapters are live."""
        versions = [(ref.namespace, ref.name, ref.version) for ref in map(parse_ref, refs) if isinstance(ref, NameRef)]
        columns = adapters.c.namespace, adapters.c.name, adapters.c.version
        query = select(*columns).where(tuple_(*columns).in_(versions), LIVE)
        return {f"{namespace}/{name}@{version}" for namespace, name, version in self._connection.execute(query)}

    def vectors(
        self, base_fingerprint: str, encoder_digest: str, ids: Collection[int] | None = None
    ) -> dict[int, StoredVectors]:
        """The stored vectors of a base model's adapters, live and retired, by adapter id.

        `ids` (some hundreds at most) selects adapters; None reads all.
        """
        query = (
            select(adapters.c.id, embeddings.c.blob_digest, embeddings.c["count"], embeddings.c.dimensions)
            .join(embeddings, embeddings.c.sample_digest == adapters.c.sample_digest)
            .where(adapters.c.base_fingerprint == base_fingerprint, embeddings.c.encoder_digest == encoder_digest)
        )
        if ids is not None:
            query = query.where(adapters.c.id.in_(ids))
        return {id: StoredVectors(*columns) for id, *columns in self._connection.execute(query)}

    def _pool(self, pool: PoolSpec, state: SampleState, encoder_digest: str | None = None) -> builtins.list[PooledRow]:
        """The pool's rows, without adapters with a head and banks of experts: a soup has to be a language model."""
        query = select(*POOLED, cast(adapters.c.config, Text).label("config"))
        query = query.where(*_pool_conditions(pool, state, encoder_digest))
        rows = []
        parse_config = cache(CONFIG.validate_json)  # thousands of rows have few configurations
        for *values, config in self._connection.execute(query.order_by(adapters.c.id)):
            row = PooledRow(*values)
            try:
                if parse_config(config).is_language_model:
                    rows.append(row)
            except ValueError as error:
                raise unreadable(row.namespace, row.name) from error
        return rows


def _pool_conditions(pool: PoolSpec, state: SampleState, encoder_digest: str | None) -> Iterator[ColumnElement[bool]]:
    """Conditions for the rows of a pool whose samples are in this state."""
    newer = () if state == "pending" else (NEWER.c.sample_state != "pending",)
    yield seen_by(pool.namespaces, adapters.c.namespace)
    yield LIVE
    yield from matching(adapters, base_fingerprint=pool.base_fingerprint, sample_state=state, method=pool.method)
    yield ~superseded(*newer)
    if pool.tag is not None:
        yield _has_tag(pool.tag)
    if not pool.include_soups:
        yield adapters.c.kind == "adapter"
    if encoder_digest is not None:
        embedded = embeddings.c.sample_digest == adapters.c.sample_digest
        yield exists().where(embedded, embeddings.c.encoder_digest == encoder_digest)


def _has_name(namespace: str, name: str, table: Table = adapters) -> ColumnElement[bool]:
    return and_(table.c.namespace == namespace, table.c.name == name)


def _matches(ref: NameRef) -> ColumnElement[bool]:
    """The condition that a row has the name of a ref, and its version or alias if it has one."""
    has_name = _has_name(ref.namespace, ref.name)
    if ref.alias is not None:  # a subquery: alias and version are read by one statement
        alias = select(aliases.c.version).where(
            _has_name(ref.namespace, ref.name, aliases), aliases.c.alias == ref.alias
        )
        return and_(has_name, adapters.c.version == alias.scalar_subquery())
    return has_name if ref.version is None else and_(has_name, adapters.c.version == ref.version)


def _has_tag(tag: str) -> ColumnElement[bool]:
    return exists().where(adapter_tags.c.adapter_id == adapters.c.id, adapter_tags.c.tag == tag)


def _newest_first(query: Select[Any]) -> Select[Any]:
    return query.order_by(adapters.c.version.desc())


def _is_unchanged(row: AdapterRow, if_match: Etags) -> ColumnElement[bool]:
    """The condition that the row has the revision that was read, and the etag is expected."""
    is_same = adapters.c.revision == int(row.etag.rpartition("-")[2])
    return is_same if is_expected(row.etag, if_match) else false()


def _changed_since_read(row: AdapterRow, etag: str) -> PreconditionFailed:
    return PreconditionFailed(
        f"{row.ref} changed since it was read (its etag is {etag}): read it again.", param="if-match"
    )


def columns_of(new: NewAdapter) -> dict[str, Any]:
    """The columns of a new adapter's row, except its version."""
    return {
        **NEW.dump_python(new, mode="json", exclude={"config"}),
        "config": new.config.model_dump(mode="json"),
        "method": new.config.method,
        "learnt_from": " ".join(new.learnt_from) or None,
        "sample_digest": None if new.sample is None else new.sample.digest,
        "created_at": now(),
        "revision": 1,
    }
