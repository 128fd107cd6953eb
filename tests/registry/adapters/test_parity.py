"""Our hooks against GPT-2 written out by hand, for every structure; nothing of `registry.adapters` computes here."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F

from registry.adapters import attached, create, expected_tensors, from_tensors
from registry.spec import BaseShape, BottleneckConfig

SHAPE = BaseShape(
    fingerprint="sha256:" + "0" * 64, model_type="gpt2", hidden_size=32, num_layers=2, context=64, vocab_size=300
)
CASES = {
    "houlsby": BottleneckConfig(structure="houlsby", bottleneck=5, activation="gelu"),
    "houlsby-swish": BottleneckConfig(structure="houlsby", bottleneck=5, activation="swish", scale=0.5),
    "houlsby-base-norms": BottleneckConfig(structure="houlsby", bottleneck=5, activation="gelu", trained_norms=False),
    "pfeiffer": BottleneckConfig(structure="pfeiffer", bottleneck=7, activation="relu"),
    "pfeiffer-residual": BottleneckConfig(structure="pfeiffer", bottleneck=7, activation="relu", input="residual"),
    "bapna_firat": BottleneckConfig(structure="bapna_firat", bottleneck=6, activation="relu", scale=1.5),
    "bapna_firat-eps": BottleneckConfig(structure="bapna_firat", bottleneck=6, activation="relu", layer_norm_eps=0.3),
    "bapna_firat-residual": BottleneckConfig(
        structure="bapna_firat", bottleneck=6, activation="relu", input="residual"
    ),
    "parallel": BottleneckConfig(structure="parallel", bottleneck=4, activation="relu", scale=4.0),
    "parallel-residual": BottleneckConfig(structure="parallel", bottleneck=4, activation="relu", input="residual"),
}


def random_tensors(config, seed=3):
    """Values far from the identity, so that a misplaced adapter cannot hide."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator) * 0.3 + (0.8 if "norm.weight" in name else 0.0)
        for name, shape in expected_tensors(config, SHAPE).items()
    }


def norm(x, weight, bias, eps):
    mean = x.mean(-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(variance + eps) * weight + bias


def activate(x, name):
    if name == "relu":
        return torch.maximum(x, torch.zeros(()))
    if name == "swish":
        return x / (1 + torch.exp(-x))
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def gpt2_by_hand(model, ids, config=None, tensors=None):
    """Logits of GPT-2 (pre-LN) with the adapter written where its paper has it."""
    base = {name: p.detach() for name, p in model.transformer.named_parameters()}

    def t(layer, rest):
        return tensors[f"layers.{layer}.{rest}"]

    def bottleneck(layer, site, x):
        down = x @ t(layer, f"{site}.down.weight").T + t(layer, f"{site}.down.bias")
        up = activate(down, config.activation) @ t(layer, f"{site}.up.weight").T + t(layer, f"{site}.up.bias")
        return config.scale * up

    structure = config.structure if config else None
    time, hidden, heads = ids.shape[1], 32, 2
    x = base["wte.weight"][ids] + base["wpe.weight"][:time]
    causal = torch.full((time, time), -math.inf).triu(1)
    for i in range(2):
        b = {name.removeprefix(f"h.{i}."): value for name, value in base.items() if name.startswith(f"h.{i}.")}
        norms = [(b["ln_1.weight"], b["ln_1.bias"]), (b["ln_2.weight"], b["ln_2.bias"])]
        if structure == "houlsby" and config.trained_norms:
            norms = [(t(i, f"base_norm.{j}.weight"), t(i, f"base_norm.{j}.bias")) for j in range(2)]
        h = norm(x, *norms[0], 1e-5) @ b["attn.c_attn.weight"] + b["attn.c_attn.bias"]
        q, k, v = (part.reshape(*ids.shape, heads, -1).transpose(1, 2) for part in h.split(hidden, dim=-1))
        weights = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(hidden // heads) + causal, dim=-1)
        attention = (weights @ v).transpose(1, 2).reshape(*ids.shape, hidden) @ b["attn.c_proj.weight"]
        attention = attention + b["attn.c_proj.bias"]
        if structure == "houlsby":
            attention = attention + bottleneck(i, "attention", attention)
        x = x + attention
        source = norm(x, *norms[1], 1e-5)
        h = source @ b["mlp.c_fc.weight"] + b["mlp.c_fc.bias"]
        h = 0.5 * h * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)))
        h = h @ b["mlp.c_proj.weight"] + b["mlp.c_proj.bias"]
        before = config is not None and config.input == "module"
        if structure == "houlsby" or (structure == "pfeiffer" and before):
            h = h + bottleneck(i, "ffn", h)
        elif structure == "parallel":
            h = h + bottleneck(i, "ffn", source if before else x)
        elif structure == "bapna_firat" and before:
            own = norm(h, t(i, "ffn.norm.weight"), t(i, "ffn.norm.bias"), config.layer_norm_eps)
            h = h + bottleneck(i, "ffn", own)
        x = x + h
        if structure == "pfeiffer" and not before:
            x = x + bottleneck(i, "ffn", x)
        elif structure == "bapna_firat" and not before:
            own = norm(x, t(i, "ffn.norm.weight"), t(i, "ffn.norm.bias"), config.layer_norm_eps)
            x = x + bottleneck(i, "ffn", own)
    x = norm(x, base["ln_f.weight"], base["ln_f.bias"], 1e-5)
    return x @ base["wte.weight"].T


def agree(got, want):
    """Within 1e-5 of the largest value: sums of fp32 in another order come to some 5e-7 of it, on any processor."""
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5 * float(want.abs().max()))


@pytest.fixture(scope="module")
def exact(gpt2):
    """The same model in float64."""
    return copy.deepcopy(gpt2.model).double()


IDS = torch.tensor([[0, 5, 17, 250, 3, 99, 42, 7], [0, 8, 8, 130, 21, 60, 299, 1]])


def test_the_hand_written_model_is_the_base(model):
    agree(model(IDS).logits, gpt2_by_hand(model, IDS))


@pytest.mark.parametrize("case", CASES)
def test_hooked_forward_equals_hand_written(model, case):
    config = CASES[case]
    tensors = random_tensors(config)
    with torch.no_grad(), attached(model, from_tensors(config, SHAPE, tensors)):
        hooked = model(IDS).logits
    agree(hooked, gpt2_by_hand(model, IDS, config, tensors))
    assert (hooked - model(IDS).logits).abs().max() > 0.1


@pytest.mark.parametrize("case", CASES)
def test_equal_to_rounding_in_double_precision(exact, case):
    config = CASES[case]
    tensors = random_tensors(config)
    with torch.no_grad(), attached(exact, from_tensors(config, SHAPE, tensors).double()):
        hooked = exact(IDS).logits
    want = gpt2_by_hand(exact, IDS, config, {name: tensor.double() for name, tensor in tensors.items()})
    torch.testing.assert_close(hooked, want, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("case", CASES)
def test_cached_decoding_equals_one_pass(model, case):
    adapter = from_tensors(CASES[case], SHAPE, random_tensors(CASES[case]))
    with torch.no_grad(), attached(model, adapter):
        whole = model(IDS).logits[:, -1]
        first = model(IDS[:, :5], use_cache=True)
        rest = model(IDS[:, 5:], past_key_values=first.past_key_values, use_cache=True)
    agree(rest.logits[:, -1], whole)


@pytest.mark.parametrize("case", CASES)
def test_gradients_reach_every_adapter_tensor_and_no_base_tensor(model, case):
    adapter = from_tensors(CASES[case], SHAPE, random_tensors(CASES[case]))
    with attached(model, adapter):
        loss = F.cross_entropy(model(IDS).logits[:, :-1].flatten(0, 1), IDS[:, 1:].flatten())
    loss.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in adapter.parameters())
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("case", ["houlsby", "pfeiffer", "bapna_firat", "bapna_firat-residual", "parallel-residual"])
def test_numerical_gradient(exact, case):
    config = CASES[case]
    adapter = from_tensors(config, SHAPE, random_tensors(config)).double()
    weight = dict(adapter.named_parameters())["layers.0.ffn.down.weight"]
    ids = IDS[:1]

    def loss():
        with attached(exact, adapter):
            return exact(ids).logits.logsumexp(-1).sum()

    loss().backward()
    with torch.no_grad():
        step = torch.zeros_like(weight)
        step[1, 3] = 1e-6
        weight += step
        above = loss()
        weight -= 2 * step
        below = loss()
    assert weight.grad[1, 3].item() == pytest.approx(((above - below) / 2e-6).item(), rel=1e-4, abs=1e-5)


def test_zero_up_is_exactly_the_base(model):
    for case, config in CASES.items():
        adapter = create(config, SHAPE, seed=1, init="zero_up", base=model)
        with torch.no_grad(), attached(model, adapter):
            logits = model(IDS).logits
        assert torch.equal(logits, model(IDS).logits), case


def test_near_identity_is_close_to_the_base_but_not_it(model):
    adapter = create(CASES["bapna_firat"], SHAPE, seed=1)
    with torch.no_grad(), attached(model, adapter):
        moved = model(IDS).logits
    gap = (moved - model(IDS).logits).abs().max() / model(IDS).logits.abs().max()
    assert 0 < gap < 0.05
