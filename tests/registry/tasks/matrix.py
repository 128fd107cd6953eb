"""A store with adapters and samples of three domains, whose evaluations are compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from adaptersoup import Store
from registry.errors import InvalidParameter
from registry.evaluate.matrix import ToScore
from registry.formats import AdapterContents, write_directory
from registry.spec import PassageScore
from registry.tasks.task import Watch
from service.engine.score_task import score_samples
from tests.service.passages import WORDS, passages
from tests.service.servers import CONFIG, adapter_weights

SETTINGS: dict[str, Any] = {"default_effort": "instant", "threads": 1}  # effort quick would start a process


def stock(folder: Path, base: Path) -> None:
    """Make the store."""
    with Store(folder, base, base_id="tiny", **SETTINGS) as store:
        for seed, domain in enumerate(WORDS):
            weights = adapter_weights(store._runtime, seed=seed)
            adapter_folder = folder.parent / f"{folder.name}-{domain}"
            write_directory(
                adapter_folder, AdapterContents(config=CONFIG, domain=domain, weights=weights, base_model="tiny")
            )
            store.push(adapter_folder, name=f"team/{domain}", texts=passages(domain, 30))
        store.fit("uniform")  # waits until the samples are embedded


def score_all_but_code(job: ToScore, watch: Watch) -> list[list[PassageScore]]:
    """Scores of the task; InvalidParameter for the sample of the domain `code`."""
    if passages("code", 1)[0] in watch.shared[job.samples[0]]:
        raise InvalidParameter("It has another language.")
    return score_samples(job, watch)


def stored_evaluations(store: Store) -> dict[tuple[str, str], tuple[Any, ...]]:
    """Evaluations by adapter and sample: all figures, to the last bit."""
    return {
        (evaluation.adapter, evaluation.sample_of): (
            evaluation.mean_nll,
            evaluation.base_mean_nll,
            evaluation.difference,
            evaluation.standard_error,
            evaluation.tokens,
            evaluation.passages,
        )
        for evaluation in store.client.evaluations()
    }
