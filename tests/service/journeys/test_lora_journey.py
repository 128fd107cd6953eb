"""PEFT folders of unknown initialisations: pushed as they lie on disk, chosen, mixed exactly, served and pulled.

The folders are written by `peft`, and what is pulled is loaded by it. Beside the LoRAs the pool holds a bottleneck
adapter, which cannot be mixed with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from registry.errors import Incompatible
from service.client.client import SoupClient
from service.client.transfer import pull_folder, push_folder
from tests.postgres import KINDS
from tests.service.passages import passages
from tests.service.servers import Live

DATABASES = KINDS
DOMAINS = ("kitchen", "court")
RANKS = {"kitchen": (4, 8), "court": (2, 6)}
"""Rank and alpha of each domain's LoRA: they differ, and so do the modules they sit on."""
TARGETS = {"kitchen": ["attn.c_attn"], "court": ["attn.c_attn", "mlp.c_fc"]}


def write_lora(folder: Path, base: Path, domain: str, seed: int) -> Path:
    """A LoRA as somebody trains it: by `peft`, from a seed nobody wrote down."""
    torch.manual_seed(seed)
    rank, alpha = RANKS[domain]
    config = LoraConfig(
        r=rank, lora_alpha=alpha, target_modules=TARGETS[domain], fan_in_fan_out=True, task_type="CAUSAL_LM"
    )
    model: Any = get_peft_model(AutoModelForCausalLM.from_pretrained(base), config)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folders(tiny_base_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("loras")
    return {domain: write_lora(home / domain, tiny_base_dir, domain, seed) for seed, domain in enumerate(DOMAINS)}


@pytest.fixture(scope="module")
def stocked(live: Live, folders: dict[str, Path]) -> Live:
    """Two LoRAs and a bottleneck adapter with samples, embedded."""
    with SoupClient(live.url, live.world.admin) as client:
        jobs = [
            push_folder(client, folders[domain], name=f"acme/{domain}", domain=domain, texts=passages(domain, 40),
                        base="tiny")["job"]
            for domain in DOMAINS
        ]  # fmt: skip
        jobs.append(live.world.push("acme/code", seed=5, domain="code", sample={"texts": passages("code", 40)})["job"])
        for job in jobs:
            assert client.wait_job(job)["state"] == "succeeded"
    return live


@pytest.fixture
def client(stocked: Live) -> Iterator[SoupClient]:
    with SoupClient(stocked.url, stocked.world.admin) as client:
        yield client


def cook(stocked: Live, **body: Any) -> dict[str, Any]:
    answer = stocked.world.client.post("/v1/soups", json={"verify": False, "wait": 120, **body})
    assert answer.status_code in {200, 201}, answer.text
    return dict(answer.json())


def test_unknown_initialisations_are_kept_as_unknown(stocked):
    row = stocked.world.client.get("/v1/adapters/acme/court").json()
    assert row["provenance"]["init_source"] == "unknown"
    assert row["config"]["groups"] == [
        {"targets": ["transformer.h.*.attn.c_attn", "transformer.h.*.mlp.c_fc"], "layers": [0, 1], "rank": 2,
         "alpha": 6.0}
    ]  # fmt: skip


def test_a_pool_of_loras_is_fitted_chosen_from_and_cooked_by_concat(stocked):
    sample = {"texts": passages("kitchen", 30, seed=3)}
    soup = cook(stocked, sample=sample, pool={"method": "lora"})
    assert soup["selection"]["selected"][0]["ref"].startswith("acme/kitchen")
    both = cook(stocked, sample=sample, selector={"kind": "uniform"}, pool={"method": "lora"}, name="acme/both")
    assert both["recipe"]["mixing"] == {"method": "concat", "scale": "1"}
    assert "concat" in both["reason"]
    report = both["report"]
    assert sorted(report["width_in"]) == [2, 4]
    assert report["width_out"] == 6
    assert report["relative_cost"] > 1.0
    assert report["residual"] < 1e-6


def test_a_mixed_pool_leaves_out_what_cannot_be_mixed_with_the_best_and_says_so(stocked):
    soup = cook(stocked, sample={"texts": passages("kitchen", 30, seed=4)}, selector={"kind": "uniform"})
    methods = {one["ref"]: one["reason"] for one in soup["selection"]["left_out"]}
    assert [ref.partition("@")[0] for ref in methods] == ["acme/code"]
    assert "Cannot be mixed" in methods["acme/code@1"]
    assert "method" in methods["acme/code@1"]
    assert {one["ref"].partition("@")[0] for one in soup["selection"]["selected"]} == {"acme/kitchen", "acme/court"}


def test_a_selection_of_several_kinds_says_that_no_soup_is_of_them_all(stocked):
    def warnings(**asked):
        body = {"sample": {"texts": passages("kitchen", 30, seed=4)}, "selector": {"kind": "uniform"}, "wait": 120}
        answer = stocked.world.client.post("/v1/select", json={**body, **asked})
        assert answer.status_code == 200, answer.text
        return " ".join(answer.json()["selection"]["warnings"])

    said = warnings()
    assert "The chosen are of 2 kinds that are not mixed with each other: lora, pfeiffer." in said, said
    assert "kinds" not in warnings(pool={"method": "lora"})


def test_averaging_the_factors_is_done_on_request_only_and_tells_its_error(stocked):
    recipe = {"ingredients": [{"ref": "acme/kitchen"}, {"ref": "acme/court"}]}
    body = {"recipe": recipe, "mixing": {"method": "average", "assume_same_init": True}}
    answer = stocked.world.client.post("/v1/soups", json=body)
    assert answer.json()["error"]["code"] == Incompatible.code  # their ranks differ
    assert "concat" in answer.json()["error"]["message"]


def test_a_mixture_of_methods_by_hand_is_refused_with_all_reasons(stocked):
    recipe = {"ingredients": [{"ref": "acme/kitchen"}, {"ref": "acme/code"}]}
    answer = stocked.world.client.post("/v1/soups", json={"recipe": recipe})
    assert answer.json()["error"]["code"] == Incompatible.code, answer.text
    assert "method" in answer.json()["error"]["message"]


def test_concat_beyond_max_width_is_refused_with_the_numbers(stocked):
    recipe = {"ingredients": [{"ref": "acme/kitchen"}, {"ref": "acme/court"}]}
    answer = stocked.world.client.post("/v1/soups", json={"recipe": recipe, "max_width": 5})
    message = answer.json()["error"]["message"]
    assert answer.status_code >= 400
    assert "6" in message
    assert "5" in message
    assert "max_width" in message


def test_one_lora_alone_is_itself(stocked):
    pushed = stocked.world.client.get("/v1/adapters/acme/kitchen").json()
    alone = cook(stocked, recipe={"ingredients": [{"ref": "acme/kitchen", "weight": 3}]})
    assert alone["digest"] == pushed["digest"]


def logits(model: Any, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0]


def test_a_soup_of_loras_is_served_and_pulled_as_a_folder_that_peft_loads(stocked, client, tiny_base_dir, tmp_path):
    soup = cook(stocked, recipe={"ingredients": [{"ref": "acme/kitchen"}, {"ref": "acme/court", "weight": 3}]})
    ids = [0, 40, 41, 42, 43, 44]
    told = stocked.openai().completions.create(
        model=soup["model"], prompt=ids, max_tokens=1, temperature=0, logprobs=1, echo=True
    )
    pull_folder(client, soup["model"], tmp_path / "soup")
    pulled: Any = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(tiny_base_dir), str(tmp_path / "soup"))
    scores = torch.log_softmax(logits(pulled.eval(), ids), dim=-1)
    expected = [float(scores[position, token]) for position, token in enumerate(ids[1:])]
    assert told.choices[0].logprobs is not None
    assert told.choices[0].logprobs.token_logprobs[1 : len(ids)] == pytest.approx(expected, abs=1e-4)

    again = push_folder(client, tmp_path / "soup", name="acme/again", domain="again")
    assert again["digest"] == soup["digest"]


def test_the_exact_mixture_of_deltas_is_what_is_served(stocked, client, folders, tiny_base_dir, tmp_path):
    soup = cook(stocked, recipe={"ingredients": [{"ref": "acme/kitchen"}, {"ref": "acme/court", "weight": 3}]})
    base = AutoModelForCausalLM.from_pretrained(tiny_base_dir)
    before = {name: value.clone() for name, value in base.state_dict().items()}
    total = {name: torch.zeros_like(value) for name, value in before.items()}
    for domain, weight in (("kitchen", 0.25), ("court", 0.75)):
        fresh = AutoModelForCausalLM.from_pretrained(tiny_base_dir)
        merged: Any = PeftModel.from_pretrained(fresh, str(folders[domain])).merge_and_unload()
        for name, value in merged.state_dict().items():
            total[name] += weight * (value - before[name])
    base.load_state_dict({name: before[name] + total[name] for name in before})
    pull_folder(client, soup["model"], tmp_path / "soup")
    fresh = AutoModelForCausalLM.from_pretrained(tiny_base_dir)
    pulled: Any = PeftModel.from_pretrained(fresh, str(tmp_path / "soup"))
    ids = [0, 50, 60, 70, 80]
    assert torch.allclose(logits(pulled.eval(), ids), logits(base.eval(), ids), atol=1e-4)
