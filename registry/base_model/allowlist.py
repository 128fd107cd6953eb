"""The operator's allowlist of base models, a TOML file that `SOUP_BASES` names."""

from __future__ import annotations

from pathlib import Path

import torch
from pydantic import ValidationError

from registry.errors import InvalidParameter
from registry.files import read_toml
from registry.spec import BaseEntry
from registry.spec.wording import describe_error


def read_allowlist(path: Path) -> dict[str, BaseEntry]:
    """The base models of a TOML file: tables `[bases.<id>]` with the fields of `BaseEntry`.

    A source is a folder, relative to the file unless absolute, or else a hub repository with a pinned `revision`.
    A chat template is the template itself, or the name of a file that holds it.
    Raises InvalidParameter with every problem.
    """
    table = read_toml(path, subject="allowlist of base models", param="bases")
    bases = table.get("bases")
    if set(table) != {"bases"} or not isinstance(bases, dict) or not bases:
        raise InvalidParameter(f"{path} must consist of one or more tables [bases.<id>].", param="bases")
    entries: dict[str, BaseEntry] = {}
    problems = []
    for base_id, fields in bases.items():
        try:
            entries[base_id] = _entry(base_id, fields, path.parent)
        except ValidationError as problem:
            problems += [f"{base_id}: {'.'.join(map(str, e['loc']))}: {describe_error(e)}." for e in problem.errors()]
        except ValueError as problem:
            problems.append(f"{base_id}: {problem}")
    if problems:
        raise InvalidParameter(f"{path} is not a valid allowlist: {problems[0]}", param="bases", problems=problems)
    return entries


def _entry(base_id: str, fields: object, folder: Path) -> BaseEntry:
    if not isinstance(fields, dict):
        raise ValueError("it is not a table.")
    if "quantization" in fields:
        raise ValueError("'quantization' was removed: use dtype = \"bfloat16\", which is faster and rounds less.")
    entry = BaseEntry.model_validate({**fields, "id": base_id})
    try:
        device = torch.device(entry.device)
    except RuntimeError as problem:
        raise ValueError(f"device {entry.device!r} is not a device of torch: {problem}.") from None
    if device.type == "meta" or str(device) != entry.device:  # torch keeps 8 bits of an index
        raise ValueError(f"device {entry.device!r} cannot hold a base model: choose 'cpu', 'cuda' or 'cuda:0'.")
    if entry.chat_template is not None:
        entry = entry.model_copy(update={"chat_template": _template(entry, entry.chat_template, folder)})
    try:
        local = folder / Path(entry.source).expanduser()
    except RuntimeError as problem:  # the home of a user that is not here
        raise ValueError(f"source {entry.source!r} is not a folder ({str(problem).rstrip('.')}).") from None
    if local.is_dir():
        return entry.model_copy(update={"source": str(local.resolve())})
    if entry.source.startswith((".", "/", "~")) or entry.source.count("/") > 1:
        raise ValueError(f"source {entry.source!r} is not a folder ({local}).")
    if not entry.revision:
        raise ValueError(f"source {entry.source!r} is not a folder here; a hub repository needs a pinned 'revision'.")
    return entry


def _template(entry: BaseEntry, template: str, folder: Path) -> str:
    """A chat template: `template` itself where it holds a brace, as every template does, or the file of that name."""
    if entry.kind == "encoder":
        raise ValueError("an encoder cannot chat: drop its chat_template.")
    if "{" in template:
        return template
    try:
        return (folder / Path(template).expanduser()).read_text(encoding="utf-8")
    except (OSError, ValueError, RuntimeError) as problem:  # RuntimeError: the home of a user that is not here
        raise ValueError(
            f"chat_template {template!r} is neither a template (it has no brace) nor a file that can be read "
            f"({_reason(problem)})."
        ) from None


def _reason(problem: Exception) -> str:
    """The reason why a file cannot be read, on one line."""
    if isinstance(problem, UnicodeDecodeError):
        return "it is not UTF-8 text"
    return (
        f"{str(problem.filename)!r}: {problem.strerror}" if isinstance(problem, OSError) else str(problem).rstrip(".")
    )
