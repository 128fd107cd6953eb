"""A pool that is evaluated as tasks: the figures of the store's own engine, and what goes wrong."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from adaptersoup import Store
from registry.context import Caller
from registry.errors import Cancelled, InvalidParameter
from registry.evaluate.matrix import CrossEvaluated, EvaluationPool, cross_evaluate
from registry.progress import Progress, silent
from registry.select.requested import pool_of
from registry.spec import PoolRequest
from registry.tasks.process_pool import ProcessPool
from service.engine.score_task import score_samples
from tests.registry.tasks.matrix import SETTINGS, known, stock

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def stocked(tiny_base_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("matrix") / "store"
    stock(folder, tiny_base_dir)
    return folder


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPool]:
    with ProcessPool(1) as place:
        yield place


@pytest.fixture
def store(stocked: Path, tmp_path: Path) -> Iterator[Store]:
    with Store(shutil.copytree(stocked, tmp_path / "store"), **SETTINGS) as store:
        yield store


def elsewhere(store: Store, place: ProcessPool, progress: Progress = silent, **pool: Any) -> CrossEvaluated:
    registry, caller = store._runtime.services.registry, Caller("admin", None, "test")
    base, spec = pool_of(registry, caller, PoolRequest(**pool))
    workers = EvaluationPool(place, score_samples, 1)
    return cross_evaluate(registry, caller, base, spec, passages=10, progress=progress, workers=workers)


def test_tasks_come_to_the_figures_of_the_stores_engine(
    stocked: Path, store: Store, processes: ProcessPool, tmp_path: Path
) -> None:
    told: list[tuple[int, int]] = []
    found = elsewhere(store, processes, lambda done, total, _: told.append((done, total)))
    assert found == CrossEvaluated(pairs=9, computed=9, known=0, failed={})
    assert told == sorted(told)
    assert {total for _, total in told} == {9}
    with Store(shutil.copytree(stocked, tmp_path / "here"), **SETTINGS) as here:
        assert here.evaluate_pool(passages=10) == found
        assert known(store) == known(here)
    assert elsewhere(store, processes) == CrossEvaluated(pairs=9, computed=0, known=9, failed={})
    assert len(known(store)) == 9


def test_an_adapter_that_is_damaged_is_named_and_keeps_no_other_from_it(store: Store, processes: ProcessPool) -> None:
    weights = store._runtime.services.registry.blobs.read(store._row("team/code").weights_blob)
    (path,) = (
        one
        for one in store.folder.rglob("*")
        if one.is_file() and one.stat().st_size == len(weights) and one.read_bytes() == weights
    )
    path.chmod(0o600)
    path.write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    found = elsewhere(store, processes)
    assert (found.computed, list(found.failed)) == (6, ["team/code@1"])
    assert {adapter for adapter, _ in known(store)} == {"team/court@1", "team/kitchen@1"}


def test_it_is_ended_by_its_progress_and_goes_on(store: Store, processes: ProcessPool) -> None:
    def stop(done: int, _total: int, _said: str) -> None:
        if done:
            raise Cancelled("It was cancelled.")

    with pytest.raises(Cancelled):
        elsewhere(store, processes, stop)
    before = len(known(store))
    assert 0 < before < 9
    assert store.evaluate_pool(passages=10) == CrossEvaluated(pairs=9, computed=9 - before, known=before, failed={})


@pytest.mark.parametrize(
    ("options", "sentence"), [({"cores": 2}, "are for tasks on Ray"), ({"on": "spark"}, "--on takes ray")]
)
def test_what_is_of_ray_alone_is_refused_without_it(store: Store, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidParameter, match=sentence):
        store.evaluate_pool(**options)
