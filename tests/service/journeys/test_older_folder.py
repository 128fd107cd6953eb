"""A data folder of an earlier version opens, says what it said there, and has its soups rebuilt from their recipes.

`tests/fixtures/README.md` says how it was made.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adaptersoup import Store
from tests.repository import REPOSITORY

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("older")
    with tarfile.open(REPOSITORY / "tests" / "fixtures" / "data_folder.tar.xz") as packed:
        packed.extractall(root, filter="data")
    return root / "data_folder"


@pytest.fixture(scope="module")
def recorded(folder: Path) -> Any:
    """The answers of the version that made it, by question."""
    return json.loads((folder / "said.json").read_text())


@pytest.fixture(scope="module")
def store(folder: Path) -> Iterator[Store]:
    with Store(folder / "store", folder / "base", base_id="tiny", default_effort="instant", threads=1) as store:
        yield store


def mean_nll(store: Store, ref: str, recorded: Any) -> float:
    return store.evaluate(ref, recorded["texts"], baseline=None).mean_nll


def test_all_is_there(store: Store, recorded: Any) -> None:
    assert {adapter.ref: adapter.digest for adapter in store.adapters()} == recorded["digests"]
    assert store.adapter("team/average@live").ref == "team/average@1"
    keys = list(store.client.keys())
    assert {key.name: key.namespaces for key in keys} == {"admin": None, "reader": ["team"]}
    assert {job.id: job.state for job in store.client.jobs()} == dict.fromkeys(recorded["jobs"], "succeeded")


def test_models_say_the_same(store: Store, recorded: Any) -> None:
    """But for the order of sums, which is each processor's own: some 1e-7 of an nll."""
    assert {ref: mean_nll(store, ref, recorded) for ref in recorded["nll"]} == pytest.approx(recorded["nll"], rel=1e-5)


def test_a_selector_chooses_the_same(store: Store, recorded: Any) -> None:
    chosen = store.select(recorded["sample"]).selection.selected
    assert {adapter.ref: float(adapter.weight) for adapter in chosen} == pytest.approx(recorded["chosen"], rel=1e-4)


@pytest.mark.parametrize("ref", ["average", "concat", "lora-concat"])
def test_a_soup_whose_file_is_lost_is_rebuilt_with_the_same_bytes(store: Store, recorded: Any, ref: str) -> None:
    row = store.adapter(f"team/{ref}@1")
    blobs = store._runtime.services.registry.blobs
    blobs.delete(row.weights_blob)
    assert store.cook(name=f"team/{ref}", **recorded["asked"][row.ref]).model == row.ref
    assert blobs.is_whole(row.weights_blob)


@pytest.mark.parametrize("ref", ["align", "lora-recompress"])
def test_a_soup_of_matched_or_decomposed_tensors_is_cooked_again_to_the_same_model(
    store: Store, recorded: Any, ref: str
) -> None:
    """Its bytes are this machine's and library's; what it says differs by what their rounding comes to."""
    store._runtime.services.registry.blobs.delete(store.adapter(f"team/{ref}@1").weights_blob)
    soup = store.cook(name=f"team/{ref}", **recorded["asked"][f"team/{ref}@1"])
    assert mean_nll(store, soup.model, recorded) == pytest.approx(recorded["nll"][f"team/{ref}@1"], rel=1e-4)
