"""The base class of every body, and the types that several of them use. Nothing in `schemas` imports torch."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

from registry.errors import InvalidParameter
from registry.spec import MAX_INGREDIENTS, Passage
from registry.spec.frozen import Frozen, one_of

ModelName = Annotated[str, StringConstraints(min_length=1, max_length=2000)]
"""A base id, `base/<id>`, `ns/name[@...]`, an adapter digest, or a mixture (`ns/a*0.7+ns/b*0.3`)."""
Texts = Annotated[list[str], Field(fail_fast=True)]
"""Validation stops at the first bad entry: one error for each of millions of entries would cost gigabytes."""
Passages = Annotated[list[Passage], Field(fail_fast=True)]
TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], Field(fail_fast=True)]
Wait = Annotated[
    float, Field(strict=True, ge=0, description="Seconds to wait for the answer before a job is given instead.")
]


def is_dated(value: Any) -> bool:
    """Return True for a text that begins with a year: numbers are seconds to one reader, milliseconds to another."""
    return isinstance(value, str) and re.match(r"\d{4}-", value, re.ASCII) is not None


def _date(value: Any) -> Any:
    if not is_dated(value):
        raise ValueError("must be a date and time with its offset, such as 2030-01-31T00:00:00Z")
    return value


Moment = Annotated[AwareDatetime, Field(strict=False), BeforeValidator(_date)]
"""A date and time with its offset, as text."""


TextsOrIds = Annotated[
    str | Texts | TokenIds | Annotated[list[TokenIds], Field(fail_fast=True)],
    one_of("must be a text, a list of texts, a list of token ids, or a list of such lists"),
]
"""One input or several, each a text or a list of token ids."""


def each_of(inputs: str | list[str] | list[int] | list[list[int]]) -> list[str | list[int]]:
    """Return one input or several as a list of texts and lists of token ids."""
    if isinstance(inputs, str):
        return [inputs]
    ids = [token for token in inputs if isinstance(token, int)]
    return [ids] if ids else [item for item in inputs if not isinstance(item, int)]


class Wire(BaseModel):
    """A body: unknown fields, NaN and values of another type ("16" for 16) are refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True, use_attribute_docstrings=True)


Item = TypeVar("Item")


class Listing(Wire, Generic[Item]):
    """Items of one kind, in the shape of OpenAI's lists."""

    # Pydantic takes .1 s to look for docstrings of fields in each `Listing[Item]`; subclasses describe by `Field`.
    model_config = ConfigDict(use_attribute_docstrings=False)

    object: Literal["list"] = "list"
    data: list[Item]


class Page(Listing[Item], Generic[Item]):
    """One page of a list; `next_cursor` asks for the next one, and the last page has none."""

    next_cursor: str | None = None


class MixedAdapter(Wire):
    """An adapter of a mixture; weights are divided by their sum."""

    ref: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    weight: float = Field(default=1.0, ge=0, le=1000)


MixedAdapters = Annotated[list[MixedAdapter], Field(min_length=1, max_length=MAX_INGREDIENTS, fail_fast=True)]
"""Adapters and weights to mix on the base model in `model`."""


class OpenAIBody(Wire):
    """A body of OpenAI's API."""

    @model_validator(mode="before")
    @classmethod
    def _null_is_unset(cls, values: Any) -> Any:
        """Remove nulls, which OpenAI's clients send for fields that keep their default."""
        if not isinstance(values, dict):
            return values
        return {name: value for name, value in values.items() if value is not None or name not in cls.model_fields}


class Patch(Frozen):
    """Base class of bodies that change some fields of a stored object and keep the others."""

    nullable: ClassVar[frozenset[str]] = frozenset()
    """Fields for which null is a value; in any other field null means no change."""

    def changes(self) -> dict[str, Any]:
        """Return the new values by field name; raise InvalidParameter if there are none."""
        values = {name: getattr(self, name) for name in self.model_fields_set}
        changes = {name: value for name, value in values.items() if value is not None or name in self.nullable}
        if not changes:
            raise InvalidParameter(f"Name at least one of {', '.join(type(self).model_fields)} to change.")
        return changes


class PromptTokensDetails(Wire):
    """How the tokens of the prompt were processed."""

    cached_tokens: int
    """Prompt tokens reused from the prefix cache."""


class Usage(Wire):
    """Tokens read and written. `completion_tokens` and `prompt_tokens_details` are absent for embeddings."""

    prompt_tokens: int
    completion_tokens: int | None = None
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None

    @classmethod
    def of(cls, read: int, written: int, *, reused: int) -> Usage:
        """Return the usage of a prompt of `read` tokens, `reused` of them from the cache, and `written` new tokens."""
        return cls(
            prompt_tokens=read,
            completion_tokens=written,
            total_tokens=read + written,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=reused),
        )
