"""Content for pushes and cooks: small adapters and texts, different for each seed."""

from __future__ import annotations

import base64
import random

from benchmarks.faults.server import BASE
from benchmarks.subjects import small_base
from registry.adapters import create
from registry.adapters.weights import save_tensors
from registry.base_model import shape_of
from registry.spec import BaseEntry, BottleneckConfig, FileSource, Manifest, SampleSource

CONFIG = BottleneckConfig(structure="pfeiffer", bottleneck=4, activation="relu")
WEIGHTS = "adapter_model.safetensors"
WORDS = ("court", "held", "contract", "void", "want", "consideration", "dismissed", "appeal", "judge", "claim")


def passages(seed: int, amount: int = 25) -> tuple[str, ...]:
    """Texts that are different for each seed."""
    draw = random.Random(seed)
    return tuple(f"Case {seed}-{number}: {' '.join(draw.choices(WORDS, k=12))}." for number in range(amount))


def adapter(name: str, seed: int, *, sample: bool, tags: tuple[str, ...] = ()) -> Manifest:
    """A push request with an adapter that is different for each seed."""
    tensors = create(CONFIG, shape_of(BaseEntry(id=BASE, source=str(small_base()))), seed=seed).state_dict()
    return Manifest.model_validate(
        {
            "name": name,
            "domain": name,
            "base_model": BASE,
            "config": CONFIG.model_dump(),
            "card": {"tags": tags},
            "files": {WEIGHTS: FileSource(base64=base64.b64encode(save_tensors(tensors)).decode())},
            "sample": SampleSource(texts=passages(seed)) if sample else None,
        }
    )
