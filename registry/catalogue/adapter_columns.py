"""Adapter rows to and from the columns of their table. Used by `adapters` and `soups`."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from registry.catalogue.repository import now
from registry.catalogue.rows import AdapterRow, NewAdapter
from registry.errors import Incompatible
from registry.spec import AdapterConfig, Card

CONFIG: TypeAdapter[AdapterConfig] = TypeAdapter(AdapterConfig)
NEW = TypeAdapter(NewAdapter)
ROW = TypeAdapter(AdapterRow)


def searchable(name: str, domain: str, card: Card) -> str:
    """The text that a search looks in, case-folded as the searched text will be: databases fold differently."""
    return "\n".join((name, domain, card.description)).casefold()


def adapter_columns(new: NewAdapter) -> dict[str, Any]:
    """A new adapter as the columns of its row, all but the version."""
    return {
        **NEW.dump_python(new, mode="json", exclude={"config"}),
        "config": new.config.model_dump(mode="json"),
        "method": new.config.method,
        "search": searchable(new.name, new.domain, new.card),
        "sample_digest": None if new.sample is None else new.sample.digest,
        "created_at": now(),
        "revision": 1,
    }


def adapter_row(row: Any) -> AdapterRow:
    """A row of the table as a value; raises Incompatible for a config that a newer server has written."""
    try:
        config = CONFIG.validate_python(row["config"])
    except ValueError as error:
        raise Incompatible(f"{row['namespace']}/{row['name']} has a config this server cannot read.") from error
    return ROW.validate_python({**row, "config": config, "etag": f"{row['id']}-{row['revision']}"})
