"""Several base models in one engine under one memory budget: who is loaded, who has to go, and that memory is free."""

from __future__ import annotations

import gc
import shutil
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from registry.adapters import create, paper_config
from registry.base_model import BaseText, LoadedBase, load_base, load_text, weight_bytes
from registry.errors import NotFound, SoupError, Unavailable
from registry.spec import BaseEntry
from service.engine import EngineLimits, GenerateRequest, LoadableAdapter, SamplingParams, ScoreRequest, Ticket
from service.engine.engine import Engine
from service.engine.runner_check import checked_runner
from tests.service.cluster import until
from tests.service.engine.stepping import answered, ended, run, started
from tests.service.loaded_bases import LoadedBases
from tests.tiny_models import build_tiny_base

pytestmark = pytest.mark.slow

CONFIG = paper_config("bapna_firat", bottleneck=4)
SIZE = 2 * 4 * (2 * 4 * 32 + 4 + 32 + 2 * 32)
"""Bytes of an adapter of it, two layers on a base that is 32 wide: D, U, their biases, a LayerNorm."""
KINDS = {"a": ("gpt2", 300), "b": ("llama", 290), "c": ("qwen2", 280)}


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, BaseEntry]:
    """Three small base models of different families and vocabularies."""
    folder = tmp_path_factory.mktemp("several")
    return {
        name: BaseEntry(id=name, source=str(build_tiny_base(folder / name, model_type=kind, vocab_size=size)))
        for name, (kind, size) in KINDS.items()
    }


@dataclass
class Source:
    """Loads models anew each time, as the runtime's does, and remembers them only weakly. Every base is of size 10."""

    entries: dict[str, BaseEntry]
    sizes: dict[str, int] = field(default_factory=dict)
    models: list[weakref.ref[Any]] = field(default_factory=list)
    texts: dict[str, BaseText] = field(default_factory=dict)
    loads: list[str] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)
    gate: threading.Event | None = None
    loading: threading.Event = field(default_factory=threading.Event)

    def text(self, base_id: str) -> BaseText:
        if base_id not in self.entries:
            raise NotFound(f"There is no base model {base_id!r} here.")
        if base_id not in self.texts:  # the engine asks at every step
            self.texts[base_id] = load_text(self.entries[base_id])
        return self.texts[base_id]

    def size(self, base_id: str) -> int:
        return self.sizes.get(base_id, 10)

    def load(self, base_id: str) -> LoadedBase:
        self.loads.append(base_id)
        self.loading.set()
        if self.gate is not None:
            assert self.gate.wait(20)
        if base_id in self.broken:
            raise Unavailable(f"{base_id} is broken")
        base = load_base(self.entries[base_id])
        self.models.append(weakref.ref(base.model))
        return base

    def alive(self) -> int:
        """Models somebody still refers to."""
        gc.collect()
        return sum(model() is not None for model in self.models)


@pytest.fixture
def source(entries: dict[str, BaseEntry]) -> Source:
    return Source(entries)


@pytest.fixture(scope="module")
def once(entries: dict[str, BaseEntry]) -> LoadedBases:
    """A source whose loads cost nothing."""
    return LoadedBases({base_id: load_base(entry) for base_id, entry in entries.items()}, bytes=10)


def request(base_id: str, tokens: int = 3, adapter: LoadableAdapter | None = None) -> GenerateRequest:
    return GenerateRequest(base_id, (0, 5, 9), adapter, SamplingParams(max_tokens=tokens, temperature=0.0))


def handle_of(source: Source | LoadedBases, base_id: str, seed: int = 1, value: float | None = None) -> LoadableAdapter:
    shape = source.text(base_id).shape

    def load() -> dict[str, Tensor]:
        state = create(CONFIG, shape, seed=seed).state_dict()
        return {name: torch.full_like(t, value) if value is not None else t for name, t in state.items()}

    return LoadableAdapter(f"sha256:{base_id}{seed}", CONFIG, load, SIZE)


def wide_handle_of(source: Source, base_id: str, bottleneck: int) -> LoadableAdapter:
    config = paper_config("bapna_firat", bottleneck=bottleneck)
    state = create(config, source.text(base_id).shape, seed=1).state_dict()
    size = sum(4 * tensor.numel() for tensor in state.values())
    return LoadableAdapter(f"sha256:{base_id}{bottleneck}", config, lambda: state, size)


def answered_beside(engine: Engine, generation: GenerateRequest) -> bool:
    """Step the engine, and other requests with it, until this one is answered; true where it has an answer."""
    ticket = engine.submit(generation)
    while not ticket.done():
        engine.step()
    return bool(ticket.result(0))


# --- the budget -----------------------------------------------------------------------------------


def test_the_least_recently_used_goes_and_its_memory_is_free(source: Source) -> None:
    engine = Engine(source, EngineLimits(memory_bytes=20))
    for base_id in "aba":
        ended(engine, request(base_id))
    ended(engine, request("c"))
    assert engine.loaded_bases() == ("a", "c")
    assert source.alive() == 2
    assert engine.counters()["base_bytes"] == 20


def test_none_is_dropped_under_rows_that_generate(source: Source) -> None:
    engine = Engine(source, EngineLimits(memory_bytes=10))
    first = engine.submit(request("a", 30))
    engine.step()
    second = engine.submit(request("b"))
    while not first.done():
        assert engine.step()
        assert source.loads == ["a"]
    run(engine)
    assert second.done()
    assert (source.loads, source.alive()) == (["a", "b"], 1)


def test_who_comes_first_is_served_first_however_many_come_later(source: Source) -> None:
    """A stream of requests for the base that is held cannot keep another waiting for ever."""
    engine = Engine(source, EngineLimits(memory_bytes=10, max_running=2))
    engine.submit(request("a", 20))
    engine.step()
    waiting = engine.submit(request("b"))
    later: list[Ticket] = []
    for _ in range(100):
        if waiting.done():
            break
        later.append(engine.submit(request("a", 20)))
        engine.step()
    assert waiting.done()
    run(engine)
    assert all(ticket.done() for ticket in later)
    assert source.loads == ["a", "b", "a"], "two switches, not one for each request"


def test_what_fits_together_runs_together(source: Source) -> None:
    source.sizes |= {"a": 5, "b": 5}
    engine = Engine(source, EngineLimits(memory_bytes=10))
    tickets = [engine.submit(request(base_id, 8)) for base_id in "acb"]
    for _ in range(30):
        engine.step()
    assert [ticket.done() for ticket in tickets] == [True, True, True]
    assert source.loads == ["a", "b", "c"], "b beside a, c when both have ended"


def test_scores_need_no_place_between_their_batches(source: Source) -> None:
    engine = Engine(source, EngineLimits(memory_bytes=10, max_step_tokens=4))
    windows = tuple((0, 1, 2, 3) for _ in range(6))
    scores = answered(engine, *(ScoreRequest(base_id, windows) for base_id in "ab"))
    assert [len(score.nll) for score in scores] == [6, 6]


# --- freeing --------------------------------------------------------------------------------------


def switched(source: Source, engine: Engine) -> int:
    """Models alive after another base took the place."""
    ended(engine, request("b"))
    assert engine.loaded_bases() == ("b",)
    return source.alive()


def test_answers_and_drafts_keep_no_model(source: Source) -> None:
    engine = Engine(source, EngineLimits(memory_bytes=10))
    text = engine.base("a")
    tickets = ended(engine, request("a"), ScoreRequest("a", ((0, 1, 2),), pooled=frozenset({0})))
    assert switched(source, engine) == 1
    assert all(ticket.result(0) for ticket in tickets)
    assert text.tokenize("still here")


def test_errors_keep_no_model(source: Source) -> None:
    engine = Engine(source, EngineLimits(memory_bytes=100_000))
    source.sizes |= {"a": 60_000, "b": 60_000}
    [failed] = ended(engine, request("a", adapter=handle_of(source, "a", value=float("nan"))))
    error = failed.exception(0)
    assert isinstance(error, SoupError), error
    assert switched(source, engine) == 1


def test_a_cancelled_generation_keeps_no_model(source: Source) -> None:
    engine = Engine(source, EngineLimits(memory_bytes=10))
    ticket = engine.submit(request("a", 40))
    for _ in range(4):
        engine.step()
    ticket.cancel()
    assert switched(source, engine) == 1


def test_its_adapters_leave_with_it(source: Source) -> None:
    source.sizes |= {"a": 60_000, "b": 60_000}
    engine = Engine(source, EngineLimits(memory_bytes=100_000))
    ended(engine, request("a", adapter=handle_of(source, "a")))
    assert engine.counters()["adapters_held"] == 1
    ended(engine, request("b"))
    figures = engine.counters()
    assert (figures["adapters_held"], figures["adapter_bytes"]) == (0, 0)


# --- adapters -------------------------------------------------------------------------------------


def test_adapters_get_what_the_bases_leave(source: Source) -> None:
    engine = Engine(source, EngineLimits(memory_bytes=10 + 2 * SIZE))
    for seed in range(4):
        ended(engine, request("a", adapter=handle_of(source, "a", seed)))
        assert engine.counters()["adapter_bytes"] <= 2 * SIZE
    assert engine.counters()["adapters_held"] == 2
    ended(engine, request("b"))
    assert engine.counters()["adapters_held"] == 1, "the other base took a part of their room"
    assert engine.loaded_bases() == ("a", "b")


def test_an_idle_base_makes_room_for_an_adapter(source: Source) -> None:
    engine = Engine(source, EngineLimits(memory_bytes=10 + SIZE))
    source.sizes |= {"a": 10, "b": SIZE}
    for base_id in "ab":
        ended(engine, request(base_id))
    assert engine.loaded_bases() == ("a", "b")
    [ticket] = ended(engine, request("a", adapter=handle_of(source, "a")))
    assert ticket.result(0)
    assert engine.loaded_bases() == ("a",)
    assert source.alive() == 1


@example([("c", 2, 1, 0), ("c", 2, 2, 1), ("a", 0, None, 1)], 10 + 2 * SIZE)  # two adapters in use leave no room
@example([("a", 6, 1, 0), ("b", 6, 1, 2), ("c", 0, None, 2)], 25 + 2 * SIZE)  # each on its own base model
@example(  # two bases fit, but not with an adapter: neither fails because somebody uses the other base
    [(base_id, 9, seed, steps) for number in range(3) for base_id in "ab" for seed, steps in ((None, 0), (1, number))],
    19 + SIZE,
)
@settings(max_examples=8)
@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(0, 6), st.sampled_from([None, 1, 2]), st.integers(0, 3)),
        max_size=12,
    ),
    st.sampled_from([10 + SIZE, 19 + SIZE, 20 + SIZE, 10 + 2 * SIZE]),
)
def test_every_request_ends_well_where_each_alone_would(
    once: LoadedBases, script: list[tuple[str, int, int | None, int]], budget: int
) -> None:
    engine = Engine(once, EngineLimits(memory_bytes=budget, max_running=3))
    tickets = []
    for base_id, tokens, seed, steps in script:
        adapter = None if seed is None else handle_of(once, base_id, seed)
        tickets.append(engine.submit(request(base_id, tokens, adapter)))
        for _ in range(steps):
            engine.step()
            figures = engine.counters()
            assert figures["base_bytes"] == 10 * len(engine.loaded_bases())
            assert figures["base_bytes"] + figures["adapter_bytes"] <= budget
    run(engine)
    assert all(ticket.result(0) for ticket in tickets)


def test_a_base_that_comes_takes_no_adapter_away_that_is_in_use(source: Source) -> None:
    engine = Engine(source, EngineLimits(memory_bytes=20 + SIZE - 1))
    running = engine.submit(request("a", 20, handle_of(source, "a")))
    engine.step()
    coming = engine.submit(request("b"))
    while not running.done():
        assert engine.step()
        assert source.loads == ["a"]
    run(engine)
    assert running.result(0)
    assert coming.result(0)
    assert engine.counters()["adapter_loads_total"] == 1


def test_adapters_of_two_bases_that_do_not_fit_together_are_loaded_once_each(source: Source) -> None:
    """Their files, in half precision, would fit: running beside each other they would evict each other."""
    handles = [replace(handle_of(source, base_id), size_bytes=SIZE // 2) for base_id in "ab"]
    engine = Engine(source, EngineLimits(adapter_cache_bytes=2 * SIZE - 1))
    answered(engine, *(request(base_id, 8, handle) for base_id, handle in zip("ab", handles, strict=True)))
    assert engine.counters()["adapter_loads_total"] == 2


def test_an_adapter_that_is_loaded_evicts_none_of_a_running_request(source: Source) -> None:
    """Another one, used later and no longer, is evicted for it."""
    engine = Engine(source, EngineLimits(adapter_cache_bytes=2 * SIZE))
    running = engine.submit(request("a", 30, handle_of(source, "a")))
    engine.step()
    assert answered_beside(engine, request("b", 1, handle_of(source, "b", 1)))
    assert answered_beside(engine, request("b", 1, handle_of(source, "b", 2)))
    assert not running.done()
    run(engine)
    assert engine.counters()["adapter_loads_total"] == 3


def test_an_adapter_loaded_for_a_base_that_may_not_start_holds_up_no_other(source: Source) -> None:
    """`a` waits with a large adapter, which was loaded while `a` was served, until the older request to `b` ends.

    The two adapters do not fit into the memory for adapters together.
    """
    large = wide_handle_of(source, "a", 8)
    small = wide_handle_of(source, "b", 4)
    limits = EngineLimits(
        memory_bytes=20_000 + small.size_bytes,
        adapter_cache_bytes=large.size_bytes + small.size_bytes - 1,
        max_running=1,
    )
    source.sizes |= {"a": 10_000, "b": 10_000}
    engine = Engine(source, limits)
    loaded = threading.Event()
    first = engine.submit(request("a", 40))
    waiting = engine.submit(request("b", adapter=small))
    last = engine.submit(request("a", adapter=replace(large, load=lambda: loaded.set() or large.load())))
    with started(engine):
        assert first.result(20)
        assert loaded.wait(20), "beside the tokens of the first"
        assert waiting.result(20)
        assert last.result(20)


def test_an_adapter_without_any_room_is_refused_with_the_numbers(source: Source) -> None:
    engine = Engine(source, EngineLimits(memory_bytes=11))
    [ticket] = ended(engine, request("a", adapter=handle_of(source, "a")))
    with pytest.raises(Unavailable, match=rf"takes {SIZE} bytes, and .* take 10 of the 11 bytes"):
        ticket.result(0)
    assert engine.counters()["adapter_bytes"] == 0


# --- loading --------------------------------------------------------------------------------------


def test_without_a_budget_bases_load_at_their_first_use_and_stay(source: Source) -> None:
    engine = Engine(source)
    for base_id in "abcabc":
        ended(engine, request(base_id))
    assert source.loads == ["a", "b", "c"]
    assert engine.loaded_bases() == ("a", "b", "c")
    figures = engine.counters()
    assert (figures["bases_held"], figures["base_bytes"], figures["base_loads_total"]) == (3, 30, 3)


def test_others_go_on_while_one_is_loaded(source: Source) -> None:
    engine = Engine(source)
    ended(engine, request("a"))
    with started(engine):
        source.gate = threading.Event()
        slow = engine.submit(request("b"))
        assert source.loading.wait(20)
        assert engine.submit(request("a")).result(20)
        assert not slow.done()
        source.gate.set()
        assert slow.result(20)


def test_a_request_may_be_cancelled_while_its_base_is_loaded(source: Source) -> None:
    with started(Engine(source)) as engine:
        source.gate = threading.Event()
        slow = engine.submit(request("b"))
        assert source.loading.wait(20)
        slow.cancel()
        until(lambda: not engine.counters()["requests"], "an empty queue although nothing was loaded")
        source.gate.set()


def test_what_cannot_be_loaded_fails_its_requests_only_and_is_tried_again(source: Source) -> None:
    source.broken = {"b"}
    engine = Engine(source, EngineLimits(memory_bytes=20))
    tickets = ended(engine, *(request(base_id) for base_id in "abba"))
    assert [ticket.exception(0) is None for ticket in tickets] == [True, False, False, True]
    assert engine.counters()["base_bytes"] == 10, "what a failed load was given is free again"
    source.broken = set()
    [retried] = ended(engine, request("b"))
    assert retried.result(0)


def test_an_error_of_foreign_code_is_told_without_its_details(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "load", lambda _: [][0])
    [ticket] = ended(Engine(source), request("a"))
    with pytest.raises(Unavailable, match=r"'a' cannot be loaded \(IndexError\)"):
        ticket.result(0)


def test_preload_takes_as_many_as_fit_in_order(source: Source) -> None:
    source.sizes |= {"a": 10, "b": 15, "c": 5}
    engine = Engine(source, EngineLimits(memory_bytes=16))
    engine.start(["a", "b", "c"]).result(20)
    engine.stop(drain=0)
    assert (source.loads, engine.loaded_bases()) == (["a", "c"], ("a", "c"))


def test_stopping_while_a_base_is_loaded_ends_its_requests(source: Source) -> None:
    engine = Engine(source)
    engine.start()
    source.gate = threading.Event()
    slow = engine.submit(request("b"))
    assert source.loading.wait(20)
    engine.stop(drain=0)
    with pytest.raises(Unavailable, match="shutting down"):
        slow.result(20)
    source.gate.set()
    for thread in threading.enumerate():
        if thread.name == "load-b":
            thread.join(20)


# --- sizes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "each"), [("float32", 4), ("bfloat16", 2)])
def test_bytes_are_known_before_loading(entries: dict[str, BaseEntry], dtype: str, each: int) -> None:
    for entry in entries.values():
        entry = entry.model_copy(update={"dtype": dtype})
        assert weight_bytes(entry) == each * sum(p.numel() for p in load_base(entry).model.parameters())


def test_several_files_count_together(entries: dict[str, BaseEntry], tmp_path: Path) -> None:
    load_base(entries["b"]).model.save_pretrained(tmp_path / "cut", max_shard_size="10KB")
    assert len(list((tmp_path / "cut").glob("*.safetensors"))) > 1
    cut = entries["b"].model_copy(update={"source": str(tmp_path / "cut")})
    assert weight_bytes(cut) == weight_bytes(entries["b"])


def test_what_is_in_the_files_and_not_in_the_model_does_not_count(
    entries: dict[str, BaseEntry], tmp_path: Path
) -> None:
    """Masks that GPT-2's files hold, and an output layer that is the embeddings once more."""
    folder = shutil.copytree(entries["a"].source, tmp_path / "more")
    entry = entries["a"].model_copy(update={"source": str(folder)})
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"].clone()
    tensors["transformer.h.0.attn.bias"] = torch.ones(1, 1, 64, 64)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert weight_bytes(entry) == 4 * sum(p.numel() for p in load_base(entry).model.parameters())
    assert weight_bytes(entry) == weight_bytes(entries["a"])


@pytest.mark.skipif(sys.platform != "linux", reason="/proc and glibc")
def test_memory_of_what_is_dropped_goes_back_to_the_system() -> None:
    """Not only to the C library, which keeps what lies below something that is in use."""
    program = """
import torch
from pathlib import Path
from types import SimpleNamespace
from service.engine.base_cache import BaseCache

def mib():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

class Source:
    def size(self, base_id):
        return 10
    def load(self, base_id):
        return SimpleNamespace(weights=[torch.ones(4096) for _ in range(4000 if base_id == "large" else 1)])

cache = BaseCache(Source(), 10, lambda: None, lambda base: base)
cache.update({"large": 0}, frozenset(), background=False)
in_use, before = torch.ones(4096), mib()
cache.update({"small": 0}, frozenset(), background=False)
print(cache.loaded, before - mib() > 40)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "('small',) True\n"


RECURRENT = {
    "rwkv": {"hidden_size": 32, "num_hidden_layers": 2, "context_length": 64, "max_position_embeddings": 64},
    "jamba": {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 48,
        "max_position_embeddings": 64,
        "num_experts": 2,
        "attn_layer_offset": 1,
        "attn_layer_period": 2,
        "mamba_dt_rank": 4,
        "use_mamba_kernels": False,
    },
}


@pytest.mark.parametrize("family", RECURRENT)
@pytest.mark.filterwarnings("ignore")
def test_models_with_recurrent_states_are_refused_by_name(tmp_path: Path, family: str) -> None:
    folder = build_tiny_base(tmp_path / family, model_type=family, **RECURRENT[family])
    base = load_base(BaseEntry(id="r", source=str(folder)))
    with pytest.raises(Unavailable, match=rf"'r' \(family '{family}'\) cannot generate here"):
        checked_runner(base)


def test_weights_that_are_no_numbers_are_named_as_such(entries: dict[str, BaseEntry]) -> None:
    base = load_base(next(iter(entries.values())))
    base.model.get_input_embeddings().weight.data.fill_(float("nan"))
    with pytest.raises(Unavailable, match="not finite numbers: look at its weights"):
        checked_runner(base)


def test_models_are_built_one_at_a_time(entries: dict[str, BaseEntry]) -> None:
    """transformers replaces functions of the whole process while it loads: two at once could leave them replaced."""
    tied = transformers.PreTrainedModel.tie_weights
    with ThreadPoolExecutor(6) as pool:
        bases = list(pool.map(lambda number: load_base(entries["ac"[number % 2]]), range(12)))
    assert transformers.PreTrainedModel.tie_weights is tied
    for base in bases:
        assert base.model.lm_head.weight is base.model.get_input_embeddings().weight


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
