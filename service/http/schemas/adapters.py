"""Bodies of `/v1/adapters`: adapters, aliases, files and lineage, and how a catalogue row becomes one."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from registry.names import Digest
from registry.spec import AdapterConfig, Card, NewCard, Owner, Provenance, Recipe, SampleReport, Words
from registry.spec.frozen import Frozen
from service.http.schemas.wire import Listing, Page, Patch, Wire

if TYPE_CHECKING:
    from registry.catalogue.rows import AdapterRow, ListedRow


class ListedAdapter(Wire):
    """A stored adapter or soup in a list, without its provenance, which can be long."""

    object: Literal["adapter"] = "adapter"
    ref: str
    namespace: str
    name: str
    version: int
    kind: Literal["adapter", "soup"]
    digest: Digest
    base_model: str
    base_fingerprint: Digest
    domain: str
    owner: str | None = None
    """The team or address responsible for the name: a label without rights, the same for all versions of a name."""
    config: AdapterConfig
    card: Card
    parameters: int
    dtype: str
    size_bytes: int
    weights_blob: Digest
    sample: SampleReport | None
    sample_state: Literal["none", "pending", "ready", "failed"]
    recipe_digest: Digest | None
    tuned: bool
    """True for a soup that was trained on the sample it was cooked for."""
    learnt_from: tuple[Digest, ...]
    """Digests of all samples it was trained on, including those of its ingredients."""
    created_at: datetime
    retired_at: datetime | None
    etag: str


class Adapter(ListedAdapter):
    """A stored adapter or soup."""

    provenance: Provenance
    job: str | None = None
    warnings: list[str] = Field(default_factory=list)


def adapter_body(row: AdapterRow, *, job: str | None = None, warnings: tuple[str, ...] = ()) -> Adapter:
    """Return an adapter row as its body; `job` embeds its sample."""
    fields = {name: getattr(row, name) for name in Adapter.model_fields if hasattr(row, name)}
    return Adapter(**fields, job=job, warnings=list(warnings))


def listed_body(row: ListedRow) -> ListedAdapter:
    """Return an adapter row as an entry of a list, without its provenance."""
    return ListedAdapter(**{name: getattr(row, name) for name in ListedAdapter.model_fields if hasattr(row, name)})


class AdapterList(Page[ListedAdapter]):
    """One page of adapters, newest first."""


class AdapterPatch(Patch):
    """Changes of an adapter's card, domain and owner. A given card replaces the whole card.

    All versions of the name get the `owner`; null removes it.
    """

    nullable = frozenset({"owner"})
    card: NewCard | None = None
    domain: Words | None = Field(default=None, min_length=1, max_length=200)
    owner: Owner | None = None


class AliasBody(Frozen):
    """The version that an alias points at."""

    version: int = Field(strict=True, ge=1, le=999_999_999)


class Alias(Wire):
    """An alias of a name and the version it points at."""

    object: Literal["alias"] = "alias"
    alias: str
    version: int
    ref: str
    etag: str


class AliasList(Listing[Alias]):
    """All aliases of a name."""


class Parent(Wire):
    """An ingredient of a soup."""

    ref: str | None
    """Null if the ingredient is in a namespace that this key does not see."""
    digest: Digest
    weight: str
    retired: bool
    purged: bool
    """True if it was purged: soups made from it cannot be rebuilt."""


class Child(Wire):
    """A soup made from this adapter."""

    ref: str
    digest: Digest


class Lineage(Wire):
    """Parents and children of an adapter, and the evidence of a soup's cooks."""

    object: Literal["lineage"] = "lineage"
    adapter: str
    recipe: Recipe | None
    rebuildable: bool | None
    """True if the recipe gives the same soup again: all its ingredients and statistics are stored, and it was not
    tuned. Null without a recipe."""
    parents: list[Parent]
    children: list[Child]
    """At most 100, newest first."""
    evidence: list[dict[str, Any]]
    """At most 50, oldest first. Of the cooks of a soup by one recipe, the server keeps the evidence of the first and of
    the newest 49."""


class Purged(Wire):
    """The purged version, and the soups and adapters that were made from it."""

    object: Literal["purge"] = "purge"
    adapter: ListedAdapter
    blobs: int
    """Number of files removed, because nothing else needs them."""
    bytes: int
    not_rebuildable: list[str]
    """Live soups that have it as an ingredient, or that were mixed with statistics of its sample. They are still
    served, but cannot be rebuilt."""
    tuned_on_sample: list[str]
    """Live soups and adapters that were trained on its sample, or whose ingredients were."""
    elsewhere: int
    """Number of further such soups and adapters in namespaces that this key does not see."""


class StoredFile(Wire):
    """One file of an adapter."""

    name: str
    size: int
    digest: Digest


class FileList(Listing[StoredFile]):
    """The files of an adapter."""
