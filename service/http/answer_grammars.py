"""The grammar of a request whose answers are to be JSON, of its `response_format`, compiled in the request's thread."""

from __future__ import annotations

from service.engine.grammars import ANY_OBJECT, Grammar
from service.engine.json_schema import checked_schema
from service.engine.served import ends_of
from service.http.named_models import ResolvedModel
from service.http.schemas.response_format import JsonSchemaFormat, ResponseFormat, TextFormat
from service.parts import Parts


def grammar_for(
    parts: Parts, model: ResolvedModel, asked: ResponseFormat | None, *, ends: tuple[int, ...] = ()
) -> Grammar | None:
    """The grammar that a format asks for, None for plain text; `ends` end an answer besides the base model's tokens.

    Raises InvalidParameter for a schema that cannot be followed, TooLarge for one that is too large.
    """
    if asked is None or isinstance(asked, TextFormat):
        return None
    schema = checked_schema(asked.json_schema.schema_) if isinstance(asked, JsonSchemaFormat) else ANY_OBJECT
    return parts.grammars.grammar(model.base, ends_of(model.base, ends), schema)
