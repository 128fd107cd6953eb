"""`response_format` of completions and chat completions, as OpenAI has it: text, a JSON object, or JSON of a schema."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from service.http.schemas.wire import Wire


class TextFormat(Wire):
    """Any text, which is the default."""

    type: Literal["text"]


class JsonObjectFormat(Wire):
    """One JSON object, of whatever properties."""

    type: Literal["json_object"]


class NamedSchema(Wire):
    """A JSON schema. Its name and description are taken and not shown to the model, which goes by what may follow."""

    name: Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    description: Annotated[str, StringConstraints(max_length=10_000)] | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None
    """Every answer follows its schema, whether this says so or not."""


class JsonSchemaFormat(Wire):
    """One JSON value that follows a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


ResponseFormat = Annotated[
    Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")],
    Field(description="The form of the answers: text, one JSON object, or JSON of a schema."),
]
