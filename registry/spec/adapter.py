"""Base models, adapters, samples and the manifest that pushes them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

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
MOST_PROVENANCE_LEVELS = 64
"""The most levels of lists and objects in a provenance's `training`."""


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
    """The operator's own template (Jinja), which replaces the model's. It is not in the fingerprint, as it affects no
    adapter."""


class BaseShape(Frozen):
    """The shape of a base model, against which adapters are checked without loading it."""

    fingerprint: Digest
    model_type: str
    hidden_size: int
    num_layers: int
    context: int
    vocab_size: int
    linears: dict[str, tuple[int, int]] = Field(default_factory=dict)
    """(inputs, outputs) of every linear module by its path (`transformer.h.0.attn.c_attn`): the modules that a LoRA can
    change."""
    kind: BaseKind = "causal"
    kv: tuple[int, int] | None = None
    """(heads, size of a head) of the keys and values of each layer; None if the model supports no prefix."""

    def layer_linears(self) -> tuple[str, ...]:
        """The paths of the linear modules of the layers, which leaves out the output layer, for example."""
        return tuple(path for path in self.linears if any(name.isdigit() for name in path.split(".")))


class Card(Frozen):
    """The description of an adapter by its users; not part of its digest."""

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
    """The report on a sample: counts of texts that were dropped, drawn or truncated."""

    digest: Digest
    received: int
    empty: int = 0
    duplicates: int = 0
    kept: int
    seed: int | None = None
    """The seed of the draw if the sample exceeded the limit, else null."""
    has_text: bool = True
    truncated: dict[str, int] = Field(default_factory=dict)
    """Units cut at the encoder's length limit, by encoder."""
    notes: tuple[str, ...] = ()


class Provenance(Frozen):
    """The origin of an adapter. Fields are free, except the initialisation, whose hash decides if adapters can be
    averaged.
    """

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


def _depth(value: object) -> int:
    """Return the number of levels of lists and objects in a JSON value, which may be more than Python can recurse."""
    level, depth = [value], 0
    while nested := [item for item in level if isinstance(item, dict | list)]:
        level = [child for item in nested for child in (item.values() if isinstance(item, dict) else item)]
        depth += 1
    return depth


def _short_provenance(provenance: Provenance) -> Provenance:
    if _depth(provenance.training) > MOST_PROVENANCE_LEVELS:
        raise ValueError(f"'training' has more than {MOST_PROVENANCE_LEVELS} levels of lists and objects")
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
"""The domain of text that an adapter is for, in free words."""
Owner = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(printable)]
"""The owner of an adapter, such as a team or a mail address: a label without rights."""
BaseId = Annotated[
    str,
    BeforeValidator(lambda value: value.removeprefix("base/") if isinstance(value, str) else value),
    Field(max_length=64),
]
"""The id of a base model on a server, which may be sent as `base/<id>` too."""


class Manifest(Frozen):
    """`POST /v1/adapters`: the adapter to push, and its name. `files` has `adapter_model.safetensors`.

    Exactly one of `config` and `peft_config` describes the adapter.
    """

    name: str = Field(max_length=129)
    domain: Domain
    base_model: BaseId | None = None
    base_fingerprint: Digest | None = None
    recorded_base: Words | None = Field(default=None, max_length=1000)
    """The name of the base model in a file of the adapter: a hub repository, or a folder of the machine that trained
    it.

    Without the two fields above, it selects the one base model of the server with this id or source. The default is the
    name in `peft_config`."""
    config: AdapterConfig | None = None
    peft_config: dict[str, Any] | None = None
    """The content of PEFT's `adapter_config.json` of a LoRA or a prefix."""
    files: dict[str, FileSource]
    sample: SampleSource | None = None
    owner: Owner | None = None
    """The owner of the name and all its versions; by default the owner does not change."""
    card: NewCard = Card()
    provenance: NewProvenance = Provenance()

    @model_validator(mode="after")
    def _one_configuration(self) -> Self:
        if (self.config is None) == (self.peft_config is None):
            raise ValueError("give either 'config' or 'peft_config' (PEFT's adapter_config.json)")
        return self
