"""Greedy generation for rows of tokens by our engine, by transformers' `generate`, by PEFT, and by peers' processes.

Used by the benchmarks of generation. Prompts are drawn again for each repeat (`redraw`), the same for every engine.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.peers.process import Peer
from benchmarks.subjects import Window, digest_of, drawn_tensors, rows_of
from registry.base_model import LoadedBase
from registry.errors import Internal
from registry.spec import AdapterConfig
from service.engine import GenerateRequest, LoadableAdapter, SamplingParams, Ticket
from service.engine.engine import Engine

PROMPT = 32

MOSTLY = 0.75
"""The share of rows that must be equal for two engines: between equally likely tokens, rounding decides."""

Rows = list[tuple[int, ...]]
Calls = Mapping[str, Callable[[], Rows]]


@dataclass
class Writing:
    """A base model that never ends a text by itself (`silent`), an engine that has it, and prompts."""

    base: LoadedBase
    engine: Engine
    rows: int
    tokens: int
    prompts: list[Window] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.redraw(0)

    def redraw(self, seed: int) -> None:
        """Other prompts."""
        self.prompts = rows_of(self.base, rows=self.rows, length=PROMPT, seed=seed)

    def ours(self, adapters: Sequence[LoadableAdapter | None]) -> Rows:
        """The tokens that the engine generates, each row with its adapter."""
        tickets = self.submit(adapters, self.tokens)
        while self.engine.step():  # in this thread, as the others (`interleaved`)
            pass
        return [ticket.result().choices[0].token_ids for ticket in tickets]

    def submit(self, adapters: Sequence[LoadableAdapter | None], tokens: int) -> list[Ticket]:
        """Requests to the engine for `tokens` tokens of each row with its adapter."""
        params = SamplingParams(max_tokens=tokens, temperature=0)
        base_id, pairs = self.base.entry.id, zip(self.prompts, adapters, strict=True)
        return self.engine.submit_all([GenerateRequest(base_id, row, adapter, params) for row, adapter in pairs])

    def generate(self, model: Any, **more: Any) -> Rows:
        """The tokens that transformers' `generate` returns."""
        ids = torch.tensor(self.prompts, device=self.base.model.device)
        written = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=self.tokens,
            min_new_tokens=self.tokens,
            pad_token_id=0,
            **more,
        )
        return [tuple(row) for row in written[:, ids.shape[1] :].tolist()]

    def peer(self, peer: Peer) -> Rows:
        """The tokens that a peer's process generates."""
        return peer.write(self.prompts, self.tokens)


def drawn(base: LoadedBase, config: AdapterConfig, count: int) -> list[LoadableAdapter]:
    """Different adapters of one configuration, in memory."""
    return [_drawn(base, config, seed) for seed in range(count)]


def _drawn(base: LoadedBase, config: AdapterConfig, seed: int) -> LoadableAdapter:
    tensors = drawn_tensors(base, config, seed)
    size = sum(tensor.nbytes for tensor in tensors.values())
    return LoadableAdapter(digest_of(base, config, tensors), config, lambda: tensors, size)


def peft_of(base: LoadedBase, loras: Sequence[LoadableAdapter]) -> tuple[Any, list[str]]:
    """PEFT's own model with the LoRAs, and the name of each."""
    from peft import LoraConfig as PeftConfig
    from peft import get_peft_model, set_peft_model_state_dict

    modules = loras[0].config.modules()  # type: ignore[attr-defined]
    targets = sorted({path.rpartition(".")[2] for path in modules})
    names = [f"adapter{number}" for number in range(len(loras))]
    rank = next(iter(modules.values())).rank
    config = PeftConfig(r=rank, lora_alpha=2 * rank, target_modules=targets, lora_dropout=0.0, task_type="CAUSAL_LM")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model: Any = get_peft_model(copy.deepcopy(base.model), config, adapter_name=names[0])
        for name in names[1:]:
            model.add_adapter(name, config)
        for name, handle in zip(names, loras, strict=True):
            missing: Any = set_peft_model_state_dict(model, dict(handle.load()), adapter_name=name)
            if missing.unexpected_keys:
                raise Internal(f"PEFT does not know {missing.unexpected_keys[0]}")
    model.to(base.model.dtype)
    return model.eval(), names


def check_same(written: Mapping[str, Rows], same: Sequence[tuple[str, str]], *, exact: bool) -> None:
    """Raise Internal if two equal computations generate different tokens in too many rows (`exact`: in fp32)."""
    for first, second in same:
        if not (exact and first in written and second in written):
            continue
        alike = sum(a == b for a, b in zip(written[first], written[second], strict=True))
        if alike < len(written[first]) * MOSTLY:
            raise Internal(f"{first} and {second} write the same in {alike} of {len(written[first])} rows")


def check_told_apart(written: Mapping[str, Rows], base: str, ways: Sequence[str]) -> None:
    """Raise Internal if adapters generate the base model's tokens in all rows."""
    for way in ways:
        if way in written and written[way] == written[base]:
            raise Internal(f"the adapters of {way} change nothing")
