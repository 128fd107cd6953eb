"""The card of an adapter directory: README.md with front matter, to and from `Card`.

The front matter is written as YAML whose values are JSON, so that any reader takes it; what people write by hand
(bare words, lists and mappings below a key) is read too, without a YAML library.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from registry.errors import InvalidManifest
from registry.formats.refusal import refusal
from registry.names import PART_PATTERN
from registry.spec import Card

CARD_FILE = "README.md"
MOST = 20_000
"""Characters of a description, as `Card` has it."""
UNFILLED = "# Model Card for Model ID"
"""How the text begins that PEFT writes for its users to fill in."""
Relation = Literal["adapter", "merge"]


def format_card(card: Card, *, base_model: str | None = None, domain: str | None = None,
                relation: Relation = "adapter") -> str:  # fmt: skip
    """A card as README.md: front matter (YAML whose values are JSON, so that any reader takes it), then the text."""
    fields: dict[str, Any] = {
        "base_model": base_model,
        "base_model_relation": relation,
        "domain": domain,
        "license": card.license,
        "tags": list(card.tags) or None,
        "metadata": card.metadata or None,
    }
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in fields.items() if value is not None]
    body = f"\n{card.description}\n" if card.description else ""
    return "\n".join(["---", *lines, "---", body])


def parse_card(text: str, *, foreign: bool = False) -> Card:
    """The card of a README.md; unknown front matter is left alone. Raises InvalidManifest for values it cannot hold.

    Of a `foreign` one, written by PEFT or for a hub, tags that are none here (`base_model:adapter:...`) are left out,
    and so is a text that nobody filled in.
    """
    matter, body = _split_front_matter(text)
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
        body = "" if body.lstrip().startswith(UNFILLED) else body
    if matter.get("license") not in (None, ""):
        values["license"] = str(matter["license"])
    try:
        return Card(description=body, **values)
    except ValidationError as error:
        raise refusal(error, Path(CARD_FILE)) from None


def _split_front_matter(text: str) -> tuple[dict[str, Any], str]:
    """The front matter as a dict and the text below it; a README without a closed one is all text."""
    lines = text.split("\n")
    if lines[0].rstrip() != "---" or "---" not in [line.rstrip() for line in lines[1:]]:
        return {}, text.removesuffix("\n")
    end = next(i for i, line in enumerate(lines) if i and line.rstrip() == "---")
    return _front_matter(lines[1:end]), "\n".join(lines[end + 1 :]).removeprefix("\n").removesuffix("\n")


def _front_matter(lines: Sequence[str]) -> dict[str, Any]:
    """`key: value` lines, where a value is JSON, a bare word, `[a, b]`, or an indented list or mapping below."""
    found: dict[str, Any] = {}
    key = ""
    below: Any = None  # the value of the newest key
    for line in lines:
        item = re.fullmatch(r"\s*-\s+(.*)", line)
        pair = re.fullmatch(r"(\s*)([^\s:#][^:]*):(?:\s+(.*)|\s*)", line)
        if item and (below == "" or isinstance(below, list)):
            found[key] = below = below or []
            below.append(_scalar(item[1]))
        elif pair and pair[1] and (below == "" or isinstance(below, dict)):
            found[key] = below = below or {}
            below[pair[2].strip()] = _scalar(pair[3] or "")
        elif pair and not pair[1]:
            key = pair[2].strip()
            found[key] = below = _scalar(pair[3] or "")
    return found


def _scalar(text: str) -> Any:
    text = text.strip()
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        if text.startswith("[") and text.endswith("]"):  # a list of words; lists in lists are not read
            return [_scalar(part.strip(" []")) for part in text.split(",") if part.strip(" []")]
        return text.strip("'")
