"""Bodies of `/v1/selectors` and `/v1/select`, and how a catalogue row becomes one."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from registry.names import Digest
from registry.spec import (
    CosineSpec,
    EncoderName,
    Passage,
    PoolRequest,
    PoolSpec,
    PosteriorSpec,
    SampleReport,
    SampleSource,
    Selection,
    SelectOptions,
    SelectorSpec,
)
from registry.spec.frozen import Frozen
from service.http.schemas.adapters import ListedAdapter
from service.http.schemas.wire import Page, Wait, Wire

if TYPE_CHECKING:
    from registry.catalogue.rows import SelectorRow


class FitRequest(Frozen):
    """`POST /v1/selectors`: fit a selector over a pool."""

    selector: SelectorSpec
    pool: PoolRequest = PoolRequest()
    wait: Wait | None = None

    @property
    def spec(self) -> SelectorSpec:
        """The selector, under the name that all requests about a pool share."""
        return self.selector


class Member(Wire):
    """One adapter a selector was fitted on."""

    ref: str
    digest: Digest
    domain: str


class Selector(Wire):
    """A fitted, immutable selector."""

    object: Literal["selector"] = "selector"
    id: str
    selector: SelectorSpec
    pool: PoolSpec
    domains: int
    members: list[Member]
    report: dict[str, Any]
    fitted_at: datetime
    not_yet_included: list[str]
    asked_at: datetime | None = None
    """Time of the last request for its pool and spec, to the hour; null if another fit serves the pool now."""
    idle: bool = False
    """True after a long time without requests: pushes no longer refit it, and the next request does."""


def selector_body(
    row: SelectorRow, not_yet_included: tuple[str, ...], *, asked_at: datetime | None, idle: bool
) -> Selector:
    """Return a selector row as its body.

    `not_yet_included` are refs of adapters of its pool that it was fitted without. `asked_at` is the time of the last
    request for its pool, to the hour. Pushes do not refit an `idle` selector.
    """
    return Selector(
        id=row.id,
        selector=row.spec,
        pool=row.pool,
        domains=len(row.members),
        members=[Member(ref=member.ref, digest=member.digest, domain=member.domain) for member in row.members],
        report=dict(row.report),
        fitted_at=row.fitted_at,
        not_yet_included=list(not_yet_included),
        asked_at=asked_at,
        idle=idle,
    )


class SelectorList(Page[Selector]):
    """One page of selectors, newest first."""


class SelectRequest(Frozen):
    """`POST /v1/select`: select the adapters of a pool that fit a sample, without cooking."""

    sample: SampleSource
    selector: SelectorSpec | None = None
    options: SelectOptions = SelectOptions()
    pool: PoolRequest = PoolRequest()
    list_all: bool = False
    """Name all adapters that were left out, not only the 32 with the best scores."""
    wait: Wait | None = None

    @property
    def spec(self) -> SelectorSpec:
        """The selector named in the request, posterior by default."""
        return self.selector or PosteriorSpec()


class NearestRequest(Frozen):
    """`POST /v1/adapters/search`: rank the adapters of a pool by the similarity of their samples to a text."""

    texts: tuple[Passage, ...] = Field(min_length=1, max_length=500, fail_fast=True)
    """One text is enough. Split a long text into passages."""
    encoder: EncoderName = "base"
    pool: PoolRequest = PoolRequest()
    limit: int = Field(default=10, ge=1, le=100)
    wait: Wait | None = None

    @property
    def spec(self) -> SelectorSpec:
        """A cosine selector over the encoder; its threshold is not used."""
        return CosineSpec(encoder=self.encoder)


class Near(Wire):
    """An adapter, and the similarity of its sample to the text: the mean cosine of their vectors."""

    similarity: float
    adapter: ListedAdapter


class Nearest(Wire):
    """Adapters by similarity, highest first. There is no threshold: the first may be far from the text."""

    object: Literal["nearest"] = "nearest"
    data: list[Near]
    encoder: EncoderName
    selector: str
    fitted_at: datetime
    not_yet_included: list[str]


class Selected(Wire):
    """A selection with everything that led to it."""

    object: Literal["selection"] = "selection"
    selection: Selection
    sample: SampleReport
    selector: str
    fitted_at: datetime
    not_yet_included: list[str]
