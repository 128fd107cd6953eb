"""Bodies of `/v1/adapters`: adapters, aliases, files and lineage, and how a catalogue row becomes one."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from registry.names import Digest
from registry.spec import AdapterConfig, Card, NewCard, Owner, Provenance, Recipe, SampleReport, Words
from registry.spec.frozen import Frozen
from service.http.schemas.wire import Wire

if TYPE_CHECKING:
    from registry.catalogue.rows import AdapterRow, ListedRow


class ListedAdapter(Wire):
    """A stored adapter or soup as it is listed: without its provenance, which can be long."""

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
    """Who answers for the name: a label, which gives nobody a right. All versions of a name have the same."""
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
    """Whether it is a soup that was trained on the sample that it was cooked for, and so has learnt from it."""
    learnt_from: tuple[Digest, ...]
    """Digests of all samples that it has learnt from, through its ingredients as well."""
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


class AdapterList(Wire):
    """One page of adapters, newest first."""

    object: Literal["list"] = "list"
    data: list[ListedAdapter]
    next_cursor: str | None = None


class AdapterPatch(Frozen):
    """What may change of an adapter: what people say about it. A given card replaces the whole card.

    An `owner` is that of all versions of the name; null takes it away.
    """

    card: NewCard | None = None
    domain: Words | None = Field(default=None, min_length=1, max_length=200)
    owner: Owner | None = None


class AliasBody(Frozen):
    """Which version an alias points at."""

    version: int = Field(ge=1, le=999_999_999)


class Alias(Wire):
    """An alias of a name and the version it points at."""

    object: Literal["alias"] = "alias"
    alias: str
    version: int
    ref: str
    etag: str


class AliasList(Wire):
    """Every alias of a name."""

    object: Literal["list"] = "list"
    data: list[Alias]


class Parent(Wire):
    """An ingredient of a soup."""

    ref: str | None
    """Null where the ingredient lives in a namespace this key does not see."""
    digest: Digest
    weight: str
    retired: bool
    purged: bool
    """Whether nobody has it any more: soups of it cannot be rebuilt."""


class Child(Wire):
    """A soup this adapter is an ingredient of."""

    ref: str
    digest: Digest


class Lineage(Wire):
    """Parents and children of an adapter, and the evidence its soup was cooked on."""

    object: Literal["lineage"] = "lineage"
    adapter: str
    recipe: Recipe | None
    rebuildable: bool | None
    """Whether the recipe gives the same soup again: its ingredients are all there, with the statistics that it names,
    and it was not tuned; null for what has no recipe."""
    parents: list[Parent]
    children: list[Child]
    evidence: list[dict[str, Any]]


class Purged(Wire):
    """What was removed for good, and what is left that was made of it."""

    object: Literal["purge"] = "purge"
    adapter: ListedAdapter
    blobs: int
    """Files that nothing else needs, which are removed."""
    bytes: int
    not_rebuildable: list[str]
    """Live soups that it is an ingredient of, or that were mixed by what its sample said: they are served as before,
    but cannot be rebuilt."""
    tuned_on_sample: list[str]
    """Live soups and adapters that have learnt from its sample, through their ingredients as well."""
    elsewhere: int
    """How many more of either are in namespaces that this key does not see."""


class StoredFile(Wire):
    """One file of an adapter."""

    name: str
    size: int
    digest: Digest


class FileList(Wire):
    """The files of an adapter."""

    object: Literal["list"] = "list"
    data: list[StoredFile]
