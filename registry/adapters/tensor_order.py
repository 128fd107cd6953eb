"""Canonical order of tensor names: the layer's number first, then the name. No torch."""

from __future__ import annotations

import re
from collections.abc import Iterable

_LAYER = re.compile(r"(?:^|\.)(\d{1,9})\.", re.ASCII)


def canonical_order(names: Iterable[str]) -> list[str]:
    """`names` sorted by (layer number, name), the layer being a name's first number; names without come first."""
    return sorted(names, key=_key)


def _key(name: str) -> tuple[int, str]:
    match = _LAYER.search(name)
    return (int(match.group(1)) if match else -1, name)
