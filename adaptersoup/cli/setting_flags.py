"""Settings of the environment, overridden by the flags of a command."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from pydantic import BaseModel, ValidationError

from registry.errors import InvalidParameter
from registry.spec.wording import describe_error

Kind = TypeVar("Kind", bound=BaseModel)


@dataclass(frozen=True)
class StorageFlags:
    """The options for the locations of database and blobs, by the names of their settings."""

    data: Annotated[Path | None, typer.Option(help="Folder of database and blobs (SOUP_DATA).")] = None
    blobs: Annotated[Path | None, typer.Option(help="Folder of the blobs, if it is another one (SOUP_BLOBS).")] = None
    database_url: Annotated[
        str | None, typer.Option(help="URL of the database; use SOUP_DATABASE_URL for one with a password.")
    ] = None


def settings_of(kind: type[Kind], **flags: Any) -> Kind:
    """Settings of this kind, with the flags that are not None; raises InvalidParameter with the variable's name."""
    try:
        return kind(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)[0]
        sentence = describe_error(details)
        if not details["loc"]:  # about several settings, which the sentence names
            raise InvalidParameter(f"{sentence}.") from None
        name = "SOUP_" + "_".join(map(str, details["loc"])).upper()
        raise InvalidParameter(f"{name} (or its flag): {sentence}.", param=name) from None
