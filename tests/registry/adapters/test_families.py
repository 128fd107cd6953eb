"""Every family: adapters against layers written out by hand, over the base's own sub-modules."""

from __future__ import annotations

import copy
import math
from types import MethodType

import pytest
import torch
import torch.nn.functional as F

from registry.adapters import attached, create, expected_tensors, from_tensors, paper_config
from registry.adapters.sites import FAMILIES
from registry.base_model import load_base, shape_of
from registry.base_model.likelihood import Window, hidden_states, padded, score_windows
from registry.errors import Incompatible
from registry.spec import BaseEntry, BottleneckConfig, LoraConfig, LoraModule
from tests.registry.random_adapters import drawn
from tests.tiny_models import TINY_CONFIGS, build_tiny_base

pytestmark = pytest.mark.slow

RMS = ("llama", "mistral", "qwen2", "qwen3")
CASES = {
    "houlsby": BottleneckConfig(structure="houlsby", bottleneck=5, activation="gelu"),
    "houlsby-base-norms": BottleneckConfig(
        structure="houlsby", bottleneck=5, activation="swish", scale=0.5, trained_norms=False
    ),
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
CAUSAL = [name for name, family in FAMILIES.items() if not family.post_norm]
ENCODERS = sorted(FAMILIES.keys() - set(CAUSAL))
ON_BASES = (*sorted(CAUSAL), "gpt_neox-sequential")  # GPT-NeoX also with the two sub-layers one after the other
PAIRS = [
    (name, case)
    for name in (*ON_BASES, *ENCODERS)
    for case in CASES
    if name not in ENCODERS or case != "parallel-residual"  # there the module's argument is the residual stream
]
IDS = torch.tensor([[0, 5, 17, 250, 3, 99, 42, 7], [0, 8, 8, 130, 21, 60, 299, 1]])


# the layers by hand


def layer_norm(x, weight, bias, eps):
    mean = x.mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(((x - mean) ** 2).mean(-1, keepdim=True) + eps) * weight + bias


class Hand:
    """The adapter of one layer, written out: what each place of the layer adds."""

    def __init__(self, config, tensors, layer, norms):
        self.config, self.norms = config, norms
        self.layer_tensors = {
            n.removeprefix(f"layers.{layer}."): t for n, t in tensors.items() if n.startswith(f"layers.{layer}.")
        }

    def bottleneck(self, site, x):
        act = {"relu": torch.relu, "gelu": lambda z: 0.5 * z * (1 + torch.erf(z / math.sqrt(2)))}
        act["swish"] = lambda z: z / (1 + torch.exp(-z))
        if self.config.structure == "bapna_firat":
            x = layer_norm(
                x,
                self.layer_tensors["ffn.norm.weight"],
                self.layer_tensors["ffn.norm.bias"],
                self.config.layer_norm_eps,
            )
        down = x @ self.layer_tensors[f"{site}.down.weight"].T + self.layer_tensors[f"{site}.down.bias"]
        up = (
            act[self.config.activation](down) @ self.layer_tensors[f"{site}.up.weight"].T
            + self.layer_tensors[f"{site}.up.bias"]
        )
        return self.config.scale * up

    def norm(self, j, x):
        """Norm j of the layer: the base's, or Houlsby's."""
        if self.config.structure != "houlsby" or not self.config.trained_norms:
            return self.norms[j](x)
        weight = self.layer_tensors[f"base_norm.{j}.weight"]
        if hasattr(self.norms[j], "variance_epsilon"):
            return x / torch.sqrt((x**2).mean(-1, keepdim=True) + self.norms[j].variance_epsilon) * weight
        return layer_norm(x, weight, self.layer_tensors[f"base_norm.{j}.bias"], self.norms[j].eps)

    def attention(self, out):
        return out + self.bottleneck("attention", out) if self.config.structure == "houlsby" else out

    def ffn(self, out, argument, stream):
        """`out` of the feed-forward module, its `argument`, and the residual `stream` before its norm."""
        structure, residual = self.config.structure, self.config.input == "residual"
        if structure == "parallel":
            return out + self.bottleneck("ffn", stream if residual else argument)
        return out if residual else out + self.bottleneck("ffn", out)

    def block(self, x):
        residual = self.config.input == "residual" and self.config.structure != "parallel"
        return x + self.bottleneck("ffn", x) if residual else x


def sequential(attend, feed):
    """A layer whose feed-forward module reads what the attention added to."""

    def forward(layer, x, *args, hand, **kwargs):
        x = x + hand.attention(attend(layer, hand.norm(0, x), *args, **kwargs))
        argument = hand.norm(1, x)
        return hand.block(x + hand.ffn(feed(layer, argument), argument, x))

    return forward


def side_by_side(attend, feed):
    """A layer whose two sub-modules read the same residual stream."""

    def forward(layer, x, *args, hand, **kwargs):
        attention = hand.attention(attend(layer, hand.norm(0, x), *args, **kwargs))
        argument = hand.norm(1, x)
        return hand.block(hand.ffn(feed(layer, argument), argument, x) + attention + x)

    return forward


def post_norm(attend, feed):
    """A layer of an encoder, LN(f(x) + x) twice; `attend` and `feed` give what is added."""

    def forward(layer, x, *args, hand, **kwargs):
        y = hand.norm(0, hand.attention(attend(layer, x, *args, **kwargs)) + x)
        f, structure, residual = feed(layer, y), hand.config.structure, hand.config.input == "residual"
        if structure == "pfeiffer" and residual:  # adapters 1.3: original_ln_before, _after, residual_before_ln
            return hand.norms[1](f + hand.bottleneck("ffn", hand.norms[1](f + y)) + y)
        return hand.block(hand.norm(1, hand.ffn(f, y, y) + y))

    return forward


def llama_attention(layer, x, **kwargs):
    return layer.self_attn(hidden_states=x, **kwargs)[0]


def gpt2_attention(layer, x, past, mask, *_cross, use_cache=None, **kwargs):
    kwargs.pop("encoder_attention_mask", None)
    return layer.attn(x, past_key_values=past, attention_mask=mask, use_cache=use_cache, **kwargs)[0]


def neox_attention(layer, x, **kwargs):
    return layer.attention(x, **kwargs)[0]


def mlp(layer, x):
    return layer.mlp(x)


def opt_ffn(layer, x):
    return layer.fc2(torch.relu(layer.fc1(x)))


def bert_attention(layer, x, mask, *_, **kwargs):
    return layer.attention.output.dense(layer.attention.self(x, attention_mask=mask, **kwargs)[0])


def bert_ffn(layer, x):
    return layer.output.dense(layer.intermediate(x))


def distilbert_attention(layer, x, mask, **kwargs):
    return layer.attention(x, attention_mask=mask, **kwargs)[0]


def distilbert_ffn(layer, x):
    return layer.ffn(x)


NORMS = ("input_layernorm", "post_attention_layernorm")
BERT = ("encoder.layer", post_norm(bert_attention, bert_ffn), ("attention.output.LayerNorm", "output.LayerNorm"))
LAYERS = {
    **dict.fromkeys(RMS, ("model.layers", sequential(llama_attention, mlp), NORMS)),
    "gpt2": ("transformer.h", sequential(gpt2_attention, mlp), ("ln_1", "ln_2")),
    "gpt_neox": ("gpt_neox.layers", side_by_side(neox_attention, mlp), NORMS),
    "gpt_neox-sequential": ("gpt_neox.layers", sequential(neox_attention, mlp), NORMS),
    "opt": ("model.decoder.layers", sequential(llama_attention, opt_ffn), ("self_attn_layer_norm", "final_layer_norm")),
    **dict.fromkeys(("bert", "roberta", "xlm-roberta"), BERT),
    "distilbert": (
        "transformer.layer",
        post_norm(distilbert_attention, distilbert_ffn),
        ("sa_layer_norm", "output_layer_norm"),
    ),
}


def by_hand(variant, model, config, tensors):
    """A copy of `model` whose layers are the ones above."""
    patched = copy.deepcopy(model)
    path, forward, norms = LAYERS[variant]
    for i, layer in enumerate(patched.get_submodule(path)):
        hand = Hand(config, tensors, i, [layer.get_submodule(name) for name in norms])
        bound = MethodType(forward, layer)
        layer.forward = lambda *args, bound=bound, hand=hand, **kwargs: bound(*args, hand=hand, **kwargs)
    return patched


def outputs(base, model=None, ids=IDS):
    """Logits, or the hidden states of an encoder."""
    model = base.model if model is None else model
    return model(ids).logits if base.shape.kind == "causal" else hidden_states(model, ids, torch.ones_like(ids))


def agree(got, want):
    """Within 1e-5 of the largest value: sums of fp32 in another order come to some 5e-7 of it, on any processor."""
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5 * float(want.abs().max()))


# laws


def test_the_tests_know_every_family():
    assert set(TINY_CONFIGS) == set(CAUSAL)
    assert {name for name, family in FAMILIES.items() if family.rms_norms} == set(RMS)


@pytest.mark.parametrize(("variant", "case"), PAIRS)
def test_hooked_layers_are_the_layers_written_by_hand(bases, variant, case):
    base, config = bases(variant), CASES[case]
    tensors = drawn(config, base.shape)
    with torch.no_grad():
        with attached(base.model, from_tensors(config, base.shape, tensors)):
            hooked = outputs(base)
        agree(hooked, outputs(base, by_hand(variant, base.model, config, tensors)))
        assert (hooked - outputs(base)).abs().max() > 0.1


@pytest.mark.parametrize(("family", "case"), [pair for pair in PAIRS if pair[0] in ("gpt2", "llama", "bert")])
def test_gradients_reach_every_adapter_tensor_and_not_the_base(bases, family, case):
    base, config = bases(family), CASES[case]
    adapter = from_tensors(config, base.shape, drawn(config, base.shape))
    with attached(base.model, adapter):
        output = outputs(base)
    (output * torch.linspace(-1, 1, output.shape[-1])).pow(2).mean().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in adapter.parameters())
    assert all(p.grad is None for p in base.model.parameters())


@pytest.mark.parametrize("family", [*ON_BASES, *ENCODERS])
def test_nothing_trained_is_the_base_to_the_bit(bases, family):
    base = bases(family)
    with torch.no_grad():
        plain = outputs(base)
        for case in [case for name, case in PAIRS if name == family]:
            with attached(base.model, create(CASES[case], base.shape, seed=1, init="zero_up", base=base.model)):
                assert torch.equal(outputs(base), plain), case


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox"])
@pytest.mark.parametrize("case", CASES)
def test_cached_decoding_equals_one_pass(bases, family, case):
    base, config = bases(family), CASES[case]
    with torch.no_grad(), attached(base.model, from_tensors(config, base.shape, drawn(config, base.shape))):
        whole = base.model(IDS).logits[:, -1]
        first = base.model(IDS[:, :5], use_cache=True)
        rest = base.model(IDS[:, 5:], past_key_values=first.past_key_values, use_cache=True)
    agree(rest.logits[:, -1], whole)


# encoders


@pytest.mark.parametrize("case", sorted(CASES.keys() - {"parallel-residual"}))
def test_rows_of_a_batch_of_an_encoder_get_what_they_get_alone(encoder, case):
    config = CASES[case]
    rows = [[0, 5, 17, 2], [0, 5, 17, 250, 3, 99, 42, 2], [0, 2]]
    ids, mask = padded(rows, pad_id=1)
    with torch.no_grad(), attached(encoder.model, from_tensors(config, encoder.shape, drawn(config, encoder.shape))):
        for row, states in zip(rows, hidden_states(encoder.model, ids, mask), strict=True):
            agree(states[: len(row)], outputs(encoder, ids=torch.tensor([row]))[0])


@pytest.mark.parametrize("case", ["houlsby", "pfeiffer-residual", "bapna_firat-residual"])
def test_half_precision_encoders_keep_their_dtype(encoder, case):
    half = copy.deepcopy(encoder.model).to(torch.bfloat16)
    adapter = from_tensors(CASES[case], encoder.shape, drawn(CASES[case], encoder.shape))
    with attached(half, adapter), torch.no_grad():
        assert outputs(encoder, half).dtype == torch.bfloat16


@pytest.mark.parametrize("family", ENCODERS)
def test_on_an_encoder_a_parallel_adapter_reads_one_thing_and_the_other_name_is_refused(bases, family):
    with pytest.raises(Incompatible, match=r"is the residual stream: use input='module'"):
        expected_tensors(CASES["parallel-residual"], bases(family).shape)


# families without an entry


def test_a_family_without_an_entry_serves_and_takes_lora(tmp_path):
    folder = build_tiny_base(
        tmp_path / "phi",
        model_type="phi",
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=64,
    )
    base = load_base(BaseEntry(id="phi", source=str(folder)))
    log_probs = base.model(IDS).logits.log_softmax(-1)[:, :-1].gather(-1, IDS[:, 1:, None]).sum((1, 2))
    nlls = score_windows(base.model, [Window(tuple(ids)) for ids in IDS.tolist()], max_tokens=100, pad_id=0)
    assert nlls == pytest.approx((-log_probs).tolist(), rel=1e-5)
    with pytest.raises(Incompatible, match=r"'phi'.*known families: .*gpt2, gpt_neox, llama"):
        create(paper_config("pfeiffer"), base.shape, seed=0)
    config = LoraConfig.of({f"model.layers.{i}.self_attn.q_proj": LoraModule(2, 4.0) for i in range(2)})
    tensors = drawn(config, base.shape)
    with torch.no_grad(), attached(base.model, from_tensors(config, base.shape, tensors)):
        moved = base.model(IDS).logits
    with torch.no_grad():
        for i in range(2):
            name = f"base_model.model.model.layers.{i}.self_attn.q_proj"
            a, b = tensors[f"{name}.lora_A.weight"], tensors[f"{name}.lora_B.weight"]
            base.model.get_submodule(name.removeprefix("base_model.model.")).weight.add_(2.0 * b @ a)
        agree(moved, base.model(IDS).logits)


# shapes


def test_shape_lists_the_modules_that_lora_can_sit_on(base):
    modules = {
        path: module
        for path, module in base.model.named_modules()
        if getattr(module, "weight", None) is not None
        and module.weight.ndim == 2
        and "Embed" not in type(module).__name__
    }
    assert set(base.shape.linears) == set(modules)
    assert "lm_head" in base.shape.linears
    hidden = {}
    for path, module in modules.items():
        module.register_forward_hook(lambda _m, args, out, path=path: hidden.update({path: (args[0], out)}))
    with torch.no_grad():
        base.model(IDS)
    for module in modules.values():
        module._forward_hooks.clear()
    assert {path: (x.shape[-1], y.shape[-1]) for path, (x, y) in hidden.items()} == base.shape.linears


def test_shape_without_loading_is_the_loaded_ones(base):
    assert shape_of(base.entry) == base.shape


@pytest.mark.parametrize("rows", [[[0, 5, 17, 250, 3, 99], [0, 8], [0, 44, 45, 46]]])
def test_padded_scores_are_those_of_rows_alone(base, rows):
    nlls = score_windows(base.model, [Window(tuple(row)) for row in rows], max_tokens=1000, pad_id=7)
    for row, nll in zip(rows, nlls, strict=True):
        logits = base.model(torch.tensor([row])).logits[0, :-1]
        assert nll == pytest.approx(float(F.cross_entropy(logits, torch.tensor(row[1:]), reduction="sum")), rel=1e-5)
