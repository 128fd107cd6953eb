"""Push and cook with the structures beside bottleneck and LoRA: what is stored, averaged, refused and told."""

from __future__ import annotations

import pytest
import torch

from registry.adapters import create
from registry.adapters.weights import adapter_digest, load_tensors, save_tensors
from registry.errors import Incompatible, InvalidManifest, InvalidWeights, SoupError, UnknownMethod
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
    OTHER_INIT,
    SHAPE,
    WEIGHTS,
    ToyRegistry,
    by_hand,
    inline,
    passages,
    sample,
    weights,
)

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


def prefix_file(length: int = 3) -> bytes:
    return save_tensors(create(PrefixConfig(length=length), SHAPE, seed=0, init="linear").state_dict())


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


def test_fusions_and_other_starts_are_refused_with_what_could_be_done(verbs: ToyRegistry) -> None:
    for seed, ref in enumerate(("acme/a", "acme/b")):
        verbs.push(ref, config=FUSION, seed=seed)
        verbs.push(f"{ref}-mam", config=MAM, seed=seed, provenance=OTHER_INIT if seed else {})
    with pytest.raises(Incompatible, match="is a fusion, whose attention was trained over members of its own"):
        verbs.cook(recipe=by_hand("acme/a", "acme/b"))
    with pytest.raises(Incompatible, match=r"Set mixing\.assume_same_init if you know"):
        verbs.cook(recipe=by_hand("acme/a-mam", "acme/b-mam"))


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


class TestPeft:
    SAID = {"peft_type": "PREFIX_TUNING", "task_type": "CAUSAL_LM", "num_virtual_tokens": 3}  # noqa: RUF012

    def push(self, verbs: ToyRegistry, said: dict[str, object], data: bytes):
        return verbs.push("acme/prefix", config=None, files={WEIGHTS: inline(data)}, peft_config=said)

    def test_its_configuration_is_taken_as_it_is(self, verbs: ToyRegistry) -> None:
        row = self.push(verbs, self.SAID, prefix_file()).row
        assert row.config == PREFIX
        same = verbs.push("acme/other", config=PREFIX, files={WEIGHTS: inline(prefix_file())}).row
        assert same.digest == row.digest

    def test_what_does_not_agree_is_refused(self, verbs: ToyRegistry) -> None:
        with pytest.raises(InvalidManifest, match="3 virtual tokens in the weights and 4"):
            self.push(verbs, self.SAID | {"num_virtual_tokens": 4}, prefix_file())
        with pytest.raises(UnknownMethod, match="P_TUNING"):
            self.push(verbs, self.SAID | {"peft_type": "P_TUNING"}, prefix_file())


THREE_LABELS = HeadConfig(task="classification", labels=("a", "b", "c"))
MAM_TENSORS = load_tensors(weights(0, MAM))


@pytest.mark.parametrize(
    ("config", "tensors", "error", "sentence"),
    [
        (PREFIX, {"prompt_embeddings": torch.zeros(3, 40)}, Incompatible, r"shape \[3, 40\], and \[3, 32\] is needed"),
        (PrefixConfig(length=63), {"prompt_embeddings": torch.zeros(63, 32)}, Incompatible,
         "leaves no room for text in a context of 64"),
        (MAM, {key: tensor for key, tensor in MAM_TENSORS.items() if not key.startswith("prefix.")}, Incompatible,
         r"Tensor prefix\.prompt_embeddings \[3, 32\] is missing"),
        (MAM, MAM_TENSORS | {"bottleneck.layers.1.ffn.up.bias": torch.full((8,), float("nan"))}, InvalidWeights,
         "NaN or infinite"),
        (THREE_LABELS, load_tensors(weights(0, HEAD)), Incompatible, r"out\.bias has shape \[2\], and \[3\] is needed"),
    ],
    ids=["another size of keys", "a prefix without room", "a member missing", "not finite", "labels"],
)  # fmt: skip
def test_weights_that_do_not_fit(
    verbs: ToyRegistry, config: AdapterConfig, tensors: dict[str, torch.Tensor], error: type[SoupError], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        verbs.push("acme/bad", config=config, files={WEIGHTS: inline(save_tensors(tensors))})
