"""Write adapter directories atomically: under a hidden name beside their path, synced, then renamed.

Called by `write_directory`, a pull and `soup convert`. Knows nothing of the files' contents.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

from registry.errors import Conflict
from registry.files import make_directory, sync_directory

CONFIG_FILE = "adapter_config.json"
GGUF_FILE = "adapter_model.gguf"
"""The one file of an adapter that was exported for llama.cpp."""
ADAPTER_FILES = frozenset(
    {
        CONFIG_FILE,
        GGUF_FILE,
        "README.md",
        ".gitattributes",
        "adapter_model.safetensors",
        "soup.json",
        "samples.jsonl",
        "embeddings.safetensors",
        "adapter_model.bin",  # of older PEFT
        "pytorch_adapter.bin",  # of AdapterHub, as the following
        "adapter.safetensors",
        "head_config.json",
        "pytorch_model_head.bin",
        "model_head.safetensors",
    }
)
"""Names of files in adapters' directories. Files of other names are a user's own, and are never deleted."""


def place_files(path: Path, files: Mapping[str, bytes], *, replace: bool = False) -> None:
    """Make directory `path` with exactly `files`, synced before it has its name; raises as `check_place` does."""
    beside = new_directory_beside(path)
    try:
        for name, data in files.items():
            with (beside / name).open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        move_into_place(beside, path, replace=replace)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def new_directory_beside(path: Path) -> Path:
    """A fresh hidden directory on the file system of `path`, to be filled and moved into its place."""
    make_directory(path.parent)
    beside = path.parent / f".{path.name}.{secrets.token_hex(4)}"
    beside.mkdir()
    return beside


def check_place(path: Path, *, replace: bool, advice: str = "ask to replace it") -> None:
    """Raise Conflict if no adapter directory can be created at `path`.

    A directory that is not empty is refused unless `replace` is True. It is always refused if it has no adapter, or
    other files or folders, so that texts, a project or a base model beside an adapter are not deleted. `advice` tells
    the user how to ask for `replace`.
    """
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise Conflict(f"{path} exists and is not a directory.")
    if path.is_dir() and path.samefile("."):  # a shell would stay in the directory that is replaced
        raise Conflict(f"{path} is the current directory, which would be replaced: name one in it, such as ./law.")
    entries = list(path.iterdir()) if path.is_dir() else []
    if entries and not replace:
        raise Conflict(f"{path} exists and is not empty: choose another directory, or {advice}.")
    has_adapter = any((path / name).is_file() for name in (CONFIG_FILE, GGUF_FILE))
    foreign = sorted(entry.name for entry in entries if entry.name not in ADAPTER_FILES or not entry.is_file())
    if entries and (not has_adapter or foreign):
        besides = f" ({', '.join(foreign[:3])}{', ...' if len(foreign) > 3 else ''})" if foreign else ""
        raise Conflict(
            f"{path} holds other files than one adapter{besides}, and is not replaced: choose another directory."
        )


def move_into_place(beside: Path, path: Path, *, replace: bool) -> None:
    """Rename `beside`, whose files are synced, to `path`, the names durable on return.

    Raises Conflict as `check_place` does.

    A directory that is replaced is renamed first: a crash in between leaves it under a hidden name `.NAME.*.old`
    beside the complete new one. Afterwards the caller may delete its sources, as a training does its checkpoint.
    """
    check_place(path, replace=replace)
    sync_directory(beside)
    old = path.parent / f"{beside.name}.old"
    if path.is_dir() and any(path.iterdir()):
        path.rename(old)
    try:
        beside.rename(path)
    except OSError:
        if old.exists():
            old.rename(path)
        raise
    sync_directory(path.parent)
    if old.exists():
        shutil.rmtree(old)
