"""Adapter directories written atomically: built under a hidden name beside their path, synced, then renamed.

Called by whatever writes one: `write_directory`, a pull and `soup convert`. Knows nothing of the files' contents.
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
"""Where an adapter was exported for llama.cpp, in the place of configuration and weights."""
OF_ADAPTERS = frozenset(
    (CONFIG_FILE, GGUF_FILE, "README.md", ".gitattributes",
     "adapter_model.safetensors", "soup.json", "samples.jsonl", "embeddings.safetensors",
     "adapter_model.bin",
     "pytorch_adapter.bin", "adapter.safetensors", "head_config.json", "pytorch_model_head.bin",
     "model_head.safetensors")
)  # fmt: skip
"""Names of files in adapters' directories: any, ours, those of older PEFT, and of AdapterHub. What has another name is
somebody's own, and goes with no adapter."""


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


def check_place(path: Path, *, replace: bool, how: str = "ask to replace it") -> None:
    """Raises Conflict where no adapter's directory can be made at `path`.

    One that is not empty is in the way unless `replace`, and then too where it is no adapter's, or holds folders or
    files that adapters do not have: texts, a project, a base model beside an adapter are not deleted. `how` is the way
    to ask.
    """
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise Conflict(f"{path} exists and is not a directory.")
    found = list(path.iterdir()) if path.is_dir() else []
    if found and not replace:
        raise Conflict(f"{path} exists and is not empty: choose another directory, or {how}.")
    of_one = any((path / name).is_file() for name in (CONFIG_FILE, GGUF_FILE))
    others = sorted(entry.name for entry in found if entry.name not in OF_ADAPTERS or not entry.is_file())
    if found and (not of_one or others):
        besides = f" ({', '.join(others[:3])}{', ...' if len(others) > 3 else ''})" if others else ""
        raise Conflict(
            f"{path} holds something else than one adapter{besides}, and is never replaced: choose another directory."
        )


def move_into_place(beside: Path, path: Path, *, replace: bool) -> None:
    """Rename `beside` to `path`, the names durable on return; raises Conflict as `check_place` does.

    A directory that is replaced is renamed before: a crash in between leaves it under a hidden name `.NAME.*.old`
    beside the whole new one. Whoever made it may then forget what it was made from: a training its checkpoint.
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
