"""Files of texts, as trainings, samples and benchmarks read them."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from pathlib import Path

from registry.spec.passage import encode_lines


def write_texts(path: Path, texts: Iterable[str]) -> Path:
    """Write an object with a text a line, packed where the name ends in .gz; the folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = encode_lines(texts)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path
