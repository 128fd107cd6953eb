"""Compile the grammar of a request's `response_format` for answers in JSON, in the request's thread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from service.engine import GenerateRequest
from service.engine.grammars import ANY_OBJECT
from service.engine.json_schema import validate_schema
from service.engine.text_support import stop_token_ids
from service.http.models.named_models import ResolvedModel
from service.http.schemas.sampling import JsonSchemaFormat, ResponseFormat, TextFormat
from service.services import Services


def schema_of(response_format: ResponseFormat | None) -> str | None:
    """Return the JSON schema of a response format, None for plain text.

    Raises InvalidParameter for one that is not supported, TooLarge for one that is too large.
    """
    if response_format is None or isinstance(response_format, TextFormat):
        return None
    if isinstance(response_format, JsonSchemaFormat):
        return validate_schema(response_format.json_schema.schema_)
    return ANY_OBJECT


def with_grammar(
    services: Services,
    model: ResolvedModel,
    schema: str | None,
    admitted: Sequence[GenerateRequest],
    *,
    ends: tuple[int, ...] = (),
) -> list[GenerateRequest]:
    """Return admitted requests with the grammar of a schema; tokens `ends` end an answer besides the base model's.

    The grammar is compiled after admission, so that a key beyond its rate limit costs no work; if that fails, the
    admission is undone. Raises InvalidParameter for a schema without a grammar.
    """
    if schema is None:
        return list(admitted)
    try:
        grammar = services.grammars.compile(model.base, stop_token_ids(model.base, ends), schema)
    except BaseException:
        for request in admitted:
            if request.on_end is not None:
                request.on_end(0, 0)
        raise
    return [replace(request, grammar=grammar) for request in admitted]
