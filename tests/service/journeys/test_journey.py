"""Every structure from a directory on disk to answers: pushed, embedded, found, mixed, served, pulled, pushed again.

What is served is compared with the mixture by hand (`structures`). Then what is particular to one structure.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from adaptersoup.cli import app as cli
from adaptersoup.client.additions import Additions
from adaptersoup.client.client import SoupClient
from registry.adapters.weights import load_tensors, save_tensors
from registry.base_model import LoadedBase
from registry.formats import read_directory
from tests.postgres import KINDS
from tests.service.answers import answered
from tests.service.journeys.structures import KEPT, STRUCTURES
from tests.service.passages import passages
from tests.service.servers import Live, Soup

DATABASES = KINDS
pytestmark = pytest.mark.one_database  # `test_selection.py` asks each kind what a soup asks of it
TEXT = "The court held that the contract was void for want of consideration."
SELECTABLE = [name for name, structure in STRUCTURES.items() if structure.selectable]
BANKS = [name for name in STRUCTURES if name not in SELECTABLE]
each = pytest.mark.parametrize("name", STRUCTURES)


@pytest.fixture(scope="module")
def folders(base: LoadedBase, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The directories of every structure, by ref."""
    home, paths = tmp_path_factory.mktemp("brought"), {}
    for number, (name, structure) in enumerate(STRUCTURES.items()):
        for seed, domain in enumerate(structure.shares):
            folder = paths[f"{name}/{domain}"] = home / name / domain
            folder.parent.mkdir(exist_ok=True)
            structure.write(folder, base, domain, 10 * number + seed)
    return paths


@pytest.fixture(scope="module")
def stocked(live: Live, folders: dict[str, Path]) -> Live:
    """All of them pushed and embedded, the banks by the command line, and beside the LoRAs a bottleneck adapter."""
    with SoupClient(live.url, live.world.admin) as client:
        jobs = []
        for ref, folder in folders.items():
            if ref.partition("/")[0] in BANKS:
                address = ["--url", live.url, "--key", live.world.admin]
                assert cli.run(["push", str(folder), "--name", ref, "--wait", *address]) == 0
            else:
                texts = passages(folder.name, KEPT)
                pushed = client.push_directory(
                    folder, name=ref, more=Additions(domain=folder.name, texts=texts, base="tiny")
                )
                jobs.append(pushed["job"])
        sample = {"texts": passages("code", KEPT)}
        jobs.append(live.world.push("lora/code", seed=5, domain="code", sample=sample)["job"])
        for job in jobs:
            assert client.wait_job(job)["state"] == "succeeded"
    return live


def cook(live: Live, weights: dict[str, float] | None = None, **body: Any) -> Any:
    """Of a recipe by hand, where `weights` are given; `body` is the rest of the request."""
    if weights is not None:
        body["recipe"] = {"ingredients": [{"ref": ref, "weight": weight} for ref, weight in weights.items()]}
    return live.world.client.post("/v1/soups", json={"verify": False, "wait": 120, **body})


def mixed(live: Live, name: str) -> Any:
    """The recipe of the structure's own adapters."""
    shares = STRUCTURES[name].shares
    return cook(live, {f"{name}/{domain}": 4 * share for domain, share in shares.items()}, name=f"{name}/mixed")


def row_of(live: Live, ref: str) -> dict[str, Any]:
    return dict(live.world.client.get(f"/v1/adapters/{ref}").json())


def mean_nll(live: Live, model: str) -> float:
    return float(answered(live.world.client.post("/v1/perplexity", json={"model": model, "texts": [TEXT]}))["mean_nll"])


# --- every structure --------------------------------------------------------------------------------


@each
def test_it_is_stored_with_its_sample_and_where_it_started(stocked: Live, name: str) -> None:
    row = row_of(stocked, f"{name}/kitchen")
    assert (row["sample_state"], row["sample"]["kept"]) == ("ready", KEPT)
    assert row["provenance"]["init_source"] == STRUCTURES[name].init_source


@pytest.mark.parametrize("name", SELECTABLE)
def test_a_pool_of_it_is_cooked_from_a_sample(stocked: Live, name: str) -> None:
    pool = {"namespaces": [name], "method": "lora" if name == "lora" else None}
    sample = {"texts": passages("kitchen", 30, seed=3)}
    soup = cook(stocked, sample=sample, selector={"kind": "uniform"}, pool=pool, name=f"{name}/of-all").json()
    assert {adapter["domain"] for adapter in soup["selection"]["selected"]} == set(STRUCTURES[name].shares)
    assert soup["recipe"]["mixing"] == STRUCTURES[name].mixing
    assert STRUCTURES[name].mixing["method"] in soup["reason"]


@each
def test_a_recipe_is_cooked_once_and_says_what_came_of_it(stocked: Live, name: str) -> None:
    structure = STRUCTURES[name]
    soup = answered(mixed(stocked, name), 201)
    assert not soup["abstained"]
    assert (soup["model"], soup["soup"]["kind"]) == (f"{name}/mixed@1", structure.makes)
    assert soup["recipe"]["mixing"] == structure.mixing
    assert structure.reason in soup["reason"]
    report = soup["report"]
    assert (report["method"], sorted(report["width_in"]), report["width_out"]) == (
        structure.mixing["method"],
        *structure.widths,
    )
    answer = mixed(stocked, name)
    second_soup = answer.json()
    assert (answer.status_code, second_soup["cached"]) == (200, True)
    assert (second_soup["digest"], second_soup["model"]) == (soup["digest"], soup["model"])


@each
def test_lineage_goes_both_ways(stocked: Live, name: str) -> None:
    soup = mixed(stocked, name).json()["model"]
    lineage = stocked.world.client.get(f"/v1/adapters/{soup}/lineage").json()
    assert {(parent["ref"], parent["digest"], parent["weight"]) for parent in lineage["parents"]} == {
        (f"{name}/{domain}@1", row_of(stocked, f"{name}/{domain}")["digest"], f"{share:g}")
        for domain, share in STRUCTURES[name].shares.items()
    }
    children = stocked.world.client.get(f"/v1/adapters/{name}/kitchen/lineage").json()["children"]
    assert soup in {child["ref"] for child in children}


@each
def test_what_is_served_is_the_mixture_by_hand(
    stocked: Live, folders: dict[str, Path], base: LoadedBase, name: str
) -> None:
    structure, model = STRUCTURES[name], mixed(stocked, name).json()["model"]
    ingredient_folders = [folders[f"{name}/{domain}"] for domain in structure.shares]
    ids = [base.bos_id, *base.tokenize(TEXT, bos=False)]
    scores = structure.by_hand(base, ingredient_folders, list(structure.shares.values()), torch.tensor([ids])).double()
    expected = torch.log_softmax(scores, -1)[:-1].gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]
    assert mean_nll(stocked, model) == pytest.approx(-float(expected.mean()), rel=1e-5)
    assert mean_nll(stocked, model) != pytest.approx(mean_nll(stocked, "base/tiny"), rel=1e-4)
    completion = stocked.openai().completions.create(
        model=model, prompt=ids, max_tokens=1, temperature=0, logprobs=1, echo=True
    )
    assert (completion.model, completion.system_fingerprint) == (model, row_of(stocked, model)["digest"])
    assert completion.choices[0].logprobs.token_logprobs[1 : len(ids)] == pytest.approx(expected.tolist(), abs=1e-4)


@each
def test_it_is_pulled_as_a_directory_that_does_the_same_and_can_be_pushed(
    stocked: Live, client: SoupClient, folders: dict[str, Path], base: LoadedBase, tmp_path: Path, name: str
) -> None:
    structure, soup = STRUCTURES[name], mixed(stocked, name).json()
    ingredient_folders, ids = (
        [folders[f"{name}/{domain}"] for domain in structure.shares],
        torch.tensor([[0, 40, 41, 42, 43, 44]]),
    )
    client.pull_directory(soup["model"], tmp_path / "pulled")
    expected = structure.by_hand(base, ingredient_folders, list(structure.shares.values()), ids)
    assert torch.allclose(structure.pulled(base, tmp_path / "pulled", ids), expected, atol=1e-4)
    pushed = client.push_directory(tmp_path / "pulled", name=f"{name}/again", more=Additions(domain="again"))
    assert pushed["digest"] == soup["digest"]


# --- bottlenecks and LoRAs of unknown starts -----------------------------------------------------------


@pytest.mark.parametrize("method", [None, "lora"])
def test_a_selection_of_several_kinds_says_that_no_soup_is_of_them_all(stocked: Live, method: str | None) -> None:
    body = {"sample": {"texts": passages("kitchen", 30, seed=4)}, "selector": {"kind": "uniform"}, "wait": 120}
    pool = {"namespaces": ["lora"], "method": method}
    warnings = " ".join(
        answered(stocked.world.client.post("/v1/select", json={**body, "pool": pool}))["selection"]["warnings"]
    )
    kinds = "The chosen are of 2 kinds that are not mixed with each other: lora, pfeiffer."
    assert (kinds in warnings, "kinds" in warnings) == (method is None, method is None), warnings


# --- banks of experts ----------------------------------------------------------------------------------


class TestBanks:
    @pytest.mark.parametrize("name", BANKS)
    def test_the_command_line_cooks_the_merge_of_what_was_trained_bit_for_bit(
        self, stocked: Live, folders: dict[str, Path], name: str, soup: Soup, tmp_path: Path
    ) -> None:
        code, out, err = soup("cook", "--recipe", f"{name}/kitchen", "--name", f"{name}/by-hand")
        assert (code, out) == (0, f"{name}/by-hand@1\n"), err
        assert "the mean of its 3 experts" in err
        assert soup("pull", f"{name}/by-hand", tmp_path / "pulled")[0] == 0
        trained = read_directory(folders[f"{name}/kitchen"].with_name("merged"))
        pulled = read_directory(tmp_path / "pulled")
        assert (pulled.config, pulled.domain) == (trained.config, "kitchen")
        assert pulled.provenance.init_hash == trained.provenance.init_hash is not None
        pulled_weights, trained_weights = (
            save_tensors(load_tensors(folder.weights.read_bytes())) for folder in (pulled, trained)
        )
        assert pulled_weights == trained_weights
        explicit = cook(stocked, {f"{name}/kitchen": 1}, name=f"{name}/by-hand", mixing={"method": "merge"})
        assert (explicit.status_code, explicit.json()["cached"]) == (200, True)
        assert explicit.json()["digest"] == mixed(stocked, name).json()["digest"]
        assert explicit.json()["report"]["relative_cost"] == 1.0

    @pytest.mark.parametrize(
        ("args", "code", "message"),
        [
            (["--recipe", "bank/kitchen", "--mixing", "average"], 3, "mixing 'merge' of a recipe of it alone"),
            (["--recipe", "bank/kitchen,lora_bank/kitchen"], 3, "2 of them banks"),
            (["--recipe", "bank/kitchen", "--scale", "0.5"], 3, "A merge has no scale"),
            (["--recipe", "bank/kitchen", "--mixing", "merge", "--scale", "0.5"], 2, "does not take --scale"),
            (["--recipe", "bank/kitchen", "--mixing", "merge", "--masks", "first"], 2, "does not take --masks"),
            (["--recipe", "bank/kitchen", "--mixing", "merge", "--max-width", "9"], 2, "--max-width"),
        ],
    )
    def test_the_command_line_refuses_in_one_sentence(
        self, stocked: Live, soup: Soup, args: list[str], code: int, message: str
    ) -> None:
        exit_code, out, err = soup("cook", *args)
        assert (exit_code, out) == (code, "")
        assert message in " ".join(err.replace("│", " ").split())
