"""`soup show`: one adapter or soup."""

from __future__ import annotations

from typing import Any

from service.cli.output import as_json, columns, data, data_width, fields, spelt
from service.cli.remote import RefArgument, Remote, verb


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
        ("owner", row.get("owner")),
        ("base model", row["base_model"]),
        ("structure", _structure(row["config"])),
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


def _structure(config: dict[str, Any]) -> str:
    """A configuration for a reader: its method, then what is set of it; of a union every member."""
    if config.get("method") == "lora":
        return _lora(config)
    if config.get("method") == "union":
        return " + ".join(map(_structure, config["members"]))
    return f"{config.get('method')}: {_said({name: value for name, value in config.items() if name != 'method'})}"


def _said(config: dict[str, Any]) -> str:
    """What is set of a configuration, and of those it holds."""
    return ", ".join(f"{spelt(name)} {_value(value)}" for name, value in config.items() if value not in (None, []))


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return f"({_said(value)})"
    return "/".join(map(_value, value)) if isinstance(value, list) else str(value)


def _lora(config: dict[str, Any]) -> str:
    """A LoRA for a reader: each group's ranks, modules and layers."""
    groups = [
        f"rank {group['rank']}, alpha {group['alpha']:g} on {', '.join(group['targets'])}"
        + (f" of {len(group['layers'])} layers" if group["layers"] else "")
        for group in config["groups"]
    ]
    return ("rsLoRA: " if config["rslora"] else "LoRA: ") + "; ".join(groups)
