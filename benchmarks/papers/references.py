"""Trains an adapter in the library that users know (PEFT, or `adapters` of AdapterHub), for the claims of parity.

Called by `cells`. The library gets our initial values as a checkpoint of its own format, the same rows in the same
order, and the learning rate of each step; `benchmarks.peers.reference_training` is its process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from benchmarks.peers.process import KINDS, interpreter
from registry.adapters import create
from registry.adapters.union import of_member
from registry.adapters.weights import save_tensors
from registry.base_model import LoadedBase
from registry.formats.adapterhub import checkpoint_files
from registry.formats.directory import AdapterContents
from registry.spec import AdapterConfig
from training.data import DataOrder
from training.inputs import TrainingInputs

Library = Literal["peft", "adapters"]
SCRIPT = Path(__file__).parents[1] / "peers" / "reference_training.py"


@dataclass(frozen=True)
class Reference:
    """The lowest validation loss, the number of trained parameters, and the logits (rows, labels) of the test rows."""

    valid_loss: float
    parameters: int
    logits: Tensor


def train_reference(library: Library, base: LoadedBase, inputs: TrainingInputs, test: Tensor) -> Reference:
    """Train what `train_adapter` would with these inputs; raises PeerMissing without the library's environment."""
    config, numbers, task = inputs.config, inputs.hyperparameters, inputs.task
    train, valid = (
        task.encode(base, items, block=numbers.block, at_least=1, head=config.head).rows
        for items in (inputs.data.train, inputs.data.valid)
    )
    start = create(config, base.shape, seed=inputs.init_seed, init=inputs.init, base=base.model).state_dict()
    order = DataOrder(len(train), take=numbers.batch, seed=numbers.data_seed)
    steps = range(1, numbers.steps + 1)
    python, environment = interpreter(KINDS["adapters"]) if library == "adapters" else (sys.executable, os.environ)
    with TemporaryDirectory() as name:
        folder = Path(name)
        [adapter] = (member for member in config.components if member != config.head)
        _write(folder / "start", library, base, adapter, of_member(start, adapter))
        np.savez(
            folder / "data.npz",
            train=train,
            valid=valid,
            test=test.numpy(),
            order=[order.next() for _ in steps],
            rates=[numbers.learning_rate_at(step) for step in steps],
            evaluated_at=[0, *numbers.evaluated_at()],
            clip=numbers.clip,
            weight=start["head.out.weight"].numpy(),
            bias=start["head.out.bias"].numpy(),
        )
        subprocess.run([python, "-P", SCRIPT, library, base.entry.source, folder], env=environment, check=True)
        with np.load(folder / "result.npz") as result:
            logits = torch.from_numpy(result["logits"])
            return Reference(float(result["valid_loss"]), int(result["parameters"]), logits)


def _write(folder: Path, library: Library, base: LoadedBase, config: AdapterConfig, tensors: dict[str, Tensor]) -> None:
    """An adapter's tensors as a checkpoint of the library."""
    if library == "peft":
        files = AdapterContents(config=config, weights=save_tensors(tensors), shape=base.shape).files()
    else:
        model_type = base.shape.model_type
        files = checkpoint_files(config, tensors, name="reference", model_type=model_type, safetensors=True)
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
