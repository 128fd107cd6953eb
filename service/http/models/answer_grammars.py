"""The grammar of a request whose answers are to be JSON, of its `response_format`, compiled in the request's thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from service.engine import GenerateRequest
from service.engine.grammars import ANY_OBJECT
from service.engine.json_schema import validate_schema
from service.engine.text_support import stop_token_ids
from service.http.models.named_models import ResolvedModel
from service.http.schemas.sampling import JsonSchemaFormat, ResponseFormat, TextFormat
from service.parts import Services


def schema_of(asked: ResponseFormat | None) -> str | None:
    """The schema that a format asks for, None for plain text.

    Raises InvalidParameter for one that is not supported, TooLarge for one that is too large.
    """
    if asked is None or isinstance(asked, TextFormat):
        return None
    return validate_schema(asked.json_schema.schema_) if isinstance(asked, JsonSchemaFormat) else ANY_OBJECT


def following(
    services: Services,
    model: ResolvedModel,
    schema: str | None,
    admitted: Sequence[GenerateRequest],
    *,
    ends: tuple[int, ...] = (),
) -> list[GenerateRequest]:
    """These requests with answers that follow a schema; `ends` end an answer besides the base model's tokens.

    It is compiled once they were admitted, so that a key beyond its rate costs no work; what they took is given back
    where that fails. Raises InvalidParameter for a schema that cannot be followed.
    """
    if schema is None:
        return list(admitted)
    try:
        grammar = services.grammars.grammar(model.base, stop_token_ids(model.base, ends), schema)
    except BaseException:
        for one in admitted:
            if one.on_end is not None:
                one.on_end(0, 0)
        raise
    return [replace(one, grammar=grammar) for one in admitted]
