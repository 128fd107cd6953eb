"""Base models: the operator's allowlist, loading, and the fingerprint that adapters are tied to.

Called by the engine (which loads each base once), the trainer and the demo. Nothing a client names is opened here:
sources come from the operator's TOML file.
"""

from __future__ import annotations

from registry.base_model.allowlist import read_allowlist
from registry.base_model.loading import (
    BaseText,
    LoadedBase,
    load_base,
    load_text,
    position_bytes,
    shape_of,
    weight_bytes,
)

__all__ = [
    "BaseText",
    "LoadedBase",
    "load_base",
    "load_text",
    "position_bytes",
    "read_allowlist",
    "shape_of",
    "weight_bytes",
]
