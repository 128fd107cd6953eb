"""Parse the JSON answers of a server into bodies. Used by the client library and by commands that draw plots."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from registry.errors import Unavailable

Body = TypeVar("Body", bound=BaseModel)


def body_of(kind: type[Body], answer: Mapping[str, Any]) -> Body:
    """Parse an answer into a body of class `kind`, ignoring fields that a newer server adds.

    Raises Unavailable if the answer does not fit the class.
    """
    try:
        return kind.model_validate_json(json.dumps(answer), extra="ignore")
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise Unavailable(
            f"The server's answer is no {kind.__name__} as this version knows it ({error.error_count()} fields differ, "
            f"first {'.'.join(map(str, first['loc'])) or 'all of it'}: {first['msg']}): use a client of the server's "
            "version."
        ) from None


def reader_of(kind: type[Body]) -> Callable[[Mapping[str, Any]], Body]:
    """Return a function that parses answers into bodies of class `kind`."""
    return partial(body_of, kind)
