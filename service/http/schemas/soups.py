"""Bodies of `/v1/soups`.

`answers.jobs.soup_of` copies into `Soup` the fields that `Cooked` (`registry.spec`) has by the same name, and names the
others, which are those of its evidence, one by one.
"""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from registry.names import Digest
from registry.spec import CookRequest, MixReport, Price, Recipe, SampleReport, Search, Selection, Spent, Verification
from service.http.schemas.adapters import Adapter
from service.http.schemas.wire import Wait, Wire


class SoupRequest(CookRequest):
    """`POST /v1/soups`: a CookRequest, and how long to wait for the result."""

    wait: Wait | None = None


class HigherEffort(Price):
    """The price of an effort for the same sample, and what it usually brings.

    `gain` is the NLL of the soup as selected minus that of the stored soup, in nats per token on held-out passages. It
    is the median over the newest `cooks` with this effort on this base model that stored a soup and that the caller
    sees.
    """

    gain: float | None = None
    cooks: int = 0


class Soup(Wire):
    """The result of a cook: a soup, a single adapter, or the base model if `abstained`."""

    object: Literal["soup"] = "soup"
    abstained: bool
    reason: str
    model: str
    digest: Digest | None
    soup: Adapter | None
    """The version behind `model`; null if the cook abstained, or if the version was purged since."""
    cached: bool
    """True if the key sees a live soup of this recipe from an earlier cook, whose stored bytes were used."""
    created: bool
    """True if this request stored a new version."""
    recipe: Recipe | None
    refs: dict[Digest, str] = Field(default_factory=dict)
    """The names of the recipe's ingredients by digest, without ingredients that the key does not see."""
    recipe_digest: Digest | None
    report: MixReport | None
    selection: Selection | None
    sample: SampleReport | None
    verification: Verification | None
    search: Search | None
    selector: str | None
    fitted_at: datetime | None
    not_yet_included: list[str]
    spent: Spent | None
    beyond: tuple[HigherEffort, ...]
