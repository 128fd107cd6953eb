"""`soup ls`, `show` and `open`: the adapters and soups in the registry."""

from __future__ import annotations

import sys
import webbrowser
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from adaptersoup.cli.adapter_filters import Filters
from adaptersoup.cli.flags import usage_error
from adaptersoup.cli.output import as_json, data, data_width, progress_bar, talk
from adaptersoup.cli.remote import SAMPLE_FORMS, RefArgument, Remote, verb
from adaptersoup.client.answers import path_segment
from adaptersoup.client.samples import read_texts
from adaptersoup.tables import columns, fields, one_line, spelt
from registry.errors import InvalidParameter
from registry.names import BaseRef, parse_ref
from registry.spec import EncoderName, PoolRequest

HEADER = ("name", "kind", "domain", "owner", "structure", "base", "parameters", "sample", "created")
SPARE = ("owner", "parameters", "structure", "base", "created", "kind")
"""Columns dropped on a narrow terminal, in this order; `soup show` has them."""
NEAR = 10
"""Default number of nearest adapters."""
POOL = ("base_model", "method", "namespace", "tag")
"""Filters that --near supports."""
_NAMES = {"base_model": "--base", "method": "--method", "namespaces": "--namespace", "tag": "--tag"}


@verb
def ls(
    remote: Remote,
    filters: Filters,
    near: Annotated[
        Path | None,
        typer.Option(help=f"List the adapters whose samples are nearest to this text: {SAMPLE_FORMS}", metavar="FILE"),
    ] = None,
    encoder: Annotated[EncoderName | None, typer.Option(help="Encoder of the text of --near; by default base.")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of rows; by default all, with --near 10.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only names.")] = False,
) -> None:
    """List adapters and soups, newest first, or those nearest to a text.

    \b
    Examples:
      soup ls
      soup ls "contract law" --kind adapter --tag v2 --tag reviewed
      soup ls --kind soup --quiet
      soup ls --near - < clause.txt
    """
    if near is not None:
        _nearest(remote, near, encoder, asdict(filters), limit or NEAR, quiet=quiet)
        return
    if encoder is not None:
        raise typer.BadParameter("--encoder needs --near: it embeds the text of that option.")
    rows = list(remote.client.adapters(limit=limit, **asdict(filters)))
    if remote.json:
        as_json({"object": "list", "data": rows})
    elif quiet:
        for row in rows:
            data(one_line(row["ref"]))
    elif rows:
        data(columns(HEADER, [_list_row(row) for row in rows], within=data_width(), spare=SPARE))
    else:
        talk("Nothing matches." if any(asdict(filters).values()) else "Nothing yet: `soup push` adds some.")


def _nearest(
    remote: Remote, file: Path, encoder: EncoderName | None, filters: dict[str, Any], limit: int, *, quiet: bool
) -> None:
    """List the adapters nearest to the texts of a file; raises a usage error for filters that --near cannot apply."""
    tags = filters["tag"] or [None]
    if len(tags) > 1 or any(value is not None and name not in POOL for name, value in filters.items()):
        raise typer.BadParameter(
            "--near works with --base, --method, --namespace and one --tag: drop the other filters."
        )
    namespaces = None if filters["namespace"] is None else (filters["namespace"],)
    base_model, method = filters["base_model"], filters["method"]
    try:
        pool = PoolRequest(base_model=base_model, method=method, tag=tags[0], namespaces=namespaces)
    except ValidationError as error:
        raise usage_error(error, _NAMES) from None
    texts = read_texts(file)
    with progress_bar("looking") as report:
        answer = remote.client.nearest(texts, limit=limit, encoder=encoder, pool=pool, progress=report)
    if remote.json:
        as_json(answer)
    elif quiet:
        for neighbour in answer["data"]:
            data(one_line(neighbour["adapter"]["ref"]))
    else:
        rows = [(f"{row['similarity']:.4f}", *_list_row(row["adapter"])) for row in answer["data"]]
        data(columns(("similarity", *HEADER), rows, within=data_width(), spare=SPARE))
        missing = answer["not_yet_included"]
        if missing:
            talk(f"Not looked at yet, until the refit is done: {', '.join(missing)}")


def _list_row(row: dict[str, Any]) -> tuple[object, ...]:
    config = row.get("config") or {}
    structure = _structure_name(config)
    created = str(row.get("created_at") or "")[:16].replace("T", " ")
    return (
        row["ref"],
        row["kind"],
        row["domain"],
        row.get("owner"),
        structure,
        row["base_model"],
        row.get("parameters"),
        row.get("sample_state"),
        created,
    )


def _structure_name(config: dict[str, Any]) -> str | None:
    """The structure in a few words: a bottleneck's structure, a LoRA with its ranks, or the members of a union."""
    if config.get("method") == "union":
        return " + ".join(filter(None, map(_structure_name, config["members"])))
    if config.get("method") != "lora":
        return config.get("structure") or config.get("method")
    return "lora r" + ",".join(str(rank) for rank in sorted({group["rank"] for group in config["groups"]}))


@verb
def show(remote: Remote, ref: RefArgument) -> None:
    """Show one adapter or soup: what it is, its sample, its parents and its soups.

    \b
    Examples:
      soup show team/law
      soup show team/soup@2 --json
    """
    row = remote.client.adapter(ref)
    lineage = remote.client.lineage(str(row["ref"]))
    if remote.json:
        as_json({**row, "lineage": lineage})
        return
    data(fields(_facts(row)))
    if lineage.get("parents"):
        parents = [(p["ref"], p.get("weight"), "retired" if p.get("retired") else "") for p in lineage["parents"]]
        data("\n" + columns(("parent", "weight", ""), parents, within=data_width()))
    if lineage.get("children"):
        soups = [(child["ref"],) for child in lineage["children"]]
        data("\n" + columns(("soups made of it (at most 100, newest first)",), soups))


def _facts(row: dict[str, Any]) -> list[tuple[str, object]]:
    card, sample = row.get("card") or {}, row.get("sample") or {}
    provenance = row.get("provenance") or {}
    sample_size = f"{sample['kept']} of {sample['received']} passages" if sample else None
    return [
        ("name", row["ref"]),
        ("digest", row["digest"]),
        ("kind", row["kind"]),
        ("domain", row["domain"]),
        ("owner", row.get("owner")),
        ("base model", row["base_model"]),
        ("structure", _structure(row["config"])),
        ("parameters", row.get("parameters")),
        ("dtype", row.get("dtype")),
        ("bytes", row.get("size_bytes")),
        ("sample", row.get("sample_state")),
        ("sample size", sample_size),
        ("sample notes", sample.get("notes")),
        ("initialisation", provenance.get("init_source")),
        ("init hash", provenance.get("init_hash")),
        ("license", card.get("license")),
        ("tags", card.get("tags")),
        ("metadata", card.get("metadata")),
        ("description", card.get("description")),
        ("recipe", row.get("recipe_digest")),
        ("created", row.get("created_at")),
        ("retired", row.get("retired_at")),
    ]


def _structure(config: dict[str, Any]) -> str:
    """A configuration as text: its method, then the fields that are set; for a union, every member."""
    if config.get("method") == "lora":
        return _lora(config)
    if config.get("method") == "union":
        return " + ".join(map(_structure, config["members"]))
    return f"{config.get('method')}: {_set_fields({name: value for name, value in config.items() if name != 'method'})}"


def _set_fields(config: dict[str, Any]) -> str:
    """The fields of a configuration that are set, with those of nested ones in parentheses."""
    return ", ".join(f"{spelt(name)} {_value(value)}" for name, value in config.items() if value not in (None, []))


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return f"({_set_fields(value)})"
    return "/".join(map(_value, value)) if isinstance(value, list) else str(value)


def _lora(config: dict[str, Any]) -> str:
    """A LoRA's configuration as text: each group's rank, alpha, modules and layers."""
    groups = [
        f"rank {group['rank']}, alpha {group['alpha']:g} on {', '.join(group['targets'])}"
        + (f" of {len(group['layers'])} layers" if group["layers"] else "")
        for group in config["groups"]
    ]
    return ("rsLoRA: " if config["rslora"] else "LoRA: ") + "; ".join(groups)


@verb
def open(
    remote: Remote,
    ref: Annotated[
        str | None,
        typer.Argument(
            help="namespace/name[@version or alias], or sha256:...; by default the list of models.", metavar="[REF]"
        ),
    ] = None,
    only_print: Annotated[bool, typer.Option("--print", help="Only print the address.")] = False,
) -> None:
    """Open the page of a model in the browser.

    Prints the address. Opens nothing if the output is not a terminal.

    \b
    Examples:
      soup open team/law
      soup open team/law@2 --print
      soup open
    """
    address = f"{remote.client.base_url}/models"
    if ref is not None:
        if isinstance(parse_ref(ref), BaseRef):
            raise InvalidParameter(f"{ref} is a base model; only adapters and soups have a page.", param="ref")
        row = remote.client.adapter(ref)
        address += f"/{path_segment(row['namespace'])}/{path_segment(row['name'])}@{row['version']}"
    remote.answer({"object": "page", "url": address}, address)
    if not (only_print or remote.json) and sys.stdout.isatty():
        webbrowser.open(address)
