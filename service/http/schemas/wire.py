"""The base class of every body, and the types that several of them use. Nothing in `schemas` imports torch."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from registry.errors import InvalidParameter
from registry.spec.frozen import Frozen

ModelName = Annotated[str, StringConstraints(min_length=1, max_length=200)]
"""A base id, `base/<id>`, `ns/name[@...]` or an adapter digest."""
Texts = Annotated[list[str], Field(fail_fast=True)]
"""Lists end at their first bad entry: an error for each of millions would cost gigabytes."""
TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], Field(fail_fast=True)]
Wait = Annotated[float, Field(ge=0, description="Seconds to wait for the answer before a job is given instead.")]


def _date(value: Any) -> Any:
    """Refuse numbers, also as text: they would be seconds to one reader and milliseconds to another."""
    if not isinstance(value, str) or not re.match(r"\d{4}-", value, re.ASCII):
        raise ValueError("must be a date and time with its offset, such as 2030-01-31T00:00:00Z")
    return value


Moment = Annotated[AwareDatetime, Field(strict=False), BeforeValidator(_date)]
"""A date and time with its offset, as text."""


def one_of(sentence: str) -> WrapValidator:
    """A union that fails with one sentence instead of one error per member."""

    def check(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError as error:
            raise ValueError(sentence) from error

    return WrapValidator(check)


TextsOrIds = Annotated[
    str | Texts | TokenIds | Annotated[list[TokenIds], Field(fail_fast=True)],
    one_of("must be a text, a list of texts, a list of token ids, or a list of such lists"),
]
"""One text or several, as they are or as token ids."""


def each_of(given: str | list[str] | list[int] | list[list[int]]) -> list[str | list[int]]:
    """The texts or token ids, one or many, as a list."""
    if isinstance(given, str):
        return [given]
    ids = [token for token in given if isinstance(token, int)]
    return [ids] if ids else [part for part in given if not isinstance(part, int)]


class Wire(BaseModel):
    """A body: unknown fields, NaN and values of another type ("16" for 16) are refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True, use_attribute_docstrings=True)


class OpenAIBody(Wire):
    """A body of OpenAI's API."""

    @model_validator(mode="before")
    @classmethod
    def _null_is_unset(cls, values: Any) -> Any:
        """Clients send null for what they leave open; it means the default."""
        if not isinstance(values, dict):
            return values
        return {name: value for name, value in values.items() if value is not None or name not in cls.model_fields}


class Patch(Frozen):
    """What is to change of something; what is not named stays."""

    nullable: ClassVar[frozenset[str]] = frozenset()
    """Fields for which null is a value; for any other it is as if they were not named."""

    def changes(self) -> dict[str, Any]:
        """What is to change, by name; raises InvalidParameter where that is nothing."""
        named = {name: getattr(self, name) for name in self.model_fields_set}
        found = {name: value for name, value in named.items() if value is not None or name in self.nullable}
        if not found:
            raise InvalidParameter(f"Name at least one of {', '.join(type(self).model_fields)} to change.")
        return found


class PromptTokensDetails(Wire):
    """How the prompt's tokens came to be read."""

    cached_tokens: int
    """Those that were not computed again, but kept from an earlier request that began alike."""


class Usage(Wire):
    """Tokens read and written. `completion_tokens` and `prompt_tokens_details` are absent for embeddings."""

    prompt_tokens: int
    completion_tokens: int | None = None
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None

    @classmethod
    def of(cls, read: int, written: int, *, reused: int) -> Usage:
        """The usage of `read` and `written` tokens; `reused` of those read were not computed again."""
        return cls(
            prompt_tokens=read,
            completion_tokens=written,
            total_tokens=read + written,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=reused),
        )
