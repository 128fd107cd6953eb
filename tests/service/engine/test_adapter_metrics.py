"""The engine's counters: figures by adapter, and the tokens of each request, counted once however it ends."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.adapters import create, paper_config
from registry.base_model import LoadedBase
from registry.errors import Busy, InvalidPrompt
from service.engine import EngineLimits, GenerateRequest, LoadableAdapter, ScoreRequest, adapter_metrics
from service.engine.adapter_metrics import BASE, AdapterMetrics, AdapterTotals
from service.engine.engine import Engine
from service.engine.request import Request, RequestTimeline
from tests.service.engine.stepping import greedy, run
from tests.service.loaded_bases import LoadedBases

CONFIG = paper_config("bapna_firat", bottleneck=4)


def handle_of(base: LoadedBase, seed: int) -> LoadableAdapter:
    return LoadableAdapter(f"sha256:{seed:064x}", CONFIG, lambda: create(CONFIG, base.shape, seed=seed).state_dict())


@st.composite
def ended_requests(draw: st.DrawFn) -> tuple[Request, RequestTimeline]:
    """A request and its timeline, of an adapter or the base model alone."""
    is_score = draw(st.booleans())
    generated = 0 if is_score else draw(st.integers(0, 50))
    timeline = RequestTimeline(
        "tiny",
        draw(st.none() | st.sampled_from("abcdefgh")),
        draw(st.sampled_from(("finished", "failed", "cancelled"))),
        arrived_at=1.0,
        started_at=2.0,
        first_token_at=float(draw(st.integers(2, 9))) if generated else None,
        ended_at=10.0,
        prompt_tokens=draw(st.integers(0, 50)),
        generated_tokens=generated,
    )
    return ScoreRequest("tiny", ((1,),)) if is_score else GenerateRequest("tiny", (1,)), timeline


def total(figures: dict[str, AdapterTotals]) -> AdapterTotals:
    """The figures of all labels together."""
    rows = [asdict(totals) for totals in figures.values()]
    return AdapterTotals(**{name: sum(row[name] for row in rows) for name in rows[0]})


@pytest.mark.parametrize("labels", range(1, 5))
@given(script=st.lists(ended_requests(), max_size=120))
def test_labels_are_few_and_their_sums_never_fall(script: list[tuple[Request, RequestTimeline]], labels: int) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(adapter_metrics, "MAX_LABELS", labels)
        metrics = AdapterMetrics()
        totals = metrics.totals()
        for ended in script:
            metrics.add(*ended)
            now = metrics.totals()
            assert len(now) <= labels + 2
            for label, previous in totals.items():
                assert all(value >= asdict(previous)[name] for name, value in asdict(now[label]).items()), label
                assert now[label] is not previous, "what was read stays as it was"
            totals = now
    alone = AdapterMetrics()
    for ended in script:
        alone.add(*ended)
    assert total(totals) == total(alone.totals()), "everything is counted under one label, once"
    assert totals[BASE] == alone.totals()[BASE]


def test_the_engine_counts_by_adapter(base: LoadedBase, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr("service.engine.progress.time.monotonic", lambda: float(next(clock)))
    engine = Engine(LoadedBases(base))
    first, second = handle_of(base, 1), handle_of(base, 2)
    engine.submit(GenerateRequest("tiny", (1, 2), params=greedy(3)))
    engine.submit(GenerateRequest("tiny", (1, 2), first, greedy(5, n=2)))
    engine.submit(ScoreRequest("tiny", ((1, 2, 3), (4, 5)), second))
    gone = engine.submit(GenerateRequest("tiny", (1, 2), second, greedy(9)))
    engine.step()
    gone.cancel()
    run(engine)
    totals = engine.adapter_metrics.totals()
    counts = {
        label: (figures.generated_tokens, figures.scored_tokens, figures.first_tokens, figures.answers)
        for label, figures in totals.items()
    }
    assert counts == {
        "base": (3, 0, 1, 1),
        first.digest: (10, 0, 1, 1),
        second.digest: (1, 5, 1, 1),
        "other": (0, 0, 0, 0),
    }
    for label in ("base", first.digest):
        assert 0 < totals[label].first_token_seconds < totals[label].seconds
    figures = engine.counters()
    assert figures["generated_tokens_total"] == total(totals).generated_tokens


def test_hits_loads_and_evictions_tell_whether_the_bank_is_large_enough(base: LoadedBase) -> None:
    handles = [handle_of(base, seed) for seed in range(3)]
    size = sum(tensor.numel() * 4 for tensor in handles[0].load().values())
    engine = Engine(LoadedBases(base), EngineLimits(adapter_cache_bytes=2 * size))

    def ask(seed: int) -> tuple[float, ...]:
        engine.submit(GenerateRequest("tiny", (1, 2), handles[seed], greedy(4)))
        run(engine)
        figures = engine.counters()
        assert figures["adapters_held"] == figures["adapter_loads_total"] - figures["adapter_evictions_total"]
        assert figures["adapter_bytes"] == figures["adapters_held"] * size
        return tuple(figures[f"adapter_{name}_total"] for name in ("hits", "loads", "evictions"))

    assert [ask(seed) for seed in (0, 0, 1, 0, 2, 1)] == [
        (0, 1, 0),
        (1, 1, 0),
        (1, 2, 0),
        (2, 2, 0),
        (2, 3, 1),
        (2, 4, 2),
    ]


# --- what a request takes -------------------------------------------------------------------------


PROMPT = (0, 40, 41, 42)


TokenCounts = list[tuple[int, ...]]
"""Tokens read and written, of each request that ended."""


@pytest.fixture
def token_counts() -> TokenCounts:
    return []


@pytest.fixture
def engine(base: LoadedBase) -> Engine:
    return Engine(LoadedBases(base), EngineLimits(max_requests=2))


def generate(token_counts: TokenCounts, tokens: int = 6, **more: object) -> GenerateRequest:
    return GenerateRequest(
        "tiny", PROMPT, params=greedy(tokens, **more), on_end=lambda *counts: token_counts.append(counts)
    )


def test_what_is_whole_tells_what_its_answer_says(engine: Engine, token_counts: TokenCounts) -> None:
    ticket = engine.submit(generate(token_counts, n=3))
    ticket.add_done_callback(lambda _: token_counts.append((-1, -1)))
    run(engine)
    written = sum(len(choice.token_ids) for choice in ticket.result(0).choices)
    assert token_counts == [(len(PROMPT), written), (-1, -1)], "before anybody has the answer"


def test_scored_windows_are_read(engine: Engine, token_counts: TokenCounts) -> None:
    engine.submit(ScoreRequest("tiny", (PROMPT, PROMPT[:2]), on_end=lambda *counts: token_counts.append(counts)))
    run(engine)
    assert token_counts == [(6, 0)]


def test_what_is_cancelled_tells_what_was_computed(engine: Engine, token_counts: TokenCounts) -> None:
    ticket = engine.submit(generate(token_counts, 40))
    for _ in range(3):
        engine.step()
    ticket.cancel()
    run(engine)
    assert token_counts == [(len(PROMPT), 3)]


def test_what_never_began_took_nothing(engine: Engine, token_counts: TokenCounts) -> None:
    engine.submit(generate(token_counts)).cancel()
    run(engine)
    assert token_counts == [(0, 0)]


def test_what_is_refused_took_nothing(engine: Engine, token_counts: TokenCounts) -> None:
    with pytest.raises(InvalidPrompt):
        engine.submit_all([generate(token_counts), replace(generate(token_counts), prompt=())])
    assert token_counts == [(0, 0)] * 2
    engine.submit_all([generate(token_counts)] * 2)
    with pytest.raises(Busy):
        engine.submit(generate(token_counts))
    assert token_counts == [(0, 0)] * 3
    engine.stop(drain=0)
    assert token_counts == [(0, 0)] * 5
