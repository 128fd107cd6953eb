"""The fingerprint of a base model's files, which ties adapters to it.

sha256 over the configuration without `transformers_version` and `_name_or_path`, tokenizer.json, and every tensor in
the order of its name (name, shape, dtype, bytes). Computed from the files, so neither the dtype the model is loaded
in nor the library's version matters, nor how the tensors are spread over files. Called by `loading`.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from registry.errors import Unavailable
from registry.files import replace_file
from registry.names import canonical_json, digest_of, sha256_digest
from registry.spec import BaseEntry

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
_NOT_IDENTITY = ("transformers_version", "_name_or_path")
_FORMAT = 1
"""Version of the hashed data, in the cache's key."""


def fingerprint(folder: Path, *, cache_dir: Path | None = None) -> str:
    """The `sha256:...` of the base model in `folder`; cached in `cache_dir` while no file changes size or time.

    Raises Unavailable where files are missing or damaged, or the weights are not clean safetensors.
    """
    files = [folder / CONFIG, folder / TOKENIZER, *weight_files(folder)]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise Unavailable(f"The base model in {folder} lacks {', '.join(missing)}.")
    state = [[str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns] for file in files]
    key = digest_of({"format": _FORMAT, "files": state})
    if cache_dir is None:
        return _compute(folder, files[2:])
    cache_file = cache_dir / f"fingerprint-{key.removeprefix('sha256:')[:32]}.json"
    cached = _read_cache(cache_file)
    if cached is not None:
        return cached
    computed = _compute(folder, files[2:])
    with suppress(OSError):  # a cache that cannot be written costs time only
        cache_dir.mkdir(parents=True, exist_ok=True)
        temporary = cache_file.with_suffix(f".{os.getpid()}.tmp")
        try:
            replace_file(cache_file, json.dumps({"fingerprint": computed}).encode(), temporary=temporary)
        finally:
            temporary.unlink(missing_ok=True)
    return computed


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that transformers loads from `folder`; raises Unavailable for a damaged index."""
    if (folder / WEIGHTS).is_file() or not (folder / INDEX).is_file():
        return [folder / WEIGHTS]
    try:
        names = sorted(set(json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Unavailable(f"{folder / INDEX} is not an index of weight files.") from None
    return [folder / Path(str(name)).name for name in names]


def _compute(folder: Path, weights: list[Path]) -> str:
    try:
        config: dict[str, Any] = json.loads((folder / CONFIG).read_text(encoding="utf-8"), parse_constant=str)
        about = {
            "kind": "base",
            "config": {name: value for name, value in config.items() if name not in _NOT_IDENTITY},
            "tokenizer": sha256_digest((folder / TOKENIZER).read_bytes()),
        }
        digest = hashlib.sha256(canonical_json(about) + b"\n")
    except (ValueError, AttributeError, RecursionError) as problem:  # no JSON, no object, nested too deeply
        raise Unavailable(f"{folder / CONFIG} has no fingerprint: {problem}.") from problem
    try:
        with ExitStack() as stack:
            files = [stack.enter_context(safe_open(file, framework="pt")) for file in weights]
            tensors: dict[str, Any] = {}
            for file in files:
                tensors |= dict.fromkeys(file.keys(), file)
            for name in sorted(tensors):
                tensor = tensors[name].get_tensor(name)  # mapped, one at a time
                digest.update(canonical_json([name, list(tensor.shape), str(tensor.dtype)]) + b"\n")
                digest.update(memoryview(tensor.contiguous().reshape(-1).view(torch.uint8).numpy()))
    except SafetensorError as problem:
        raise Unavailable(f"The weights in {folder} are not clean safetensors: {problem}") from problem
    return "sha256:" + digest.hexdigest()


def _read_cache(file: Path) -> str | None:
    """The cached fingerprint; a missing or damaged file is no cache."""
    try:
        return str(json.loads(file.read_text(encoding="utf-8"))["fingerprint"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def check_fingerprint(entry: BaseEntry, fingerprint: str, *, expected: str) -> None:
    """Raises Unavailable where this machine's base model is not that of the machine that sent a task."""
    if fingerprint != expected:
        raise Unavailable(
            f"The base model in {entry.source} has fingerprint {fingerprint} instead of {expected}: every "
            "machine needs the same files."
        )


def check_unchanged(entry: BaseEntry, fingerprint: str, *, first: str) -> None:
    """Raises Unavailable for files with another fingerprint than the `first` one that this process read."""
    if fingerprint != first:
        raise Unavailable(
            f"Base model {entry.id!r} was replaced after it was first read (its fingerprint is {fingerprint[:19]} "
            f"instead of {first[:19]}): restart the server."
        )
