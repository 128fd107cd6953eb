"""Push and cook with the structures beside bottleneck and LoRA: what is stored, averaged and left out."""

from __future__ import annotations

import pytest
import torch

from registry.adapters import create
from registry.adapters.weights import adapter_digest, load_tensors, save_tensors
from registry.spec import (
    AdapterConfig,
    AverageMixing,
    FusionConfig,
    HeadConfig,
    PrefixConfig,
    UnionConfig,
)
from tests.registry.toy_registry import (
    CONFIG,
    LORA,
    SHAPE,
    WEIGHTS,
    ToyRegistry,
    by_hand,
    inline,
    passages,
    sample,
    weights,
)

ON_DATABASES = ("sqlite",)  # they ask a catalogue nothing that pushes and cooks do not
PREFIX = PrefixConfig(length=3)
HEAD = HeadConfig(task="classification", labels=("no", "yes"))
MAM = UnionConfig(members=(PREFIX, CONFIG.model_copy(update={"structure": "parallel", "scale": 4.0})))
TASK = UnionConfig(members=(CONFIG, HEAD))
LORA_MAM = UnionConfig(members=(PREFIX, LORA))
FUSION = FusionConfig(member=CONFIG, members=2)
ALL: dict[str, AdapterConfig] = {
    "prefix": PREFIX, "head": HEAD, "mam": MAM, "task": TASK, "fusion": FUSION,
    "lora + prefix": LORA_MAM,
}  # fmt: skip


@pytest.mark.parametrize("name", ALL)
def test_it_is_stored_with_its_configuration_and_digest_and_alone_it_is_itself(verbs: ToyRegistry, name: str) -> None:
    config = ALL[name]
    row = verbs.push("acme/one", config=config, seed=1).row
    assert row.config == config
    tensors = load_tensors(weights(1, config))
    assert row.digest == adapter_digest(SHAPE.fingerprint, config, tensors)
    assert row.parameters == sum(tensor.numel() for tensor in tensors.values())
    assert not verbs.push("acme/one", config=config, seed=1).created
    cooked = verbs.cook(recipe=by_hand("acme/one"))
    assert (cooked.model, cooked.created) == ("acme/one@1", False)


@pytest.mark.parametrize("name", ["prefix", "head", "mam", "task"])
def test_two_of_one_start_are_averaged(verbs: ToyRegistry, name: str) -> None:
    for seed, ref in enumerate(("acme/a", "acme/b")):
        verbs.push(ref, config=ALL[name], seed=seed)
    cooked = verbs.cook(recipe=by_hand("acme/a", "acme/b"), name="acme/both")
    assert cooked.recipe is not None
    assert cooked.recipe.mixing == AverageMixing()
    row = verbs.row(cooked.soup_id)
    assert (row.config, row.kind, row.provenance.init_source) == (ALL[name], "soup", "declared")
    one, two = (load_tensors(weights(seed, ALL[name])) for seed in (0, 1))
    for key, tensor in load_tensors(verbs.blobs.read(row.weights_blob)).items():
        torch.testing.assert_close(tensor, (one[key] + two[key]) / 2)


def test_a_pool_of_many_kinds_gives_a_soup_of_one(verbs: ToyRegistry) -> None:
    for seed, (domain, config) in enumerate({"law": MAM, "code": MAM, "zoo": PREFIX, "sea": FUSION}.items()):
        verbs.ready(f"acme/{domain}", seed=seed, config=config)
    texts = sample("law", "code", "zoo", "sea", count=9)["texts"] + passages("law", 6, seed=8)
    selection = verbs.cook(sample={"texts": texts}).evidence.selection
    assert selection is not None
    assert {domain.domain for domain in selection.selected} == {"law", "code"}
    reasons = {domain.domain: domain.reason for domain in selection.left_out}
    assert set(reasons) == {"zoo", "sea"}
    assert all("Cannot be mixed with acme/law@1: The methods differ" in reason for reason in reasons.values())


def test_the_configuration_of_peft_is_taken_as_it_is(verbs: ToyRegistry) -> None:
    said = {"peft_type": "PREFIX_TUNING", "task_type": "CAUSAL_LM", "num_virtual_tokens": 3}
    files = {WEIGHTS: inline(save_tensors(create(PREFIX, SHAPE, seed=0, init="linear").state_dict()))}
    row = verbs.push("acme/prefix", config=None, files=files, peft_config=said).row
    assert row.config == PREFIX
    assert row.digest == verbs.push("acme/other", config=PREFIX, files=files).row.digest
