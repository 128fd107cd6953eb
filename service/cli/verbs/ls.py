"""`soup ls`: the adapters and soups that the registry holds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

import typer

from service.cli.flags import base_id
from service.cli.output import as_json, columns, data, one_line, talk
from service.cli.remote import Remote, verb


@dataclass(frozen=True)
class Filters:
    """Which adapters are listed, as `SoupClient.adapters` takes it."""

    q: Annotated[str | None, typer.Argument(help="Text to look for.", metavar="[TEXT]")] = None
    kind: Annotated[Literal["adapter", "soup"] | None, typer.Option("--kind", help="Only these.")] = None
    domain: Annotated[str | None, typer.Option(help="Only of this domain.")] = None
    tag: Annotated[str | None, typer.Option(help="Only with this tag.")] = None
    base_model: Annotated[str | None, typer.Option("--base", callback=base_id, help="Only of this base model.")] = None
    method: Annotated[str | None, typer.Option(help="Only of this method.")] = None
    tuned_on: Annotated[
        str | None, typer.Option(help="Only soups that have learnt from this sample.", metavar="DIGEST")
    ] = None


@verb
def ls(
    remote: Remote,
    filters: Filters,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many; by default all.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Names only.")] = False,
) -> None:
    """List adapters and soups, newest first.

    \b
    Examples:
      soup ls
      soup ls law --kind adapter --tag v2
      soup ls --kind soup --quiet
    """
    asked = asdict(filters)
    rows = list(remote.client.adapters(limit=limit, **asked))
    if remote.json:
        as_json({"object": "list", "data": rows})
    elif quiet:
        for row in rows:
            data(one_line(row["ref"]))
    elif rows:
        header = ("name", "kind", "domain", "structure", "base", "parameters", "sample", "created")
        data(columns(header, [_row(row) for row in rows]))
    else:
        talk("Nothing matches." if any(asked.values()) else "Nothing yet: `soup push` adds some.")


def _row(row: dict[str, Any]) -> tuple[object, ...]:
    config = row.get("config") or {}
    structure = _structure(config)
    created = str(row.get("created_at") or "")[:16].replace("T", " ")
    return (
        row["ref"], row["kind"], row["domain"], structure, row["base_model"], row.get("parameters"),
        row.get("sample_state"), created,
    )  # fmt: skip


def _structure(config: dict[str, Any]) -> str | None:
    """A word for a list: a bottleneck's structure, a LoRA with its ranks, or what is in a union."""
    if config.get("method") == "union":
        return " + ".join(filter(None, map(_structure, config["members"])))
    if config.get("method") != "lora":
        return config.get("structure") or config.get("method")
    return "lora r" + ",".join(str(rank) for rank in sorted({group["rank"] for group in config["groups"]}))
