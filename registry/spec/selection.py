"""Selector specs, pools and selections."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field

from registry.names import Digest, Part, digest_of
from registry.spec.adapter import BaseId
from registry.spec.frozen import Frozen
from registry.spec.limits import MAX_INGREDIENTS

EncoderName = Literal["base", "sbert"]
FIT_VERSION = 2
"""Incremented when fits of the same spec give a different result: pools are then fitted again at their next use."""


class SelectorSpecBase(Frozen):
    """The kind and parameters of a selector; `SelectorSpec` is the union of all of them."""

    @property
    def encoder_name(self) -> EncoderName | None:
        """The encoder whose vectors the selector uses; None if it uses none."""
        return None

    def resolved(self) -> Self:
        """The spec with fields that are None set to the defaults of its mode; learned values stay None."""
        return self

    @property
    def digest(self) -> str:
        """The digest of the resolved spec and the version of fits."""
        return digest_of({"fit": FIT_VERSION, "spec": self.resolved().model_dump(mode="json")})


class GmmSpec(SelectorSpecBase):
    """Clusters over mean-pooled base embeddings (AdapterSoup, section 2, after Aharoni & Goldberg 2020).

    `mode="paper"`: full covariance, component 0 dropped, 50 dimensions. The default is tied covariance, 32
    dimensions, and component 0 kept or dropped by held-out domain accuracy. Set fields win over the mode.
    """

    encoder_name: ClassVar[EncoderName | None] = "base"
    kind: Literal["gmm"] = "gmm"
    mode: Literal["default", "paper"] = "default"
    covariance: Literal["full", "tied", "diag", "spherical"] | None = None
    dimensions: int | None = Field(default=None, ge=1, le=1024)
    component_zero: Literal["keep", "drop", "auto"] | None = None
    max_iter: int = Field(default=150, ge=1, le=10_000)
    seed: int = Field(default=0, ge=0, lt=2**32)

    def resolved(self) -> Self:
        """The spec with `covariance`, `dimensions` and `component_zero` set, by default those of the mode."""
        paper = self.mode == "paper"
        return self.model_copy(
            update={
                "covariance": self.covariance or ("full" if paper else "tied"),
                "dimensions": self.dimensions or (50 if paper else 32),
                "component_zero": self.component_zero or ("drop" if paper else "auto"),
            }
        )


class CosineSpec(SelectorSpecBase):
    """Mean cosine between the sample and each domain (AdapterSoup, section 2).

    `threshold=None`: the 5th percentile of the scores that the pool's domains have with their own other text. The
    paper's is 0.15, for sentence-BERT.
    """

    kind: Literal["cosine"] = "cosine"
    encoder: EncoderName = "sbert"
    threshold: float | None = Field(default=None, ge=-1, le=1)
    seed: int = Field(default=0, ge=0, lt=2**32)

    @property
    def encoder_name(self) -> EncoderName | None:
        """The encoder named in the spec."""
        return self.encoder


class PosteriorSpec(SelectorSpecBase):
    """Gaussians over mean-pooled base embeddings, one per domain with a shared covariance: their posteriors are
    weights.

    Log-densities are multiplied by `temperature`, which spreads the posteriors. Domains below `least`, or below the
    request's `min_share` if given, are left out.
    """

    encoder_name: ClassVar[EncoderName | None] = "base"
    kind: Literal["posterior"] = "posterior"
    dimensions: int = Field(default=32, ge=1, le=1024)
    temperature: float = Field(default=0.1, gt=0, le=1)
    least: float = Field(default=0.02, ge=0, le=1)
    seed: int = Field(default=0, ge=0, lt=2**32)


class UniformSpec(SelectorSpecBase):
    """Every adapter of the pool with equal weight; it reads no text and never abstains."""

    kind: Literal["uniform"] = "uniform"


SelectorSpec = Annotated[GmmSpec | CosineSpec | PosteriorSpec | UniformSpec, Field(discriminator="kind")]


DEFAULT_MAX_INGREDIENTS = 5


class SelectOptions(Frozen):
    """Options of a request to a fitted selector. `single`: only the top adapter, without thresholds.

    `min_share` is the minimum share of the sample for a domain: by default 0.10 (gmm, the paper's), or `least` of a
    posterior. `max_ingredients` is 5 by default, as in the paper, and 32 for effort `thorough`. For effort `tune`,
    `when_none` is always `top`.
    """

    single: bool = False
    max_ingredients: int | None = Field(default=None, ge=1, le=MAX_INGREDIENTS)
    min_share: float | None = Field(default=None, ge=0, le=1)
    threshold: float | None = Field(default=None, ge=-1, le=1)
    when_none: Literal["abstain", "top"] = "abstain"

    @property
    def most(self) -> int:
        """The most ingredients that a selector chooses."""
        return DEFAULT_MAX_INGREDIENTS if self.max_ingredients is None else self.max_ingredients


class PoolSpec(Frozen):
    """The adapters that a selector is fitted over; `namespaces` is None for all (an admin's pool)."""

    base_fingerprint: Digest
    namespaces: tuple[Part, ...] | None = None
    method: str | None = None
    tag: Part | None = None
    include_soups: bool = False

    @property
    def digest(self) -> str:
        """The digest that identifies the pool."""
        return digest_of(self)


class Ingredient(Frozen):
    """One chosen adapter and its canonical decimal weight."""

    ref: str
    digest: Digest
    domain: str
    weight: str
    score: float | None = None
    stability: float | None = None
    """The share of 200 bootstrap draws of the sample's units in which it is chosen; None if the selector reads
    no text."""


class LeftOut(Frozen):
    """One adapter that was not chosen, and why."""

    ref: str
    digest: Digest
    domain: str
    reason: str
    score: float | None = None


class Selection(Frozen):
    """A selector's answer for a sample, with its reasons."""

    selected: tuple[Ingredient, ...]
    left_out: tuple[LeftOut, ...]
    """The adapters that were not chosen, with the best scores first: 32, or all on request."""
    abstained: bool
    reason: str
    units: int
    """Number of sequences or sentences of the sample that were read."""
    counts: dict[str, int] = Field(default_factory=dict)
    """Sample units per cluster, by cluster number (gmm only)."""
    scores: dict[str, float] = Field(default_factory=dict)
    """Share of the sample's units (gmm), mean cosine (cosine), mean posterior, or 1/k (uniform), by domain.

    Only of chosen and listed domains."""
    thresholds: dict[str, float] = Field(default_factory=dict)
    novelty: float | None = None
    """Percentile (0 to 100) of the sample's distance among held-out distances of the pool's own domains."""
    warnings: tuple[str, ...] = ()
    more_left_out: dict[str, int] = Field(default_factory=dict)
    """The number of further adapters that were left out, by reason."""


class PoolRequest(Frozen):
    """A pool in a request. Defaults are the only base model, the namespaces that the key may read, and all methods."""

    base_model: BaseId | None = None
    namespaces: tuple[Part, ...] | None = Field(default=None, max_length=64, fail_fast=True)
    method: str | None = Field(default=None, max_length=64)
    tag: Part | None = None
    include_soups: bool = False
