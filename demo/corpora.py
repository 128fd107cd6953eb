"""The demo on your own corpora: folders of domains, a base model, and adapters that are already trained.

`DATA` holds `train/<domain>/train.jsonl.gz` and `novel/<domain>/{valid,test}.jsonl.gz`; `ADAPTERS` the neutral form of
`demo.convert`, with `initial.safetensors` and, for the control, a folder whose name starts with `control`.
"""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

from demo.convert import convert
from demo.work import Novel, Work
from registry.base_model import shape_of
from registry.errors import NotFound
from registry.spec import BaseEntry

PUSHED_PASSAGES = 150
"""Of each training domain; a fit draws 100 of them, the rest proves it."""
SAMPLE_PASSAGES = 100
TEST_PASSAGES = 80
SEED = 0


def prepare(data: Path, base: Path, adapters: Path, folder: Path) -> Work:
    """Convert the adapters into `folder`, each with a sample of its domain, and read the novel domains."""
    base_id = "".join(c if c.isalnum() else "-" for c in base.resolve().name.lower())
    shape = shape_of(BaseEntry(id=base_id, source=str(base.resolve())), folder / "cache")
    sources = sorted(path for path in adapters.iterdir() if path.is_dir())
    controls = [path for path in sources if path.name.startswith("control")]
    if not controls or not (adapters / "initial.safetensors").is_file():
        raise NotFound(f"{adapters} needs initial.safetensors and a folder control_*.")
    converted = {}
    for source in sources:
        texts = None if source in controls else _some(data / "train" / source.name / "train.jsonl.gz", PUSHED_PASSAGES)
        converted[source.name] = convert(
            source,
            folder / "adapters" / source.name.replace("_", "-"),
            initial=adapters / "initial.safetensors",
            base_id=base_id,
            shape=shape,
            texts=texts,
        )
    control = converted.pop(controls[0].name)
    novel = {
        path.name: Novel(
            sample=tuple(_some(path / "valid.jsonl.gz", SAMPLE_PASSAGES)),
            test=tuple(_some(path / "test.jsonl.gz", TEST_PASSAGES)),
        )
        for path in sorted((data / "novel").iterdir())
        if path.is_dir()
    }
    note = (
        f"{SAMPLE_PASSAGES} passages of each novel domain's valid split choose, {TEST_PASSAGES} of its test split give "
        f"the figures; {PUSHED_PASSAGES} training passages were pushed as each adapter's sample (seed {SEED})."
    )
    return Work(
        title=f"{len(converted)} adapters on {base_id}, {len(novel)} novel domains",
        base_id=base_id,
        base=base.resolve(),
        adapters=converted,
        control=control,
        novel=novel,
        note=note,
    )


def _some(path: Path, count: int) -> list[str]:
    """`count` passages of a split, drawn with the seed, in their order."""
    if not path.is_file():
        raise NotFound(f"{path} is missing: the demo needs it.")
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines]
    chosen = sorted(random.Random(SEED).sample(range(len(texts)), min(count, len(texts))))
    return [texts[i] for i in chosen]
