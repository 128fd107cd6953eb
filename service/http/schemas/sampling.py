"""Fields that completion and chat requests share, including OpenAI fields that have no effect here.

Nothing is ignored silently. An OpenAI field that has no effect here is accepted with its neutral value only, and
refused by name otherwise. A field that OpenAI does not have is refused as unknown. `user`, its successors
(`safety_identifier`, `prompt_cache_key`) and `metadata` are accepted and dropped: OpenAI promises no more.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, GetCoreSchemaHandler, StringConstraints, model_validator

from registry.spec.frozen import one_of
from service.http.schemas.wire import MixedAdapters, ModelName, OpenAIBody, Wire


class TextFormat(Wire):
    """Any text, which is the default."""

    type: Literal["text"]


class JsonObjectFormat(Wire):
    """A JSON object with any properties."""

    type: Literal["json_object"]


class NamedSchema(Wire):
    """A JSON schema. Its name and description are accepted, but the model does not see them."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: Annotated[str, StringConstraints(max_length=10_000)] | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None
    """Accepted for compatibility: every answer follows its schema."""


class JsonSchemaFormat(Wire):
    """One JSON value that follows a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


ResponseFormat = Annotated[
    Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")],
    Field(description="The form of the answers: text, one JSON object, or JSON of a schema."),
]


StopText = Annotated[str, StringConstraints(min_length=1, max_length=500)]
Seed = Annotated[int, Field(ge=-(2**63), lt=2**63)]
MaxTokens = Annotated[int, Field(ge=0, le=1_000_000)]


class Neutral:
    """Annotation of a field that accepts only null and the given values, which OpenAI treats as 'not requested'."""

    def __init__(self, *values: Any) -> None:
        self._values = [*values, None]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        """Return the schema of the annotated type, followed by the check of the value."""
        return AfterValidator(self._check).__get_pydantic_core_schema__(source, handler)

    def __get_pydantic_json_schema__(self, _schema: Any, _handler: Any) -> dict[str, Any]:
        """Return the enumeration of the accepted values."""
        return {"enum": self._values}

    def _check(self, value: Any) -> Any:
        if not any(
            value == neutral and isinstance(value, bool) == isinstance(neutral, bool) for neutral in self._values
        ):
            raise ValueError("is not supported by this server; leave it out")
        return value


Stop = Annotated[
    StopText | Annotated[list[StopText], Field(max_length=4)] | None,
    one_of("must be a text or up to 4 texts, none empty or beyond 500 characters"),
]


LogitBias = Annotated[
    dict[
        Annotated[str, StringConstraints(pattern=r"^[0-9]{1,9}$")],
        Annotated[float, Field(ge=-100, le=100)],
    ],
    Field(max_length=1024),
]
"""Numbers to add to the logits of tokens, by token id."""


class StreamOptions(Wire):
    """Options of a stream."""

    include_usage: bool = False
    include_obfuscation: Annotated[Any, Neutral(False)] = None


class Sampling(OpenAIBody):
    """The common fields of completions and chat completions."""

    model: ModelName
    adapters: MixedAdapters | None = None
    temperature: float = Field(default=1.0, ge=0, le=100)
    top_p: float = Field(default=1.0, gt=0, le=1)
    n: int = Field(default=1, ge=1)
    stop: Stop = None
    seed: Seed | None = None
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
    logit_bias: LogitBias = Field(default_factory=dict)
    top_k: int | None = Field(default=None, ge=-1)
    """An extension, like the next two fields, named as in vLLM and transformers. 0 and -1 mean no limit."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    repetition_penalty: float = Field(default=1.0, ge=0.01, le=10)
    response_format: ResponseFormat | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: Annotated[str, StringConstraints(max_length=1000)] | None = None
    metadata: dict[str, Any] | None = None
    # neutral values only
    store: Annotated[Any, Neutral(False)] = None
    service_tier: Annotated[Any, Neutral("auto", "default")] = None

    @model_validator(mode="after")
    def _stream_options_need_stream(self) -> Sampling:
        if self.stream_options is not None and not self.stream:
            raise ValueError("'stream_options' goes with 'stream': true only")
        return self

    @property
    def sampling_params(self) -> dict[str, Any]:
        """The fields that control sampling and stopping, as keyword arguments of the engine's SamplingParams."""
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        unchanged = (
            "temperature",
            "top_p",
            "n",
            "seed",
            "min_p",
            "repetition_penalty",
            "frequency_penalty",
            "presence_penalty",
        )
        bias = tuple((int(token), value) for token, value in self.logit_bias.items())
        top_k = self.top_k if self.top_k is not None and self.top_k > 0 else None
        return {**{name: getattr(self, name) for name in unchanged}, "stop": stop, "top_k": top_k, "logit_bias": bias}

    @property
    def include_usage(self) -> bool:
        """True if a stream ends with a chunk that carries the usage."""
        return self.stream_options is not None and self.stream_options.include_usage
