"""Make a manifest of an uploaded adapter directory, whose small files are texts and whose large ones are blobs.

Called by the page that uploads a folder. Reads the same files as `directory`, none of them from a disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from pydantic import Field, ValidationError

from registry.errors import InvalidManifest
from registry.files import loads_strict
from registry.formats.atomic_directory import CONFIG_FILE
from registry.formats.card import CARD_FILE, parse_card
from registry.formats.directory import (
    EMBEDDINGS_FILE,
    SAMPLES_FILE,
    SOUP_FILE,
    WEIGHTS_FILE,
    DirectoryConfig,
    DirectoryNotes,
    validated,
)
from registry.formats.refusal import refusal
from registry.names import Digest
from registry.spec import Card, EmbeddingSource, FileSource, Frozen, Manifest, SampleSource


class UploadedDirectory(Frozen):
    """The files of a directory: `texts` of `adapter_config.json`, `soup.json` and `README.md`, the others as blobs."""

    texts: dict[str, str]
    blobs: dict[str, Digest]
    name: str = Field(max_length=129)
    domain: str | None = None
    """Overrides the domain in the directory."""
    base_model: str | None = None
    """Overrides the base model's id in the directory."""
    owner: str | None = None
    """Owner of the name, which no file of the directory has."""
    tags: tuple[str, ...] = ()
    """Added to those of the card."""

    def manifest(self) -> Manifest:
        """The manifest that pushes it; raises InvalidManifest or UnknownMethod, as reading the directory would."""
        fields = _json(self.texts, CONFIG_FILE)
        if WEIGHTS_FILE not in self.blobs:
            raise InvalidManifest(f"The folder has no {WEIGHTS_FILE}.", param="files")
        is_peft = isinstance(fields, dict) and "peft_type" in fields
        if is_peft:
            soup = _json(self.texts, SOUP_FILE) if SOUP_FILE in self.texts else {}
            notes, config = validated(DirectoryNotes, soup, PurePosixPath(SOUP_FILE)), None
        else:
            notes = directory = validated(DirectoryConfig, fields, PurePosixPath(CONFIG_FILE))
            config = directory.config
        domain = self.domain or notes.domain
        if domain is None:
            raise InvalidManifest("The folder does not name the domain of the adapter: enter one.", param="domain")
        recorded = fields.get("base_model_name_or_path") if is_peft else None
        card = parse_card(self.texts[CARD_FILE], foreign=is_peft) if CARD_FILE in self.texts else Card()
        tags = tuple(dict.fromkeys([*card.tags, *self.tags]))
        try:
            return Manifest(
                name=self.name,
                domain=domain,
                base_model=self.base_model or notes.base_model,
                base_fingerprint=notes.base_fingerprint,
                config=config,
                peft_config=fields if is_peft else None,
                recorded_base=recorded if isinstance(recorded, str) and recorded else None,
                files={WEIGHTS_FILE: FileSource(digest=self.blobs[WEIGHTS_FILE])},
                sample=self._sample(notes),
                owner=self.owner,
                card=Card.model_validate({**card.model_dump(), "tags": tags}),
                provenance=notes.provenance,
            )
        except ValidationError as error:
            raise refusal(error, PurePosixPath("what is pushed")) from None

    def _sample(self, notes: DirectoryNotes) -> SampleSource | None:
        """The texts or embeddings; raises InvalidManifest for both, and for vectors without a note on their encoder."""
        samples, vectors = self.blobs.get(SAMPLES_FILE), self.blobs.get(EMBEDDINGS_FILE)
        if samples is not None and vectors is not None:
            raise InvalidManifest(f"The folder has {SAMPLES_FILE} and {EMBEDDINGS_FILE}: keep one of them.")
        if vectors is None:
            return None if samples is None else SampleSource(blob=samples)
        if notes.embeddings is None:
            raise InvalidManifest(
                f"The folder does not name the encoder of {EMBEDDINGS_FILE}: `soup push` says how to add it."
            )
        note, file = notes.embeddings, FileSource(digest=vectors)
        return SampleSource(embeddings=(EmbeddingSource(encoder=note.encoder, unit=note.unit, file=file),))


def _json(texts: Mapping[str, str], name: str) -> Any:
    if name not in texts:
        raise InvalidManifest(f"The folder has no {name}: it is not an adapter directory.", param="files")
    try:
        return loads_strict(texts[name])
    except InvalidManifest as error:
        raise InvalidManifest(f"{name}: {error.message}", param=name) from None
