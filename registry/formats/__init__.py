"""Adapters as directories on disk: ours (`directory`, `card`, `place`), PEFT's (`peft`), AdapterHub's (`adapterhub`).

What this package exports is imported without torch, which `adapterhub` alone needs.
"""

from registry.formats.card import CARD_FILE, Relation, format_card, parse_card
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
from registry.formats.place import CONFIG_FILE, check_place, move_into_place, new_directory_beside, place_files

__all__ = [
    "CARD_FILE",
    "CONFIG_FILE",
    "EMBEDDINGS_FILE",
    "SAMPLES_FILE",
    "SOUP_FILE",
    "WEIGHTS_FILE",
    "AdapterContents",
    "AdapterDirectory",
    "DirectoryNotes",
    "EmbeddingsNote",
    "Relation",
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
