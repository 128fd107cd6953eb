"""benchmarks.beside_cooks: what counts as a gap, and what is asked while a cook runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from benchmarks import beside_cooks
from benchmarks.report import Result
from registry.spec import SampleSource
from tests.tiny_models import TINY_SENTENCES


class Client:
    """Streams of three tokens; a measured cook ends when `long` tokens came after it began and /healthz was asked."""

    base_url = "http://127.0.0.1:1"

    def __init__(self) -> None:
        self.asked, self.tokens = threading.Event(), threading.Semaphore(0)
        self.long = 2 * beside_cooks.TOKENS
        self.efforts: list[str] = []

    def get(self, path: str) -> Any:
        self.asked.set()
        return SimpleNamespace(status_code=200)

    def stream(self, model: str, prompt: str, **sampling: Any) -> Iterator[Any]:
        for _ in range(3):
            self.tokens.release()
            yield {"choices": [{"text": "a"}]}
        yield {"choices": []}

    def sample(self, texts: list[str]) -> SampleSource:
        return SampleSource(texts=tuple(texts))

    def cook(self, request: Any) -> None:
        self.efforts.append(request.effort)
        if len(self.efforts) > 1:
            self.tokens, _ = threading.Semaphore(0), self.asked.clear()
            assert all(self.tokens.acquire(timeout=30) for _ in range(self.long))
            assert self.asked.wait(30)


@pytest.fixture
def setting(monkeypatch: pytest.MonkeyPatch) -> Any:
    texts = [f"{sentence} {n}" for n in range(4) for sentence in TINY_SENTENCES]
    client = Client()

    class Http:
        def __init__(self, **_: Any) -> None:
            self.get = client.get

        def __enter__(self) -> Http:
            return self

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(httpx2, "Client", Http)
    return SimpleNamespace(
        client=client, base="base/tiny", job=SimpleNamespace(novel=("law",)), largest=len(texts),
        sample=lambda *_, **__: texts,
    )  # fmt: skip


def test_a_gap_is_between_tokens_of_one_stream(setting: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 1.0, 3.0, 3.5, 10.0, 14.0])  # two streams of three tokens, a chunk without one between them
    monkeypatch.setattr(beside_cooks, "time", SimpleNamespace(perf_counter=lambda: next(times, 14.0)))
    assert beside_cooks.gaps(setting, lambda so_far: so_far < 3) == [1.0, 2.0, 4.0]


def test_a_stream_is_read_alone_and_for_as_long_as_a_cook_runs(setting: Any) -> None:
    result = Result("beside_cooks")
    waited = beside_cooks.beside(setting, "quick", 2, result)
    assert setting.client.efforts == ["quick"] * 3  # the first starts the process for gradients
    assert len(waited) >= 2
    assert [row["way"] for row in result.rows] == ["stream, alone", "stream, beside quick"] * 2
    assert all(row["count"] >= beside_cooks.LEAST_GAPS for row in result.rows[::2])
    assert len(result.figures["quick_gap"].repeats) == len(result.figures["quick_gap_p95"].repeats) == 2
