"""LoRAs are trained like bottlenecks, on every family of base model; which modules they sit on."""

from __future__ import annotations

import json

import pytest
import torch

from registry.adapters import attached, from_tensors, paper_config
from registry.errors import Incompatible
from registry.formats import read_directory
from registry.spec import BaseShape
from tests.tiny_models import CAUSAL
from tests.training.conftest import TEXTS, VALID, state_hash, train_on
from training.data import pack
from training.hyperparameters import Hyperparameters
from training.methods.lora_targets import lora_for
from training.trainer import loss_of

pytestmark = pytest.mark.slow

RECIPE = Hyperparameters(steps=4, batch=4, block=32, learning_rate=2e-2, evaluations=2)


ON_BASES = CAUSAL


@pytest.mark.parametrize("method", ["lora", "bottleneck"])
def test_every_family_is_trained_and_stays_frozen(base, method, tmp_path):
    lora = lora_for(base.shape, rank=2, alpha=4, targets=["*"])
    config = lora if method == "lora" else paper_config("bapna_firat", bottleneck=4)
    blocks = torch.from_numpy(pack(VALID, base.tokenize, block=32).rows)
    base_hash = state_hash(base.model)
    trained = train_on(base, config, TEXTS, VALID, hyperparameters=RECIPE)
    assert state_hash(base.model) == base_hash
    record = trained.record
    assert record["valid_perplexity"] < record["valid_perplexity_before"]
    sizes = [tensor.numel() for tensor in trained.tensors.values()]
    base_size = sum(parameter.numel() for parameter in base.model.parameters())
    assert record["parameters"] == {"trained": sum(sizes), "base": base_size, "share": sum(sizes) / base_size}
    trained.write(tmp_path / "law", base, domain="law", base_id="tiny", passages=TEXTS)
    folder = read_directory(tmp_path / "law")
    assert (folder.domain, folder.config, folder.provenance) == ("law", config, trained.provenance)
    with attached(base.model, from_tensors(config, base.shape, trained.tensors)), torch.no_grad():
        perplexity = float(loss_of(base)(blocks).exp())
    assert perplexity == pytest.approx(record["valid_perplexity"], rel=1e-5)
    if method == "lora":
        assert record["init"] == "zero_b"
        assert not [name for name, tensor in trained.tensors.items() if not tensor.any()]
        with torch.no_grad():
            plain = float(loss_of(base)(blocks).exp())
        assert record["valid_perplexity_before"] == pytest.approx(plain, rel=1e-5)
        peft = json.loads((tmp_path / "law" / "adapter_config.json").read_text())
        assert (peft["peft_type"], peft["r"], peft["lora_alpha"]) == ("LORA", 2, 4)
        assert peft["fan_in_fan_out"] == (base.shape.model_type == "gpt2")


# --- targets ------------------------------------------------------------------------------------------


def shape(*paths: str) -> BaseShape:
    layers = [path.replace("*", str(i)) for path in paths for i in (range(2) if "*" in path else [0])]
    return BaseShape(
        fingerprint="sha256:" + "0" * 64,
        model_type="new",
        hidden_size=8,
        num_layers=2,
        context=64,
        vocab_size=300,
        linears=dict.fromkeys(layers, (8, 8)),
    )


LLAMA = shape(
    "model.layers.*.self_attn.q_proj", "model.layers.*.self_attn.v_proj", "model.layers.*.mlp.up_proj", "lm_head"
)


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        ([], {"self_attn.q_proj", "self_attn.v_proj"}),
        (["q_proj"], {"self_attn.q_proj"}),
        (["self_attn.q_proj", "mlp.*"], {"self_attn.q_proj", "mlp.up_proj"}),
        (["*_proj"], {"self_attn.q_proj", "self_attn.v_proj", "mlp.up_proj"}),
        (["all-linear"], {"self_attn.q_proj", "self_attn.v_proj", "mlp.up_proj"}),
        (["model.layers.*.mlp.up_proj"], {"mlp.up_proj"}),
        (["q_proj", "q_proj", "self_attn.q_*"], {"self_attn.q_proj"}),
    ],
)
def test_targets_are_names_ends_of_paths_and_stars(targets, expected):
    modules = lora_for(LLAMA, rank=4, alpha=8, targets=targets).modules()
    assert {path.split(".", 3)[3] for path in modules} == expected
    assert len(modules) == 2 * len(expected)
    assert {(module.rank, module.alpha) for module in modules.values()} == {(4, 8.0)}


def test_a_target_may_be_one_layer_or_outside_of_the_layers():
    assert list(lora_for(LLAMA, rank=4, alpha=8, targets=["layers.1.mlp.up_proj", "lm_head"]).modules()) == [
        "lm_head",
        "model.layers.1.mlp.up_proj",
    ]


def test_targets_that_name_nothing_are_all_refused_with_what_there_is():
    with pytest.raises(Incompatible, match=r"'c_attn', 'attn\.q'; it has lm_head, q_proj, up_proj, v_proj") as caught:
        lora_for(LLAMA, rank=4, alpha=8, targets=["c_attn", "q_proj", "attn.q"])
    assert len(caught.value.problems) == 2


def test_a_base_without_known_attention_asks_for_targets():
    with pytest.raises(Incompatible, match="name the LoRA's targets; there are mixer"):
        lora_for(shape("layers.*.mixer"), rank=4, alpha=8)
    with pytest.raises(Incompatible, match="none that are known"):
        lora_for(shape(), rank=4, alpha=8)
