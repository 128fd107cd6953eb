"""Adapter rows to and from the columns of their table. Used by `adapters` and `soups`."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from registry.catalogue.paging import now
from registry.catalogue.rows import AdapterRow, NewAdapter
from registry.errors import Incompatible
from registry.spec import AdapterConfig, Card, Provenance, SampleReport

CONFIG: TypeAdapter[AdapterConfig] = TypeAdapter(AdapterConfig)


def searchable(name: str, domain: str, card: Card) -> str:
    """The text that a search looks in, case-folded as the searched text will be: databases fold differently."""
    return "\n".join((name, domain, card.description)).casefold()


def adapter_values(new: NewAdapter) -> dict[str, Any]:
    """A new adapter as the columns of its row, all but the version."""
    same = ("namespace", "name", "kind", "digest", "base_model", "base_fingerprint", "domain", "weights_blob", "dtype",
            "parameters", "size_bytes", "sample_state", "recipe_digest", "created_by")  # fmt: skip
    return {
        **{field: getattr(new, field) for field in same},
        "method": new.config.method,
        "config": new.config.model_dump(mode="json"),
        "card": new.card.model_dump(mode="json"),
        "search": searchable(new.name, new.domain, new.card),
        "provenance": new.provenance.model_dump(mode="json"),
        "sample": None if new.sample is None else new.sample.model_dump(mode="json"),
        "sample_digest": None if new.sample is None else new.sample.digest,
        "created_at": now(),
        "revision": 1,
    }


def adapter_row(row: Any) -> AdapterRow:
    """A row of the table as the value it stands for."""
    try:
        config = CONFIG.validate_python(row["config"])
    except ValueError as error:  # written by a newer server
        raise Incompatible(f"{row['namespace']}/{row['name']} has a config this server cannot read.") from error
    same = ("id", "namespace", "name", "version", "kind", "digest", "base_model", "base_fingerprint", "domain",
            "weights_blob", "dtype", "parameters", "size_bytes", "sample_state", "recipe_digest", "created_by",
            "created_at", "retired_at")  # fmt: skip
    return AdapterRow(
        **{field: row[field] for field in same},
        config=config,
        card=Card.model_validate(row["card"]),
        provenance=Provenance.model_validate(row["provenance"]),
        sample=None if row["sample"] is None else SampleReport.model_validate(row["sample"]),
        etag=f"{row['id']}-{row['revision']}",
    )
