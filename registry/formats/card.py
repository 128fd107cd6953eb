"""The card of an adapter directory: README.md, whose front matter is the fields of a `Card` and whose text describes.

The front matter is written as YAML whose values are JSON, so that any reader takes it, and read with PyYAML, so that
what people and hubs write is taken too. Called by `directory`, by the files route and by `soup convert`.
"""

from __future__ import annotations

import json
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
"""Characters of a description, as `Card` has it, and of the YAML of one of its fields."""
DEEPEST = 16
"""Lists and mappings in each other; parsing deeper ones takes time that grows with the square."""
FIELDS = ("license", "tags", "metadata")
BELOW = " \t\r-#]}"
"""What a line begins with that goes on with the value of the key above it, or says nothing."""
UNFILLED = "# Model Card for Model ID"
"""How the text begins that PEFT writes for its users to fill in."""
Relation = Literal["adapter", "merge"]


@dataclass(frozen=True)
class Use:
    """How an adapter is loaded: the library, and what to write."""

    library: str
    text: str


USE = "<!-- what follows is the registry's, and no part of the card -->"
"""The line under which a registry says how an adapter is loaded: its own text, and none of the card."""
USE_END = "<!-- here ends what is the registry's -->"
"""The line that ends it; what people write below is the card's."""
USES = re.compile(rf"\r?\n{USE}\r?\n(?:(?!{USE}).)*?\r?\n{USE_END}(?:\r?\n|\Z)", re.DOTALL)
"""What a registry says of the use, from line to line."""


def format_card(card: Card, *, base_model: str | None = None, domain: str | None = None,
                relation: Relation = "adapter", use: Use | None = None) -> str:  # fmt: skip
    """A card as README.md, the same text for the same values; `relation` is how it came from its base model.

    `use` says below the card how the adapter is loaded.
    """
    library = None if use is None else use.library
    fields = card_fields(card, base_model=base_model, domain=domain, relation=relation, library=library)
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in fields.items()]
    body = f"\n{card.description}\n" if card.description else ""
    below = "" if use is None else f"\n{USE}\n## Use\n\n{use.text}\n{USE_END}\n"
    return "\n".join(["---", *lines, "---", body + below])


def card_fields(card: Card, *, base_model: str | None = None, domain: str | None = None, owner: str | None = None,
                relation: Relation = "adapter", library: str | None = None) -> dict[str, Any]:  # fmt: skip
    """The fields of a README's front matter: what is said of a card, without what is not.

    The `owner` is told by the hub's API alone: it is of the name, and a file that is pinned may not change with it.
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
    """The card of a README.md; unknown front matter is left alone.

    Of a `foreign` one, written by PEFT or for a hub, tags that are none here (`base_model:adapter:...`) are left out,
    and so are metadata in metadata and a text that nobody filled in. Raises InvalidManifest for values that a card
    cannot hold, and for a field that is no YAML, has aliases, or is longer or deeper than is parsed.
    """
    matter, body = _split_front_matter(_without_use(text))
    if len(body) > MOST:
        raise InvalidManifest(
            f"{CARD_FILE} has {len(body)} characters of text, and a description has at most {MOST}: shorten it."
        )
    values: dict[str, Any] = {key: matter[key] for key in ("tags", "metadata") if matter.get(key) not in (None, "")}
    if isinstance(values.get("tags"), str):
        values["tags"] = [values["tags"]]
    if foreign:
        listed = values.get("tags")
        tags = listed if isinstance(listed, list) else []
        values["tags"] = [tag for tag in tags if isinstance(tag, str) and re.fullmatch(PART_PATTERN, tag)]
        if isinstance(metadata := values.get("metadata"), dict):
            values["metadata"] = {key: value for key, value in metadata.items() if not isinstance(value, dict | list)}
        body = "" if body.lstrip().startswith(UNFILLED) else body
    if matter.get("license") not in (None, ""):
        values["license"] = str(matter["license"])
    try:
        return Card(description=body, **values)
    except ValidationError as error:
        raise refusal(error, Path(CARD_FILE)) from None


def _without_use(text: str) -> str:
    """A README without what a registry said of its use, the last time that it did; where its end is missing, all of it.

    Lines end as they did when the registry wrote them, where an editor has changed them all.
    """
    if "\r\n" in text and text.count("\r\n") == text.count("\n"):
        text = text.replace("\r\n", "\n")
    found = list(USES.finditer(text))
    return text[: found[-1].start()] + text[found[-1].end() :] if found else text


def _split_front_matter(text: str) -> tuple[dict[str, Any], str]:
    """The front matter's fields of a card and the text below it; a README without a closed one is all text."""
    lines = text.split("\n")
    if lines[0].rstrip() != "---" or "---" not in [line.rstrip() for line in lines[1:]]:
        return {}, text.removesuffix("\n")
    end = next(i for i, line in enumerate(lines) if i and line.rstrip() == "---")
    return _front_matter(lines[1:end]), "\n".join(lines[end + 1 :]).removeprefix("\n").removesuffix("\n")


def _front_matter(lines: Sequence[str]) -> dict[str, Any]:
    """The fields of a card by key; what stands under other keys is not parsed, however long, deep or broken it is."""
    found: dict[str, list[str]] = {}
    below: list[str] = []  # lines of the newest key
    for line in lines:
        if line[:1].strip(BELOW):
            found[line.partition(":")[0].strip(" '\"")] = below = []
        below.append(line)
    return {key: _value(key, found[key]) for key in FIELDS if key in found}


def _value(key: str, lines: Sequence[str]) -> Any:
    """The value of the only key in `lines`: JSON on its line, as `format_card` writes it, else YAML."""
    if not any(line.strip() for line in lines[1:]):
        with suppress(ValueError, RecursionError):
            return json.loads(lines[0].partition(":")[2])
    try:
        return _yaml("\n".join(lines))
    except yaml.YAMLError as error:
        why = str(getattr(error, "problem", None) or error).split("\n")[0]
        raise InvalidManifest(f"{CARD_FILE}: {key} cannot be read: {why}.", param=key) from None


def _yaml(text: str) -> Any:
    """The first value of a YAML mapping; raises YAMLError, also for aliases and for what is too long or too deep."""
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
    """A YAML node as lists, dicts by text, and scalars: a bare one is what JSON makes of it, else a word.

    YAML's own rules would make a truth of `no`, a date of 2026-11-22 and a text of 1e-5. Tags (`!!set`) are ignored.
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
