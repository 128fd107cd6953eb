"""The base models of the operator's allowlist, as the engine's source of weights.

Built by the runtime. Tokenizers, shapes and sizes are read once and cached; weights are loaded at every request of the
engine, which checks them before it serves from them. Adapters belong to the fingerprint of the cached shape, so files
that were replaced later are refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import torch

from registry.base_model import BaseText, LoadedBase, load_base, load_text, shape_of, weight_bytes
from registry.base_model.fingerprint import check_unchanged
from registry.errors import NotFound
from registry.spec import BaseEntry, BaseShape
from service.engine.onednn_linear import can_reorder

Value = TypeVar("Value")


class AllowedBases:
    """Tokenizers, shapes and weights of the base models. Thread-safe; every method raises NotFound or Unavailable."""

    def __init__(self, entries: Mapping[str, BaseEntry], cache_dir: Path | None) -> None:
        self.entries = entries
        self._cache_dir = cache_dir
        self._locks = {base_id: threading.Lock() for base_id in entries}
        self._texts: dict[str, BaseText] = {}
        self._shapes: dict[str, BaseShape] = {}
        self._sizes: dict[str, int] = {}

    def text(self, base_id: str) -> BaseText:
        """Tokenizer and shape of a base model."""
        return self._cached(self._texts, base_id, self._read_text)

    def shape(self, base_id: str) -> BaseShape:
        """Shape of a base model, which its adapters must fit."""
        return self._cached(self._shapes, base_id, lambda entry: shape_of(entry, self._cache_dir))

    def size(self, base_id: str) -> int:
        """Bytes of a base model's weights in the engine."""
        return self._cached(self._sizes, base_id, loaded_weight_bytes)

    def load(self, base_id: str) -> LoadedBase:
        """A base model, newly loaded."""
        return load_base(self._entry(base_id), cache_dir=self._cache_dir, text=self.text(base_id))

    def _read_text(self, entry: BaseEntry) -> BaseText:
        """The text side, of the same files as the cached shape. Called under the base model's lock."""
        text = load_text(entry, cache_dir=self._cache_dir)
        shape = self._shapes.setdefault(entry.id, text.shape)
        check_unchanged(entry, text.shape.fingerprint, first=shape.fingerprint)
        return text

    def _cached(self, cache: dict[str, Value], base_id: str, read: Callable[[BaseEntry], Value]) -> Value:
        """The cached value for a base model; read by the first caller, while others wait."""
        if base_id not in cache:
            entry = self._entry(base_id)
            with self._locks[base_id]:
                if base_id not in cache:
                    cache[base_id] = read(entry)
        return cache[base_id]

    def _entry(self, base_id: str) -> BaseEntry:
        entry = self.entries.get(base_id)
        if entry is None:
            raise NotFound(f"There is no base model {base_id!r} here.", param="base_model")
        return entry


def loaded_weight_bytes(entry: BaseEntry) -> int:
    """Bytes of a base model's weights in the engine, computed without loading them."""
    return weight_bytes(entry, untie_output=can_reorder(getattr(torch, entry.dtype), entry.device))
