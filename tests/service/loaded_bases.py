"""Base models that are loaded already, as a source for an engine that is built by hand."""

from __future__ import annotations

from dataclasses import dataclass

from registry.base_model import BaseText, LoadedBase
from registry.errors import NotFound


@dataclass
class LoadedBases:
    """Gives one base model for every id, or one each by id; every load gives the same object, of `bytes` each."""

    base: LoadedBase | dict[str, LoadedBase]
    bytes: int = 1

    def text(self, base_id: str) -> BaseText:
        return self.load(base_id)

    def size(self, base_id: str) -> int:
        return self.bytes

    def load(self, base_id: str) -> LoadedBase:
        if isinstance(self.base, LoadedBase):
            return self.base
        if base_id not in self.base:
            raise NotFound(f"There is no base model {base_id!r} here.")
        return self.base[base_id]
