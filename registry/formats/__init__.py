"""Adapters as directories on disk, also those of PEFT (`peft`) and AdapterHub (`adapterhub`).

The exports need no torch; `adapterhub` alone does.
"""

from registry.formats.atomic_directory import (
    CONFIG_FILE,
    GGUF_FILE,
    check_place,
    move_into_place,
    new_directory_beside,
    place_files,
)
from registry.formats.card import CARD_FILE, format_card, parse_card
from registry.formats.directory import (
    EMBEDDINGS_FILE,
    SAMPLES_FILE,
    SOUP_FILE,
    WEIGHTS_FILE,
    AdapterContents,
    AdapterDirectory,
    DirectoryNotes,
    EmbeddingsNote,
    directory_files,
    read_directory,
    write_directory,
)
from registry.formats.uploaded import UploadedDirectory

__all__ = [
    "CARD_FILE",
    "CONFIG_FILE",
    "EMBEDDINGS_FILE",
    "GGUF_FILE",
    "SAMPLES_FILE",
    "SOUP_FILE",
    "WEIGHTS_FILE",
    "AdapterContents",
    "AdapterDirectory",
    "DirectoryNotes",
    "EmbeddingsNote",
    "UploadedDirectory",
    "check_place",
    "directory_files",
    "format_card",
    "move_into_place",
    "new_directory_beside",
    "parse_card",
    "place_files",
    "read_directory",
    "write_directory",
]
