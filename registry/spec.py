"""Frozen values that travel: the JSON column, the wire body and the manifest are these, and exist once.

Everything above imports this module; it knows nothing of tensors, SQL or HTTP. Weights are canonical
decimals (nine places, summing to exactly 1) so that a recipe is the same bytes on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from registry.names import Digest, Part, digest_of

Unit = Literal["passage", "sentence"]
EncoderName = Literal["base", "sbert"]
InitSource = Literal["trained_here", "declared", "unknown"]


class Frozen(BaseModel):
    """An immutable value that refuses fields it does not know, NaN and infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


# --- base models ----------------------------------------------------------------------------------


class BaseEntry(Frozen):
    """One entry of the operator's allowlist (`SOUP_BASES`): id -> source, revision, dtype, device, bos."""

    id: Part
    source: str
    revision: str | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    device: str = "cpu"
    bos: bool = True


class BaseShape(Frozen):
    """What adapters need to know of a base model to be checked against it without loading it."""

    fingerprint: Digest
    model_type: str
    hidden_size: int
    num_layers: int
    context: int
    vocab_size: int


# --- adapters -------------------------------------------------------------------------------------


class BottleneckConfig(Frozen):
    """Structure of a bottleneck adapter (METHODS section 2).

    `scale` multiplies the up-projection's output. `input="residual"` puts a Bapna-Firat adapter after the
    block's residual add instead of before it.
    """

    method: Literal["bottleneck"] = "bottleneck"
    structure: Literal["houlsby", "pfeiffer", "bapna_firat", "parallel"]
    bottleneck: int = Field(ge=1, le=65536)
    activation: Literal["relu", "gelu", "swish"]
    scale: float = 1.0
    input: Literal["module", "residual"] = "module"
    layer_norm_eps: float = Field(default=1e-5, gt=0, lt=1)

    @model_validator(mode="after")
    def _residual_is_bapna_firat(self) -> Self:
        if self.input == "residual" and self.structure != "bapna_firat":
            raise ValueError("input='residual' is an option of structure 'bapna_firat' only")
        return self


AdapterConfig = BottleneckConfig  # the union by `method` grows here


class Card(Frozen):
    """What people say about an adapter; never part of its digest."""

    description: str = Field(default="", max_length=20_000)
    license: str | None = Field(default=None, max_length=200)
    tags: tuple[Part, ...] = Field(default=(), max_length=64)
    metadata: dict[str, str | int | float | bool | None] = Field(default_factory=dict, max_length=64)


class FileSource(Frozen):
    """A file of a manifest: the digest of an uploaded blob, or its bytes inline as base64."""

    digest: Digest | None = None
    base64: str | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.digest is None) == (self.base64 is None):
            raise ValueError("give either 'digest' (an uploaded blob) or 'base64' (the bytes)")
        return self


class EmbeddingSource(Frozen):
    """Embeddings computed by the client: a safetensors file with one tensor `embeddings` (units, dimensions)."""

    encoder: Digest
    unit: Unit
    file: FileSource


class SampleSource(Frozen):
    """A sample as sent: texts, an uploaded JSON-lines blob of {"text"}, or embeddings."""

    texts: tuple[str, ...] | None = None
    blob: Digest | None = None
    embeddings: tuple[EmbeddingSource, ...] | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if sum(part is not None for part in (self.texts, self.blob, self.embeddings)) != 1:
            raise ValueError("give exactly one of 'texts', 'blob' and 'embeddings'")
        return self


class SampleReport(Frozen):
    """What became of a sample: everything dropped, drawn or cut is counted here."""

    digest: Digest
    received: int
    empty: int = 0
    duplicates: int = 0
    kept: int
    seed: int | None = None
    """The seed of the draw when more than the limit came, else null."""
    has_text: bool = True
    truncated: dict[str, int] = Field(default_factory=dict)
    """Units cut at the encoder's length limit, by encoder."""
    notes: tuple[str, ...] = ()


class Provenance(Frozen):
    """How an adapter came to be; free beyond the initialisation, whose hash decides what may be averaged."""

    init_hash: Digest | None = None
    init_source: InitSource = "unknown"
    init_seed: int | None = None
    training: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _hash_and_source_agree(self) -> Self:
        if (self.init_source == "unknown") != (self.init_hash is None):
            raise ValueError("init_hash goes with init_source 'trained_here' or 'declared', and 'unknown' with none")
        return self


class Manifest(Frozen):
    """`POST /v1/adapters`: what is pushed under which name. `files` holds `adapter_model.safetensors`."""

    name: str = Field(max_length=129)
    domain: str = Field(min_length=1, max_length=200)
    base_model: str | None = Field(default=None, max_length=64)
    base_fingerprint: Digest | None = None
    config: AdapterConfig
    files: dict[str, FileSource]
    sample: SampleSource | None = None
    card: Card = Card()
    provenance: Provenance = Provenance()


# --- selectors ------------------------------------------------------------------------------------


class GmmSpec(Frozen):
    """Clusters over mean-pooled base embeddings (METHODS section 1, after Aharoni & Goldberg 2020).

    `mode="paper"`: full covariance, component 0 dropped, 50 dimensions. The default is tied covariance, 32
    dimensions, and component 0 kept or dropped by held-out domain accuracy. Set fields win over the mode.
    """

    kind: Literal["gmm"] = "gmm"
    mode: Literal["default", "paper"] = "default"
    covariance: Literal["full", "tied", "diag", "spherical"] | None = None
    dimensions: int | None = Field(default=None, ge=1, le=1024)
    component_zero: Literal["keep", "drop", "auto"] | None = None
    max_iter: int = Field(default=150, ge=1, le=10_000)
    seed: int = Field(default=0, ge=0, lt=2**32)

    def resolved(self) -> GmmSpec:
        """The same spec with every open field filled from its mode."""
        paper = self.mode == "paper"
        return self.model_copy(
            update={
                "covariance": self.covariance or ("full" if paper else "tied"),
                "dimensions": self.dimensions or (50 if paper else 32),
                "component_zero": self.component_zero or ("drop" if paper else "auto"),
            }
        )


class CosineSpec(Frozen):
    """Mean cosine between the sample and each domain (METHODS section 1, sentence similarity).

    `threshold=None`: 0.15 for sentence-BERT (the paper's), the 5th percentile of own-domain scores for the base.
    """

    kind: Literal["cosine"] = "cosine"
    encoder: EncoderName = "sbert"
    threshold: float | None = Field(default=None, ge=-1, le=1)
    seed: int = Field(default=0, ge=0, lt=2**32)

    def resolved(self) -> CosineSpec:
        """Itself: the threshold of the base encoder is learnt when fitting."""
        return self


class UniformSpec(Frozen):
    """Every adapter of the pool with equal weight; looks at no text and never abstains."""

    kind: Literal["uniform"] = "uniform"

    def resolved(self) -> UniformSpec:
        """Itself: there is nothing to fill in."""
        return self


SelectorSpec = Annotated[GmmSpec | CosineSpec | UniformSpec, Field(discriminator="kind")]


def encoder_of(spec: GmmSpec | CosineSpec | UniformSpec) -> EncoderName | None:
    """The encoder whose vectors this selector is fitted on; None where it looks at no text."""
    if isinstance(spec, CosineSpec):
        return spec.encoder
    return "base" if isinstance(spec, GmmSpec) else None


class SelectOptions(Frozen):
    """Decided per request on a fitted selector. `single`: the top adapter alone, thresholds ignored."""

    single: bool = False
    max_ingredients: int = Field(default=5, ge=1, le=64)
    min_share: float = Field(default=0.10, ge=0, le=1)
    threshold: float | None = Field(default=None, ge=-1, le=1)
    when_none: Literal["abstain", "top"] = "abstain"


class PoolSpec(Frozen):
    """Which adapters a selector is fitted over; `namespaces` is None for all (an admin's pool)."""

    base_fingerprint: Digest
    namespaces: tuple[Part, ...] | None = None
    method: str | None = None
    tag: Part | None = None
    include_soups: bool = False


class Ingredient(Frozen):
    """One chosen adapter and its canonical decimal weight."""

    ref: str
    digest: Digest
    domain: str
    weight: str
    score: float | None = None


class LeftOut(Frozen):
    """One adapter that was not chosen, and why."""

    ref: str
    digest: Digest
    domain: str
    reason: str
    score: float | None = None


class Selection(Frozen):
    """What a selector answers for a sample, with everything that led to it."""

    selected: tuple[Ingredient, ...]
    left_out: tuple[LeftOut, ...]
    abstained: bool
    reason: str
    units: int
    """Sequences or sentences of the sample that were looked at."""
    counts: dict[str, int] = Field(default_factory=dict)
    """Sample units per cluster, by cluster number (gmm only)."""
    scores: dict[str, float] = Field(default_factory=dict)
    """Share of the sample's units (gmm), mean cosine (cosine) or 1/k (uniform), by domain."""
    thresholds: dict[str, float] = Field(default_factory=dict)
    novelty: float | None = None
    """Percentile (0 to 100) of the sample's distance among held-out distances of the pool's own domains."""
    warnings: tuple[str, ...] = ()


# --- recipes --------------------------------------------------------------------------------------


class RecipeIngredient(Frozen):
    """An adapter digest and its canonical decimal weight."""

    digest: Digest
    weight: str


class AverageMixing(Frozen):
    """sum w_i theta_i; `scale` multiplies the up-projections; see METHODS section 5."""

    method: Literal["average"] = "average"
    scale: str = "1"
    assume_same_init: bool = False


Mixing = AverageMixing  # the union by `method` grows here


class Recipe(Frozen):
    """What determines a soup's bytes, and nothing else. Ingredients are sorted by digest."""

    base_fingerprint: Digest
    ingredients: tuple[RecipeIngredient, ...] = Field(min_length=1)
    mixing: Mixing = AverageMixing()
    seed: int | None = None

    @property
    def digest(self) -> str:
        """The key of 'cooked before'."""
        return digest_of(self)


WEIGHT_PLACES = Decimal("0.000000001")


def canonical_weights(weights: Sequence[float | Decimal]) -> list[str]:
    """Non-negative weights, normalised to nine decimal places that sum to exactly 1.

    Whole units of 1e-9 are dealt by largest remainder, ties to the earlier entry, so the outcome depends on
    the values and their order alone. Raises ValueError for a negative, non-finite or all-zero input.
    """
    exact = [Decimal(repr(w)) if isinstance(w, float) else Decimal(w) for w in weights]
    if not exact or any(not w.is_finite() or w < 0 for w in exact) or sum(exact) <= 0:
        raise ValueError("weights must be finite, not negative, and not all zero")
    total = sum(exact)
    units = [w / total * 10**9 for w in exact]
    floors = [int(u) for u in units]
    by_remainder = sorted(range(len(units)), key=lambda i: (floors[i] - units[i], i))
    for i in by_remainder[: 10**9 - sum(floors)]:
        floors[i] += 1
    return [format((Decimal(n) * WEIGHT_PLACES).normalize(), "f") for n in floors]


# --- evaluation -----------------------------------------------------------------------------------


class PassageScore(Frozen):
    """Log-likelihood of one text: `nll` in nats summed over `tokens`; `bytes` of its UTF-8; `windows` it took."""

    nll: float
    tokens: int
    bytes: int
    windows: int = 1


class Verification(Frozen):
    """A finished soup against the base on the sample it was cooked from (optimistic: same text; METHODS trap c)."""

    base_nll: float
    soup_nll: float
    difference: float
    """Mean NLL per token, soup minus base; negative is better."""
    standard_error: float
    passages: int
    tokens: int
    helps: bool
    """True when the soup beats the base by more than one paired standard error."""
