"""Read, check and write an adapter directory.

It holds `adapter_config.json`, `adapter_model.safetensors`, optionally `samples.jsonl` or `embeddings.safetensors`, and
`README.md`, the card. The directory of a LoRA or a prefix is PEFT's own: values for which its `adapter_config.json` has
no field are in `soup.json`, which may be missing. Only these six files are opened. Called by the client (push, pull),
by the trainer and by converters; knows nothing of tensors or HTTP.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, TypeVar

from pydantic import Field, ValidationError

from registry.errors import Invalid, InvalidManifest, NotFound
from registry.files import loads_strict
from registry.formats.atomic_directory import CONFIG_FILE, place_files
from registry.formats.card import CARD_FILE, Relation, format_card, parse_card
from registry.formats.peft.lora import adapter_config
from registry.formats.peft.writing import PeftConfig, is_peft_config, peft_config
from registry.formats.refusal import refusal
from registry.names import Digest
from registry.spec import AdapterConfig, BaseShape, Card, Frozen, Passage, Provenance, Unit
from registry.spec.passage import encode_lines
from registry.tensor_file import header_of

SOUP_FILE = "soup.json"
WEIGHTS_FILE = "adapter_model.safetensors"
SAMPLES_FILE = "samples.jsonl"
EMBEDDINGS_FILE = "embeddings.safetensors"
MAX_JSON_BYTES = 16 * 1024 * 1024


class EmbeddingsNote(Frozen):
    """The origin of `embeddings.safetensors`: the encoder's digest, and the unit of text of one row."""

    encoder: Digest
    unit: Unit


class DirectoryNotes(Frozen):
    """The values of `soup.json`, for which PEFT's configuration has no field."""

    base_model: str | None = Field(default=None, max_length=64)
    base_fingerprint: Digest | None = None
    domain: str | None = Field(default=None, min_length=1, max_length=200)
    provenance: Provenance = Provenance()
    embeddings: EmbeddingsNote | None = None


class DirectoryConfig(DirectoryNotes):
    """The values of `adapter_config.json` where the adapter is not PEFT's."""

    domain: str = Field(min_length=1, max_length=200)
    config: AdapterConfig


Notes = TypeVar("Notes", bound=DirectoryNotes)


@dataclass(frozen=True)
class AdapterDirectory:
    """An adapter directory that was read; weights, sample and embeddings are paths of files that were not opened."""

    path: Path
    config: AdapterConfig
    provenance: Provenance
    base_model: str | None
    base_fingerprint: str | None
    recorded_base: str | None
    """The base model in PEFT's configuration: a hub repository, or a folder of the machine that trained it."""
    domain: str | None
    weights: Path
    sample: Path | None
    embeddings: Path | None
    embeddings_note: EmbeddingsNote | None
    card: Card


def read_directory(path: Path) -> AdapterDirectory:
    """Read and check an adapter directory; of PEFT's weights the header is read, for names and shapes.

    Raises NotFound where a file is missing, InvalidManifest (every problem listed), UnknownMethod, or InvalidWeights
    for PEFT's weights whose names and shapes cannot be read.
    """
    if not path.is_dir():
        raise NotFound(f"{path} is not a directory: give a directory that holds {CONFIG_FILE} and {WEIGHTS_FILE}.")
    fields = _read_json(path, CONFIG_FILE)
    if not (path / WEIGHTS_FILE).is_file():
        raise NotFound(f"{path} has no {WEIGHTS_FILE}{_other_weights(path)}.")
    is_peft = isinstance(fields, dict) and "peft_type" in fields
    config, notes = _read_peft(fields, path) if is_peft else _read_own(fields, path)
    sample, embeddings = _existing(path / SAMPLES_FILE), _existing(path / EMBEDDINGS_FILE)
    if sample and embeddings:
        raise InvalidManifest(
            f"{path} has {SAMPLES_FILE} and {EMBEDDINGS_FILE}: keep only one, the embeddings if the texts "
            "must stay private."
        )
    if embeddings and notes.embeddings is None:
        raise InvalidManifest(
            f"{path / (SOUP_FILE if is_peft else CONFIG_FILE)} does not say what made {EMBEDDINGS_FILE}: add "
            '"embeddings": {"encoder": "sha256:...", "unit": "passage" or "sentence"}.'
        )
    card = _existing(path / CARD_FILE)
    recorded = fields.get("base_model_name_or_path") if is_peft else None
    return AdapterDirectory(
        path=path,
        config=config,
        provenance=notes.provenance,
        base_model=notes.base_model,
        base_fingerprint=notes.base_fingerprint,
        recorded_base=recorded if isinstance(recorded, str) and recorded else None,
        domain=notes.domain,
        weights=path / WEIGHTS_FILE,
        sample=sample,
        embeddings=embeddings,
        embeddings_note=notes.embeddings if embeddings else None,
        card=Card() if card is None else _read_card(card, foreign=is_peft),
    )


def _read_own(fields: Any, path: Path) -> tuple[AdapterConfig, DirectoryNotes]:
    directory = validated(DirectoryConfig, fields, path / CONFIG_FILE)
    return directory.config, directory


def _read_peft(fields: Mapping[str, Any], path: Path) -> tuple[PeftConfig, DirectoryNotes]:
    """The configuration of a PEFT directory, and its notes; the directory is in every error message."""
    try:
        shapes = {name: entry.shape for name, entry in header_of(path / WEIGHTS_FILE).entries.items()}
        config = adapter_config(fields, shapes)
    except Invalid as error:
        raise type(error)(f"{path}: {error.message}", param=error.param, problems=error.problems) from None
    soup_file = path / SOUP_FILE
    if not soup_file.is_file():
        return config, DirectoryNotes()
    return config, validated(DirectoryNotes, _read_json(path, SOUP_FILE), soup_file)


def _existing(path: Path) -> Path | None:
    return path if path.is_file() else None


def _other_weights(path: Path) -> str:
    if (path / "adapter_model.bin").is_file():
        advice = "load it with peft and write it with save_pretrained(directory, safe_serialization=True)"
        return f" (weights are safetensors only, and adapter_model.bin is a pickle: {advice})"
    for name in ("pytorch_adapter.bin", "adapter.safetensors"):
        if (path / name).is_file():
            return f" ({name} is AdapterHub's: `soup convert {path} TARGET` makes an adapter directory of it)"
    pickles = sorted(p.name for p in path.iterdir() if p.suffix in {".bin", ".pt", ".pth", ".ckpt", ".pkl"})
    return f" (weights are safetensors only; {pickles[0]!r} must be converted first)" if pickles else ""


def _read_bytes(path: Path) -> bytes:
    if path.stat().st_size > MAX_JSON_BYTES:
        raise InvalidManifest(f"{path} has {path.stat().st_size} bytes and the limit is {MAX_JSON_BYTES}.")
    return path.read_bytes()


def _read_card(path: Path, *, foreign: bool) -> Card:
    try:
        return parse_card(_read_bytes(path).decode("utf-8"), foreign=foreign)
    except UnicodeDecodeError as error:
        raise InvalidManifest(f"{path} is not valid UTF-8 at byte {error.start}.") from None


def _read_json(path: Path, name: str) -> Any:
    file = path / name
    if not file.is_file():
        raise NotFound(f"{path} has no {name}: it is not an adapter directory.")
    try:
        return loads_strict(_read_bytes(file))
    except InvalidManifest as error:
        raise InvalidManifest(f"{file}: {error.message}", param=name) from None


def validated(kind: type[Notes], value: Any, file: PurePath) -> Notes:
    """The values of a directory's JSON file; raises InvalidManifest or UnknownMethod (`refusal`)."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise refusal(error, file) from None


def directory_files(
    config: AdapterConfig, notes: DirectoryNotes, *, shape: BaseShape | None = None, base_name: str | None = None
) -> dict[str, bytes]:
    """The JSON files of a directory by name: the same bytes for the same values.

    A LoRA or a prefix has PEFT's configuration (`shape` and `base_name` as in `peft_config`) and `soup.json`; every
    other adapter, a pruned LoRA too, has `DirectoryConfig`.
    """
    values = notes.model_dump(mode="json", exclude_none=True)
    if not is_peft_config(config):
        return {CONFIG_FILE: config_json({**values, "config": config.model_dump(mode="json")})}
    peft = peft_config(config, shape=shape, base_name=base_name)
    return {CONFIG_FILE: config_json(peft), SOUP_FILE: config_json(values)}


def config_json(value: Mapping[str, Any]) -> bytes:
    """A JSON file of a directory: readable, sorted, the same bytes for the same values."""
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False).encode() + b"\n"


@dataclass(frozen=True, kw_only=True)
class AdapterContents:
    """The contents of an adapter directory; `weights` and `embeddings` are safetensors bytes.

    A pruned adapter and a bottleneck need their `domain`. With the base model's `shape` the configuration of a LoRA
    has short names of modules, and that of a prefix has its sizes.
    """

    config: AdapterConfig
    weights: bytes
    domain: str | None = None
    base_model: str | None = None
    base_fingerprint: str | None = None
    shape: BaseShape | None = None
    provenance: Provenance = field(default_factory=Provenance)
    texts: Sequence[Passage] | None = None
    embeddings: tuple[bytes, EmbeddingsNote] | None = None
    card: Card = field(default_factory=Card)
    relation: Relation = "adapter"

    def files(self) -> dict[str, bytes]:
        """The directory's files by name; raises InvalidManifest or InvalidSample for contents no directory can hold."""
        if self.texts is not None and self.embeddings is not None:
            raise InvalidManifest("A directory holds a sample's texts or its embeddings, not both.")
        if self.domain is None and not is_peft_config(self.config):
            raise InvalidManifest(f"The directory of a {self.config.method} adapter needs its domain.", param="domain")
        notes = DirectoryNotes(
            base_model=self.base_model,
            base_fingerprint=self.base_fingerprint,
            domain=self.domain,
            provenance=self.provenance,
            embeddings=None if self.embeddings is None else self.embeddings[1],
        )
        readme = format_card(self.card, base_model=self.base_model, domain=self.domain, relation=self.relation)
        config_files = directory_files(self.config, notes, shape=self.shape, base_name=self.base_model)
        files = {**config_files, WEIGHTS_FILE: self.weights, CARD_FILE: readme.encode()}
        if self.texts is not None:
            files[SAMPLES_FILE] = encode_lines(self.texts)
        if self.embeddings is not None:
            files[EMBEDDINGS_FILE] = self.embeddings[0]
        return files


def write_directory(path: Path, contents: AdapterContents, *, replace: bool = False) -> AdapterDirectory:
    """Write an adapter directory atomically; return the result of `read_directory`.

    Raises Conflict where `path` exists and `replace` is False, else what `AdapterContents.files` raises.
    """
    place_files(path, contents.files(), replace=replace)
    return read_directory(path)
