"""`soup push --manifest FILE.csv`: a row for each adapter directory, with what is said of it.

The first line names the columns. `path` is needed; an empty cell is as a column that is not there. Relative paths start
at the file's folder. All that is wrong with the file is said at once, before anything is sent.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from pydantic import TypeAdapter, ValidationError

from adaptersoup.cli.flags import key_values, usage_error
from adaptersoup.cli.verbs.push.sources import Source, both_named
from adaptersoup.client.additions import Additions, name_of
from adaptersoup.client.samples import read_text
from registry.errors import InvalidManifest, SoupError
from registry.names import split_name
from registry.spec import BaseId, Card, Domain, Owner

if TYPE_CHECKING:
    from _csv import Reader

Row = Mapping[str, str]
_TYPES: dict[str, TypeAdapter[str]] = {
    "domain": TypeAdapter(Domain),
    "base": TypeAdapter(BaseId),
    "owner": TypeAdapter(Owner),
}
"""Columns whose cells are no part of a card, and what they have to be."""

COLUMNS = {
    "path": "the adapter directory",
    "name": "name or namespace/name; by default after the folder",
    "domain": "domain label",
    "base": "base model on the server",
    "owner": "who answers for the adapter",
    "sample": "file or folder of texts",
    "tags": "tags, separated by spaces",
    "metadata": "k=v, separated by semicolons",
    "license": "license of the card",
    "description": "description of the card",
}


def from_manifest(file: Path, *, namespace: str, more: Additions) -> list[Source]:
    """A source of each row. Raises InvalidManifest with every problem, NotFound or InvalidSample for the file."""
    sources, problems = [], []
    named: dict[str, tuple[Source, bool]] = {}
    for number, row in _rows(file):
        try:
            source = _source(row, file.parent, namespace, more)
            other, said = named.setdefault(source.name, (source, bool(row.get("name"))))
            if other is not source and not (said and row.get("name")):
                raise InvalidManifest(f"{both_named(other.path, source.path, source.name)}.", param="name")
            sources.append(source)
        except (SoupError, typer.BadParameter) as error:
            problems.append(f"{file}, line {number}: {error.message}")
    if problems:
        raise InvalidManifest(
            problems[0] + (f" ({len(problems)} rows are wrong)" if len(problems) > 1 else ""),
            param="manifest",
            problems=problems,
        )
    return sources


def _rows(file: Path) -> Iterator[tuple[int, Row]]:
    """(line, cells by column) of each row; raises InvalidManifest for what is no CSV, and for its columns."""
    reader = csv.reader(io.StringIO(read_text(file), newline=""), strict=True)
    try:
        yield from _read(file, reader)
    except csv.Error as error:
        raise InvalidManifest(
            f"{file}, line {reader.line_num}: {error}; is a quote left open before?", param="manifest"
        ) from None


def _read(file: Path, reader: Reader) -> Iterator[tuple[int, Row]]:
    header = [name.strip() for name in next(reader, [])]
    unknown = [repr(name) for name in header if name not in COLUMNS]
    twice = sorted({name for name in header if header.count(name) > 1})
    if unknown or twice or "path" not in header:
        wrong = (
            f"has {', '.join(unknown)}" if unknown else f"has {twice[0]!r} twice" if twice else "has no column 'path'"
        )
        raise InvalidManifest(f"{file} {wrong}; columns are {', '.join(COLUMNS)}.", param="manifest")
    for cells in reader:
        if any(cell.strip() for cell in cells):
            if len(cells) > len(header):
                raise InvalidManifest(
                    f"{file}, line {reader.line_num}: {len(cells)} cells under {len(header)} columns; put quotes "
                    "around a cell that holds commas.",
                    param="manifest",
                )
            yield reader.line_num, dict(zip(header, map(str.strip, cells), strict=False))


def _source(row: Row, beside: Path, namespace: str, more: Additions) -> Source:
    if not row.get("path"):
        raise InvalidManifest("The cell of 'path' is empty.", param="path")
    path = beside / row["path"]
    name = row.get("name") or name_of(path)
    name = name if "/" in name else f"{namespace}/{name}"
    split_name(name)
    said = {column: read(row[column]) for column, read in _READ.items() if row.get(column)}
    tags = (*more.tags, *said.pop("tags", ()))
    metadata = {**more.metadata, **said.pop("metadata", {})}
    found = Additions(**{**vars(more), **said, "tags": tags, "metadata": metadata})
    try:
        found.card(Card())
    except ValidationError as error:
        raise usage_error(error) from None
    for column, type_ in _TYPES.items():
        if (value := getattr(found, column)) is not None:
            try:
                type_.validate_python(value)
            except ValidationError as error:
                raise usage_error(error, {"": column}) from None
    sample = beside / row["sample"] if row.get("sample") else None
    if sample is not None and not sample.exists():
        raise InvalidManifest(f"The sample {sample} is not there.", param="sample")
    return Source(path, name, found, sample)


def _tags(cell: str) -> tuple[str, ...]:
    return tuple(cell.replace(",", " ").replace(";", " ").split())


def _metadata(cell: str) -> dict[str, Any]:
    return key_values([pair.strip() for pair in cell.split(";") if pair.strip()], "metadata")


_READ: dict[str, Callable[[str], Any]] = {
    "domain": str,
    "base": lambda cell: cell.removeprefix("base/"),
    "owner": str,
    "license": str,
    "description": str,
    "tags": _tags,
    "metadata": _metadata,
}
