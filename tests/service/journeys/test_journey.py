"""Every structure from a directory on disk to answers: pushed, embedded, found, mixed, served, pulled, pushed again.

What is served is compared with the mixture by hand (`structures`). Then what is particular to one structure.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from adaptersoup.cli import app as cli
from adaptersoup.client.additions import Additions
from adaptersoup.client.client import SoupClient
from adaptersoup.client.transfer import pull_folder
from registry.adapters.masks import is_mask, mask_name, mask_problems, pack, projections, unpack, without_masks
from registry.adapters.weights import load_tensors, save_tensors
from registry.base_model import LoadedBase
from registry.errors import Incompatible
from registry.formats import read_directory
from tests.postgres import KINDS
from tests.service.journeys.structures import INIT, KEPT, STRUCTURES, VALID, pruned
from tests.service.passages import passages
from tests.service.servers import CONFIG, Live, Soup

DATABASES = KINDS
TEXT = "The court held that the contract was void for want of consideration."
SELECTABLE = [name for name, structure in STRUCTURES.items() if structure.selectable]
LORAS = {"namespaces": ["lora"], "method": "lora"}
BANKS = [name for name in STRUCTURES if name not in SELECTABLE]
each = pytest.mark.parametrize("name", STRUCTURES)


@pytest.fixture(scope="module")
def folders(base: LoadedBase, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The directories of every structure, by ref."""
    home, found = tmp_path_factory.mktemp("brought"), {}
    for number, (name, structure) in enumerate(STRUCTURES.items()):
        for seed, domain in enumerate(structure.shares):
            folder = found[f"{name}/{domain}"] = home / name / domain
            folder.parent.mkdir(exist_ok=True)
            structure.write(folder, base, domain, 10 * number + seed)
    return found


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
    answer = live.world.client.post("/v1/perplexity", json={"model": model, "texts": [TEXT]})
    assert answer.status_code == 200, answer.text
    return float(answer.json()["mean_nll"])


# --- every structure --------------------------------------------------------------------------------


@each
def test_it_is_stored_with_its_sample_and_where_it_started(stocked: Live, name: str) -> None:
    row = row_of(stocked, f"{name}/kitchen")
    assert row["sample_state"] == "ready"
    assert row["sample"]["kept"] == KEPT
    assert row["provenance"]["init_source"] == STRUCTURES[name].init_source


@pytest.mark.parametrize("name", SELECTABLE)
def test_a_pool_of_it_is_cooked_from_a_sample(stocked: Live, name: str) -> None:
    pool = {"namespaces": [name], "method": "lora" if name == "lora" else None}
    sample = {"texts": passages("kitchen", 30, seed=3)}
    soup = cook(stocked, sample=sample, selector={"kind": "uniform"}, pool=pool, name=f"{name}/of-all").json()
    assert {one["domain"] for one in soup["selection"]["selected"]} == set(STRUCTURES[name].shares)
    assert soup["recipe"]["mixing"] == STRUCTURES[name].mixing
    assert STRUCTURES[name].mixing["method"] in soup["reason"]


@each
def test_a_recipe_is_cooked_once_and_says_what_came_of_it(stocked: Live, name: str) -> None:
    structure = STRUCTURES[name]
    first = mixed(stocked, name)
    assert first.status_code == 201, first.text
    soup = first.json()
    assert not soup["abstained"]
    assert (soup["model"], soup["soup"]["kind"]) == (f"{name}/mixed@1", structure.makes)
    assert soup["recipe"]["mixing"] == structure.mixing
    assert structure.reason in soup["reason"]
    report = soup["report"]
    assert (report["method"], sorted(report["width_in"]), report["width_out"]) == (
        structure.mixing["method"], *structure.widths
    )  # fmt: skip
    again = mixed(stocked, name).json()
    assert (again["cached"], again["digest"], again["model"]) == (True, soup["digest"], soup["model"])
    assert mixed(stocked, name).status_code == 200


@each
def test_lineage_goes_both_ways(stocked: Live, name: str) -> None:
    soup = mixed(stocked, name).json()["model"]
    lineage = stocked.world.client.get(f"/v1/adapters/{soup}/lineage").json()
    assert {(one["ref"], one["digest"], one["weight"]) for one in lineage["parents"]} == {
        (f"{name}/{domain}@1", row_of(stocked, f"{name}/{domain}")["digest"], f"{share:g}")
        for domain, share in STRUCTURES[name].shares.items()
    }
    children = stocked.world.client.get(f"/v1/adapters/{name}/kitchen/lineage").json()["children"]
    assert soup in {one["ref"] for one in children}


@pytest.mark.one_database
@each
def test_what_is_served_is_the_mixture_by_hand(
    stocked: Live, folders: dict[str, Path], base: LoadedBase, name: str
) -> None:
    structure, model = STRUCTURES[name], mixed(stocked, name).json()["model"]
    parts = [folders[f"{name}/{domain}"] for domain in structure.shares]
    ids = [base.bos_id, *base.tokenize(TEXT, bos=False)]
    scores = structure.by_hand(base, parts, list(structure.shares.values()), torch.tensor([ids])).double()
    expected = torch.log_softmax(scores, -1)[:-1].gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]
    assert mean_nll(stocked, model) == pytest.approx(-float(expected.mean()), rel=1e-5)
    assert mean_nll(stocked, model) != pytest.approx(mean_nll(stocked, "base/tiny"), rel=1e-4)
    told = stocked.openai().completions.create(
        model=model, prompt=ids, max_tokens=1, temperature=0, logprobs=1, echo=True
    )
    assert (told.model, told.system_fingerprint) == (model, row_of(stocked, model)["digest"])
    assert told.choices[0].logprobs is not None
    assert told.choices[0].logprobs.token_logprobs[1 : len(ids)] == pytest.approx(expected.tolist(), abs=1e-4)


@pytest.mark.one_database
@each
def test_it_is_pulled_as_a_directory_that_does_the_same_and_can_be_pushed(
    stocked: Live, client: SoupClient, folders: dict[str, Path], base: LoadedBase, tmp_path: Path, name: str
) -> None:
    structure, soup = STRUCTURES[name], mixed(stocked, name).json()
    parts, ids = [folders[f"{name}/{domain}"] for domain in structure.shares], torch.tensor([[0, 40, 41, 42, 43, 44]])
    pull_folder(client, soup["model"], tmp_path / "pulled")
    expected = structure.by_hand(base, parts, list(structure.shares.values()), ids)
    assert torch.allclose(structure.pulled(base, tmp_path / "pulled", ids), expected, atol=1e-4)
    again = client.push_directory(tmp_path / "pulled", name=f"{name}/again", more=Additions(domain="again"))
    assert again["digest"] == soup["digest"]


@each
def test_lost_bytes_are_made_again_to_the_last_bit(stocked: Live, name: str) -> None:
    first, registry = mixed(stocked, name).json(), stocked.world.registry
    with registry.database.read() as catalogue:
        blob = catalogue.soups.recipe(first["recipe_digest"]).weights_blob
    before = registry.blobs.read(blob)
    registry.blobs.delete(blob)
    again = mixed(stocked, name).json()
    assert (again["digest"], again["cached"]) == (first["digest"], False)
    assert registry.blobs.read(blob) == before


@pytest.mark.one_database
@pytest.mark.parametrize("name", SELECTABLE)
def test_one_alone_is_itself(stocked: Live, name: str) -> None:
    answer = cook(stocked, {f"{name}/kitchen": 5})
    assert answer.status_code == 200
    alone = answer.json()
    assert (alone["model"], alone["soup"]["kind"]) == (f"{name}/kitchen@1", "adapter")
    assert alone["digest"] == row_of(stocked, f"{name}/kitchen")["digest"]


@pytest.mark.one_database
@pytest.mark.parametrize(
    ("refs", "how", "sentence"),
    [
        (["stranger/kitchen", "lora/kitchen"], {},
         "The methods differ: stranger/kitchen@1 has bottleneck; lora/kitchen@1 has lora."),
        (["stranger/kitchen", "stranger/court"], {"max_width": 7}, "would be 8 wide (4, 4), and max_width is 7"),
        (["lora/kitchen", "lora/court"], {"max_width": 5}, "would be 6 wide (4, 2), and max_width is 5"),
        (["lora/kitchen", "lora/court"], {"mixing": {"method": "average"}}, "Mix by 'concat', which"),
        (["lora/kitchen", "lora/court"], {"mixing": {"method": "average", "assume_same_init": True}}, "concat"),
        (["lora/kitchen", "lora/code"], {}, "method"),
        (["stranger/kitchen"], {"mixing": {"method": "merge"}},
         "stranger/kitchen@1 is no bank of experts but a bottleneck"),
    ],
)  # fmt: skip
def test_refusals_say_what_and_what_instead(stocked: Live, refs: list[str], how: Any, sentence: str) -> None:
    answer = cook(stocked, dict.fromkeys(refs, 1), **how)
    assert answer.status_code == 422, answer.text
    assert answer.json()["error"]["code"] == Incompatible.code
    assert sentence in answer.json()["error"]["message"]


@pytest.mark.one_database
@pytest.mark.parametrize(
    ("ref", "how"),
    [
        ("stranger/kitchen", {"max_width": 0}),
        ("stranger/kitchen", {"max_width": "wide"}),
        ("stranger/kitchen", {"mixing": {"method": "blend"}}),
        ("stranger/kitchen", {"mixing": {"method": "merge", "scale": "2"}}),
        ("pruned/kitchen", {"mixing": {"method": "average", "masks": "xor"}}),
        ("pruned/kitchen", {"mixing": {"method": "concat", "masks": "union"}}),
        ("pruned/kitchen", {"mixing": {"method": "auto", "masks": "union"}}),
    ],
)
def test_requests_that_are_none(stocked: Live, ref: str, how: Any) -> None:
    assert cook(stocked, {ref: 1}, **how).status_code in {400, 422}


# --- bottlenecks and LoRAs of unknown starts -----------------------------------------------------------


@pytest.mark.one_database
def test_concatenation_is_exact_and_costs_a_little_more(stocked: Live) -> None:
    for name in ("stranger", "lora"):
        soup = mixed(stocked, name).json()
        assert soup["report"]["residual"] < 1e-6
        assert 1 < soup["report"]["relative_cost"] < 1.1
    assert mixed(stocked, "stranger").json()["soup"]["config"]["bottleneck"] == 8
    assert mixed(stocked, "lora").json()["reason"] == STRUCTURES["lora"].reason
    assert mean_nll(stocked, "lora/mixed") != pytest.approx(mean_nll(stocked, "lora/court"), rel=1e-4)


@pytest.mark.one_database
def test_modules_of_a_lora_are_named_in_groups(stocked: Live) -> None:
    assert row_of(stocked, "lora/court")["config"]["groups"] == [
        {"targets": ["transformer.h.*.attn.c_attn", "transformer.h.*.mlp.c_fc"], "layers": [0, 1], "rank": 2,
         "alpha": 6.0}
    ]  # fmt: skip


def test_a_pool_of_loras_is_fitted_and_chosen_from(stocked: Live) -> None:
    soup = cook(stocked, sample={"texts": passages("kitchen", 30, seed=3)}, pool=LORAS).json()
    assert soup["selection"]["selected"][0]["ref"].startswith("lora/kitchen")


def test_a_mixed_pool_leaves_out_what_cannot_be_mixed_with_the_best_and_says_so(stocked: Live) -> None:
    sample, pool = {"texts": passages("kitchen", 30, seed=4)}, {"namespaces": ["lora"]}
    soup = cook(stocked, sample=sample, selector={"kind": "uniform"}, pool=pool).json()
    methods = {one["ref"]: one["reason"] for one in soup["selection"]["left_out"]}
    assert [ref.partition("@")[0] for ref in methods] == ["lora/code"]
    assert "Cannot be mixed" in methods["lora/code@1"]
    assert "method" in methods["lora/code@1"]
    assert {one["ref"].partition("@")[0] for one in soup["selection"]["selected"]} == {"lora/kitchen", "lora/court"}


@pytest.mark.one_database
@pytest.mark.parametrize("method", [None, "lora"])
def test_a_selection_of_several_kinds_says_that_no_soup_is_of_them_all(stocked: Live, method: str | None) -> None:
    body = {"sample": {"texts": passages("kitchen", 30, seed=4)}, "selector": {"kind": "uniform"}, "wait": 120}
    pool = {"namespaces": ["lora"], "method": method}
    answer = stocked.world.client.post("/v1/select", json={**body, "pool": pool})
    assert answer.status_code == 200, answer.text
    said = " ".join(answer.json()["selection"]["warnings"])
    kinds = "The chosen are of 2 kinds that are not mixed with each other: lora, pfeiffer."
    assert (kinds in said, "kinds" in said) == (method is None, method is None), said


# --- pruned adapters -----------------------------------------------------------------------------------


def file_of(live: Live, ref: str) -> dict[str, torch.Tensor]:
    answer = live.world.client.get(f"/v1/adapters/{ref.partition('@')[0]}/files/adapter_model.safetensors")
    assert answer.status_code == 200
    return load_tensors(answer.content)


def push_tensors(live: Live, name: str, config: Any, tensors: dict[str, torch.Tensor]) -> Any:
    file = {"base64": base64.b64encode(save_tensors(tensors)).decode()}
    body = {"name": name, "domain": "kitchen", "base_model": "tiny", "config": config.model_dump(mode="json")}
    more = {"provenance": INIT.model_dump(), "files": {"adapter_model.safetensors": file}}
    return live.world.client.post("/v1/adapters", json={**body, **more})


class TestPruned:
    DATABASES = ("sqlite",)

    def test_masks_travel_and_what_they_leave_is_served(self, stocked: Live, base: LoadedBase) -> None:
        config, tensors = pruned(base, "kitchen", 20)
        row = row_of(stocked, "pruned/kitchen")
        assert row["config"]["pruned"] == config.model_dump(mode="json")["pruned"]
        plain = sum(tensor.numel() for tensor in without_masks(tensors).values())
        assert row["parameters"] == plain - row["config"]["pruned"]["masked"]
        back = file_of(stocked, "pruned/kitchen")
        assert all(torch.equal(back[name], tensor) for name, tensor in tensors.items())
        twin = push_tensors(stocked, "pruned/twin", config.dense(), without_masks(tensors)).json()
        assert twin["digest"] != row["digest"]
        assert mean_nll(stocked, "pruned/kitchen") == pytest.approx(mean_nll(stocked, "pruned/twin"), rel=1e-6)
        assert mean_nll(stocked, "pruned/kitchen") != pytest.approx(mean_nll(stocked, "base/tiny"), rel=1e-4)

    @pytest.mark.parametrize("rule", [None, "union", "intersect", "first", "reprune"])
    def test_soups_by_every_rule(self, stocked: Live, folders: dict[str, Path], rule: str | None) -> None:
        how = {"mixing": {"method": "average", "masks": rule} if rule else {"method": "auto"}}
        answer = cook(stocked, {"pruned/kitchen": 0.75, "pruned/court": 0.25}, **how)
        assert answer.status_code == (200 if rule == "union" else 201), answer.text  # the bytes of the default
        soup = answer.json()
        assert soup["recipe"]["mixing"].get("masks") == rule
        assert soup["soup"]["config"]["pruned"]["score"] == (rule or "union")
        found = file_of(stocked, soup["soup"]["ref"])
        assert mask_problems(CONFIG.model_validate(soup["soup"]["config"]), found) == []
        own = [load_tensors(read_directory(folders[f"pruned/{domain}"]).weights.read_bytes())
               for domain in ("kitchen", "court")]  # fmt: skip
        for name in projections(CONFIG, without_masks(found))[""]:
            one, two = (unpack(tensors[mask_name(name)], found[name].shape) for tensors in own)
            kept = unpack(found[mask_name(name)], found[name].shape)
            expected = {None: one | two, "union": one | two, "intersect": one & two, "first": one}.get(rule)
            if expected is not None:
                assert torch.equal(kept, expected)
        assert soup["soup"]["provenance"]["init_hash"] == INIT.init_hash
        assert "Pruned are" in soup["report"]["notes"][0]
        assert soup["report"]["residual"] is not None
        assert mean_nll(stocked, soup["model"]) > 0
        again = cook(stocked, {"pruned/court": 1, "pruned/kitchen": 3}, **how)
        assert (again.status_code, again.json()["digest"]) == (200, soup["digest"])

    def test_a_pruned_and_a_dense_adapter_give_a_dense_soup(self, stocked: Live, base: LoadedBase) -> None:
        push_tensors(stocked, "pruned/whole", CONFIG, without_masks(pruned(base, "kitchen", 9)[1]))
        soup = cook(stocked, {"pruned/kitchen": 1, "pruned/whole": 1}, mixing={"method": "auto"}).json()
        assert "pruned" not in soup["soup"]["config"] or soup["soup"]["config"]["pruned"] is None
        assert not any(map(is_mask, file_of(stocked, soup["soup"]["ref"])))

    def test_masks_that_lie_are_refused(self, stocked: Live, base: LoadedBase) -> None:
        config, tensors = pruned(base, "kitchen", 4)
        name = projections(CONFIG, without_masks(tensors))[""][0]
        keep = unpack(tensors[mask_name(name)], tensors[name].shape)
        lies = {
            "masked and not zero": {**tensors, name: tensors[name] + 1},
            "the configuration says": {**tensors, mask_name(name): pack(torch.ones_like(keep))},
        }
        for sentence, spoiled in lies.items():
            error = push_tensors(stocked, "pruned/liar", config, spoiled).json()["error"]
            assert error["code"] == "invalid_weights"
            assert sentence in error["message"]
        for kind, found in ((config.dense(), tensors), (config, without_masks(tensors))):
            assert push_tensors(stocked, "pruned/liar", kind, found).json()["error"]["code"] == "incompatible"
        assert stocked.world.client.get("/v1/adapters/pruned/liar").status_code == 404


# --- banks of experts ----------------------------------------------------------------------------------


class TestBanks:
    DATABASES = ("sqlite",)

    @pytest.mark.parametrize("name", BANKS)
    def test_the_command_line_cooks_the_merge_of_what_was_trained_bit_for_bit(
        self, stocked: Live, folders: dict[str, Path], name: str, soup: Soup, tmp_path: Path
    ) -> None:
        code, out, said = soup("cook", "--recipe", f"{name}/kitchen", "--name", f"{name}/by-hand")
        assert (code, out) == (0, f"{name}/by-hand@1\n"), said
        assert "the mean of its 3 experts" in said
        assert soup("pull", f"{name}/by-hand", tmp_path / "pulled")[0] == 0
        trained = read_directory(folders[f"{name}/kitchen"].with_name("merged"))
        pulled = read_directory(tmp_path / "pulled")
        assert (pulled.config, pulled.domain) == (trained.config, "kitchen")
        assert pulled.provenance.init_hash == trained.provenance.init_hash is not None
        one, other = (save_tensors(load_tensors(folder.weights.read_bytes())) for folder in (pulled, trained))
        assert one == other
        said_so = cook(stocked, {f"{name}/kitchen": 1}, name=f"{name}/by-hand", mixing={"method": "merge"})
        assert (said_so.status_code, said_so.json()["cached"]) == (200, True)
        assert said_so.json()["digest"] == mixed(stocked, name).json()["digest"]
        assert said_so.json()["report"]["relative_cost"] == 1.0

    def test_a_bank_is_stored_and_refused_by_name_where_it_would_have_to_speak(self, stocked: Live, soup: Soup) -> None:
        row = row_of(stocked, "bank/kitchen")
        assert row["config"]["method"] == "adamix"
        assert row["provenance"]["training"]["consistency"] == "released"
        for path, body in {
            "/v1/completions": {"prompt": "x", "max_tokens": 1},
            "/v1/perplexity": {"texts": ["a text"]},
        }.items():
            answer = stocked.world.client.post(path, json={"model": "bank/kitchen", **body})
            assert 400 <= answer.status_code < 500, answer.text
            assert "bank/kitchen" in answer.json()["error"]["message"]
            assert "bank of 3 experts" in answer.json()["error"]["message"]
        code, out, said = soup("generate", "bank/kitchen", "This")
        assert (code == 0, out) == (False, "")
        assert "cook" in said

    def test_the_merge_has_learnt_and_is_listed_and_its_bank_is_not(self, stocked: Live, soup: Soup) -> None:
        model = mixed(stocked, "bank").json()["model"]
        merge, plain = (
            stocked.world.client.post("/v1/perplexity", json={"model": one, "texts": VALID[:5]}).json()["perplexity"]
            for one in (model, "base/tiny")
        )
        assert merge < plain
        listed = {row["id"] for row in stocked.world.client.get("/v1/models").json()["data"]}
        assert "bank/mixed" in listed
        assert "bank/kitchen" not in listed
        code, out, _ = soup("ls", "--json", "--method", "adamix")
        assert code == 0
        assert {row["ref"] for row in json.loads(out)["data"]} == {"bank/kitchen@1", "lora_bank/kitchen@1"}

    @pytest.mark.parametrize(
        ("args", "code", "said"),
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
        self, stocked: Live, soup: Soup, args: list[str], code: int, said: str
    ) -> None:
        found, out, err = soup("cook", *args)
        assert (found, out) == (code, "")
        assert said in " ".join(err.replace("│", " ").split())
