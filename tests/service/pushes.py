"""What is pushed to servers that run as processes of their own: weights, and the body of a push."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import torch

from registry.adapters import create
from registry.adapters.weights import save_tensors
from registry.base_model import shape_of
from registry.spec import BaseEntry
from tests.service.servers import BASE_ID, CONFIG

WEIGHTS = "adapter_model.safetensors"


def strange_weights(base: Path, cache: Path, *, seed: int) -> bytes:
    """Weights of an adapter that visibly changes what the tiny base says."""
    module = create(CONFIG, shape_of(BaseEntry(id=BASE_ID, source=str(base)), cache), seed=seed)
    draw = torch.Generator().manual_seed(seed)
    tensors = {name: one + torch.randn(one.shape, generator=draw) for name, one in module.state_dict().items()}
    return save_tensors(tensors)


def manifest(name: str, weights: bytes | str, **more: Any) -> dict[str, Any]:
    """The body of a push of weights, or of those that the server has by this digest."""
    file = {"digest": weights} if isinstance(weights, str) else {"base64": base64.b64encode(weights).decode()}
    config = CONFIG.model_dump()
    return {"name": name, "domain": "d", "base_model": BASE_ID, "config": config, "files": {WEIGHTS: file}, **more}
