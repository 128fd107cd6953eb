"""Adapters whose every token names themselves: whoever gets another's token was served with another's adapter.

`make soak` runs it longer: SOAK names the number of requests, over 500 adapters of which the bank holds 50.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch

from registry.adapters import expected_tensors, paper_config
from registry.adapters.loadable import LoadableAdapter
from registry.base_model import LoadedBase, load_base
from registry.spec import AdapterConfig, BaseEntry
from service.engine import Delta, EngineLimits, GenerateRequest, SamplingParams, ScoreRequest, Ticket
from service.engine.engine import Engine
from tests.service.cluster import until
from tests.service.engine.stepping import started
from tests.service.loaded_bases import LoadedBases
from tests.tiny_models import build_tiny_base

REQUESTS = int(os.environ.get("SOAK", "1000"))
ADAPTERS, HELD, CLIENTS, AT_ONCE = (500, 50, 8, 40) if REQUESTS > 2000 else (64, 12, 4, 32)
STRENGTH = 1000.0
CONFIGS: list[AdapterConfig] = [
    paper_config("bapna_firat", bottleneck=2),
    paper_config("bapna_firat", bottleneck=5),
    paper_config("pfeiffer", bottleneck=2),
    paper_config("houlsby", bottleneck=3).model_copy(update={"trained_norms": False}),
]


@dataclass(frozen=True)
class Canary:
    """An adapter, and the token that it writes whatever the prompt."""

    token: int
    handle: LoadableAdapter


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> LoadedBase:
    folder: Path = build_tiny_base(tmp_path_factory.mktemp("canaries"), model_type="llama", vocab_size=1200)
    base = load_base(BaseEntry(id="tiny", source=str(folder)))
    base.model.get_output_embeddings().weight.data.mul_(100)  # so that a draw at temperature 1 is as sure
    return base


@pytest.fixture(scope="module")
def canaries(base: LoadedBase) -> list[Canary]:
    words = base.model.get_output_embeddings().weight.detach()
    scores = words @ (words / words.norm(dim=-1, keepdim=True)).T * base.shape.hidden_size**0.5  # (words, directions)
    best, second = scores.T.topk(2).values.unbind(dim=-1)
    sure = (scores.diagonal() == best) & (best - second > 17)  # of a billion draws 41 are another word
    tokens = [
        token for token in sure.nonzero().flatten().tolist() if token != base.eos_id and token not in base.end_ids
    ]
    assert len(tokens) >= ADAPTERS, "tokens whose direction means themselves"
    return [canary(base, token, words[token], CONFIGS[token % len(CONFIGS)]) for token in tokens[:ADAPTERS]]


def canary(base: LoadedBase, token: int, direction: torch.Tensor, config: AdapterConfig) -> Canary:
    """All zeros but for the last bias, which drowns what the base model had to say in the direction of a token."""
    shapes = expected_tensors(config, base.shape)

    def load() -> dict[str, torch.Tensor]:
        tensors = {name: torch.zeros(shape) for name, shape in shapes.items()}
        tensors[f"layers.{base.shape.num_layers - 1}.ffn.up.bias"] = STRENGTH * direction
        return tensors

    size = 4 * sum(int(np.prod(shape)) for shape in shapes.values())
    return Canary(token, LoadableAdapter(f"sha256:{token:064x}", config, load, size))


@dataclass
class Client:
    """Sends requests of every kind and looks at each token that comes back."""

    engine: Engine
    canaries: list[Canary]
    seed: int
    wrong: list[str] = field(default_factory=list)
    checked: int = 0

    def send(self, count: int) -> None:
        draw = np.random.default_rng(self.seed)
        for _ in range(0, count, AT_ONCE):
            for ticket, check in [self.submit_drawn(draw) for _ in range(AT_ONCE)]:
                if not ticket.cancelled():
                    check(ticket)

    def submit_drawn(self, draw: np.random.Generator) -> tuple[Ticket, Callable[[Ticket], None]]:
        """Submit a drawn request; gives its ticket and the check of its answer."""
        bird = self.canaries[int(draw.integers(len(self.canaries)))]
        prompt = tuple(draw.integers(5, 1000, draw.integers(1, 9)).tolist())
        kind = draw.random()
        if kind < 0.15:
            ticket = self.engine.submit(
                ScoreRequest("tiny", ((*prompt, bird.token), (*prompt, bird.token + 1)), bird.handle)
            )
            return ticket, lambda done: self.check(done.result(120).nll[0] < done.result(120).nll[1], bird, "score")
        params = SamplingParams(
            max_tokens=int(draw.integers(1, 7)),
            temperature=float(draw.choice([0.0, 1.0])),
            n=int(draw.integers(1, 3)),
            seed=int(draw.integers(99)),
        )
        gone = threading.Event()

        def hear(delta: Delta) -> None:
            self.check(delta.token_id == bird.token, bird, f"streamed {delta.token_id}")
            gone.set()

        ticket = self.engine.submit(GenerateRequest("tiny", prompt, bird.handle, params, on_token=hear))
        if kind > 0.9:  # a client that goes away, before or after its first token
            if kind > 0.95:
                gone.wait(120)
            ticket.cancel()
        return ticket, lambda done: self.whole(done, bird, params)

    def whole(self, ticket: Ticket, bird: Canary, params: SamplingParams) -> None:
        tokens = [token for choice in ticket.result(120).choices for token in choice.token_ids]
        self.check(
            set(tokens) == {bird.token} and len(tokens) == params.n * (params.max_tokens or 0), bird, str(tokens)
        )

    def check(self, right: bool, bird: Canary, description: str) -> None:
        self.checked += 1
        if not right:
            self.wrong.append(f"{bird.token}: {description}")


def test_nobody_is_ever_served_with_anothers_adapter(base: LoadedBase, canaries: list[Canary]) -> None:
    largest = max(bird.handle.size_bytes for bird in canaries)
    engine = Engine(
        LoadedBases(base),
        EngineLimits(adapter_cache_bytes=HELD * largest, max_running=64, max_requests=4 * CLIENTS * AT_ONCE),
    )
    clients = [Client(engine, canaries, seed) for seed in range(CLIENTS)]
    with started(engine):
        with ThreadPoolExecutor(CLIENTS) as pool:
            for done in [pool.submit(client.send, REQUESTS // CLIENTS) for client in clients]:
                done.result()
        until(lambda: not engine.counters()["requests"])  # those that were cancelled
        figures = engine.counters()
    assert [wrong for client in clients for wrong in client.wrong] == []
    assert sum(client.checked for client in clients) >= REQUESTS
    assert figures["adapter_loads_total"] > ADAPTERS, "adapters left the bank and came again"
    assert figures["adapter_bytes"] <= HELD * largest
    assert figures["kv_bytes"] == 0
