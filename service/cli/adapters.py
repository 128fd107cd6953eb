"""`soup ls`, `soup show` and `soup rm`: what the registry holds."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from registry.errors import SoupError
from service.cli.failures import explain, worst_code
from service.cli.output import as_json, columns, data, fields, talk
from service.cli.session import Session, verb

RefArgument = Annotated[str, typer.Argument(help="namespace/name[@version or alias], or sha256:...", metavar="REF")]


@verb
def ls(
    session: Session,
    q: Annotated[str | None, typer.Argument(help="Text to look for.", metavar="[TEXT]")] = None,
    kind: Annotated[Literal["adapter", "soup"] | None, typer.Option("--kind", help="Only these.")] = None,
    domain: Annotated[str | None, typer.Option("--domain", help="Only of this domain.")] = None,
    tag: Annotated[str | None, typer.Option("--tag", help="Only with this tag.")] = None,
    base: Annotated[str | None, typer.Option("--base", help="Only of this base model.")] = None,
    method: Annotated[str | None, typer.Option("--method", help="Only of this method.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most so many; by default all.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Names only.")] = False,
) -> None:
    """List adapters and soups, newest first.

    \b
    Examples:
      soup ls
      soup ls law --kind adapter --tag v2
      soup ls --kind soup --quiet
    """
    rows = list(session.client.adapters(
        q=q, kind=kind, domain=domain, tag=tag, method=method, limit=limit,
        base_model=None if base is None else base.removeprefix("base/"),
    ))  # fmt: skip
    if session.json:
        as_json({"object": "list", "data": rows})
    elif quiet:
        for row in rows:
            data(row["ref"])
    elif rows:
        header = ("name", "kind", "domain", "structure", "base", "parameters", "sample", "created")
        data(columns(header, [_row(row) for row in rows]))
    else:
        talk("Nothing matches." if any((q, kind, domain, tag, base, method)) else "Nothing yet: `soup push` adds some.")


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


def _lora(config: dict[str, Any]) -> str:
    """A LoRA for a reader: each group's ranks, modules and layers."""
    groups = [
        f"rank {group['rank']}, alpha {group['alpha']:g} on {', '.join(group['targets'])}"
        + (f" of {len(group['layers'])} layers" if group["layers"] else "")
        for group in config["groups"]
    ]
    return ("rsLoRA: " if config["rslora"] else "LoRA: ") + "; ".join(groups)


@verb
def show(session: Session, ref: RefArgument) -> None:
    """Show one adapter or soup: what it is, its sample, its parents and its soups.

    \b
    Examples:
      soup show team/law
      soup show team/soup@2 --json
    """
    row = session.client.adapter(ref)
    lineage = session.client.lineage(str(row["ref"]))
    if session.json:
        as_json({**row, "lineage": lineage})
        return
    data(fields(_facts(row)))
    if lineage.get("parents"):
        parents = [(p["ref"], p.get("weight"), "retired" if p.get("retired") else "") for p in lineage["parents"]]
        data("\n" + columns(("parent", "weight", ""), parents))
    if lineage.get("children"):
        data("\n" + columns(("soup made of it",), [(child["ref"],) for child in lineage["children"]]))


def _facts(row: dict[str, Any]) -> list[tuple[str, object]]:
    card, sample = row.get("card") or {}, row.get("sample") or {}
    provenance = row.get("provenance") or {}
    counted = f"{sample['kept']} of {sample['received']} passages" if sample else None
    return [
        ("name", row["ref"]),
        ("digest", row["digest"]),
        ("kind", row["kind"]),
        ("domain", row["domain"]),
        ("base model", row["base_model"]),
        ("structure", _lora(row["config"]) if row["config"].get("method") == "lora" else row["config"]),
        ("parameters", row.get("parameters")),
        ("dtype", row.get("dtype")),
        ("bytes", row.get("size_bytes")),
        ("sample", row.get("sample_state")),
        ("sample size", counted),
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


@verb
def rm(
    session: Session,
    refs: Annotated[list[str], typer.Argument(help="Names; without @version all live versions.", metavar="REF")],
) -> None:
    """Retire adapters or soups.

    They are no longer found, selected or served; soups made of them stay.

    \b
    Examples:
      soup rm team/law@1
      soup rm team/old team/older
    """
    gone, failed = [], []
    for ref in refs:
        try:
            gone += session.client.delete_adapter(ref)
        except SoupError as error:
            talk(f"{ref}: {explain(error)}")
            failed.append(error)
    if session.json:
        as_json({"object": "list", "data": gone})
    else:
        for row in gone:
            data(row["ref"])
    if failed:
        raise typer.Exit(worst_code(failed))
