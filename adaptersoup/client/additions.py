"""Content of a push and a pull: an adapter directory's manifest, its sample and its files."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from pydantic import ValidationError

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
from registry.formats.refusal import refusal
from registry.names import check_names
from registry.spec import Card, Manifest, Passage

PULLED = (CONFIG_FILE, SOUP_FILE, WEIGHTS_FILE, SAMPLES_FILE, CARD_FILE)
"""Files that a pull writes; other names in a server's list are ignored."""


@dataclass(frozen=True, kw_only=True)
class Additions:
    """Fields of a push beside the directory: tags and metadata are added to its card's, the others replace its values.

    `base` is a base model's id. Without `owner` the name keeps its owner; an empty one is refused.
    """

    domain: str | None = None
    base: str | None = None
    owner: str | None = None
    texts: Sequence[Passage] | None = None
    tags: Sequence[str] = ()
    metadata: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)
    license: str | None = None
    description: str | None = None

    def __post_init__(self) -> None:
        check_names(self.tags, "tags")

    def card(self, card: Card) -> Card:
        """The card of a directory with the added fields."""
        values = card.model_dump()
        values["tags"] = tuple(dict.fromkeys([*values["tags"], *self.tags]))
        values["metadata"] = {**values["metadata"], **self.metadata}
        if self.license is not None:
            values["license"] = self.license
        if self.description is not None:
            values["description"] = self.description
        return Card.model_validate(values)


def manifest_of(local: AdapterDirectory, name: str, more: Additions) -> Manifest:
    """The manifest of a directory, without its files and its sample.

    Raises InvalidManifest without a domain, and for an empty owner.
    """
    if more.owner == "":
        raise InvalidManifest(
            f"A push cannot remove an owner: use `soup edit {name} --set-owner ''`.",
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


@contextmanager
def valid_manifest() -> Iterator[None]:
    """Raise InvalidManifest for values that a manifest or a card does not accept, where pydantic raises its error."""
    try:
        yield
    except ValidationError as error:
        raise refusal(error, PurePath("what is pushed")) from None


def name_of(path: Path) -> str:
    """An adapter's name derived from its folder's: lower case, with other characters replaced by `-`."""
    return re.sub(r"[^a-z0-9._-]+", "-", path.resolve().name.lower()).lstrip("._-")[:64] or "adapter"


def texts_of(local: AdapterDirectory, more: Additions) -> Sequence[Passage] | EmbeddingsNote | None:
    """The texts of a directory's sample, or the note of a sample of embeddings; None if there is no sample."""
    if more.texts is not None:
        return more.texts
    if local.embeddings_note is not None:
        return local.embeddings_note
    return None if local.sample is None else read_texts(local.sample)


def inline(path: Path, max_bytes: int) -> str | None:
    """The bytes of a file as base64; None if it has more than `max_bytes`."""
    return None if path.stat().st_size > max_bytes else base64.b64encode(path.read_bytes()).decode()
