"""One pass over sequences of many adapters: each computes what it computes alone, whatever joins, leaves and moves."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from registry.adapters import AdapterModule, attached, expected_tensors, from_tensors, paper_config
from registry.adapters.batched import FEW, STACKS, ReadyAdapter
from registry.adapters.stacked import Stack
from registry.base_model import LoadedBase
from registry.base_model.likelihood import hidden_states, lm_logits
from registry.spec import (
    AdapterConfig,
    BottleneckConfig,
    FusionConfig,
    LoraConfig,
    LoraModule,
    PrefixConfig,
    UnionConfig,
)
from service.engine.kv_budget import MIN_ROW_POSITIONS
from service.engine.kv_cache import KVCache
from service.engine.llama import FAMILIES
from service.engine.onednn_linear import prepare_linears
from service.engine.runner import ForwardTask, Runner
from tests.tiny_models import VARIANTS

TOLERANCE = 1e-5
PREFIX = PrefixConfig(length=5)
PARALLEL = paper_config("parallel", bottleneck=4)
PFEIFFER = paper_config("pfeiffer", bottleneck=4)


def lora(base: LoadedBase, *, head: bool = False, most: int = 3) -> LoraConfig:
    """Ranks 1 to `most` on every linear module; the output layer is one of them with `head`."""
    last = ("lm_head", "embed_out")
    paths = [path for path in base.shape.linears if head or not path.endswith(last)]
    return LoraConfig.of({path: LoraModule(rank=1 + n % most, alpha=2.0) for n, path in enumerate(paths)})


def configs_of(base: LoadedBase) -> list[AdapterConfig]:
    """One of every structure, and of some several: other widths, ranks, scales and places."""
    bottlenecks = [
        paper_config("houlsby", bottleneck=4),
        paper_config("houlsby", bottleneck=4).model_copy(update={"trained_norms": False}),
        paper_config("bapna_firat", bottleneck=4),
        paper_config("bapna_firat", bottleneck=20),
        BottleneckConfig(structure="pfeiffer", bottleneck=4, activation="swish", scale=0.5, input="residual"),
        PARALLEL,
    ]
    unions = [
        UnionConfig(members=(PREFIX, PARALLEL)),
        UnionConfig(members=(lora(base), PFEIFFER)),
    ]
    fusion = FusionConfig(member=PFEIFFER, members=2)
    return [*bottlenecks, lora(base), lora(base, most=5), lora(base, head=True), PREFIX, fusion, *unions]


def module_of(base: LoadedBase, config: AdapterConfig, seed: int) -> AdapterModule:
    generator = torch.Generator().manual_seed(seed)
    shapes = expected_tensors(config, base.shape)
    tensors = {name: 0.1 * torch.randn(size, generator=generator) for name, size in shapes.items()}
    return from_tensors(config, base.shape, tensors).eval().requires_grad_(False)


@dataclass(eq=False)
class World:
    """A base model, two adapters of every structure, and a runner that has them ready."""

    base: LoadedBase
    runner: Runner
    modules: list[AdapterModule | None]
    ready: list[ReadyAdapter | None]


@pytest.fixture(scope="module", params=[name for name in VARIANTS if name != "llama-dynamic"])  # it has no prefixes
def world(request: pytest.FixtureRequest, bases: Callable[[str], LoadedBase]) -> World:
    base = bases(request.param)
    if base.shape.model_type in FAMILIES:
        prepare_linears(base.model, fuse=True)
    modules = [module_of(base, config, seed) for config in configs_of(base) for seed in (1, 2)]
    runner = Runner(base)
    return World(base, runner, [None, *modules], [None, *(made_ready(runner, module) for module in modules)])


on_one = pytest.mark.parametrize("world", ["gpt2"], indirect=True)
"""For what is the same on every base model: adapters are stacked as tensors, whichever model they are of."""
on_two = pytest.mark.parametrize("world", ["gpt2", "qwen3-alternating"], indirect=True)
"""For what depends on how keys and values are kept: of all tokens, or of a window in some layers."""


@torch.no_grad()
def alone(base: LoadedBase, module: AdapterModule | None, texts: Sequence[Sequence[int]]) -> Tensor:
    """Logits (texts, tokens, vocabulary) of texts of one length and one adapter, by a plain pass over them."""
    with nullcontext() if module is None else attached(base.model, module):
        rows = torch.tensor([list(ids) for ids in texts])
        return lm_logits(base.model, hidden_states(base.model, rows, torch.ones_like(rows))).float()


@dataclass(eq=False)
class Text:
    """A text on its way through passes: `ids`, of which the first `done` have been computed."""

    adapter: int
    ids: list[int]
    done: int = 0
    nll: float = 0.0
    logits: dict[int, Tensor] = field(default_factory=dict)

    def task(self, world: World, length: int, *, keeps_kv: bool = True) -> ForwardTask:
        end = self.done + length
        return ForwardTask(
            self.ids[self.done : end],
            self.done,
            adapter=world.ready[self.adapter],
            sequence=self if keeps_kv else None,
            next_id=self.ids[end] if end < len(self.ids) else None,
            needs_logits=True,
            needs_nll=True,
            reserve=end,
        )

    def check(self, world: World, reference: Tensor | None = None) -> None:
        """Compare with the logits of the text alone, `reference` (tokens, vocabulary), computed here if not given."""
        if reference is None:
            (reference,) = alone(world.base, world.modules[self.adapter], [self.ids])
        scale = float(reference.abs().max())
        for place, logits in self.logits.items():
            assert float((logits - reference[place]).abs().max()) <= TOLERANCE * scale
        if self.done == len(self.ids):
            targets = torch.tensor(self.ids[1:])
            expected = -torch.log_softmax(reference[:-1], dim=-1)[torch.arange(len(targets)), targets].sum().item()
            assert self.nll == pytest.approx(expected, abs=1e-4 * max(1.0, expected))


def step(world: World, pieces: Sequence[tuple[Text, int, bool]]) -> None:
    """One pass over so many tokens of each text."""
    results = world.runner.run([text.task(world, length, keeps_kv=keeps_kv) for text, length, keeps_kv in pieces])
    for (text, length, _), result in zip(pieces, results, strict=True):
        text.done += length
        text.nll += result.nll
        text.logits[text.done - 1] = result.logits


@settings(max_examples=2, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32))
def test_texts_that_join_and_leave_get_what_they_get_alone(world: World, seed: int) -> None:
    draw = np.random.default_rng(seed)
    limit = world.base.shape.context - PREFIX.length
    texts: list[Text] = []
    for _ in range(30):
        while len(texts) < 12 and draw.random() < 0.7:
            ids = draw.integers(1, world.base.shape.vocab_size, size=draw.integers(2, limit)).tolist()
            texts.append(Text(int(draw.integers(len(world.modules))), ids))
        pieces: list[tuple[Text, int, bool]] = []
        for text in texts:
            remaining = len(text.ids) - text.done
            if remaining and draw.random() < 0.8:
                length = 1 if draw.random() < 0.7 else int(draw.integers(1, remaining + 1))
                whole = text.done == 0 and world.ready[text.adapter] is None and draw.random() < 0.3
                pieces.append((text, remaining if whole else length, not whole))
        if pieces:
            step(world, pieces)
        for text in list(texts):
            if text.done == len(text.ids) or draw.random() < 0.05:
                text.check(world)
                texts.remove(text)
        world.runner.retain(texts)
    for text in texts:
        text.check(world)
    world.runner.retain(())


@on_one
@pytest.mark.parametrize("adapters", [(1,), (1, 4)])
def test_sixty_four_rows_of_one_and_of_two_adapters(world: World, adapters: Sequence[int]) -> None:
    check_sixty_four(world, adapters)


def test_sixty_four_rows_of_every_adapter(world: World) -> None:
    check_sixty_four(world, range(len(world.modules)))


def check_sixty_four(world: World, adapters: Sequence[int]) -> None:
    draw = np.random.default_rng(0)
    texts = [Text(adapters[n % len(adapters)], draw.integers(1, 250, 12).tolist()) for n in range(64)]
    step(world, [(text, 6, True) for text in texts])
    for _ in range(6):
        step(world, [(text, 1, True) for text in texts])
    for adapter in {text.adapter for text in texts}:
        texts_of_adapter = [text for text in texts if text.adapter == adapter]
        expected = alone(world.base, world.modules[adapter], [text.ids for text in texts_of_adapter])
        for text, logits in zip(texts_of_adapter, expected, strict=True):
            text.check(world, logits)
    world.runner.retain(())


@on_two
def test_a_row_of_nan_stays_alone(world: World) -> None:
    broken = module_of(world.base, PARALLEL, 3)
    for parameter in broken.parameters():
        parameter.fill_(float("nan"))
    ready = made_ready(world.runner, broken)
    sound_texts = [Text(0, list(range(1, 20))) for _ in range(3)]
    bad = object()
    for _ in range(2):
        tasks = [ForwardTask([1, 2, 3], 0, adapter=ready, sequence=bad, needs_logits=True, reserve=9)]
        assert not bool(world.runner.run(tasks)[0].logits.isfinite().all())  # type: ignore[union-attr]
        world.runner.retain(sound_texts)
        step(world, [(text, 4, True) for text in sound_texts])
        step(world, [(text, 1, True) for text in sound_texts])
    for text in sound_texts:
        text.check(world)
    world.runner.retain(())


def made_ready(runner: Runner, module: AdapterModule) -> ReadyAdapter:
    """The adapter, with hooks in the runner's base model."""
    adapter = ReadyAdapter(module, runner.base.model)
    runner.batched.add_hooks(adapter)
    return adapter


def with_runner(world: World, *, packed: bool) -> World:
    """A world of equal base model and adapters, which are ready in another runner."""
    runner = Runner(world.base, packed=packed)
    ready = [None if module is None else made_ready(runner, module) for module in world.modules]
    return World(world.base, runner, world.modules, ready)


def test_an_unpacked_base_model_computes_the_same(world: World) -> None:
    unpacked = with_runner(world, packed=False)
    texts = [Text(number, list(range(1, 14))) for number in range(0, len(unpacked.ready), 2)]
    for length in (5, 1, 1, 1, 5):
        step(unpacked, [(text, length, True) for text in texts])
    for text in texts:
        text.check(unpacked)


@on_two
@pytest.mark.parametrize("packed", [True, False])
def test_a_pass_that_failed_half_way_leaves_nothing_behind(world: World, packed: bool) -> None:
    """The first layer has written its keys and values, the others have not."""
    other_world = with_runner(world, packed=packed)
    prefixed = next(
        n for n, adapter in enumerate(other_world.ready) if adapter is not None and adapter.prefix is not None
    )
    texts = [Text(number, list(range(1, 14))) for number in (0, prefixed)]
    step(other_world, [(text, 5, True) for text in texts])
    layers = max((module for module in world.base.model.modules() if isinstance(module, nn.ModuleList)), key=len)
    activation = next(module for name, module in layers[0].named_modules() if name in ("mlp.act", "mlp.act_fn"))
    fails = activation.register_forward_pre_hook(lambda *_: [][0])
    for length in (1, 4):
        with pytest.raises(IndexError):
            step(other_world, [(text, length, True) for text in texts])
    fails.remove()
    for length in (1, 4, 3):
        step(other_world, [(text, length, True) for text in texts])
    for text in texts:
        text.check(other_world)


@on_two
def test_a_pass_finds_its_plan_again_behind_adapters_of_the_output_layer(world: World) -> None:
    batched = world.runner.batched
    editing = [
        n for n, adapter in enumerate(world.ready) if adapter is not None and batched.edits_output_layer(adapter)
    ]
    texts = [Text(number, list(range(1, 20))) for number in (0, 1, *editing)]
    assert len(editing) > 1
    step(world, [(text, 4, True) for text in texts])
    step(world, [(text, 1, True) for text in texts])
    plan = batched._last
    for _ in range(3):
        step(world, [(text, 1, True) for text in texts])
        assert batched._last is plan
    for text in texts:
        text.check(world)
    world.runner.retain(())


# --- stacks ---------------------------------------------------------------------------------------


@on_one
@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.integers(0, 9), unique=True, min_size=2, max_size=10), min_size=1, max_size=12))
def test_every_slot_holds_its_adapter(world: World, script: list[list[int]]) -> None:
    config = paper_config("bapna_firat", bottleneck=4)
    ready = [made_ready(world.runner, module_of(world.base, config, seed)) for seed in range(10)]
    for numbers in script:
        slots = world.runner.batched.slot_order([ready[number] for number in numbers], 1)
        assert sorted(map(id, slots)) == sorted(id(ready[number]) for number in numbers)
        (stack,) = [candidate for key, candidate in world.runner.batched._stacks.items() if key == (ready[0].form, 1)]
        parameters: Mapping[str, Tensor] = dict(stack.module.named_parameters())
        for name, tensor in parameters.items():
            assert len(tensor) == len(numbers)
            for slot, adapter in enumerate(slots):
                assert torch.equal(tensor[slot], dict(adapter.module.named_parameters())[name])
    world.runner.batched.clear_stacks()
    assert world.runner.batched.bytes == 0


@on_one
def test_a_stack_is_made_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Making one copies a whole adapter, which is nothing for every pass."""
    batched = world.runner.batched
    batched.clear_stacks()
    stacks: list[Stack] = []

    class Counted(Stack):
        def __init__(self, example: AdapterModule) -> None:
            super().__init__(example)
            stacks.append(self)

    monkeypatch.setattr("registry.adapters.batched.Stack", Counted)
    pair = [adapter for adapter in world.ready[1:3] if adapter is not None]
    for _ in range(3):
        batched.slot_order(pair, 1)
        with batched.applied([]):
            pass
    assert len(stacks) == 1
    batched.clear_stacks()


@on_one
def test_few_stacks_are_kept(world: World) -> None:
    batched = world.runner.batched
    pair = [adapter for adapter in world.ready[1:3] if adapter is not None]
    for count in range(1, FEW):
        batched.slot_order(pair, count)
        with batched.applied([]):
            pass
    assert len(batched._stacks) == STACKS


@on_one
def test_adapters_that_are_evicted_are_freed_although_they_were_stacked(world: World) -> None:
    config = paper_config("bapna_firat", bottleneck=4)
    ready = [made_ready(world.runner, module_of(world.base, config, seed)) for seed in range(3)]
    modules = [weakref.ref(adapter.module) for adapter in ready]
    world.runner.run([ForwardTask([1, 2], 0, adapter=adapter, needs_logits=True) for adapter in ready])
    assert world.runner.batched.bytes > 0
    world.runner.retain(())
    del ready
    gc.collect()
    assert [module() for module in modules] == [None, None, None]
    world.runner.batched.clear_stacks()


# --- memory ---------------------------------------------------------------------------------------


STATES = torch.arange(2 * 3 * MIN_ROW_POSITIONS, dtype=torch.float32).reshape(2, MIN_ROW_POSITIONS, 3)


def fill(memory: KVCache, owner: str, positions: int, factor: float) -> None:
    row = memory.reserve(owner, positions)
    keys = factor * STATES.repeat(1, 4, 1)[:, :positions]
    row.fill(0, torch.cat([keys, -keys]))
    row.length = positions


def stored_states(memory: KVCache, owner: str) -> Tensor:
    row = memory.reserve(owner, 1)
    return row.read(0, row.length)[:2]


def test_rows_move_to_larger_ones_and_into_gaps_with_what_they_hold() -> None:
    memory = KVCache()
    for number, owner in enumerate("abcde"):
        fill(memory, owner, 10 + number, 1.0 + number)
    memory.release("b")
    memory.reserve("c", 3 * MIN_ROW_POSITIONS)
    copied = memory.reserve("f", 20)
    memory.copy("a", copied, 7)
    copied.length = 7
    for owner, length, factor in (("a", 10, 1.0), ("c", 12, 3.0), ("d", 13, 4.0), ("e", 14, 5.0), ("f", 7, 1.0)):
        assert torch.equal(stored_states(memory, owner), factor * STATES[:, :length])
    assert memory.reserve("c", 1).slab.capacity == 4 * MIN_ROW_POSITIONS


def test_what_is_given_up_is_wiped() -> None:
    memory = KVCache()
    fill(memory, "a", 10, float("nan"))
    fill(memory, "b", 5, 1.0)
    slab = memory.reserve("b", 1).slab
    memory.release("a")
    assert bool(slab.layers[0].isfinite().all())
    assert torch.equal(stored_states(memory, "b"), STATES[:, :5])
    memory.release("b")
    assert slab.layers == {}
