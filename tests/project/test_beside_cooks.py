"""benchmarks.beside_cooks: what counts as a gap, what is asked while a cook runs, a bank beside its base."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import beside_cooks
from benchmarks.report import Result
from registry.adapters import create, paper_config
from registry.adapters.weights import save_tensors
from registry.base_model import shape_of
from registry.errors import Internal, Unavailable
from registry.formats import AdapterContents, write_directory
from registry.spec import BaseEntry, SampleSource
from tests.tiny_models import TINY_SENTENCES


class Health(BaseHTTPRequestHandler):
    """Answers with the status that its server has."""

    def do_GET(self):
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()
        self.server.asked.set()

    def log_message(self, *arguments):
        pass


@pytest.fixture
def healthz() -> Iterator[Any]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Health) as server:
        server.status, server.asked = 200, threading.Event()
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class Client:
    """Streams of three tokens; a cook ends when `long` tokens came after it began and /healthz was asked."""

    def __init__(self, healthz: Any) -> None:
        self.base_url = f"http://127.0.0.1:{healthz.server_port}"
        self.asked = healthz.asked
        self.tokens = threading.Semaphore(0)
        self.long = 2 * beside_cooks.TOKENS
        self.efforts: list[str] = []
        self.fails = False

    def stream(self, model: str, prompt: str, **sampling: Any) -> Iterator[Any]:
        for _ in range(3):
            self.tokens.release()
            yield {"choices": [{"text": "a"}]}
        yield {"choices": []}

    def sample(self, texts: list[str]) -> SampleSource:
        return SampleSource(texts=tuple(texts))

    def cook(self, request: Any) -> None:
        self.efforts.append(request.effort)
        if self.fails:
            raise Unavailable("The process that computes gradients ended.")
        if len(self.efforts) > 1:
            self.tokens, _ = threading.Semaphore(0), self.asked.clear()
            assert all(self.tokens.acquire(timeout=30) for _ in range(self.long))
            assert self.asked.wait(30)


@pytest.fixture
def setting(healthz: Any) -> Any:
    texts = [f"{sentence} {n}" for n in range(4) for sentence in TINY_SENTENCES]
    job = SimpleNamespace(novel=("law",))
    return SimpleNamespace(
        client=Client(healthz), base="base/tiny", job=job, largest=len(texts), sample=lambda *_, **__: texts
    )


def test_a_gap_is_between_tokens_of_one_stream(setting: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 1.0, 3.0, 3.5, 10.0, 14.0])  # two streams of three tokens, a chunk without one between them
    monkeypatch.setattr(beside_cooks, "time", SimpleNamespace(perf_counter=lambda: next(times, 14.0)))
    monkeypatch.setattr(setting.client, "stream", lambda *_, **__: iter([{"choices": [1]}] * 3 + [{"choices": []}]))
    assert beside_cooks.gaps(setting, lambda so_far: so_far < 3) == [1.0, 2.0, 4.0]


def test_a_stream_is_read_alone_and_for_as_long_as_a_cook_runs(setting: Any) -> None:
    result = Result("beside_cooks")
    waited = beside_cooks.beside(setting, "quick", 2, result)
    assert setting.client.efforts == ["quick"] * 3  # the first starts the process for gradients
    assert len(waited) >= 2
    assert [(row["way"], row["repeat"]) for row in result.rows] == [
        ("stream, alone", 0), ("stream, beside quick", 0), ("stream, alone", 1), ("stream, beside quick", 1)
    ]  # fmt: skip
    assert all(row["count"] >= beside_cooks.LEAST_GAPS for row in result.rows[::2])
    assert result.figures["quick_gap"].goal == 2
    assert len(result.figures["quick_gap_p95"].repeats) == 2


def test_a_cook_that_is_over_at_once_says_nothing(setting: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside_cooks, "TOKENS", 10**8)  # more than come before such a cook ends
    with pytest.raises(Internal, match="too few"):
        beside_cooks.beside(setting, "quick", 1, Result("x"))


def test_what_fails_meanwhile_ends_the_benchmark(setting: Any, healthz: Any) -> None:
    healthz.status = 503
    with pytest.raises(Internal, match="healthz"):
        beside_cooks.health(setting, Future())
    setting.client.fails = True
    with pytest.raises(Unavailable):
        beside_cooks.beside(setting, "quick", 1, Result("x"))


def test_a_bank_side_by_side_is_timed_beside_its_base(setting: Any, tiny_base_dir: Path, tmp_path: Path) -> None:
    entry = BaseEntry(id="tiny", source=str(tiny_base_dir))
    shape = shape_of(entry, tmp_path)
    config = paper_config("bapna_firat", bottleneck=4)
    for name in ("law", "zoo"):
        weights = save_tensors(create(config, shape, seed=1).state_dict())
        contents = AdapterContents(
            config=config, domain=name, weights=weights, base_model="tiny", base_fingerprint=shape.fingerprint
        )
        write_directory(tmp_path / name, contents)
    setting.job = SimpleNamespace(novel=("law",), base=entry, adapters=tmp_path, training=("law", "zoo"))
    result = Result("beside_cooks")
    beside_cooks.side_by_side(setting, 2, result)
    figure = result.figures["side_by_side_vs_forward"]
    assert figure.value > 0
    assert figure.note.startswith("2 adapters, ")
    assert [row["way"] for row in result.rows] == ["forward pass, base"] * 2 + ["forward pass, bank"] * 2
