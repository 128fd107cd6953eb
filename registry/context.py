"""`Registry` and `Caller`, the first arguments of all verbs: the stores and models to work on, and the caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

from registry.blobs import BlobStore
from registry.catalogue.database import Catalogue, Database
from registry.catalogue.rows import Namespaces
from registry.encoders.contract import Encoder
from registry.progress import Progress
from registry.recent import Recent
from registry.selectors.contract import Selector
from registry.spec import BaseEntry, BaseShape, DefaultLimits, Effort, Passage, PassageScore
from registry.spec.limits import SizeLimits

if TYPE_CHECKING:  # torch comes with it, which a process that fits selectors starts without
    from registry.adapters.loadable import LoadableAdapter

SELECTOR_BYTES = 2**30
"""Ten cosine selectors over 10,000 adapters of 576 dimensions, or one over 100,000."""


class BaseModel(Protocol):
    """A base model, as verbs use it."""

    @property
    def entry(self) -> BaseEntry:
        """The entry of the operator's allowlist."""

    @property
    def shape(self) -> BaseShape:
        """The shape (layers, hidden size, fingerprint); raises Unavailable where its files cannot be read."""

    @property
    def bos(self) -> str | None:
        """The text of the BOS (CLS) token, None where texts do not begin with one."""

    def encoders(self) -> Mapping[str, Encoder]:
        """The encoders for its texts, by digest: its hidden states, and others that are installed."""

    def score(
        self, texts: Sequence[Passage], adapter: LoadableAdapter | None, *, progress: Progress
    ) -> Sequence[PassageScore]:
        """Log-likelihoods of texts, with or without an adapter; `progress` may raise to cancel."""


@dataclass(frozen=True)
class Refits:
    """The schedule of refits: `delay` seconds after a pool has changed.

    Selectors unused for `idle_after` are idle, and are fitted again at their next use.
    """

    delay: float = 0.0
    idle_after: timedelta | None = None

    def idle_before(self, moment: datetime) -> datetime | None:
        """The time of last use before which a selector is idle at `moment`; None where none ever is."""
        return None if self.idle_after is None else moment - self.idle_after

    def is_idle(self, used_at: datetime, moment: datetime) -> bool:
        """Return True if a selector that was last used at `used_at` is idle at `moment`."""
        limit = self.idle_before(moment)
        return limit is not None and used_at < limit


@dataclass(frozen=True)
class Retention:
    """Ages at which a collection retires and removes.

    Unnamed soups are retired after `unnamed_soup_days` without use (0: never), which a namespace can override. Retired
    soups and unseen blobs are removed after `grace` (None: never), and ended jobs, usage and audit entries after their
    days (0: never).
    """

    grace: timedelta | None = None
    unnamed_soup_days: int = 0
    job_days: int = 0
    usage_days: int = 0
    audit_days: int = 0


@dataclass(frozen=True)
class Registry:
    """The stores, base models and limits that verbs work with.

    `bases` are the operator's allowlist by id, empty in a process that fits selectors. `default_effort` is for cooks
    that name none, `quotas` are for keys and namespaces without their own. `selectors` are in memory, by the digest of
    their stored state: they are immutable, and threads share them.
    """

    database: Database
    blobs: BlobStore
    bases: Mapping[str, BaseModel] = field(default_factory=dict)
    limits: SizeLimits = field(default_factory=SizeLimits)
    refits: Refits = Refits()
    default_effort: Effort = "tune"
    quotas: DefaultLimits = field(default_factory=DefaultLimits)
    retention: Retention = Retention()
    selectors: Recent[Selector[Any]] = field(default_factory=lambda: Recent(SELECTOR_BYTES))


@dataclass(frozen=True)
class Caller:
    """The key that a request comes with; `namespaces` are those it may read (None: all)."""

    key_id: str
    namespaces: Namespaces
    request_id: str

    def audit(
        self, catalogue: Catalogue, action: str, subject: str, *, namespace: str | None = None, **detail: Any
    ) -> None:
        """Record an action of this caller, in the transaction of the action; `namespace` as for `Audit.record`."""
        catalogue.audit.record(
            action, subject, key_id=self.key_id, request_id=self.request_id, detail=detail, namespace=namespace
        )
