"""Models stored and not served, over HTTP: adapters of an encoder, adapters with a head, banks of experts; and those
served beside them, a prefix, MAM and a fusion."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from registry.adapters import expected_tensors
from registry.adapters.weights import save_tensors
from registry.spec import (
    AdapterConfig,
    BankConfig,
    BottleneckConfig,
    FusionConfig,
    HeadConfig,
    PrefixConfig,
    UnionConfig,
)
from tests.service.answers import answered, refusal
from tests.service.cluster import ended
from tests.service.passages import passages
from tests.service.servers import World, open_world
from tests.tiny_models import build_tiny_encoder

PFEIFFER = BottleneckConfig(structure="pfeiffer", bottleneck=4, activation="relu")
PARALLEL = BottleneckConfig(structure="parallel", bottleneck=4, activation="relu", scale=4.0)
HEAD = HeadConfig(task="classification", labels=("bad", "good"))
TASK = UnionConfig(members=(PFEIFFER, HEAD))
BANK = BankConfig(expert=PFEIFFER, experts=2)
PREFIX = PrefixConfig(length=4)
SERVED: dict[str, AdapterConfig] = {
    "lab/prefix": PREFIX,
    "lab/mam": UnionConfig(members=(PREFIX, PARALLEL)),
    "lab/fusion": FusionConfig(member=PFEIFFER, members=2),
}
STORED: dict[str, tuple[str, AdapterConfig, str]] = {
    "lab/task": ("tiny", TASK, "'lab/task' answers with a head for classification (labels 'bad', 'good') and not"),
    "lab/head": ("tiny", HEAD, "'lab/head' answers with a head for classification"),
    "lab/bank": ("tiny", BANK, "'lab/bank' is a bank of 2 experts (AdaMix), which is not served but its merge is"),
    "lab/bert-task": ("bert", TASK, "a head for classification (labels 'bad', 'good') on an encoder (family 'bert')"),
    "lab/bert": ("bert", PFEIFFER, "'lab/bert' is an adapter of an encoder (family 'bert')"),
}
TEXT = "Heat the oil, add the onions and stir. "


@pytest.fixture(scope="module")
def world(tiny_base_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("kinds")
    bert = build_tiny_encoder(folder / "bert")
    (folder / "bases.toml").write_text(
        f'[bases.tiny]\nsource = "{tiny_base_dir}"\n[bases.bert]\nsource = "{bert}"\nkind = "encoder"\n'
    )
    for world in open_world(folder / "data", folder / "bases.toml", ready_seconds=0):
        for name, config in SERVED.items():
            pushed(world, name, "tiny", config)
        for seed, (name, (base_id, config, _)) in enumerate(STORED.items()):
            domain = ("kitchen", "court", "code")[seed % 3]
            pushed(world, name, base_id, config, domain=domain, sample={"texts": passages(domain, 20)})
        yield world


def tensors_of(world: World, base_id: str, config: AdapterConfig, seed: int = 1) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = expected_tensors(config, world.runtime.bases[base_id].shape)
    return {name: 0.5 * torch.randn(size, generator=generator) for name, size in shapes.items()}


def manifest(world: World, name: str, base_id: str, config: AdapterConfig, **more: Any) -> dict[str, Any]:
    data = save_tensors(tensors_of(world, base_id, config, more.pop("seed", 1)))
    return {
        "name": name,
        "domain": "tests",
        "base_model": base_id,
        "config": config.model_dump(mode="json"),
        "files": {"adapter_model.safetensors": {"base64": base64.b64encode(data).decode()}},
        **more,
    }


def pushed(world: World, name: str, base_id: str, config: AdapterConfig, **more: Any) -> dict[str, Any]:
    adapter = answered(world.client.post("/v1/adapters", json=manifest(world, name, base_id, config, **more)), 201)
    if adapter["job"] is not None:
        assert ended(world.client, adapter["job"])["state"] == "succeeded"
    return dict(adapter)


def post(world: World, path: str, **body: Any) -> Any:
    return world.client.post(path, json=body)


def text_answers(world: World, model: str) -> list[Any]:
    """The answers to each kind of request for text."""
    return [
        post(world, "/v1/completions", model=model, prompt=TEXT, max_tokens=2),
        post(world, "/v1/completions", model=model, prompt=TEXT, max_tokens=2, stream=True),
        post(world, "/v1/completions", model=model, prompt=TEXT, max_tokens=0, echo=True, logprobs=1),
        post(world, "/v1/chat/completions", model=model, messages=[{"role": "user", "content": "x"}], max_tokens=2),
        post(world, "/v1/perplexity", model=model, texts=[TEXT]),
        post(world, "/v1/perplexity", model="tiny", baseline=model, texts=[TEXT]),
    ]


# --- refused by what they are ---------------------------------------------------------------------


@pytest.mark.parametrize("name", STORED)
def test_every_way_to_ask_for_text_is_refused_by_what_it_is(world: World, name: str) -> None:
    digest = world.client.get(f"/v1/adapters/{name}").json()["digest"]
    for answer in text_answers(world, name):
        message = refusal(answer)
        assert STORED[name][2] in message
        assert message.endswith(".")
        assert ". " not in message, "one sentence"
        assert answer.json()["error"]["param"] == "model"
    assert refusal(post(world, "/v1/completions", model=digest, prompt="x")).startswith(f"'{digest}' ")


@pytest.mark.parametrize("name", ["bert", "base/bert"])
def test_an_encoder_itself_is_refused(world: World, name: str) -> None:
    for answer in text_answers(world, name):
        assert refusal(answer) == (
            f"'{name}' is an encoder (family 'bert'), which neither continues nor scores text: ask /v1/embeddings for "
            "its vectors."
        )


def test_the_list_of_models_holds_what_can_be_asked_for(world: World) -> None:
    listed = {model["id"]: model for model in world.client.get("/v1/models").json()["data"]}
    assert set(SERVED) <= set(listed)
    assert not set(STORED) & set(listed)
    assert [listed[base]["speaks"] for base in ("tiny", "bert")] == [True, False]  # the latter embeds
    assert all(listed[name]["speaks"] for name in SERVED)
    for name in STORED:
        card = world.client.get(f"/v1/models/{name}").json()
        assert (card["speaks"], card["kind"]) == (False, "adapter")
    adapters = {adapter["name"] for adapter in world.client.get("/v1/adapters", params={"limit": 100}).json()["data"]}
    assert {name.split("/")[1] for name in (*SERVED, *STORED)} <= adapters


def test_an_encoder_is_ready_and_embeds(world: World) -> None:
    assert world.client.get("/readyz").json()["checks"] == {
        "database": "ok",
        "blobs": "ok",
        "base/tiny": "ok",
        "base/bert": "ok",
    }
    answer = answered(post(world, "/v1/embeddings", model="base/bert", input=[TEXT, "x"]))
    assert [len(row["embedding"]) for row in answer["data"]] == [32, 32]
    tokens = [post(world, "/tokenize", model="bert", prompt=text).json()["count"] for text in (TEXT, "x")]
    assert answer["usage"]["prompt_tokens"] == sum(tokens)
    assert "the context is 64" in refusal(post(world, "/v1/embeddings", model="bert", input=TEXT * 20))
    assert "without adapters only" in refusal(post(world, "/v1/embeddings", model="lab/bert", input=TEXT))


def test_the_token_ids_of_a_text_have_its_vector(world: World) -> None:
    ids = answered(post(world, "/tokenize", model="bert", prompt=TEXT))["tokens"]
    vectors = [
        answered(post(world, "/v1/embeddings", model="bert", input=[content]))["data"] for content in (TEXT, ids)
    ]
    assert vectors[0] == vectors[1]
    only_special = answered(post(world, "/tokenize", model="bert", prompt=""))["tokens"]
    assert "but for special tokens" in refusal(post(world, "/v1/embeddings", model="bert", input=[only_special]))
    bare = answered(post(world, "/tokenize", model="bert", prompt=TEXT, add_special_tokens=False))["tokens"]
    assert bare == ids[1:-1]


# --- pools and soups ------------------------------------------------------------------------------


def test_heads_and_banks_are_no_candidates(world: World) -> None:
    body: dict[str, Any] = {"sample": {"texts": passages("kitchen", 20, seed=3)}, "pool": {"base_model": "tiny"}}
    nobody = post(world, "/v1/select", **body, selector={"kind": "uniform"}, wait=100)
    assert nobody.status_code >= 400 or not nobody.json()["selection"]["selected"]
    for name, domain in (("lab/cook", "kitchen"), ("lab/judge", "court")):
        pushed(world, name, "tiny", PFEIFFER, domain=domain, sample={"texts": passages(domain, 20)}, seed=len(name))
    answer = answered(post(world, "/v1/select", **body, selector={"kind": "uniform"}, wait=100))
    assert {adapter["ref"].split("@")[0] for adapter in answer["selection"]["selected"]} == {"lab/cook", "lab/judge"}


def test_a_soup_for_an_encoder_is_chosen_and_not_verified(world: World) -> None:
    same = {"init_hash": "sha256:" + "1" * 64, "init_source": "declared"}
    for seed, (name, domain) in enumerate((("lab/bert-cook", "kitchen"), ("lab/bert-judge", "court")), 5):
        pushed(
            world,
            name,
            "bert",
            PFEIFFER,
            domain=domain,
            sample={"texts": passages(domain, 20)},
            seed=seed,
            provenance=same,
        )
    body: dict[str, Any] = {
        "sample": {"texts": passages("kitchen", 20, seed=3)},
        "pool": {"base_model": "base/bert"},
        "selector": {"kind": "cosine", "encoder": "base"},
        "wait": 100,
    }
    by_all = body | {"selector": {"kind": "uniform"}}
    assert "'bert' is an encoder: set 'verify' to false" in refusal(post(world, "/v1/soups", **by_all))
    [adapter] = answered(post(world, "/v1/select", **body, options={"single": True}))["selection"]["selected"]
    assert adapter["ref"].startswith("lab/bert-cook")
    recipe = {"ingredients": [{"ref": ref, "weight": 1} for ref in ("lab/bert-cook", "lab/bert-judge")]}
    answered(post(world, "/v1/soups", recipe=recipe, name="lab/bert-soup", wait=100), 201)
    assert "an adapter of an encoder" in refusal(post(world, "/v1/completions", model="lab/bert-soup", prompt="x"))


def test_a_soup_of_task_adapters_is_not_verified_either(world: World) -> None:
    same = {"init_hash": "sha256:" + "2" * 64, "init_source": "declared"}
    for seed in (7, 8):
        pushed(world, f"lab/task-{seed}", "tiny", TASK, seed=seed, provenance=same)
    recipe = {"ingredients": [{"ref": f"lab/task-{seed}", "weight": 1} for seed in (7, 8)]}
    answer = post(world, "/v1/soups", recipe=recipe, sample={"texts": passages("kitchen", 20)}, wait=100)
    assert "lab/task-7@1 answers with a head" in refusal(answer)
    assert post(world, "/v1/soups", recipe=recipe, name="lab/task-soup", wait=100).status_code == 201
    assert "answers with a head" in refusal(post(world, "/v1/completions", model="lab/task-soup", prompt="x"))


# --- served ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SERVED)
def test_a_prompt_is_continued_and_the_context_kept(world: World, name: str) -> None:
    answer = post(world, "/v1/completions", model=name, prompt=[5] * 40, max_tokens=20, temperature=0)
    assert answer.headers["x-soup-digest"] == world.client.get(f"/v1/adapters/{name}").json()["digest"]
    full = post(world, "/v1/completions", model=name, prompt=[5] * 40, max_tokens=24, temperature=0)
    if name == "lab/fusion":
        assert full.status_code == 200
    else:
        assert "of which the adapter's prefix takes 4: request at most 20" in refusal(full)


# --- bad pushes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base_id", "config", "match"),
    [
        ("bert", {"method": "prefix", "length": 3}, "prefix"),
        ("tiny", {"method": "prefix", "length": 64}, "leaves no room"),
        ("tiny", {"method": "head", "task": "classification", "labels": ["one"]}, "labels"),
        ("tiny", HEAD.model_dump(mode="json"), "out.weight|not those"),
        ("bert", BANK.model_dump(mode="json"), "experts|not those|shape"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(world: World, base_id: str, config: Any, match: str) -> None:
    body = manifest(world, "lab/bad", base_id, PFEIFFER) | {"config": config}
    answer = post(world, "/v1/adapters", **body)
    assert 400 <= answer.status_code < 500, answer.text
    assert re.search(match, answer.text), answer.text
    assert world.client.get("/v1/adapters/lab/bad").status_code == 404
