"""Statistics of adapters: what the formulas of the papers say of them, token by token, and that the base stays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from registry.adapters import AdapterModule, attached, create, from_tensors, paper_config
from registry.adapters.moments import measured_weights, unpacked
from registry.adapters.weights import load_tensors, save_tensors
from registry.base_model import LoadedBase
from registry.base_model.likelihood import hidden_states, lm_logits
from registry.blobs import LocalBlobs
from registry.errors import Cancelled, InvalidSample
from registry.names import sha256_digest
from registry.progress import silent
from registry.spec import (
    AdapterConfig,
    BaseEntry,
    BlobPlace,
    LoraConfig,
    LoraModule,
    MeasuredStatistic,
    StatisticRequest,
    StoredAdapter,
)
from tests.tiny_models import TINY_SENTENCES
from tests.training.conftest import state_hash
from training.gradient_worker import GradientSetup, StatisticTask, begin
from training.statistics import drawn, measure

ON_BASES = ("gpt2", "llama")
TEXTS = tuple(TINY_SENTENCES[:3])
BLOB = sha256_digest(b"adapter")


def configs(base: LoadedBase) -> dict[str, AdapterConfig]:
    paths = [
        path for path in base.shape.linears if path.endswith(("c_attn", "c_proj", "q_proj", "down_proj", "lm_head"))
    ]
    return {
        **{name: paper_config(name, bottleneck=4) for name in ("bapna_firat", "houlsby", "parallel")},
        "lora": LoraConfig.of({path: LoraModule(2, 4.0) for path in paths}),
    }


def tensors_of(base: LoadedBase, config: AdapterConfig) -> dict[str, Tensor]:
    """As of a trained adapter: nothing is zero."""
    draw = torch.Generator().manual_seed(0)
    start = create(config, base.shape, seed=0, init="linear", base=base.model).state_dict()
    return {name: tensor + 0.1 * torch.randn(tensor.shape, generator=draw) for name, tensor in start.items()}


def measured(
    base: LoadedBase, config: AdapterConfig, kind: str, *, progress=lambda *_: None, load=None, **fields: object
) -> tuple[MeasuredStatistic, dict[str, Tensor]]:
    kept: dict[str, Tensor] = {}

    def keep(tensors: Mapping[str, Tensor]) -> str:
        kept.update(tensors)
        return sha256_digest(b"kept")

    given = {"kind": kind, "adapter": StoredAdapter(config=config, blob=BLOB), "texts": TEXTS, "max_tokens": 24}
    asked = StatisticRequest.model_validate({**given, **fields})
    return measure(base, asked, load or (lambda _: tensors_of(base, config)), keep, progress=progress), kept


def rows_of(base: LoadedBase) -> list[Tensor]:
    return [torch.tensor([base.tokenize(text)[:24]]) for text in TEXTS]


def attach(base: LoadedBase, config: AdapterConfig) -> AdapterModule:
    return from_tensors(config, base.shape, tensors_of(base, config))


def test_tokens_are_drawn_as_the_base_predicts_them(base: LoadedBase) -> None:
    """So that the mean of their squared slopes is the expectation that the paper means."""
    draw, draws = torch.Generator().manual_seed(5), 400
    states = 20 * torch.randn(4, base.shape.hidden_size, generator=draw)
    with torch.no_grad():
        chances = lm_logits(base.model, states).softmax(-1)
    seen = (
        torch.nn.functional.one_hot(torch.stack([drawn(base, states, draw) for _ in range(draws)]), chances.shape[1])
        .double()
        .mean(0)
    )
    assert chances.max() > 0.05
    assert ((seen - chances).abs() < 5 * (chances / draws).sqrt() + 2 / draws).all()


@pytest.mark.parametrize("structure", ["bapna_firat", "lora"])
def test_fisher_is_of_the_drawn_tokens_and_of_each_passage_by_itself(base: LoadedBase, structure: str) -> None:
    config = configs(base)[structure]
    found, kept = measured(base, config, "fisher", seed=5)
    adapter, draw = attach(base, config), torch.Generator().manual_seed(5)
    values = dict(adapter.named_parameters())
    sums = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in values.items()}
    with attached(base.model, adapter):
        for ids in rows_of(base):
            states = hidden_states(base.model, ids, torch.ones_like(ids))[0, :-1]
            tokens = drawn(base, states.detach(), draw)
            loss = torch.nn.functional.cross_entropy(lm_logits(base.model, states), tokens, reduction="sum")
            for name, slope in zip(values, torch.autograd.grad(loss, list(values.values())), strict=True):
                sums[name] += slope.double().square()
    assert found.tokens == sum(ids.shape[1] - 1 for ids in rows_of(base))
    assert found.passages == 3
    assert kept.keys() == sums.keys()
    for name, tensor in kept.items():
        assert torch.allclose(tensor.double(), sums[name] / found.tokens, rtol=1e-3, atol=1e-12), name


@pytest.mark.parametrize("structure", ["bapna_firat", "houlsby", "parallel", "lora"])
def test_inputs_are_the_second_moments_of_what_projections_read(base: LoadedBase, structure: str) -> None:
    config = configs(base)[structure]
    found, kept = measured(base, config, "inputs")
    adapter = attach(base, config)
    names = measured_weights(config, dict(adapter.named_parameters()))
    assert list(kept) == names
    assert all(name.endswith((".down.weight", ".up.weight", ".lora_A.weight")) for name in names)
    read: dict[str, list[Tensor]] = {name: [] for name in names}
    real = torch.nn.functional.linear

    def watched(x, weight, bias=None):
        for name, value in adapter.named_parameters():
            if value is weight and name in read:
                read[name].append(x.reshape(-1, x.shape[-1]).double())
        return real(x, weight, bias)

    with torch.no_grad(), pytest.MonkeyPatch.context() as patch, attached(base.model, adapter):
        patch.setattr(torch.nn.functional, "linear", watched)
        for ids in rows_of(base):
            lm_logits(base.model, hidden_states(base.model, ids, torch.ones_like(ids)))
    for name in names:
        seen = torch.cat(read[name])
        assert len(seen) == sum(ids.shape[1] for ids in rows_of(base))
        wanted = (seen.T @ seen / len(seen)).numpy()
        assert np.allclose(unpacked(kept[name], wanted.shape[0]), wanted, rtol=1e-4, atol=1e-6), name
    assert found.passages == len(TEXTS)


def test_a_process_that_computes_one_leaves_it_to_its_parent_to_store(
    gpt2: LoadedBase, base_entry: Callable[[str], BaseEntry], tmp_path: Path
) -> None:
    """One that is ended after it has computed, and before it is heard, has stored nothing that nobody knows of."""
    config = configs(gpt2)["lora"]
    blobs = LocalBlobs(tmp_path / "blobs")
    adapter = StoredAdapter(config=config, blob=blobs.put_bytes(save_tensors(tensors_of(gpt2, config))))
    setup = GradientSetup(entry=base_entry("gpt2"), cache=tmp_path / "cache", blobs=BlobPlace(folder=blobs.folder))
    asked = StatisticRequest(kind="inputs", adapter=adapter, texts=TEXTS)
    with blobs.scratch() as file:
        task = StatisticTask(request=asked, file=file)
        answer = begin(setup.model_dump(mode="json"))(task.model_dump(mode="json"), silent)
        assert list(blobs.digests()) == [adapter.blob]
        assert sha256_digest(file.read_bytes()) == MeasuredStatistic.model_validate(answer).blob
        found = load_tensors(file.read_bytes())
    assert list(found) == sorted(measured(gpt2, config, "inputs", max_tokens=asked.max_tokens)[1])
    assert not file.exists()


@pytest.mark.parametrize("kind", ["fisher", "inputs"])
def test_the_base_is_as_it_was_and_what_is_wrong_is_told(gpt2: LoadedBase, kind: str) -> None:
    config = configs(gpt2)["bapna_firat"]
    before = state_hash(gpt2.model)
    first, second = measured(gpt2, config, kind)[1], measured(gpt2, config, kind)[1]
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
    broken = {name: torch.full_like(tensor, float("inf")) for name, tensor in tensors_of(gpt2, config).items()}
    with pytest.raises(InvalidSample, match="NaN or infinity"):
        measured(gpt2, config, kind, load=lambda _: broken)
    with pytest.raises(InvalidSample, match="no token"):
        measured(gpt2, config, kind, texts=("",))

    def stop(done: int, _total: int, message: str) -> None:
        assert message == "computing the statistics"
        if done == 1:
            raise Cancelled("Enough.")

    with pytest.raises(Cancelled):
        measured(gpt2, config, kind, progress=stop)
    assert state_hash(gpt2.model) == before
    measured(gpt2, config, kind)  # nothing is attached any more
