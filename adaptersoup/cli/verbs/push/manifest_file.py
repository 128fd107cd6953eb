"""Reader of `soup push --manifest FILE.csv`: a row for each adapter directory, with fields of its push.

The first line names the columns. `path` is required; an empty cell counts as missing. Relative paths start at the
file's folder. All errors of the file are raised together, before anything is sent.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import typer
from pydantic import TypeAdapter, ValidationError

from adaptersoup.cli.flags import key_values, usage_error
from adaptersoup.cli.verbs.push.sources import Source, same_name
from adaptersoup.client.additions import Additions, name_of
from adaptersoup.client.samples import read_text
from registry.errors import InvalidManifest, SoupError
from registry.names import split_name
from registry.spec import BaseId, Card, Domain, Owner

Row = Mapping[str, str]
_TYPES: dict[str, TypeAdapter[str]] = {
    "domain": TypeAdapter(Domain),
    "base": TypeAdapter(BaseId),
    "owner": TypeAdapter(Owner),
}
"""The types of columns that are not fields of a card."""

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


def from_manifest(file: Path, *, namespace: str, additions: Additions) -> list[Source]:
    """A source for each row. Raises InvalidManifest with every problem, NotFound or InvalidSample for the file."""
    sources, problems = [], []
    firsts: dict[str, tuple[Source, bool]] = {}
    for number, row in _rows(file):
        try:
            source = _source(row, file.parent, namespace, additions)
            first, is_named = firsts.setdefault(source.name, (source, bool(row.get("name"))))
            if first is not source and not (is_named and row.get("name")):
                raise InvalidManifest(f"{same_name(first.path, source.path, source.name)}.", param="name")
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
    """The line number and the cells by column of each row; raises InvalidManifest for invalid CSV or columns."""
    reader = csv.reader(io.StringIO(read_text(file), newline=""), strict=True)
    try:
        lines = [(reader.line_num, [cell.strip() for cell in cells]) for cells in reader]
    except csv.Error as error:
        raise InvalidManifest(
            f"{file}, line {reader.line_num}: {error}; is a quote left open before?", param="manifest"
        ) from None
    header = lines[0][1] if lines else []
    unknown = [repr(name) for name in header if name not in COLUMNS]
    twice = sorted({name for name in header if header.count(name) > 1})
    if unknown or twice or "path" not in header:
        problem = (
            f"has {', '.join(unknown)}" if unknown else f"has {twice[0]!r} twice" if twice else "has no column 'path'"
        )
        raise InvalidManifest(f"{file} {problem}; columns are {', '.join(COLUMNS)}.", param="manifest")
    for number, cells in lines[1:]:
        if any(cells):
            if len(cells) > len(header):
                raise InvalidManifest(
                    f"{file}, line {number}: {len(cells)} cells under {len(header)} columns; put quotes "
                    "around a cell that holds commas.",
                    param="manifest",
                )
            yield number, dict(zip(header, cells, strict=False))


def _source(row: Row, parent: Path, namespace: str, additions: Additions) -> Source:
    """The source of a row, whose paths start at `parent` and whose fields extend `additions`."""
    if not row.get("path"):
        raise InvalidManifest("The cell of 'path' is empty.", param="path")
    path = parent / row["path"]
    name = row.get("name") or name_of(path)
    name = name if "/" in name else f"{namespace}/{name}"
    split_name(name)
    cells = {column: parse(row[column]) for column, parse in _PARSERS.items() if row.get(column)}
    tags = (*additions.tags, *cells.pop("tags", ()))
    metadata = {**additions.metadata, **cells.pop("metadata", {})}
    additions = Additions(**{**vars(additions), **cells, "tags": tags, "metadata": metadata})
    try:
        additions.card(Card())
    except ValidationError as error:
        raise usage_error(error) from None
    for column, type_ in _TYPES.items():
        if (value := getattr(additions, column)) is not None:
            try:
                type_.validate_python(value)
            except ValidationError as error:
                raise usage_error(error, {"": column}) from None
    sample = parent / row["sample"] if row.get("sample") else None
    if sample is not None and not sample.exists():
        raise InvalidManifest(f"The sample {sample} does not exist.", param="sample")
    return Source(path, name, additions, sample)


def _tags(cell: str) -> tuple[str, ...]:
    return tuple(cell.replace(",", " ").replace(";", " ").split())


def _metadata(cell: str) -> dict[str, Any]:
    return key_values([pair.strip() for pair in cell.split(";") if pair.strip()], "metadata")


_PARSERS: dict[str, Callable[[str], Any]] = {
    "domain": str,
    "base": str,
    "owner": str,
    "license": str,
    "description": str,
    "tags": _tags,
    "metadata": _metadata,
}
