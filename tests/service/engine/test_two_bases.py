"""Two base models of different families and vocabularies in one server, in memory that holds both or only one."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from registry.adapters import expected_tensors
from registry.adapters.weights import save_tensors
from registry.base_model import load_base
from registry.spec import BaseEntry, LoraConfig, LoraModule
from service.engine.bases import loaded_weight_bytes
from tests.service.passages import passages
from tests.service.servers import World, open_world, write_bases
from tests.tiny_models import build_tiny_base

BASES = ("tiny", "lima")
DOMAINS = ("kitchen", "court")
PROMPT = "Heat the oil, add the"


@pytest.fixture(scope="module")
def sources(tiny_base_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    lima = tmp_path_factory.mktemp("lima")
    return {"tiny": tiny_base_dir, "lima": build_tiny_base(lima, seed=1, model_type="llama", vocab_size=270)}


@pytest.fixture(scope="module", params=["both fit", "one fits"])
def world(
    request: pytest.FixtureRequest, sources: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """Adapters of the same names' domains on both bases, with samples, embedded."""
    folder = tmp_path_factory.mktemp("two")
    sizes = [loaded_weight_bytes(BaseEntry(id=name, source=str(path))) for name, path in sources.items()]
    budget = None if request.param == "both fit" else max(sizes) + min(sizes) // 2
    bases = write_bases(folder / "bases.toml", sources)
    for world in open_world(folder / "data", bases, memory_bytes=budget, ready_seconds=0):
        for base_id in BASES:
            for seed, domain in enumerate(DOMAINS):
                pushed = world.push(
                    f"{base_id}/{domain}", seed=seed, domain=domain, base_model=base_id,
                    sample={"texts": passages(domain, 30)},
                )  # fmt: skip
                finish(world, pushed["job"])
        yield world


def finish(world: World, job: str) -> None:
    for _ in range(600):
        state = world.client.get(f"/v1/jobs/{job}").json()["state"]
        if state not in {"queued", "running"}:
            break
    assert state == "succeeded"


def post(world: World, path: str, **body: Any) -> Any:
    return world.client.post(path, json=body)


def complete(world: World, model: str, tokens: int = 12) -> str:
    answer = post(world, "/v1/completions", model=model, prompt=PROMPT, max_tokens=tokens, temperature=0)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def test_both_are_listed_with_their_own_context_and_state(world: World) -> None:
    listed = {one["id"]: one for one in world.client.get("/v1/models").json()["data"]}
    assert {f"{base}/{domain}" for base in BASES for domain in DOMAINS} <= set(listed)
    cards = [world.client.get(f"/v1/models/base/{base}").json() for base in BASES]
    assert [listed[base]["kind"] for base in BASES] == ["base", "base"]
    assert cards[0]["fingerprint"] != cards[1]["fingerprint"]
    assert {listed[f"lima/{domain}"]["base_model"] for domain in DOMAINS} == {"lima"}


def test_each_has_its_own_vocabulary(world: World) -> None:
    tokens = [post(world, "/tokenize", model=base, prompt=PROMPT).json()["tokens"] for base in BASES]
    assert tokens[0] != tokens[1]
    for base, ids in zip(BASES, tokens, strict=True):
        assert post(world, "/detokenize", model=base, tokens=ids).json()["prompt"].endswith(PROMPT)
    refused = post(world, "/v1/completions", model="lima", prompt=[0, 280], max_tokens=1)
    assert refused.status_code == 400
    assert "outside of the vocabulary (0 to 269)" in refused.json()["error"]["message"]
    assert post(world, "/v1/completions", model="tiny", prompt=[0, 280], max_tokens=1).status_code == 200


def test_each_continues_as_it_does_alone(world: World) -> None:
    for base_id in BASES:
        base = load_base(world.runtime.bases[base_id].entry)
        ids = torch.tensor([base.tokenize(PROMPT)])
        out = base.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False, pad_token_id=0
        )
        ids = out[0, ids.shape[1] :].tolist()
        assert complete(world, base_id) == base.tokenizer.decode(ids, skip_special_tokens=True)


def test_requests_to_both_at_once_are_all_answered(world: World) -> None:
    models = ["tiny", "lima", "tiny/kitchen", "lima/kitchen", "lima/court", "tiny/court"] * 3
    expected = {model: complete(world, model) for model in set(models)}
    assert len(set(expected.values())) == len(expected), "bases and adapters matter"
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(lambda model: complete(world, model), models)) == [expected[model] for model in models]


def test_memory_is_kept_to(world: World) -> None:
    for model in ("tiny/kitchen", "lima/court", "tiny"):
        complete(world, model)
    figures = world.runtime.engine.counters()
    budget = world.runtime.settings.memory_bytes
    if budget is None:
        assert (figures["bases_held"], figures["base_loads_total"]) == (2, 2)
    else:
        assert figures["bases_held"] == 1
        assert figures["base_bytes"] + figures["adapter_bytes"] <= budget
    text = world.client.get("/metrics").text
    for name in ("soup_engine_bases_held", "soup_engine_base_bytes", "soup_engine_base_loads_total"):
        assert f"\n{name} " in text


def test_a_probe_loads_nothing_where_memory_is_short(world: World) -> None:
    complete(world, "lima")
    loads = world.runtime.engine.counters()["base_loads_total"]
    ready = world.client.get("/readyz")
    assert ready.status_code == 200
    short = world.runtime.settings.memory_bytes is not None
    tiny = "loads at its next use" if short else "ok"
    assert ready.json()["checks"] == {"database": "ok", "blobs": "ok", "base/tiny": tiny, "base/lima": "ok"}
    assert world.runtime.engine.counters()["base_loads_total"] == loads


def test_a_base_beyond_the_budget_is_refused_in_one_sentence(
    sources: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    size = loaded_weight_bytes(BaseEntry(id="lima", source=str(sources["lima"])))
    bases = write_bases(tmp_path / "bases.toml", sources)
    for world in open_world(tmp_path / "data", bases, memory_bytes=size - 1):
        answer = post(world, "/v1/completions", model="lima", prompt="a", max_tokens=1)
        assert answer.status_code == 503
        message = answer.json()["error"]["message"]
        assert f"takes {size} bytes, and this server may hold {size - 1} bytes" in message
        assert post(world, "/tokenize", model="lima", prompt="a").status_code == 200, "text needs no weights"
        ready = world.client.get("/readyz")
        assert (ready.status_code, ready.json()["checks"]["base/lima"]) == (200, "exceeds the memory budget")
        assert [one for one in caplog.messages if "lima" in one and "can never be loaded" in one]


def test_a_pool_is_over_one_base(world: World) -> None:
    sample = {"texts": passages("kitchen", 24, seed=3)}
    how = {"sample": sample, "selector": {"kind": "cosine"}, "options": {"single": True}, "wait": 120}
    unnamed = post(world, "/v1/select", **how)
    assert unnamed.status_code == 400
    assert "this server has: lima, tiny" in unnamed.json()["error"]["message"]
    for base_id in BASES:
        answer = post(world, "/v1/select", **how, pool={"base_model": base_id})
        assert answer.status_code == 200, answer.text
        refs = [one["ref"] for one in answer.json()["selection"]["selected"]]
        assert [ref.split("@")[0] for ref in refs] == [f"{base_id}/kitchen"]
        soup = post(world, "/v1/soups", sample=sample, pool={"base_model": base_id}, wait=120, verify=True,
                    selector={"kind": "uniform"})  # fmt: skip
        assert soup.status_code in {200, 201}, soup.text
        assert soup.json()["recipe"]["base_fingerprint"] == world.runtime.bases[base_id].shape.fingerprint


def test_adapters_of_two_bases_are_no_soup(world: World) -> None:
    ingredients = [{"ref": f"{base}/kitchen", "weight": 1} for base in BASES]
    answer = post(world, "/v1/soups", recipe={"ingredients": ingredients}, wait=60)
    assert answer.status_code in {400, 409, 422}
    assert "base" in answer.json()["error"]["message"]


def test_an_adapter_of_one_is_refused_on_the_other(world: World) -> None:
    paths = [f"model.layers.{layer}.self_attn.q_proj" for layer in range(2)]
    config = LoraConfig.of({path: LoraModule(2, 4.0) for path in paths})
    tensors = {
        name: torch.ones(size) for name, size in expected_tensors(config, world.runtime.bases["lima"].shape).items()
    }
    manifest = {
        "name": "acme/lora", "domain": "law", "config": config.model_dump(),
        "files": {"adapter_model.safetensors": {"base64": base64.b64encode(save_tensors(tensors)).decode()}},
    }  # fmt: skip
    refused = post(world, "/v1/adapters", **manifest, base_model="tiny")
    assert refused.status_code in {400, 409, 422}
    assert "self_attn.q_proj" in refused.json()["error"]["message"]
    pushed = post(world, "/v1/adapters", **manifest, base_model="lima")
    assert pushed.status_code == 201, pushed.text
    assert complete(world, "acme/lora") != complete(world, "lima")
    stated = post(
        world, "/v1/adapters", **manifest, base_model="lima",
        base_fingerprint=world.runtime.bases["tiny"].shape.fingerprint,
    )  # fmt: skip
    assert stated.status_code in {400, 409, 422}, stated.text
