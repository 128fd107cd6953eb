"""Pushes to servers that run as processes of their own: weights, and the body of a push."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from registry.spec import BaseEntry
from tests.service.servers import BASE_ID, CONFIG, strange_weights

WEIGHTS = "adapter_model.safetensors"


def weights_for(base: Path, *, seed: int) -> bytes:
    """Weights of an adapter that visibly changes what the tiny base in this folder says."""
    return strange_weights(BaseEntry(id=BASE_ID, source=str(base)), seed)


def manifest(name: str, weights: bytes | str, **more: Any) -> dict[str, Any]:
    """The body of a push of weights, or of those that the server has by this digest."""
    file = {"digest": weights} if isinstance(weights, str) else {"base64": base64.b64encode(weights).decode()}
    config = CONFIG.model_dump()
    return {"name": name, "domain": "d", "base_model": BASE_ID, "config": config, "files": {WEIGHTS: file}, **more}
