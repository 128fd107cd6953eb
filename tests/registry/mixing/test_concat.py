"""Concatenation: it is the weighted mean of what its ingredients do, to the last digit that fp32 has."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from registry.adapters import expected_tensors, tensor_problems
from registry.adapters.weights import save_tensors
from registry.errors import InvalidRecipe
from registry.mixing import MIXINGS, concat
from registry.mixing.report import ExactMixture
from registry.spec import AverageMixing, ConcatMixing, LoraConfig, LoraModule
from tests.other_processor import elsewhere
from tests.registry.random_adapters import (
    LINEARS,
    SHAPE,
    STRUCTURES,
    bottleneck,
    deltas,
    lora,
    part,
    tensors_of,
    updates,
    weighted,
)

EXACT = ConcatMixing()
KINDS = sorted(STRUCTURES)


def same_bits(one, other) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def well_formed(parts, mixing=EXACT):
    """The soup's configuration and tensors, which have to fit each other."""
    config, tensors = concat.result(parts, mixing), concat.mix(parts, mixing)
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    assert tensor_problems(expected_tensors(config, SHAPE), found) == []
    return config, tensors


# --- bottlenecks ----------------------------------------------------------------------------------

shares = st.lists(st.floats(0.01, 10), min_size=2, max_size=4)


@given(
    st.sampled_from(KINDS),
    shares,
    st.lists(st.integers(1, 6), min_size=4, max_size=4),
    st.sampled_from(["1", "0.5", "-2"]),
)
def test_every_layers_output_is_the_weighted_mean_of_its_ingredients(kind, weights, widths, scale):
    configs = [bottleneck(kind, widths[n], scale=1.0 + n) for n in range(len(weights))]
    parts = weighted(configs, weights)
    config, tensors = well_formed(parts, ConcatMixing(scale=scale))
    assert config.bottleneck == sum(widths[: len(weights)])
    probes = torch.randn(16, 16, generator=torch.Generator().manual_seed(0))
    members = [updates(one.config, tensors_of(one.config, one.adapter_id), probes) for one in parts]
    for site, found in updates(config, tensors, probes).items():
        pairs = zip(parts, members, strict=True)
        exact = float(scale) * sum(float(one.weight) * member[site].double() for one, member in pairs)
        assert torch.allclose(found.double(), exact, rtol=0, atol=1e-5 * float(exact.abs().max())), site


@pytest.mark.parametrize("kind", KINDS)
@given(order=st.permutations(range(3)))
def test_the_order_of_ingredients_changes_no_bit(kind, order):
    parts = weighted([bottleneck(kind, n + 1) for n in range(3)], [1, 2, 3])
    again = [parts[number] for number in order]
    assert concat.result(parts, EXACT) == concat.result(again, EXACT)
    assert same_bits(concat.mix(parts, EXACT), concat.mix(again, EXACT))


@pytest.mark.parametrize("config", [bottleneck("parallel"), bottleneck("bapna_firat"), lora(rslora=True)])
def test_one_ingredient_at_weight_one_is_itself_bit_for_bit(config):
    half = part(0, config, dtype="BF16", load=lambda: tensors_of(config, 0, torch.bfloat16))
    assert concat.result([half], EXACT) == config
    assert same_bits(concat.mix([half], EXACT), half.load())


@pytest.mark.parametrize("config", [bottleneck("bapna_firat"), lora()])
def test_a_scaled_ingredient_is_folded(config):
    (one,) = weighted([config], [1])
    found, tensors = well_formed([one], ConcatMixing(scale="2"))
    exact = ExactMixture(found, SHAPE, ConcatMixing(scale="2"))
    exact.watched(one).load()
    assert exact.mixture.residual(found, tensors) < 1e-6
    assert exact.mixture.residual(config, one.load()) == pytest.approx(0.5)


def test_the_layer_norm_is_folded_into_the_projections():
    _, tensors = well_formed(weighted([bottleneck("bapna_firat")] * 2, [1, 1]))
    assert torch.equal(tensors["layers.1.ffn.norm.weight"], torch.ones(16))
    assert torch.equal(tensors["layers.1.ffn.norm.bias"], torch.zeros(16))


def test_houlsbys_trained_norms_are_kept_where_they_are_equal():
    config = bottleneck("houlsby")
    _, tensors = well_formed(weighted([config] * 2, [1, 1]))
    name = "layers.0.base_norm.1.bias"
    assert torch.equal(tensors[name], tensors_of(config, 0)[name])


# --- LoRA -----------------------------------------------------------------------------------------

some_loras = st.lists(
    st.builds(
        lora,
        st.integers(1, 5),
        st.sampled_from([1.0, 16.0]),
        rslora=st.booleans(),
        leaves=st.lists(st.sampled_from(["c_attn", "c_proj", "c_fc"]), min_size=1, max_size=3, unique=True),
    ),
    min_size=2,
    max_size=4,
)


@given(some_loras, st.lists(st.floats(0.01, 10), min_size=4, max_size=4), st.sampled_from(["1", "-0.5"]))
def test_a_lora_soup_is_the_weighted_sum_of_the_updates(configs, weights, scale):
    """Ranks, alphas, rsLoRA and modules differ; where an ingredient has no module, it adds nothing."""
    parts = weighted(configs, weights[: len(configs)])
    config, tensors = well_formed(parts, ConcatMixing(scale=scale))
    assert not config.rslora
    assert all(config.scaling(module) == 1.0 for module in config.modules().values())
    members = [deltas(one.config, tensors_of(one.config, one.adapter_id)) for one in parts]
    for path, found in deltas(config, tensors).items():
        exact = float(scale) * sum(float(one.weight) * d[path] for one, d in zip(parts, members, strict=True))
        assert torch.allclose(found, exact, rtol=0, atol=1e-6 * max(1.0, float(exact.abs().max()))), path


def test_ranks_add_up_module_by_module():
    parts = weighted([lora(2), lora(3, leaves=("c_attn", "c_fc"))], [1, 1])
    config = concat.result(parts, EXACT)
    ranks = {path.rpartition(".")[2]: module.rank for path, module in config.modules().items()}
    assert ranks == {"c_attn": 5, "c_fc": 3}
    assert concat.width(parts) == 5


@pytest.fixture(scope="module")
def peft_models(tmp_path_factory):
    """Two LoRAs in a PeftModel of a tiny GPT-2, and PEFT's own mixtures of them at 0.3 and 0.7."""
    from peft import LoraConfig as PeftConfig
    from peft import get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    base = GPT2LMHeadModel(
        GPT2Config(vocab_size=50, n_positions=32, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    )

    def config(rank: int, rslora: bool) -> PeftConfig:
        return PeftConfig(r=rank, lora_alpha=6, target_modules=["c_attn"], fan_in_fan_out=True, use_rslora=rslora)

    model = get_peft_model(base, config(3, False), adapter_name="one")
    model.add_adapter("two", config(3, True))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".lora_" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
    model.add_weighted_adapter(["one", "two"], [0.3, 0.7], "cat", combination_type="cat")
    model.add_weighted_adapter(["one", "two"], [0.3, 0.7], "linear", combination_type="linear")
    return model


def of_peft(model, name: str) -> dict[str, torch.Tensor]:
    return {key.replace(f".{name}.", "."): p.detach() for key, p in model.named_parameters() if f".{name}." in key}


def peft_delta(model, name: str, path: str) -> torch.Tensor:
    """(outputs, inputs)"""
    found = model.base_model.model.get_submodule(path).get_delta_weight(name)
    return found.detach().T.double()  # Conv1D stores (inputs, outputs)


def test_our_mixture_is_pefts_cat_and_not_its_linear(peft_models):
    configs = [lora(3, 6.0), lora(3, 6.0, rslora=True)]
    parts = [
        replace(one, load=lambda name=name: of_peft(peft_models, name))
        for one, name in zip(weighted(configs, [0.3, 0.7]), ("one", "two"), strict=True)
    ]
    config, tensors = well_formed(parts)
    for path in config.modules():
        ours, cat = deltas(config, tensors)[path], peft_delta(peft_models, "cat", path)
        exact = 0.3 * peft_delta(peft_models, "one", path) + 0.7 * peft_delta(peft_models, "two", path)
        assert torch.allclose(ours, exact, rtol=0, atol=1e-4)  # of values up to 10, which PEFT multiplies in fp32
        assert torch.allclose(ours, cat, rtol=0, atol=1e-4)
        linear = peft_delta(peft_models, "linear", path)
        assert float((linear - exact).norm() / exact.norm()) > 0.3


def test_the_average_of_factors_has_cross_terms_and_the_residual_says_so():
    config, mixing = lora(4), AverageMixing(assume_same_init=True)
    parts = weighted([config] * 2, [1, 1])
    exact = ExactMixture(config, SHAPE, mixing)
    tensors = MIXINGS["average"].mix([exact.watched(one) for one in parts], mixing)
    members = [deltas(config, one.load()) for one in parts]
    wanted = {path: (members[0][path] + members[1][path]) / 2 for path in LINEARS}
    found = deltas(config, tensors)
    by_hand = sum((found[p] - wanted[p]).square().sum() for p in LINEARS) / sum(
        wanted[p].square().sum() for p in LINEARS
    )
    assert exact.mixture.residual(config, tensors) == pytest.approx(float(by_hand) ** 0.5, rel=1e-9)
    assert float(by_hand) > 0.1


# --- reasons --------------------------------------------------------------------------------------


def reasons(*parts) -> str:
    return " ".join(MIXINGS["concat"].check(parts, EXACT))


def test_width_scale_and_initialisation_may_differ():
    assert reasons(part(0, bottleneck("parallel")), part(1, bottleneck("parallel", 7, scale=1.0))) == ""
    assert reasons(part(0, lora()), part(1, lora(9, 1.0, rslora=True, leaves=("c_fc",)))) == ""


def test_structures_may_not():
    text = reasons(part(0, bottleneck("pfeiffer")), part(1, bottleneck("parallel_residual")))
    assert "'structure' differ" in text
    assert "'input' differ" in text
    assert "initialisation" not in text


def test_the_epsilon_counts_where_it_is_used():
    for kind, expected in (("bapna_firat", True), ("pfeiffer", False)):
        text = reasons(part(0, bottleneck(kind)), part(1, bottleneck(kind, layer_norm_eps=1e-6)))
        assert ("'layer_norm_eps' differ" in text) is expected


def test_houlsbys_norms_are_compared_only_where_nothing_else_stands_against_them():
    config = bottleneck("houlsby")
    other = {name: t + 1 if ".base_norm." in name else t for name, t in tensors_of(config, 1).items()}
    assert reasons(part(0, config), part(1, config)) == ""
    text = reasons(part(0, config), part(1, config, load=lambda: other), part(2, config))
    assert text == "The trained LayerNorms differ: those of acme/a1@1 are not those of acme/a0@1."

    def never():
        raise AssertionError("read before anything else was checked")

    kinds = [config, bottleneck("houlsby_plain", activation="gelu")]
    assert "'trained_norms' differ" in reasons(*(part(n, one, load=never) for n, one in enumerate(kinds)))
    plain = bottleneck("houlsby_plain")
    assert reasons(part(0, plain, load=never), part(1, plain, load=never)) == ""


# --- the same bytes everywhere --------------------------------------------------------------------


def digest_of_some() -> str:
    found = hashlib.sha256()
    wide = LoraConfig.of({path: LoraModule(5, 7.0) for path in LINEARS}, rslora=True)
    for configs in ([bottleneck("bapna_firat", 5), bottleneck("bapna_firat", 3)], [wide, lora(3, 5.0)]):
        found.update(save_tensors(concat.mix(weighted(configs, [0.3, 0.1]), ConcatMixing(scale="0.7"))))
    return found.hexdigest()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("capability", ["default", "avx2"])
def test_the_bytes_do_not_depend_on_the_cpu(capability):
    environment = {"ATEN_CPU_CAPABILITY": capability, "NPY_DISABLE_CPU_FEATURES": "AVX512F"}
    assert elsewhere(digest_of_some, environment) == digest_of_some()


def test_modules_of_more_ranks_than_a_lora_can_have_are_refused():
    halves = [
        LoraConfig.of({f"h.{i}.x": LoraModule(1 + i, 1.0) for i in range(start, start + 4000)}) for start in (0, 4000)
    ]
    with pytest.raises(InvalidRecipe, match="too many for one"):
        MIXINGS["concat"].result([part(n, config) for n, config in enumerate(halves)], ConcatMixing())
