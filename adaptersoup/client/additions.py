"""What is pushed and pulled of an adapter directory: its manifest, its sample, its files."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from adaptersoup.client.samples import read_texts
from registry.errors import InvalidManifest
from registry.formats import (
    CARD_FILE,
    CONFIG_FILE,
    SAMPLES_FILE,
    SOUP_FILE,
    WEIGHTS_FILE,
    AdapterDirectory,
    EmbeddingsNote,
)
from registry.spec import Card, Manifest

PULLED = (CONFIG_FILE, SOUP_FILE, WEIGHTS_FILE, SAMPLES_FILE, CARD_FILE)
"""What is pulled: nothing else a server may name is ever written to disk."""


@dataclass(frozen=True, kw_only=True)
class Additions:
    """What is said of an adapter beside its directory: tags and metadata join those of its card, the rest replaces."""

    domain: str | None = None
    base: str | None = None
    """A base model's id."""
    owner: str | None = None
    """Who answers for the name, which keeps the one it has where this is None; an empty one is refused."""
    texts: Sequence[str] | None = None
    tags: Sequence[str] = ()
    metadata: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)
    license: str | None = None
    description: str | None = None

    def card(self, card: Card) -> Card:
        """A directory's card with these in it."""
        values = card.model_dump()
        values["tags"] = tuple(dict.fromkeys([*values["tags"], *self.tags]))
        values["metadata"] = {**values["metadata"], **self.metadata}
        values |= {name: said for name in ("license", "description") if (said := getattr(self, name)) is not None}
        return Card.model_validate(values)


def described(local: AdapterDirectory, name: str, more: Additions) -> Manifest:
    """The manifest of a directory, still without its files and its sample.

    Raises InvalidManifest without a domain, and for an empty owner.
    """
    if more.owner == "":
        raise InvalidManifest(
            f"An empty owner names nobody, and a push takes none away: `soup edit {name} --set-owner ''` does.",
            param="owner",
        )
    domain = more.domain or local.domain
    if domain is None:
        raise InvalidManifest(
            f"{local.path} does not say which domain the adapter is of: give --domain.", param="domain"
        )
    return Manifest(
        name=name,
        domain=domain,
        base_model=more.base or local.base_model,
        base_fingerprint=local.base_fingerprint,
        recorded_base=local.recorded_base,
        config=local.config,
        files={},
        owner=more.owner,
        card=more.card(local.card),
        provenance=local.provenance,
    )


def name_of(path: Path) -> str:
    """The name of an adapter for which a folder gives its own: lower case, other characters as `-`."""
    return re.sub(r"[^a-z0-9._-]+", "-", path.resolve().name.lower()).lstrip("._-")[:64] or "adapter"


def texts_of(local: AdapterDirectory, more: Additions) -> Sequence[str] | EmbeddingsNote | None:
    """The sample's texts, None where there is no sample; of a sample of embeddings what made them."""
    if more.texts is not None:
        return more.texts
    if local.embeddings_note is not None:
        return local.embeddings_note
    return None if local.sample is None else read_texts(local.sample)


def inline(path: Path, most: int) -> str | None:
    """The bytes of a file as base64; None for one of more than `most`."""
    return None if path.stat().st_size > most else base64.b64encode(path.read_bytes()).decode()
