"""Settings of the environment, over which the flags of a command win."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from registry.errors import InvalidParameter

Kind = TypeVar("Kind", bound=BaseModel)


def settings_of(kind: type[Kind], **flags: Any) -> Kind:
    """Settings of this kind; a flag of None was not given. Raises InvalidParameter by the name of the variable."""
    try:
        return kind(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)[0]
        name = "SOUP_" + "_".join(str(part) for part in found["loc"]).upper()
        said = found["msg"].removeprefix("Value error, ")
        raise InvalidParameter(f"{name} (or its flag): {said}.", param=name) from None
