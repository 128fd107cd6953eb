"""A server to attack: small limits, a real port, and beside it a folder that nobody may open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.target import Target
from tests.attacks.watched import CANARY
from tests.service.servers import BASE_ID, open_live, open_world, with_template, write_bases

TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
SETTINGS = {
    "training_workers": 0,
    "wait_seconds": 0,
    "body_seconds": 1,
    "max_inline_bytes": 64 * 1024,
    "max_blob_bytes": 8 * 2**20,
    "max_sample_bytes": 64 * 1024,
    "max_sample_chars": 32 * 1024,
    "max_uploads": 4,
    "max_upload_bytes": 9 * 2**20,
    "job_queue_per_key": 3,
    "engine_queue_tokens": 4096,
    "max_text_chars": 20_000,
}


@contextmanager
def attacked(base: Path, folders: pytest.TempPathFactory, **settings: Any) -> Iterator[Target]:
    """A stocked server over the base model in `base`, which speaks; stopped afterwards."""
    folder = folders.mktemp("attacked")
    bases = write_bases(folder / "bases.toml", {BASE_ID: with_template(base, folder, TEMPLATE)})
    canary = folder / CANARY
    canary.mkdir()
    (canary / "secret.txt").write_text("sk-soup-nobody")
    for world in open_world(folder / "data", bases, **SETTINGS, **settings):
        for live in open_live(world):
            yield Target.of(live, canary)
