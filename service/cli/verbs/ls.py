"""`soup ls`: the adapters and soups that the registry holds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from registry.spec import EncoderName, PoolRequest
from service.cli.adapter_filters import Filters
from service.cli.output import as_json, columns, data, data_width, one_line, progress_bar, talk
from service.cli.remote import SAMPLE_FORMS, Remote, verb
from service.client.samples import read_texts


@dataclass(frozen=True)
class Near:
    """A text that adapters are to be like."""

    near: Annotated[
        Path | None, typer.Option(help=f"The nearest to this text, by their samples: {SAMPLE_FORMS}", metavar="FILE")
    ] = None
    encoder: Annotated[EncoderName | None, typer.Option(help="What embeds the text of --near; by default base.")] = None


HEADER = ("name", "kind", "domain", "owner", "structure", "base", "parameters", "sample", "created")
SPARE = ("owner", "parameters", "structure", "base", "created", "kind")
"""Columns that a narrow terminal does without, in this order; `soup show` has them."""
NEAR = 10
"""Adapters that are listed by their nearness, where nothing else is said."""
POOL = ("base_model", "method", "namespace", "tag")
"""Filters that the nearest are chosen by; the others are of lists alone."""


@verb
def ls(
    remote: Remote,
    filters: Filters,
    near: Near,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many; by default all, with --near 10.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Names only.")] = False,
) -> None:
    """List adapters and soups, newest first, or those nearest to a text.

    \b
    Examples:
      soup ls
      soup ls "contract law" --kind adapter --tag v2 --tag reviewed
      soup ls --kind soup --quiet
      pbpaste | soup ls --near -
    """
    asked = asdict(filters)
    if near.near is not None:
        _nearest(remote, near, asked, limit or NEAR, quiet=quiet)
        return
    if near.encoder is not None:
        raise typer.BadParameter("--encoder is for the text of --near.")
    rows = list(remote.client.adapters(limit=limit, **asked))
    if remote.json:
        as_json({"object": "list", "data": rows})
    elif quiet:
        for row in rows:
            data(one_line(row["ref"]))
    elif rows:
        data(columns(HEADER, [_row(row) for row in rows], within=data_width(), spare=SPARE))
    else:
        talk("Nothing matches." if any(asked.values()) else "Nothing yet: `soup push` adds some.")


def _nearest(remote: Remote, near: Near, asked: dict[str, Any], limit: int, *, quiet: bool) -> None:
    """List the adapters nearest to a text; raises a usage error for filters that only lists have."""
    others = [name for name, value in asked.items() if value is not None and name not in POOL]
    tags = asked["tag"] or [None]
    if others or len(tags) > 1:
        raise typer.BadParameter("--near goes with --base, --method, --namespace and one --tag; drop the others.")
    namespaces = None if asked["namespace"] is None else (asked["namespace"],)
    pool = PoolRequest(base_model=asked["base_model"], method=asked["method"], tag=tags[0], namespaces=namespaces)
    assert near.near is not None
    texts = read_texts(near.near)
    with progress_bar("looking") as report:
        answer = remote.client.nearest(texts, limit=limit, encoder=near.encoder, pool=pool, progress=report)
    found = answer["data"]
    if remote.json:
        as_json(answer)
    elif quiet:
        for one in found:
            data(one_line(one["adapter"]["ref"]))
    else:
        rows = [(f"{one['similarity']:.4f}", *_row(one["adapter"])) for one in found]
        data(columns(("similarity", *HEADER), rows, within=data_width(), spare=SPARE))
        missing = answer["not_yet_included"]
        if missing:
            talk(f"Not looked at yet, until the refit is done: {', '.join(missing)}")


def _row(row: dict[str, Any]) -> tuple[object, ...]:
    config = row.get("config") or {}
    structure = _structure(config)
    created = str(row.get("created_at") or "")[:16].replace("T", " ")
    return (
        row["ref"], row["kind"], row["domain"], row.get("owner"), structure, row["base_model"], row.get("parameters"),
        row.get("sample_state"), created,
    )  # fmt: skip


def _structure(config: dict[str, Any]) -> str | None:
    """A word for a list: a bottleneck's structure, a LoRA with its ranks, or what is in a union."""
    if config.get("method") == "union":
        return " + ".join(filter(None, map(_structure, config["members"])))
    if config.get("method") != "lora":
        return config.get("structure") or config.get("method")
    return "lora r" + ",".join(str(rank) for rank in sorted({group["rank"] for group in config["groups"]}))
