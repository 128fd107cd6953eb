"""Read and write the card of an adapter directory: README.md, with the fields of a `Card` as front matter.

The front matter is written as YAML whose values are JSON, for any reader, and read with PyYAML, which also reads the
files of people and hubs. Called by `directory`, by the files route and by `soup convert`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import ValidationError

from registry.errors import InvalidManifest
from registry.formats.refusal import refusal
from registry.names import PART_PATTERN
from registry.spec import Card

CARD_FILE = "README.md"
MOST = 20_000
"""Most characters of a description, as in `Card`, and of the YAML of one of its fields."""
DEEPEST = 16
"""Deepest nesting of lists and mappings: the time to parse them grows with its square."""
FIELDS = ("license", "tags", "metadata")
BELOW = " \t\r-#]}"
"""First characters of a line that continues the value of the key above it, or is a comment."""
UNFILLED = "# Model Card for Model ID"
"""Start of the template that PEFT writes for its users to fill in."""
Relation = Literal["adapter", "merge"]


@dataclass(frozen=True)
class LoadingText:
    """Instructions to load an adapter: the library and the text."""

    library: str
    text: str


LOADING_START = "<!-- what follows is the registry's, and no part of the card -->"
"""The line before a registry's own instructions, which are no part of the card."""
LOADING_END = "<!-- here ends what is the registry's -->"
"""The line after them; text below is part of the card."""
LOADING_PATTERN = re.compile(
    rf"\r?\n{LOADING_START}\r?\n(?:(?!{LOADING_START}).)*?\r?\n{LOADING_END}(?:\r?\n|\Z)", re.DOTALL
)
"""A registry's instructions with these two lines."""


def format_card(
    card: Card,
    *,
    base_model: str | None = None,
    domain: str | None = None,
    relation: Relation = "adapter",
    loading_text: LoadingText | None = None,
) -> str:
    """The README.md of a card, the same text for the same values; `relation` is that to its base model.

    `loading_text` is written below the card.
    """
    library = None if loading_text is None else loading_text.library
    fields = card_fields(card, base_model=base_model, domain=domain, relation=relation, library=library)
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in fields.items()]
    body = f"\n{card.description}\n" if card.description else ""
    below = "" if loading_text is None else f"\n{LOADING_START}\n## Use\n\n{loading_text.text}\n{LOADING_END}\n"
    return "\n".join(["---", *lines, "---", body + below])


def card_fields(
    card: Card,
    *,
    base_model: str | None = None,
    domain: str | None = None,
    owner: str | None = None,
    relation: Relation = "adapter",
    library: str | None = None,
) -> dict[str, Any]:
    """The fields of a README's front matter that have a value.

    Only the hub's API has an `owner`, which belongs to the name: a pinned file may not change with it.
    """
    fields: dict[str, Any] = {
        "base_model": base_model,
        "base_model_relation": relation,
        "library_name": library,
        "domain": domain,
        "owner": owner,
        "license": card.license,
        "tags": list(card.tags) or None,
        "metadata": card.metadata or None,
    }
    return {key: value for key, value in fields.items() if value is not None}


def parse_card(text: str, *, foreign: bool = False) -> Card:
    """The card of a README.md; unknown front matter is ignored.

    Of a `foreign` one, written by PEFT or for a hub, tags that are invalid here (`base_model:adapter:...`), nested
    metadata and an unfilled template are dropped. Raises InvalidManifest for values that a card cannot hold, and for a
    field that is no YAML, has aliases, or is too long or too deep.
    """
    matter, body = _split_front_matter(_without_loading_text(text))
    if len(body) > MOST:
        raise InvalidManifest(
            f"{CARD_FILE} has {len(body)} characters of text; the maximum of a description is {MOST}: shorten it."
        )
    values: dict[str, Any] = {key: matter[key] for key in ("tags", "metadata") if matter.get(key) not in (None, "")}
    if isinstance(values.get("tags"), str):
        values["tags"] = [values["tags"]]
    if foreign:
        tags = values.get("tags")
        candidates = tags if isinstance(tags, list) else []
        values["tags"] = [tag for tag in candidates if isinstance(tag, str) and re.fullmatch(PART_PATTERN, tag)]
        if isinstance(metadata := values.get("metadata"), dict):
            values["metadata"] = {key: value for key, value in metadata.items() if not isinstance(value, dict | list)}
        body = "" if body.lstrip().startswith(UNFILLED) else body
    _check_metadata(values.get("metadata"))
    if matter.get("license") not in (None, ""):
        values["license"] = str(matter["license"])
    try:
        return Card(description=body, **values)
    except ValidationError as error:
        raise refusal(error, Path(CARD_FILE)) from None


def _check_metadata(metadata: object) -> None:
    """Raise InvalidManifest for a value of the metadata that is a list, a table, NaN or infinite."""
    for key, value in metadata.items() if isinstance(metadata, dict) else ():
        if isinstance(value, dict | list) or (isinstance(value, float) and not math.isfinite(value)):
            kind = "a list" if isinstance(value, list) else "a table" if isinstance(value, dict) else str(value)
            raise InvalidManifest(
                f"{CARD_FILE}: metadata {str(key)[:80]!r} is {kind}; a text, a number, true, false or null is needed.",
                param="metadata",
            )


def _without_loading_text(text: str) -> str:
    """A README without the last instructions of a registry; unchanged where their end is missing.

    Line ends that an editor changed throughout are changed back.
    """
    if "\r\n" in text and text.count("\r\n") == text.count("\n"):
        text = text.replace("\r\n", "\n")
    matches = list(LOADING_PATTERN.finditer(text))
    return text[: matches[-1].start()] + text[matches[-1].end() :] if matches else text


def _split_front_matter(text: str) -> tuple[dict[str, Any], str]:
    """The front matter's fields of a card and the text below it; a README without a closed one is all text."""
    lines = text.split("\n")
    if lines[0].rstrip() != "---" or "---" not in [line.rstrip() for line in lines[1:]]:
        return {}, text.removesuffix("\n")
    end = next(i for i, line in enumerate(lines) if i and line.rstrip() == "---")
    return _front_matter(lines[1:end]), "\n".join(lines[end + 1 :]).removeprefix("\n").removesuffix("\n")


def _front_matter(lines: Sequence[str]) -> dict[str, Any]:
    """The fields of a card by key; the values of other keys are not parsed, so that they may be broken."""
    lines_by_key: dict[str, list[str]] = {}
    current: list[str] = []  # lines of the newest key
    for line in lines:
        if line[:1].strip(BELOW):
            current = lines_by_key[line.partition(":")[0].strip(" '\"")] = []
        current.append(line)
    return {key: _value(key, lines_by_key[key]) for key in FIELDS if key in lines_by_key}


def _value(key: str, lines: Sequence[str]) -> Any:
    """The value of the only key in `lines`: JSON on its line, as `format_card` writes it, else YAML."""
    if not any(line.strip() for line in lines[1:]):
        with suppress(ValueError, RecursionError):
            return json.loads(lines[0].partition(":")[2])
    try:
        return _yaml("\n".join(lines))
    except yaml.YAMLError as error:
        reason = str(getattr(error, "problem", None) or error).split("\n")[0]
        raise InvalidManifest(f"{CARD_FILE}: {key} cannot be read: {reason}.", param=key) from None


def _yaml(text: str) -> Any:
    """The first value of a YAML mapping; raises YAMLError, also for aliases, and for long or deep values."""
    if len(text) > MOST:
        raise yaml.YAMLError(f"it has {len(text)} characters, and {MOST} are the most")
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent):
            raise yaml.YAMLError(f"it has the alias {event.anchor[:40]!r}, and aliases are not taken")
        if depth > DEEPEST:
            raise yaml.YAMLError(f"it is nested more than {DEEPEST} deep")
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    return _plain(root.value[0][1]) if isinstance(root, yaml.MappingNode) else ""


def _plain(node: Any) -> Any:
    """A YAML node as lists, dicts with text keys, and scalars, of which plain ones are read as JSON, else as text.

    YAML's own rules would read `no` as false, 2026-11-22 as a date and 1e-5 as text. Tags (`!!set`) are ignored.
    """
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item) for item in node.value]
    if isinstance(node, yaml.MappingNode):
        if not all(isinstance(key, yaml.ScalarNode) for key, _ in node.value):
            raise yaml.YAMLError("a key in it is no text")
        return {key.value: _plain(value) for key, value in node.value}
    if node.style is None:
        with suppress(ValueError):
            return json.loads(node.value)
    return node.value
