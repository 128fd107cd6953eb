"""Settings of the environment, over which the flags of a command win."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from pydantic import BaseModel, ValidationError

from registry.errors import InvalidParameter
from registry.spec.wording import said_of

Kind = TypeVar("Kind", bound=BaseModel)


@dataclass(frozen=True)
class Places:
    """Where database and blobs are, by the settings' names."""

    data: Annotated[Path | None, typer.Option(help="Folder of database and blobs (SOUP_DATA).")] = None
    blobs: Annotated[Path | None, typer.Option(help="Folder of the blobs, where it is another (SOUP_BLOBS).")] = None
    database_url: Annotated[
        str | None, typer.Option(help="URL of the database; one with a password belongs into SOUP_DATABASE_URL.")
    ] = None


def settings_of(kind: type[Kind], **flags: Any) -> Kind:
    """Settings of this kind; a flag of None was not given. Raises InvalidParameter by the name of the variable."""
    try:
        return kind(**{name: value for name, value in flags.items() if value is not None})
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)[0]
        said = said_of(found)
        if not found["loc"]:  # of several together, which it names
            raise InvalidParameter(f"{said}.") from None
        name = "SOUP_" + "_".join(str(part) for part in found["loc"]).upper()
        raise InvalidParameter(f"{name} (or its flag): {said}.", param=name) from None
