"""`Registry` and `Caller`, which every verb is given first: what it works on, and on whose behalf."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

from registry.blobs import BlobStore
from registry.catalogue.database import Catalogue, Database
from registry.catalogue.rows import Namespaces
from registry.encoders.contract import Encoder
from registry.progress import Progress
from registry.selectors.loaded import LoadedSelectors
from registry.spec import BaseEntry, BaseShape, DefaultLimits, Effort, PassageScore

if TYPE_CHECKING:  # torch comes with it, which a process that fits selectors starts without
    from registry.adapters.loadable import LoadableAdapter


class BaseModel(Protocol):
    """A base model that adapters are stored for, and what the verbs need of it. The model itself runs behind this."""

    @property
    def entry(self) -> BaseEntry:
        """Its entry of the operator's allowlist."""

    @property
    def shape(self) -> BaseShape:
        """Its shape (layers, hidden size, fingerprint); raises Unavailable where its files cannot be read."""

    @property
    def bos(self) -> str | None:
        """The text of its BOS (CLS), where its texts begin with one."""

    def encoders(self) -> Mapping[str, Encoder]:
        """Its encoders by digest: its own hidden states, and others that are installed."""

    def score(
        self, texts: Sequence[str], adapter: LoadableAdapter | None, *, progress: Progress
    ) -> Sequence[PassageScore]:
        """Log-likelihoods of texts, with an adapter or without; `progress` may raise to end it."""


@dataclass(frozen=True)
class SampleLimits:
    """Sequences under which a sample is refused or noted, and over which it is drawn; characters of a text and of all.

    `minimum` is of an adapter's sample; one that a soup is cooked or chosen for needs `novel`, or as many where that
    is fewer.
    """

    minimum: int = 20
    novel: int = 5
    good: int = 100
    maximum: int = 500
    max_chars: int = 1_000_000
    characters: int = 2_000_000

    @property
    def of_any_number(self) -> SampleLimits:
        """The same for a sample of which one sequence is enough: it is looked at, and nothing is cooked of it."""
        return replace(self, novel=1)


@dataclass(frozen=True)
class Limits:
    """Sizes beyond which what a client sends is refused; settings of the server."""

    inline_bytes: int = 8 * 2**20
    weights_bytes: int = 2**30
    sample_bytes: int = 64 * 2**20
    embeddings_bytes: int = 64 * 2**20
    sample: SampleLimits = field(default_factory=SampleLimits)


@dataclass(frozen=True)
class Refits:
    """When pools are fitted again that an adapter came to or left: after `delay` seconds.

    Not for a selector that nobody asked for in `idle_after`: it is fitted again when it is asked for.
    """

    delay: float = 0.0
    idle_after: timedelta | None = None

    def asked_since(self, moment: datetime) -> datetime | None:
        """Selectors that were last asked for before this are idle; None where none ever is."""
        return None if self.idle_after is None else moment - self.idle_after

    def is_idle(self, asked_at: datetime, moment: datetime) -> bool:
        """Whether a selector that was last asked for at `asked_at` is no longer fitted again by itself."""
        since = self.asked_since(moment)
        return since is not None and asked_at < since


@dataclass(frozen=True)
class Retention:
    """What a collection takes away.

    Unnamed soups are retired after so many days without use, where their namespace says nothing else (0: never). What
    was retired or unseen for the grace period is removed, nothing where there is none. So are ended jobs, usage and
    entries of the audit that are older than their days (0: never).
    """

    grace: timedelta | None = None
    unnamed_soup_days: int = 0
    job_days: int = 0
    usage_days: int = 0
    audit_days: int = 0


@dataclass(frozen=True)
class Registry:
    """What is stored, the base models it is for, and what is taken: the first argument of every verb.

    `bases` are those of the operator's allowlist by id; a process that fits selectors runs none. Cooks that leave their
    effort open have `default_effort`; keys and namespaces without limits of their own have those of `quotas`.
    `selectors` are those in memory.
    """

    database: Database
    blobs: BlobStore
    bases: Mapping[str, BaseModel] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    refits: Refits = Refits()
    default_effort: Effort = "quick"
    quotas: DefaultLimits = field(default_factory=DefaultLimits)
    retention: Retention = Retention()
    selectors: LoadedSelectors = field(default_factory=LoadedSelectors)


@dataclass(frozen=True)
class Caller:
    """Whose request it is; `namespaces` are those the key may read (None: all)."""

    key_id: str
    namespaces: Namespaces
    request_id: str

    def audit(
        self, catalogue: Catalogue, action: str, subject: str, *, namespace: str | None = None, **detail: Any
    ) -> None:
        """Record that this caller did it, in the transaction of what was done; `namespace` as `Audit.record`."""
        catalogue.audit.record(
            action, subject, key_id=self.key_id, request_id=self.request_id, detail=detail, namespace=namespace
        )
