"""Two base models of different families and vocabularies in one server, in memory that holds one of them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from registry.errors import Unavailable
from registry.spec import BaseEntry
from service.engine.bases import AllowedBases, loaded_weight_bytes
from tests.service.answers import answered, refusal
from tests.service.cluster import ended
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


def budget_of_one(sources: dict[str, Path]) -> int:
    """Bytes of memory that hold any one of two base models, and never both."""
    sizes = [loaded_weight_bytes(BaseEntry(id=name, source=str(path))) for name, path in sources.items()]
    return max(sizes) + min(sizes) // 2


@pytest.fixture(scope="module")
def world(sources: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Adapters of the same names' domains on both bases, with samples, embedded."""
    folder = tmp_path_factory.mktemp("two")
    bases = write_bases(folder / "bases.toml", sources)
    for world in open_world(folder / "data", bases, memory_bytes=budget_of_one(sources), ready_seconds=0):
        for base_id in BASES:
            for seed, domain in enumerate(DOMAINS):
                pushed = world.push(
                    f"{base_id}/{domain}",
                    seed=seed,
                    domain=domain,
                    base_model=base_id,
                    sample={"texts": passages(domain, 20)},
                )
                assert ended(world.client, pushed["job"])["state"] == "succeeded"
        yield world


def post(world: World, path: str, **body: Any) -> Any:
    return world.client.post(path, json=body)


def complete(world: World, model: str, tokens: int = 12) -> str:
    answer = post(world, "/v1/completions", model=model, prompt=PROMPT, max_tokens=tokens, temperature=0)
    return str(answered(answer)["choices"][0]["text"])


def test_both_are_listed_with_their_own_context_and_state(world: World) -> None:
    listed = {model["id"]: model for model in world.client.get("/v1/models").json()["data"]}
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
    assert "outside of the vocabulary (0 to 269)" in refusal(refused)
    assert post(world, "/v1/completions", model="tiny", prompt=[0, 280], max_tokens=1).status_code == 200


def test_requests_to_both_at_once_are_all_answered(world: World) -> None:
    models = ["tiny", "lima", "tiny/kitchen", "lima/kitchen", "lima/court", "tiny/court"]
    expected = {model: complete(world, model) for model in set(models)}
    assert len(set(expected.values())) == len(expected), "bases and adapters matter"
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(lambda model: complete(world, model), models)) == [expected[model] for model in models]


def test_a_probe_loads_nothing_where_memory_is_short(world: World) -> None:
    complete(world, "lima")
    counters = world.runtime.engine.counters()
    assert (counters["bases_held"], counters["base_bytes"] <= (world.runtime.settings.memory_bytes or 0)) == (1, True)
    ready = world.client.get("/readyz")
    assert ready.status_code == 200
    checks = {"database": "ok", "blobs": "ok", "base/tiny": "loads at its next use", "base/lima": "ok"}
    assert ready.json()["checks"] == checks
    assert f"\nsoup_engine_base_loads_total {counters['base_loads_total']}" in world.client.get("/metrics").text


def test_a_probe_loads_nothing_that_waits_for_its_first_use(sources: dict[str, Path], tmp_path: Path) -> None:
    bases = write_bases(tmp_path / "bases.toml", sources)
    for world in open_world(tmp_path / "data", bases, preload=False):
        ready = world.client.get("/readyz")
        assert (ready.status_code, ready.json()["checks"]["base/lima"]) == (200, "loads at its next use")
        assert world.runtime.engine.loaded_bases() == ()


@pytest.mark.slow
def test_a_base_beyond_the_budget_is_refused_in_one_sentence(
    sources: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    size = loaded_weight_bytes(BaseEntry(id="lima", source=str(sources["lima"])))
    bases = write_bases(tmp_path / "bases.toml", sources)
    for world in open_world(tmp_path / "data", bases, memory_bytes=size - 1):
        refused = post(world, "/v1/completions", model="lima", prompt="a", max_tokens=1)
        assert f"takes {size} bytes, and this server may hold {size - 1} bytes" in refusal(refused, 503)
        assert post(world, "/tokenize", model="lima", prompt="a").status_code == 200, "text needs no weights"
        ready = world.client.get("/readyz")
        assert (ready.status_code, ready.json()["checks"]["base/lima"]) == (200, "exceeds the memory budget")
        assert [message for message in caplog.messages if "lima" in message and "can never be loaded" in message]


def test_a_pool_is_over_one_base(world: World) -> None:
    sample = {"texts": passages("kitchen", 20, seed=3)}
    body = {"sample": sample, "selector": {"kind": "cosine"}, "options": {"single": True}, "wait": 120}
    for base_id in BASES:
        answer = answered(post(world, "/v1/select", **body, pool={"base_model": base_id}))
        refs = [adapter["ref"] for adapter in answer["selection"]["selected"]]
        assert [ref.split("@")[0] for ref in refs] == [f"{base_id}/kitchen"]
        soup = post(
            world,
            "/v1/soups",
            sample=sample,
            pool={"base_model": base_id},
            wait=120,
            verify=True,
            selector={"kind": "uniform"},
        )
        assert soup.status_code in {200, 201}, soup.text
        assert soup.json()["recipe"]["base_fingerprint"] == world.runtime.bases[base_id].shape.fingerprint


def replace_weights(folder: Path) -> None:
    """Other weights in the files of a base model."""
    file = folder / "model.safetensors"
    save_file({name: tensor + 0.1 for name, tensor in load_file(file).items()}, file, metadata={"format": "pt"})


def test_a_base_model_whose_files_were_replaced_is_not_loaded_again(sources: dict[str, Path], tmp_path: Path) -> None:
    copies = {name: Path(shutil.copytree(path, tmp_path / name)) for name, path in sources.items()}
    bases = write_bases(tmp_path / "bases.toml", copies)
    for world in open_world(tmp_path / "data", bases, memory_bytes=budget_of_one(copies)):
        world.push("tiny/court", base_model="tiny")
        complete(world, "tiny/court")
        complete(world, "lima")
        replace_weights(copies["tiny"])
        for model in ("tiny/court", "tiny"):
            answer = post(world, "/v1/completions", model=model, prompt=PROMPT, max_tokens=1)
            assert "'tiny' was replaced" in refusal(answer, 503)
        complete(world, "lima")


def test_the_tokenizer_of_a_base_model_is_of_the_same_files_as_its_shape(tiny_base_dir: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tiny_base_dir, tmp_path / "tiny"))
    bases = AllowedBases({"tiny": BaseEntry(id="tiny", source=str(folder))}, None)
    first = bases.shape("tiny")
    replace_weights(folder)
    with pytest.raises(Unavailable, match="'tiny' was replaced"):
        bases.text("tiny")
    assert bases.shape("tiny") == first
