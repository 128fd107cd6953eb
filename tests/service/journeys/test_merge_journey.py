"""A bank of experts from training to serving: pushed as a folder, refused by name, merged, found, served and pulled."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from registry.adapters import attached, from_tensors, paper_config
from registry.adapters.weights import load_tensors, save_tensors
from registry.base_model import LoadedBase, load_base
from registry.evaluate import report
from registry.formats import read_directory
from registry.spec import BankConfig
from service.cli import app as cli
from tests.service.passages import passages
from tests.service.servers import Live, World
from training.data import Data
from training.hyperparameters import Hyperparameters
from training.inputs import TrainingInputs
from training.methods.lora_targets import lora_for
from training.tasks.language import passage_scores
from training.trainer import Trained, train_adapter

TEXTS, VALID = passages("kitchen", 40), passages("kitchen", 20, seed=2)
RECIPE = Hyperparameters(steps=6, batch=4, block=32, learning_rate=2e-2, evaluations=2)
Soup = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def base(live: Live) -> LoadedBase:
    return load_base(live.world.runtime.bases["tiny"].entry)


@pytest.fixture(scope="module")
def banks(base: LoadedBase) -> dict[str, Trained]:
    experts = {"pfeiffer": paper_config("pfeiffer", bottleneck=4), "lora": lora_for(base.shape, rank=2, alpha=8.0)}
    return {
        kind: train_adapter(base, TrainingInputs(BankConfig(expert=expert, experts=3), Data(TEXTS, VALID), RECIPE))
        for kind, expert in experts.items()
    }


@pytest.fixture(scope="module")
def stocked(live: Live, banks: dict[str, Trained], base: LoadedBase, tmp_path_factory: pytest.TempPathFactory) -> Live:
    """The banks as folders on disk, pushed by the command line."""
    home = tmp_path_factory.mktemp("banks")
    for kind, trained in banks.items():
        trained.write(home / kind, base, domain=kind, base_id="tiny", passages=VALID)
        args = ["push", str(home / kind), "--name", f"acme/{kind}-bank", "--wait", "--url", live.url]
        assert cli.run([*args, "--key", live.world.admin]) == 0
    return live


@pytest.fixture
def soup(stocked: Live, capsys: pytest.CaptureFixture[str]) -> Soup:
    def run(*args: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = cli.run([*[str(arg) for arg in args], "--url", stocked.url, "--key", stocked.world.admin])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def cook(world: World, ref: str, **body: Any) -> Any:
    recipe = {"ingredients": [{"ref": ref}]}
    return world.client.post("/v1/soups", json={"recipe": recipe, "wait": 60, **body})


@pytest.mark.parametrize("kind", ["pfeiffer", "lora"])
def test_what_is_cooked_is_the_merge_of_what_was_trained_bit_for_bit(stocked, banks, kind, soup, tmp_path):
    code, out, said = soup("cook", "--recipe", f"acme/{kind}-bank", "--name", f"acme/{kind}")
    assert (code, out) == (0, f"acme/{kind}@1\n"), said
    assert "the mean of its 3 experts" in said
    assert soup("pull", f"acme/{kind}", tmp_path / kind)[0] == 0
    folder = read_directory(tmp_path / kind)
    expected = banks[kind].merged()
    assert (folder.config, folder.domain) == (expected.config, kind)
    assert folder.provenance.init_hash == banks[kind].init_hash
    assert save_tensors(load_tensors(folder.weights.read_bytes())) == save_tensors(expected.tensors)


def test_by_http_it_is_new_once_with_its_lineage(stocked):
    world = stocked.world
    first = cook(world, "acme/pfeiffer-bank", name="acme/by-http")
    assert first.status_code == 201, first.text
    body = first.json()
    bank = world.client.get("/v1/adapters/acme/pfeiffer-bank").json()
    assert body["recipe"]["mixing"] == {"method": "merge"}
    assert body["soup"]["kind"] == "adapter"
    assert (body["report"]["method"], body["report"]["relative_cost"]) == ("merge", 1.0)
    assert body["report"]["width_in"] == [4]
    lineage = world.client.get("/v1/adapters/acme/by-http/lineage").json()
    assert [(one["ref"], one["digest"], one["weight"]) for one in lineage["parents"]] == [
        ("acme/pfeiffer-bank@1", bank["digest"], "1")
    ]
    children = world.client.get("/v1/adapters/acme/pfeiffer-bank/lineage").json()["children"]
    assert "acme/by-http@1" in [one["ref"] for one in children]
    again = cook(world, "acme/pfeiffer-bank", name="acme/by-http", mixing={"method": "merge"})
    assert again.status_code == 200
    assert (again.json()["digest"], again.json()["cached"]) == (body["digest"], True)


def test_lost_bytes_are_made_again_to_the_last_bit(stocked):
    world = stocked.world
    first = cook(world, "acme/lora-bank", name="acme/lost").json()
    digest = first["digest"]
    with world.runtime.database.read() as catalogue:
        blob = catalogue.soups.recipe(first["recipe_digest"]).weights_blob
    before = world.registry.blobs.read(blob)
    world.registry.blobs.delete(blob)
    again = cook(world, "acme/lora-bank", name="acme/lost").json()
    assert (again["digest"], again["cached"]) == (digest, False)
    assert world.registry.blobs.read(blob) == before


def test_the_bank_is_stored_and_refused_by_name_where_it_would_have_to_speak(stocked, soup):
    world = stocked.world
    row = world.client.get("/v1/adapters/acme/pfeiffer-bank").json()
    assert row["config"]["method"] == "adamix"
    assert row["provenance"]["training"]["consistency"] == "released"
    for path, body in {
        "/v1/completions": {"prompt": "x", "max_tokens": 1},
        "/v1/perplexity": {"texts": ["a text"]},
    }.items():
        answer = world.client.post(path, json={"model": "acme/pfeiffer-bank", **body})
        assert 400 <= answer.status_code < 500, answer.text
        assert "acme/pfeiffer-bank" in answer.json()["error"]["message"]
        assert "bank of 3 experts" in answer.json()["error"]["message"]
    code, out, said = soup("generate", "acme/pfeiffer-bank", "This")
    assert (code == 0, out) == (False, "")
    assert "cook" in said


def test_the_merge_is_served_as_the_adapter_it_is(stocked, banks, base):
    world = stocked.world
    model = cook(world, "acme/pfeiffer-bank", name="acme/served").json()["model"]
    one = banks["pfeiffer"].merged()
    with attached(base.model, from_tensors(one.config, base.shape, one.tensors)), torch.no_grad():
        expected = report(passage_scores(base, VALID[:5], block=base.shape.context))
    answer = world.client.post("/v1/perplexity", json={"model": model, "texts": VALID[:5]})
    assert answer.json()["mean_nll"] == pytest.approx(expected.mean_nll, rel=1e-5)
    plain = world.client.post("/v1/perplexity", json={"model": "base/tiny", "texts": VALID[:5]}).json()
    assert math.exp(answer.json()["mean_nll"]) < plain["perplexity"]
    listed = {row["id"] for row in world.client.get("/v1/models").json()["data"]}
    assert "acme/served" in listed
    assert "acme/pfeiffer-bank" not in listed


def test_banks_are_listed_by_their_method(soup):
    code, out, _ = soup("ls", "--json", "--method", "adamix")
    assert code == 0
    assert {row["ref"] for row in json.loads(out)["data"]} == {"acme/pfeiffer-bank@1", "acme/lora-bank@1"}


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["--recipe", "acme/pfeiffer-bank", "--mixing", "average"], 3, "mixing 'merge' of a recipe of it alone"),
        (["--recipe", "acme/pfeiffer-bank,acme/lora-bank"], 3, "2 of them banks"),
        (["--recipe", "acme/pfeiffer-bank", "--scale", "0.5"], 3, "A merge has no scale"),
        (["--recipe", "acme/pfeiffer-bank", "--mixing", "merge", "--scale", "0.5"], 2, "drop --scale"),
        (["--recipe", "acme/pfeiffer-bank", "--mixing", "merge", "--masks", "first"], 2, "drop --masks"),
        (["--recipe", "acme/pfeiffer-bank", "--mixing", "merge", "--max-width", "9"], 2, "--max-width"),
    ],
)
def test_the_command_line_refuses_in_one_sentence(soup, args, code, said):
    found, out, err = soup("cook", *args)
    assert (found, out) == (code, "")
    assert said in " ".join(err.replace("│", " ").split())


def test_a_merge_of_what_is_no_bank_is_refused(stocked, tmp_path: Path):
    stocked.world.push("acme/plain", seed=1)
    answer = cook(stocked.world, "acme/plain", mixing={"method": "merge"})
    assert answer.status_code == 422
    assert answer.json()["error"]["code"] == "incompatible"
    assert "acme/plain@1 is no bank of experts but a bottleneck" in answer.json()["error"]["message"]
    answer = cook(stocked.world, "acme/plain", mixing={"method": "merge", "scale": "2"})
    assert answer.status_code in {400, 422}
