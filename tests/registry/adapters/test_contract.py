"""The contract of every structure of `STRUCTURES`: a new one is in here, or the first test fails."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from pydantic import TypeAdapter
from torch import Tensor, nn

from registry.adapters import (
    STRUCTURES,
    attached,
    bytes_in_memory,
    create,
    expected_tensors,
    from_tensors,
    mixture_of,
)
from registry.adapters.batched import ReadyAdapter
from registry.adapters.masks import is_mask, without_masks
from registry.adapters.mixture import constant_factor
from registry.adapters.weights import adapter_digest, check_weights, init_hash, load_tensors, save_tensors
from registry.base_model.likelihood import hidden_states
from registry.base_model.loading import LoadedBase
from registry.errors import Incompatible, InvalidManifest, InvalidParameter, InvalidWeights
from registry.formats import CONFIG_FILE, SOUP_FILE, AdapterContents, read_directory, write_directory
from registry.mixing import MIXINGS
from registry.mixing.auto import choose_mixing
from registry.spec import (
    AdapterConfig,
    AutoMixing,
    BankConfig,
    BottleneckConfig,
    FusionConfig,
    HeadConfig,
    LoraConfig,
    LoraModule,
    PrefixConfig,
    UnionConfig,
)
from registry.tensor_file import canonical_order
from tests.registry.pruned_adapters import sparse
from tests.registry.random_adapters import INIT, drawn, make_ingredient

PFEIFFER = BottleneckConfig(structure="pfeiffer", bottleneck=4, activation="relu")
HOULSBY = BottleneckConfig(structure="houlsby", bottleneck=4, activation="gelu")
LORA = LoraConfig.of({f"transformer.h.{layer}.attn.c_attn": LoraModule(2, 4.0) for layer in range(2)})
PREFIX = PrefixConfig(length=3)
HEAD = HeadConfig(task="classification", labels=("no", "yes"))
DENSE: dict[str, AdapterConfig] = {
    "bottleneck": PFEIFFER,
    "bottleneck, norms trained": HOULSBY,
    "lora": LORA,
    "prefix": PREFIX,
    "head": HEAD,
    "union": UnionConfig(members=(PREFIX, PFEIFFER, LORA, HEAD)),
    "fusion": FusionConfig(member=PFEIFFER, members=2),
    "adamix": BankConfig(expert=HOULSBY, experts=3, share="up"),
    "adamix, of a task": BankConfig(expert=UnionConfig(members=(LORA, HEAD)), experts=2, share="none"),
}
PRUNED = ("bottleneck, norms trained", "lora", "union", "fusion")
CONFIGS: TypeAdapter[AdapterConfig] = TypeAdapter(AdapterConfig)
IDS = torch.tensor([[5, 17, 250, 3, 99], [8, 8, 130, 21, 60]])


@pytest.fixture(params=[*DENSE, *(f"{name}, pruned" for name in PRUNED)])
def config_and_tensors(request, base) -> tuple[AdapterConfig, dict[str, Tensor]]:
    """A configuration, and tensors of it."""
    name, _, pruned = request.param.partition(", pruned") if request.param not in DENSE else (request.param, "", None)
    config = DENSE[name]
    return (
        (config, drawn(config, base.shape)) if pruned is None else sparse(config, 1, tensors=drawn(config, base.shape))
    )


def state_of(model: nn.Module) -> str:
    hasher = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        hasher.update(name.encode() + tensor.numpy().tobytes())
    return hasher.hexdigest()


def traces_of(model: nn.Module) -> dict[str, tuple[list[str], int]]:
    """Each module's attributes, and how many hooks are on it."""
    return {
        name: (sorted(vars(module)), len(module._forward_hooks) + len(module._forward_pre_hooks))
        for name, module in model.named_modules()
    }


def states(base: LoadedBase) -> Tensor:
    with torch.no_grad():
        return hidden_states(base.model, IDS, torch.ones_like(IDS))


def test_every_method_is_here() -> None:
    assert {config.method for config in DENSE.values()} == set(STRUCTURES)


@pytest.mark.parametrize(
    "config",
    [
        *(DENSE[name] for name in ("bottleneck", "bottleneck, norms trained", "lora", "prefix", "fusion")),
        LoraConfig.of({"transformer.h.0.attn.c_attn": LoraModule(5, 4.0)}),  # of the rank that is stacked
    ],
)
def test_its_bytes_in_memory_are_known_from_its_configuration(config: AdapterConfig, base: LoadedBase) -> None:
    module = from_tensors(config, base.shape, drawn(config, base.shape))
    assert bytes_in_memory(config, base.shape) == ReadyAdapter(module, base.model).bytes


def test_bytes_in_memory_are_at_least_those_that_an_adapter_takes(
    config_and_tensors: tuple[AdapterConfig, dict[str, Tensor]], base: LoadedBase
) -> None:
    config, tensors = config_and_tensors
    if config.not_served is None:
        ready_bytes = ReadyAdapter(from_tensors(config, base.shape, tensors), base.model).bytes
        assert ready_bytes <= bytes_in_memory(config, base.shape) <= 1.5 * ready_bytes


@pytest.mark.parametrize("name", DENSE)
def test_its_entry_does_what_its_configuration_promises(name: str, base: LoadedBase) -> None:
    config = DENSE[name]
    entry = STRUCTURES[config.method]
    assert (entry.join is not None) == config.joinable
    assert (entry.merge is not None) == (entry.routes is not None) == (config.merged is not None)
    tensors = drawn(config, base.shape)
    if config.merged is None:
        mixture = mixture_of(config, base.shape)
        mixture.add(config, tensors, constant_factor(1.0))
        assert (mixture.residual(config, tensors) is None) == (config.no_exact_mixture is not None)


@pytest.mark.parametrize("name", DENSE)
def test_it_starts_from_its_seed_alone(name: str, base: LoadedBase) -> None:
    config = DENSE[name]
    rng_state = torch.get_rng_state()
    first, repeated, another = (
        create(config, base.shape, seed=seed, base=base.model).state_dict() for seed in (3, 3, 4)
    )
    assert torch.equal(torch.get_rng_state(), rng_state)
    assert list(expected_tensors(config, base.shape)) == canonical_order(first)
    assert all(tensor.dtype == torch.float32 and tensor.device.type == "cpu" for tensor in first.values())
    assert init_hash(first) == init_hash(repeated) != init_hash(another)
    for wrong, reason in (
        ({"seed": -1}, "not be negative"),
        ({"seed": 0, "init": "ones"}, "near_identity, linear, zero_up"),
    ):
        with pytest.raises(InvalidParameter, match=reason):
            create(config, base.shape, base=base.model, **wrong)


def test_its_configuration_is_the_same_value_after_json(
    config_and_tensors: tuple[AdapterConfig, Mapping[str, Tensor]],
) -> None:
    config, _ = config_and_tensors
    back = CONFIGS.validate_json(CONFIGS.dump_json(config))
    assert (back, hash(back), back.identity()) == (config, hash(config), config.identity())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_it_is_stored_to_the_last_bit(
    config_and_tensors: tuple[AdapterConfig, dict[str, Tensor]], base, dtype: torch.dtype
) -> None:
    config, tensors = config_and_tensors
    tensors = {name: tensor if is_mask(name) else tensor.to(dtype) for name, tensor in tensors.items()}
    data = save_tensors(tensors)
    report = check_weights(data, config, base.shape, max_bytes=len(data))
    assert 0 < report.parameters <= sum(tensor.numel() for tensor in without_masks(tensors).values())
    back = load_tensors(data)
    assert all(torch.equal(back[name], tensor) and back[name].dtype == tensor.dtype for name, tensor in tensors.items())
    shuffled = dict(reversed(back.items()))
    assert save_tensors(shuffled) == data
    digest = adapter_digest(base.shape.fingerprint, config, tensors)
    assert digest == adapter_digest(base.shape.fingerprint, config, shuffled)
    module = from_tensors(config, base.shape, back).state_dict()
    for name, tensor in tensors.items():
        assert torch.equal(module[name], tensor if is_mask(name) else tensor.float()), name


def test_every_tensor_counts_in_its_digest(config_and_tensors: tuple[AdapterConfig, dict[str, Tensor]], base) -> None:
    config, tensors = config_and_tensors
    digests = {adapter_digest(base.shape.fingerprint, config, tensors)}
    for name, tensor in tensors.items():
        changed = tensor.clone()
        changed.view(-1)[-1] += 1
        digests.add(adapter_digest(base.shape.fingerprint, config, {**tensors, name: changed}))
    assert len(digests) == 1 + len(tensors)


def test_a_push_refuses_it_with_any_tensor_missing_reshaped_added_or_not_finite(
    config_and_tensors: tuple[AdapterConfig, dict[str, Tensor]], base
) -> None:
    config, tensors = config_and_tensors

    def problems(changed: Mapping[str, Tensor], error: type[Incompatible | InvalidWeights]) -> str:
        with pytest.raises(error) as refused:
            check_weights(save_tensors(changed), config, base.shape, max_bytes=10**7)
        return "\n".join(refused.value.problems)

    missing = problems({}, Incompatible)
    reshaped = problems({name: tensor.reshape(-1, 1, 1) for name, tensor in tensors.items()}, Incompatible)
    nan = torch.tensor([float("nan")])
    first_is_nan = {
        name: tensor if is_mask(name) else torch.cat([nan, tensor.reshape(-1)[1:]]).reshape(tensor.shape)
        for name, tensor in tensors.items()
    }
    broken = problems(first_is_nan, InvalidWeights)
    for name, tensor in tensors.items():
        assert f"Tensor {name} {list(tensor.shape)} is missing." in missing
        assert f"Tensor {name} has shape {[tensor.numel(), 1, 1]}, and {list(tensor.shape)} is needed." in reshaped
        assert is_mask(name) or f"Tensor '{name}' holds 1 values that are NaN" in broken
    assert "'extra.weight' is not expected" in problems({**tensors, "extra.weight": torch.zeros(2)}, Incompatible)


def test_it_leaves_the_base_as_it_was(config_and_tensors: tuple[AdapterConfig, dict[str, Tensor]], base) -> None:
    config, tensors = config_and_tensors
    state, traces, plain = state_of(base.model), traces_of(base.model), states(base)
    with attached(base.model, from_tensors(config, base.shape, tensors)):
        changed = states(base)
    assert torch.equal(changed, plain) == (config.method == "head")
    assert torch.equal(states(base), plain)
    assert state_of(base.model) == state
    assert traces_of(base.model) == traces


def test_its_directory_says_the_same(
    config_and_tensors: tuple[AdapterConfig, dict[str, Tensor]], base, tmp_path
) -> None:
    config, tensors = config_and_tensors
    contents = AdapterContents(config=config, weights=save_tensors(tensors), domain="law", base_model="tiny")
    write_directory(tmp_path / "one", contents)
    folder = read_directory(tmp_path / "one")
    assert (folder.config, folder.domain) == (config, "law")
    knows_peft = config.method in ("lora", "prefix") and not config.prunings()
    assert (folder.path / SOUP_FILE).exists() == knows_peft
    assert ("peft_type" in json.loads((folder.path / CONFIG_FILE).read_text())) == knows_peft
    with nullcontext() if knows_peft else pytest.raises(InvalidManifest, match="needs its domain"):
        write_directory(tmp_path / "none", replace(contents, domain=None))
    back = load_tensors(folder.weights.read_bytes())
    assert all(torch.equal(back[name], tensor) for name, tensor in tensors.items())


def test_alone_it_is_what_auto_makes_of_it(config_and_tensors: tuple[AdapterConfig, dict[str, Tensor]]) -> None:
    """Itself, bit for bit; of a bank its merge."""
    config, tensors = config_and_tensors
    ingredients = [make_ingredient(0, config, provenance=INIT, load=lambda: tensors)]
    mixing = choose_mixing(ingredients, AutoMixing(), max_width=512).mixing
    method = MIXINGS[mixing.method]
    assert (mixing.method == "merge") == (config.method == "adamix")
    mixed = method.mix(ingredients, mixing)
    if config.method != "adamix":
        assert method.result(ingredients, mixing) == config
        assert mixed.keys() == tensors.keys()
        assert all(torch.equal(mixed[name], tensor) for name, tensor in tensors.items())
