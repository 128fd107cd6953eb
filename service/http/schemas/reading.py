"""Answers of a server read as the bodies that they are, by clients: the library, and verbs that draw a picture."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from registry.errors import Unavailable

Body = TypeVar("Body", bound=BaseModel)


def body_of(kind: type[Body], answer: Mapping[str, Any]) -> Body:
    """An answer as a value; what a newer server says beside it is left out.

    Raises Unavailable for an answer that a server of this version does not give.
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
    """What reads answers as values of this kind."""
    return partial(body_of, kind)
