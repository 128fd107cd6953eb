"""Pruned adapters over HTTP: pushed with their masks, served, averaged by each rule, and refused where they lie."""

from __future__ import annotations

import base64
from typing import Any

import pytest
import torch

from registry.adapters import create
from registry.adapters.masks import is_mask, mask_of, mask_problems, pack, projections, unpack, values
from registry.adapters.weights import load_tensors, save_tensors
from registry.names import digest_of
from registry.spec import AdapterConfig, BottleneckConfig
from tests.registry.pruned_adapters import sparse
from tests.service.servers import World

TEXT = "The court held that the contract was void for want of consideration."
PLAIN = BottleneckConfig(structure="pfeiffer", bottleneck=4, activation="relu")
INIT = {"init_hash": digest_of("one start"), "init_source": "declared"}


def adapter(world: World, seed: int, sparsity: float) -> tuple[AdapterConfig, dict[str, torch.Tensor]]:
    """An adapter of large random values, so that every entry counts."""
    start = create(PLAIN, world.runtime.bases["tiny"].shape, seed=seed, init="linear").state_dict()
    return sparse(PLAIN, seed, sparsity=sparsity, tensors=start)


def push(world: World, name: str, config: AdapterConfig, tensors: dict[str, torch.Tensor]) -> Any:
    data = base64.b64encode(save_tensors(tensors)).decode()
    return world.client.post(
        "/v1/adapters",
        json={
            "name": f"acme/{name}", "domain": name, "base_model": "tiny", "config": config.model_dump(mode="json"),
            "provenance": INIT, "files": {"adapter_model.safetensors": {"base64": data}},
        },
    )  # fmt: skip


@pytest.fixture(scope="module")
def stocked(world: World) -> World:
    for seed, sparsity in enumerate((0.25, 0.5)):
        assert push(world, f"s{seed}", *adapter(world, seed, sparsity)).status_code == 201
    return world


def cook(world: World, weights: dict[str, float], **mixing: Any) -> Any:
    ingredients = [{"ref": f"acme/{name}", "weight": weight} for name, weight in weights.items()]
    body = {"recipe": {"ingredients": ingredients}, "wait": 60, "mixing": {"method": "auto", **mixing}}
    return world.client.post("/v1/soups", json=body)


def mean_nll(world: World, model: str) -> float:
    answer = world.client.post("/v1/perplexity", json={"model": model, "texts": [TEXT]})
    assert answer.status_code == 200, answer.text
    return float(answer.json()["mean_nll"])


def file_of(world: World, ref: str) -> dict[str, torch.Tensor]:
    answer = world.client.get(f"/v1/adapters/{ref}/files/adapter_model.safetensors")
    assert answer.status_code == 200
    return load_tensors(answer.content)


def test_masks_travel_and_what_they_leave_is_served(stocked: World) -> None:
    config, tensors = adapter(stocked, 0, 0.25)
    row = stocked.client.get("/v1/adapters/acme/s0").json()
    assert row["config"]["pruned"] == config.model_dump(mode="json")["pruned"]
    plain = sum(tensor.numel() for tensor in values(tensors).values())
    assert row["parameters"] == plain - row["config"]["pruned"]["masked"]
    back = file_of(stocked, "acme/s0")
    assert all(torch.equal(back[name], tensor) for name, tensor in tensors.items())
    dense_twin = push(stocked, "twin", config.dense(), values(tensors)).json()
    assert dense_twin["digest"] != row["digest"]
    assert mean_nll(stocked, "acme/s0") == pytest.approx(mean_nll(stocked, "acme/twin"), rel=1e-6)
    assert mean_nll(stocked, "acme/s0") != pytest.approx(mean_nll(stocked, "base/tiny"), rel=1e-4)


@pytest.mark.parametrize("rule", [None, "union", "intersect", "first", "reprune"])
def test_soups_by_every_rule(stocked: World, rule: str | None) -> None:
    how = {"method": "average", "masks": rule} if rule else {}
    answer = cook(stocked, {"s0": 0.75, "s1": 0.25}, **how)
    assert answer.status_code == (200 if rule == "union" else 201), answer.text  # the bytes of the default
    soup = answer.json()
    assert soup["recipe"]["mixing"].get("masks") == rule
    pruned = soup["soup"]["config"]["pruned"]
    assert pruned["score"] == (rule or "union")
    found = file_of(stocked, soup["soup"]["ref"].split("@")[0])
    config = PLAIN.model_validate(soup["soup"]["config"])
    assert mask_problems(config, found) == []
    own = [adapter(stocked, seed, sparsity)[1] for seed, sparsity in enumerate((0.25, 0.5))]
    for name in projections(PLAIN, values(found))[""]:
        one, two = (unpack(tensors[mask_of(name)], found[name].shape) for tensors in own)
        kept = unpack(found[mask_of(name)], found[name].shape)
        expected = {None: one | two, "union": one | two, "intersect": one & two, "first": one}.get(rule)
        if expected is not None:
            assert torch.equal(kept, expected)
    assert soup["soup"]["provenance"]["init_hash"] == INIT["init_hash"]
    assert "Pruned are" in soup["report"]["notes"][0]
    assert soup["report"]["residual"] is not None
    assert mean_nll(stocked, soup["model"]) > 0
    again = cook(stocked, {"s1": 1, "s0": 3}, **how)
    assert (again.status_code, again.json()["digest"]) == (200, soup["digest"])


def test_a_pruned_and_a_dense_adapter_give_a_dense_soup(stocked: World) -> None:
    push(stocked, "whole", PLAIN, values(adapter(stocked, 9, 0.25)[1]))
    soup = cook(stocked, {"s0": 1, "whole": 1}).json()
    assert "pruned" not in soup["soup"]["config"] or soup["soup"]["config"]["pruned"] is None
    assert not any(map(is_mask, file_of(stocked, soup["soup"]["ref"].split("@")[0])))


def test_masks_that_lie_are_refused(stocked: World) -> None:
    config, tensors = adapter(stocked, 4, 0.25)
    name = projections(PLAIN, values(tensors))[""][0]
    keep = unpack(tensors[mask_of(name)], tensors[name].shape)
    lies = {
        "masked and not zero": {**tensors, name: tensors[name] + 1},
        "the configuration says": {**tensors, mask_of(name): pack(torch.ones_like(keep))},
    }
    for sentence, spoiled in lies.items():
        error = push(stocked, "liar", config, spoiled).json()["error"]
        assert error["code"] == "invalid_weights"
        assert sentence in error["message"]
    assert push(stocked, "liar", config.dense(), tensors).json()["error"]["code"] == "incompatible"
    assert push(stocked, "liar", config, values(tensors)).json()["error"]["code"] == "incompatible"
    assert stocked.client.get("/v1/adapters/acme/liar").status_code == 404


@pytest.mark.parametrize(
    "mixing", [{"method": "average", "masks": "xor"}, {"method": "concat", "masks": "union"}, {"masks": "union"}]
)
def test_rules_that_are_none(stocked: World, mixing: Any) -> None:
    assert cook(stocked, {"s0": 1, "s1": 1}, **mixing).status_code in {400, 422}
