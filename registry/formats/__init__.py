"""An adapter as a directory on disk, and its card; standard library and `spec` only."""

from registry.formats.card import CARD_FILE, Relation, format_card, parse_card
from registry.formats.directory import (
    CONFIG_FILE,
    EMBEDDINGS_FILE,
    SAMPLES_FILE,
    SOUP_FILE,
    WEIGHTS_FILE,
    AdapterFolder,
    EmbeddingsNote,
    FolderNotes,
    check_place,
    folder_files,
    json_lines,
    move_into_place,
    new_folder_beside,
    read_folder,
    write_folder,
)

__all__ = [
    "CARD_FILE",
    "CONFIG_FILE",
    "EMBEDDINGS_FILE",
    "SAMPLES_FILE",
    "SOUP_FILE",
    "WEIGHTS_FILE",
    "AdapterFolder",
    "EmbeddingsNote",
    "FolderNotes",
    "Relation",
    "check_place",
    "folder_files",
    "format_card",
    "json_lines",
    "move_into_place",
    "new_folder_beside",
    "parse_card",
    "read_folder",
    "write_folder",
]
