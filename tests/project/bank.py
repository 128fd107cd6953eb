"""A server with a bank of adapters and texts of novel domains, as `benchmarks.adaptersoup` has them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from adaptersoup.client.client import SoupClient
from benchmarks.soups.cells import even_average, scored
from benchmarks.soups.greedy import BestAverage, greedy
from benchmarks.soups.setting import NAMESPACE, Setting, Texts
from demo.job import Job
from demo.scores import Scores
from registry.formats import AdapterContents, write_directory
from registry.spec import Provenance
from tests.service.passages import WORDS, passages
from tests.service.servers import BASE_ID, CONFIG, adapter_weights, open_live, open_world, write_bases
from tests.texts_file import write_texts

BANK = ("ale", "bread", "cider", "dough")
OF_ONE_START = Provenance(init_hash="sha256:" + "1" * 64, init_source="declared")
OTHER = "bread"
"""Begun otherwise, so that it is concatenated with the rest, which are averaged."""
DOMAINS = tuple(WORDS)[:2]


@contextmanager
def bank(folder: Path, base: Path) -> Iterator[Setting]:
    """The setting while open, computed on one thread."""
    for domain in DOMAINS:
        write_texts(folder / "data" / "novel" / domain / "test.jsonl", passages(domain, 8, seed=1))
    for world in open_world(folder / "server", write_bases(folder / "bases.toml", {BASE_ID: base})):
        for live in open_live(world):
            with SoupClient(live.url, world.admin) as client:
                for seed, name in enumerate(BANK):
                    contents = AdapterContents(
                        config=CONFIG,
                        domain=name,
                        weights=adapter_weights(world.runtime, seed=seed),
                        base_model=BASE_ID,
                        provenance=Provenance() if name == OTHER else OF_ONE_START,
                    )
                    path = write_directory(folder / "adapters" / name, contents)
                    client.push_directory(path, name=f"{NAMESPACE}/{name}")
                loaded = world.runtime.bases[BASE_ID]
                job = Job(folder, folder / "data", loaded.entry, BANK, DOMAINS, "", folder / "adapters")
                scores = Scores(folder / "scores")
                yield Setting.on(Texts(job, test_passages=8), client, scores, loaded.shape.fingerprint)


def alone(setting: Setting) -> dict[str, dict[str, np.ndarray]]:
    """NLL of the test passages of each domain under each adapter of the bank."""
    rows = {name: setting.client.adapter(f"{NAMESPACE}/{name}") for name in BANK}
    return {
        domain: {name: scored(setting, domain, row["ref"], row["digest"])[0] for name, row in rows.items()}
        for domain in DOMAINS
    }


def by_server(setting: Setting, domain: str) -> BestAverage:
    """The best average of a greedy search whose averages the server cooks and scores, one after another."""

    def averaged(names: Sequence[str]) -> np.ndarray:
        cooked = setting.client.cook(even_average([f"{NAMESPACE}/{name}" for name in names]))
        return scored(setting, domain, cooked["model"], cooked["digest"])[0]

    return greedy(alone(setting)[domain], averaged)
