"""Base models, adapters, samples and the manifest that pushes them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from registry.names import Digest, Part, canonical_json
from registry.spec.config import AdapterConfig
from registry.spec.frozen import Frozen, Words, printable, without_nul
from registry.spec.passage import Passage

Unit = Literal["passage", "sentence"]
InitSource = Literal["trained_here", "declared", "unknown"]
BaseKind = Literal["causal", "encoder"]

MOST_METADATA_KEY = 128
"""The most characters of a key of a card's metadata."""
MOST_METADATA_VALUE = 1024
"""The most characters of a text in a card's metadata."""
MOST_PROVENANCE = 64 * 1024
"""The most bytes of a provenance's `training` as JSON."""


class BaseEntry(Frozen):
    """One entry of the operator's allowlist (`SOUP_BASES`): how a base model is loaded, by its id."""

    id: Part
    source: str
    revision: str | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    device: str = "cpu"
    bos: bool = True
    kind: BaseKind = "causal"
    """`encoder`: a model of the BERT family, whose adapters are trained, stored and evaluated, and never served."""
    chat_template: str | None = None
    """The operator's own template (Jinja), in place of the model's. In no fingerprint: it changes no adapter."""


class BaseShape(Frozen):
    """The shape of a base model: all that adapters are checked against, without loading it."""

    fingerprint: Digest
    model_type: str
    hidden_size: int
    num_layers: int
    context: int
    vocab_size: int
    linears: dict[str, tuple[int, int]] = Field(default_factory=dict)
    """(inputs, outputs) of every linear module by its path (`transformer.h.0.attn.c_attn`): what LoRA can sit on."""
    kind: BaseKind = "causal"
    kv: tuple[int, int] | None = None
    """(heads, size of a head) of the keys and values of each layer; None where a prefix cannot be put before them."""


class Card(Frozen):
    """What people say about an adapter; never part of its digest."""

    description: Words = Field(default="", max_length=20_000)
    license: Words | None = Field(default=None, max_length=200)
    tags: tuple[Part, ...] = Field(default=(), max_length=64, fail_fast=True)
    metadata: dict[Words, Words | int | float | bool | None] = Field(default_factory=dict, max_length=64)


def _short_metadata(card: Card) -> Card:
    for key, value in card.metadata.items():
        if len(key) > MOST_METADATA_KEY:
            raise ValueError(f"a key of metadata has {len(key)} characters; the most is {MOST_METADATA_KEY}")
        if isinstance(value, str) and len(value) > MOST_METADATA_VALUE:
            raise ValueError(
                f"metadata {key!r} has {len(value)} characters; the most is {MOST_METADATA_VALUE}: the description "
                "has room for longer texts"
            )
    return card


NewCard = Annotated[Card, AfterValidator(_short_metadata)]
"""A card as sent. Stored cards can exceed its bounds, which came later."""


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
    """A sample as sent: passages, an uploaded JSON-lines blob of {"text"} or {"prompt", "answer"}, or embeddings."""

    texts: tuple[Passage, ...] | None = Field(default=None, fail_fast=True)
    blob: Digest | None = None
    embeddings: tuple[EmbeddingSource, ...] | None = Field(default=None, max_length=16, fail_fast=True)

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if [self.texts, self.blob, self.embeddings].count(None) != 2:
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

    @property
    def compared(self) -> Self:
        """The fields to compare with that of the same bytes: without `made_with`, the versions and threads used."""
        training = {name: value for name, value in self.training.items() if name != "made_with"}
        return self.model_copy(update={"training": training})


def _short_provenance(provenance: Provenance) -> Provenance:
    size = len(canonical_json(provenance.training))
    if size > MOST_PROVENANCE:
        raise ValueError(
            f"'training' has {size} bytes as JSON; the most is {MOST_PROVENANCE}: leave out curves and logs, or push "
            "them as a file of their own"
        )
    return provenance


NewProvenance = Annotated[Provenance, AfterValidator(_short_provenance)]
"""A provenance as sent. Stored ones can exceed its bound, which came later."""


Domain = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(without_nul)]
"""What text an adapter is for, in people's words."""
Owner = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(printable)]
"""Who answers for an adapter, such as a team or a mail address: a label, which gives nobody a right."""
BaseId = Annotated[str, Field(max_length=64)]
"""What a server calls a base model."""


class Manifest(Frozen):
    """`POST /v1/adapters`: what is pushed under which name. `files` holds `adapter_model.safetensors`.

    Exactly one of `config` and `peft_config` says what the adapter is.
    """

    name: str = Field(max_length=129)
    domain: Domain
    base_model: BaseId | None = None
    base_fingerprint: Digest | None = None
    recorded_base: Words | None = Field(default=None, max_length=1000)
    """The base model as a file of the adapter names it: a hub repository or a folder of wherever it was trained.

    It stands for the one base model here with this id or source, where neither of the two above says which. Without
    it, the name that `peft_config` records is taken.
    """
    config: AdapterConfig | None = None
    peft_config: dict[str, Any] | None = None
    """PEFT's `adapter_config.json` of a LoRA or a prefix as it is."""
    files: dict[str, FileSource]
    sample: SampleSource | None = None
    owner: Owner | None = None
    """Who answers for the name, and so for all its versions; without it the name keeps the one it has."""
    card: NewCard = Card()
    provenance: NewProvenance = Provenance()

    @model_validator(mode="after")
    def _one_configuration(self) -> Self:
        if (self.config is None) == (self.peft_config is None):
            raise ValueError("give either 'config' or 'peft_config' (PEFT's adapter_config.json)")
        return self
