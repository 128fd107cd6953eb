"""Soups of what people bring, over HTTP: of unknown origin, of LoRAs, of a mixed pool; what is served is exact."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest
import torch

from registry.adapters import expected_tensors
from registry.adapters.lora import PREFIX
from registry.adapters.weights import load_tensors, save_tensors
from registry.base_model import load_base
from registry.spec import LoraConfig, LoraModule
from tests.postgres import KINDS
from tests.service.servers import World

DATABASES = KINDS

TEXT = "The court held that the contract was void for want of consideration."
PATHS = [f"transformer.h.{layer}.{name}" for layer in range(2) for name in ("attn.c_attn", "mlp.c_proj")]
LOW = LoraConfig.of({path: LoraModule(2, 4.0) for path in PATHS})
HIGH = LoraConfig.of({path: LoraModule(5, 5.0) for path in PATHS[:3]}, rslora=True)


def lora_weights(world: World, config: LoraConfig, seed: int) -> bytes:
    draw = np.random.default_rng(seed)
    shapes = expected_tensors(config, world.runtime.bases["tiny"].shape)
    return save_tensors(
        {name: torch.from_numpy(draw.normal(0, 0.2, size).astype(np.float32)) for name, size in shapes.items()}
    )


@pytest.fixture(scope="module")
def stocked(world: World) -> World:
    """Two bottleneck adapters and two LoRAs, nobody knows from where."""
    for seed, name in enumerate(("one", "two")):
        world.push(f"acme/{name}", seed=seed, domain=name)
    for seed, (name, config) in enumerate({"low": LOW, "high": HIGH}.items()):
        data = base64.b64encode(lora_weights(world, config, seed)).decode()
        world.push(
            f"acme/{name}", domain=name, config=config.model_dump(),
            files={"adapter_model.safetensors": {"base64": data}},
        )  # fmt: skip
    return world


def cook(world: World, weights: dict[str, float], **how: Any) -> Any:
    """A recipe by hand; `how` is the rest of the request."""
    ingredients = [{"ref": f"acme/{name}", "weight": weight} for name, weight in weights.items()]
    return world.client.post("/v1/soups", json={"recipe": {"ingredients": ingredients}, "wait": 60, **how})


def mean_nll(world: World, model: str) -> float:
    answer = world.client.post("/v1/perplexity", json={"model": model, "texts": [TEXT]})
    assert answer.status_code == 200, answer.text
    return float(answer.json()["mean_nll"])


def test_unknown_origins_are_concatenated_and_served(stocked: World) -> None:
    answer = cook(stocked, {"one": 1, "two": 1})
    assert answer.status_code == 201, answer.text
    soup = answer.json()
    assert soup["recipe"]["mixing"] == {"method": "concat", "scale": "1"}
    assert "averaging was not possible" in soup["reason"]
    assert (soup["report"]["width_in"], soup["report"]["width_out"]) == ([4, 4], 8)
    assert soup["report"]["residual"] < 1e-6
    assert 1 < soup["report"]["relative_cost"] < 1.1
    assert soup["soup"]["config"]["bottleneck"] == 8
    assert mean_nll(stocked, soup["model"]) != pytest.approx(mean_nll(stocked, "base/tiny"), rel=1e-4)
    assert cook(stocked, {"one": 1, "two": 1}).status_code == 200


def test_a_soup_of_loras_is_the_base_with_the_weighted_updates_in_its_weights(stocked: World) -> None:
    """Merged by hand into the model: nothing of ours computes the expected value."""
    soup = cook(stocked, {"low": 1, "high": 3}).json()
    assert soup["recipe"]["mixing"]["method"] == "concat"
    assert soup["reason"] == "2 adapters by concat: LoRAs are mixed exactly, whatever they started from."
    base = load_base(stocked.runtime.bases["tiny"].entry)
    model = base.model
    with torch.no_grad():
        for seed, config, weight in ((0, LOW, 0.25), (1, HIGH, 0.75)):
            tensors = load_tensors(lora_weights(stocked, config, seed))
            for path, module in config.modules().items():
                a, b = (tensors[f"{PREFIX}{path}.lora_{side}.weight"] for side in "AB")
                scaling = module.alpha / (module.rank**0.5 if config.rslora else module.rank)
                model.get_submodule(path).weight += (weight * scaling * (b @ a)).T
        ids = torch.tensor([[base.bos_id, *base.tokenizer(TEXT, add_special_tokens=False)["input_ids"]]])
        scores = torch.log_softmax(model(ids).logits.double(), -1)[0, :-1]
    expected = -float(scores.gather(1, ids[0, 1:, None]).mean())
    assert mean_nll(stocked, soup["model"]) == pytest.approx(expected, rel=1e-5)
    assert mean_nll(stocked, soup["model"]) != pytest.approx(mean_nll(stocked, "acme/high"), rel=1e-4)


def test_one_lora_alone_is_that_lora(stocked: World) -> None:
    soup = cook(stocked, {"low": 5}).json()
    assert soup["model"] == "acme/low@1"
    assert soup["digest"] == stocked.client.get("/v1/adapters/acme/low").json()["digest"]


@pytest.mark.parametrize(
    ("refs", "how", "sentence"),
    [
        ({"one": 1, "low": 1}, {}, "The methods differ: acme/one@1 has bottleneck; acme/low@1 has lora."),
        ({"one": 1, "two": 1}, {"max_width": 7}, "would be 8 wide (4, 4), and max_width is 7"),
        ({"low": 1, "high": 1}, {"max_width": 6}, "would be 7 wide"),
        ({"low": 1, "high": 1}, {"mixing": {"method": "average"}}, "Mix by 'concat', which"),
    ],
)
def test_refusals_say_what_and_what_instead(stocked: World, refs: Any, how: Any, sentence: str) -> None:
    answer = cook(stocked, refs, **how)
    assert answer.status_code == 422
    assert answer.json()["error"]["code"] == "incompatible"
    assert sentence in answer.json()["error"]["message"]


@pytest.mark.parametrize("how", [{"max_width": 0}, {"mixing": {"method": "blend"}}, {"max_width": "wide"}])
def test_requests_that_are_none(stocked: World, how: Any) -> None:
    assert cook(stocked, {"one": 1}, **how).status_code in {400, 422}
