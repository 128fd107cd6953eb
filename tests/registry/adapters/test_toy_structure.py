"""A structure that nobody knows, from push to soup: what it needs is its configuration, its module and one entry.

`shift` adds a trained vector to the output of every feed-forward module. Nothing in `registry` is written for it: the
two places that list structures, `STRUCTURES` and the union of configurations, are given it for the test.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

import pytest
import torch
from pydantic import Field, TypeAdapter
from torch import nn

from registry.adapters import STRUCTURES, AdapterModule, StructureEntry
from registry.adapters.attach import Edit
from registry.adapters.mixture import Constant
from registry.adapters.sites import layer_sites
from registry.adapters.weights import adapter_digest, load_tensors
from registry.catalogue import adapters, listing
from registry.errors import Incompatible
from registry.push import push
from registry.spec import AdapterConfig, AverageMixing, BaseShape, ConcatMixing, FileSource, Pruned
from registry.spec.structures.structure import Structure
from tests.registry.toy_registry import (
    CONFIG,
    SHAPE,
    WEIGHTS,
    ToyRegistry,
    by_hand,
    inline,
    passages,
    weights,
)

ON_DATABASES = ("sqlite",)  # whatever they ask a catalogue, `test_cook` asks one of each kind


class ShiftConfig(Structure):
    """A vector for each layer."""

    method: Literal["shift"] = "shift"
    strength: float = 1.0

    no_exact_mixture: ClassVar[str | None] = None


class ShiftAdapter(AdapterModule):
    """The vectors of all layers, (layers, hidden)."""

    config: ShiftConfig

    def __init__(self, config: ShiftConfig, shape: BaseShape) -> None:
        super().__init__()
        self.config, self.sizes = config, (shape.num_layers, shape.hidden_size)
        self.shift = nn.Parameter(torch.empty(self.sizes, device="meta"))

    def edits(self, model: nn.Module) -> Iterator[tuple[nn.Module, Edit]]:
        for sites, shift in zip(layer_sites(model), self.shift, strict=True):
            yield sites.ffn, lambda _module, _source, hidden, shift=shift: hidden + self.config.strength * shift


ENTRY = StructureEntry(
    name="shift",
    paper="none, 2026",
    build=ShiftAdapter,
    initial=lambda _config, shapes, **_: {name: torch.zeros(size) for name, size in shapes.items()},
    mixture=lambda _config, _shape: Constant(0.0),
)
SHIFT = ShiftConfig()
UNION = Annotated[ShiftConfig | AdapterConfig, Field(union_mode="left_to_right")]


@pytest.fixture(autouse=True)
def shift_structure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STRUCTURES, "shift", ENTRY)
    for module in (adapters, listing):
        monkeypatch.setattr(module, "CONFIG", TypeAdapter(UNION))


@pytest.fixture
def shifts(verbs: ToyRegistry) -> ToyRegistry:
    """A registry with two shifts of one start, and a bottleneck."""
    for seed, domain in enumerate(("law", "code")):
        pushed(verbs, domain, seed=seed)
    verbs.ready("acme/zoo", seed=2, text="zoo")
    return verbs


def pushed(verbs: ToyRegistry, domain: str, *, seed: int, config: ShiftConfig = SHIFT, **fields: object):
    manifest = verbs.manifest(f"acme/{domain}", sample={"texts": passages(domain)}, **fields)
    files = {WEIGHTS: FileSource(**inline(weights(seed, config)))}
    row = push(verbs.registry, verbs.caller(), manifest.model_copy(update={"config": config, "files": files})).row
    return verbs.embed(row)


def test_it_is_pushed_with_its_configuration_and_digest(shifts: ToyRegistry) -> None:
    row = shifts.row(1)
    assert (row.config, shifts.row(3).config) == (SHIFT, CONFIG)
    assert row.parameters == SHAPE.num_layers * SHAPE.hidden_size
    assert row.digest == adapter_digest(SHAPE.fingerprint, SHIFT, load_tensors(weights(0, SHIFT)))
    with pytest.raises(Incompatible, match="those of this configuration's shift adapter on this base"):
        push(shifts.registry, shifts.caller(), shifts.manifest("acme/bad").model_copy(update={"config": SHIFT}))


def test_two_are_averaged_and_the_average_is_exact(shifts: ToyRegistry) -> None:
    cooked = shifts.cook(recipe=by_hand("acme/law", "acme/code"), name="acme/both")
    assert cooked.recipe.mixing == AverageMixing()
    assert (cooked.report.residual, cooked.report.relative_cost, cooked.report.width_in) == (0.0, 1.0, (0, 0))
    row = shifts.row(cooked.soup_id)
    average = load_tensors(shifts.blobs.read(row.weights_blob))["shift"]
    first, second = (load_tensors(weights(seed, SHIFT))["shift"] for seed in (0, 1))
    torch.testing.assert_close(average, (first + second) / 2)
    assert row.config == SHIFT


def test_a_sample_selects_those_that_mix(shifts: ToyRegistry) -> None:
    texts = [text for domain in ("law", "code", "zoo") for text in passages(domain, 9, seed=7)]
    cooked = shifts.cook(sample={"texts": [*texts, *passages("law", 6, seed=8)]})
    assert {candidate.domain for candidate in cooked.evidence.selection.selected} == {"law", "code"}
    (out,) = [candidate for candidate in cooked.evidence.selection.left_out if candidate.domain == "zoo"]
    assert "The methods differ: acme/law@1 has shift; acme/zoo@1 has bottleneck." in out.reason


def test_it_is_refused_what_it_cannot_do(shifts: ToyRegistry) -> None:
    both = by_hand("acme/law", "acme/code")
    with pytest.raises(Incompatible, match="side by side as one adapter, and acme/law@1 is a shift"):
        shifts.cook(recipe=both, mixing=ConcatMixing().model_dump())
    with pytest.raises(Incompatible, match=r"not all of acme/law@1 goes through one"):
        shifts.cook(recipe=both, mixing={"method": "average", "scale": 0.5})
    assert SHIFT.with_pruned({"": Pruned(score="snip", sparsity=0.5, masked=8)}) == SHIFT
    assert SHIFT.widened(2) is None
    assert SHIFT.is_language_model
