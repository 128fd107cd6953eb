"""The adapters of a job: trained on package text, or converted from the neutral form. What is there is kept."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch

from demo.convert import convert
from demo.job import SEED, TRAINING_SAMPLE, Job
from demo.progress import Report, Talk
from registry.adapters import paper_config
from registry.adapters.weights import save_tensors
from registry.base_model import LoadedBase, load_base, shape_of
from registry.errors import SoupError
from registry.formats import AdapterContents, AdapterDirectory, read_directory, write_directory
from registry.names import digest_of
from registry.spec import Card
from training.data import Data, draw
from training.hyperparameters import Hyperparameters
from training.inputs import TrainingInputs
from training.trainer import train_adapter

BOTTLENECK = 48
INIT_SEED = 1234
RECIPE = Hyperparameters(steps=60, batch=8, block=256, learning_rate=3e-3, warmup=0.1, evaluations=3)
VALID_PASSAGES = 40


def train_all(job: Job, talk: Talk) -> None:
    """Train one adapter for each training domain and the control, all from one initialisation."""
    fingerprint = shape_of(job.base, job.home / "cache").fingerprint
    wanted = {name: _inputs(job, name, fingerprint) for name in job.pushed}
    todo = [name for name in job.pushed if _made_from(job.adapters / name) != wanted[name]]
    kept = len(job.pushed) - len(todo)
    if kept:
        talk.line(f"{kept} trained before are used again")
    if todo:
        torch.set_num_threads(os.cpu_count() or 1)
        base = load_base(job.base, cache_dir=job.home / "cache")
    with talk.bar("training") as report:
        for number, name in enumerate(todo):
            folder = _train(job, base, name, wanted[name], _within(report, number, len(todo), name))
            talk.line(_gain(folder))


def _within(report: Report, number: int, count: int, name: str) -> Report:
    """Steps of one adapter as steps of all of them."""
    return lambda step, steps, _: report(number * steps + step, count * steps, name)


def _texts(job: Job, name: str) -> tuple[list[str], list[str]]:
    """Training and validation passages of an adapter."""
    kind = "mixed" if name == job.control else "train"
    return job.texts(kind, name, "train"), draw(job.texts(kind, name, "valid"), VALID_PASSAGES, seed=SEED)


def _inputs(job: Job, name: str, fingerprint: str) -> str:
    """A digest of everything a trained adapter depends on."""
    train, valid = _texts(job, name)
    return digest_of({
        "base": fingerprint, "recipe": RECIPE.model_dump(mode="json"), "bottleneck": BOTTLENECK,
        "init_seed": INIT_SEED, "train": train, "valid": valid, "sample": TRAINING_SAMPLE,
    })  # fmt: skip


def _made_from(folder: Path) -> str | None:
    """The inputs of the adapter that is there, None where none is, or it is broken."""
    try:
        return str(read_directory(folder).provenance.training.get("inputs"))
    except SoupError:
        return None


def _train(job: Job, base: LoadedBase, name: str, inputs: str, report: Report) -> AdapterDirectory:
    train, valid = _texts(job, name)
    config = paper_config("bapna_firat", bottleneck=BOTTLENECK)
    asked = TrainingInputs(config, Data(train, valid), RECIPE, init_seed=INIT_SEED)
    trained = train_adapter(base, asked, progress=report)
    trained.record["inputs"] = inputs
    return write_directory(
        job.adapters / name,
        AdapterContents(
            config=config,
            domain=name,
            weights=save_tensors(trained.tensors),
            base_model=base.entry.id,
            base_fingerprint=base.shape.fingerprint,
            provenance=trained.provenance,
            texts=None if name == job.control else draw(train, TRAINING_SAMPLE, seed=SEED),
            card=Card(description=f"Trained by the demo on {len(train)} passages of {name}."),
        ),
        replace=True,
    )


def _gain(folder: AdapterDirectory) -> str:
    record = folder.provenance.training
    before, after = record["valid_perplexity_before"], record["valid_perplexity"]
    return (
        f"{folder.domain}: validation perplexity {before:.1f} -> {after:.1f} ({100 * math.log(after / before):+.0f} %)"
    )


def convert_all(job: Job, source: Path, names: Sequence[str], talk: Talk) -> None:
    """Convert every neutral adapter; the training domains' get their sample."""
    shape = shape_of(job.base, job.home / "cache")
    shutil.rmtree(job.adapters, ignore_errors=True)
    with talk.bar("converting") as report:
        for number, name in enumerate(names):
            report(number, len(names), name)
            convert(
                source, name, job.adapters / name, base_model=job.base.id, base_fingerprint=shape.fingerprint,
                texts=None if name == job.control else job.training_sample(name),
            )  # fmt: skip
    talk.line(f"{len(names)} adapters converted")
