"""The hub API with the clients it is for: `huggingface_hub` and PEFT in a process of their own, over a real port."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from adaptersoup.client.hub_download import MOST_BYTES, directories
from registry.adapters import attached, from_tensors
from registry.adapters.weights import load_tensors
from registry.base_model import load_base
from registry.spec import AdapterConfig, BaseEntry
from service.settings import Settings
from tests.adaptersoup.cli.outcome import done, refused
from tests.service.http.stock import cook_soup
from tests.service.hub_session import HubSession
from tests.service.lora_pushes import lora_weights, push_lora
from tests.service.servers import Live, World, open_live, open_world, serving, write_bases

pytestmark = pytest.mark.interop

WEIGHTS, CONFIG, CARD = "adapter_model.safetensors", "adapter_config.json", "README.md"
IDS = [0, 30, 31, 32, 33]
PASSAGES = [f"The court held that contract {number} was void for want of consideration." for number in range(25)]
DESCRIBED = {"description": "Judgements.", "license": "mit", "tags": ["legal"]}


@pytest.fixture(scope="module")
def law(world: World) -> World:
    """acme/law in two versions, the alias prod at the first; a soup, a bottleneck, and another team's adapter."""
    push_lora(world, "acme/law", seed=1, card=DESCRIBED, sample={"texts": PASSAGES})
    push_lora(world, "acme/law", seed=2, card=DESCRIBED)
    assert world.client.put("/v1/adapters/acme/law/aliases/prod", json={"version": 1}).status_code == 200
    push_lora(world, "acme/news", seed=3)
    cook_soup(world, "acme/both", {"acme/law@1": 1, "acme/news": 1})
    world.push("acme/pfeiffer", seed=4)
    push_lora(world, "foreign/secret", seed=5)
    return world


@pytest.fixture(scope="module")
def hub(
    law: World,
    live: Live,
    tmp_path_factory: pytest.TempPathFactory,
    record_testsuite_property: Callable[[str, object], None],
) -> Iterator[HubSession]:
    """A client with a key that reads acme."""
    session = HubSession(live.url, law.key(["read"], ["acme"]), tmp_path_factory.mktemp("hub"))
    for name, version in session.ask("versions").items():
        record_testsuite_property(f"{name}_version", version)
    yield session
    session.close()


@pytest.fixture(scope="module")
def receiver(served: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Another server, over the same base model."""
    folder = tmp_path_factory.mktemp("other")
    for world in open_world(folder / "data", write_bases(folder / "bases.toml", served)):
        yield from open_live(world)


def ours(world: World, ref: str) -> list[float]:
    """The last logits of an adapter as this package computes them."""
    base = load_base(BaseEntry(id="base", source=world.runtime.bases[world.base_id].entry.source))
    row = world.client.get(f"/v1/adapters/{ref}").json()
    data = world.client.get(f"/v1/blobs/{row['weights_blob']}").content
    adapter = from_tensors(TypeAdapter(AdapterConfig).validate_python(row["config"]), base.shape, load_tensors(data))
    with attached(base.model, adapter), torch.inference_mode():
        return list(base.model(input_ids=torch.tensor([IDS])).logits[0, -1].tolist())


def test_a_snapshot_is_a_folder_that_the_cache_knows(law: World, hub: HubSession) -> None:
    folder = Path(hub.ask("snapshot_download", repo_id="acme/law", revision="prod"))
    assert folder.parent.parent == hub.home / "hub" / "models--acme--law"
    assert (folder.parent.parent / "refs" / "prod").read_text() == folder.name
    assert sorted(path.name for path in folder.iterdir()) == [
        CARD,
        CONFIG,
        WEIGHTS,
        "samples.jsonl",
        "soup.json",
    ]
    assert (folder / WEIGHTS).read_bytes() == lora_weights(law, seed=1)
    assert (folder / WEIGHTS).resolve().name == hashlib.sha256(lora_weights(law, seed=1)).hexdigest()
    assert Path(hub.ask("snapshot_download", repo_id="acme/law", revision=folder.name)) == folder


def test_peft_loads_it_by_its_name(law: World, hub: HubSession) -> None:
    """Adapter and soup, over real HTTP, give what this server's own code gives."""
    base = law.runtime.bases[law.base_id].entry.source
    without = hub.ask("logits", base=base, adapter=None, ids=IDS)
    for ref, options, version in (
        ("acme/law", {"revision": "prod"}, "@1"),
        ("acme/law", {}, ""),
        ("acme/both", {}, ""),
    ):
        logits = hub.ask("logits", base=base, adapter=ref, ids=IDS, **options)
        assert logits == pytest.approx(ours(law, ref + version), abs=1e-4), ref
        assert logits != pytest.approx(without, abs=1e-2)


def test_what_a_repository_is(hub: HubSession) -> None:
    info = hub.ask("model_info", repo_id="acme/law", revision="1", files_metadata=True)
    assert (info["id"], info["author"], info["private"], info["library_name"]) == ("acme/law", "acme", True, "peft")
    assert {"peft", "lora", "legal", "safetensors", "license:mit", "base_model:tiny"} <= set(info["tags"])
    assert (info["card_data"]["license"], info["card_data"]["base_model"]) == ("mit", "tiny")
    weights = next(sibling for sibling in info["siblings"] if sibling["rfilename"] == WEIGHTS)
    assert weights["lfs"]["size"] == weights["size"]
    assert hub.ask("list_repo_files", repo_id="acme/law") == [CONFIG, "soup.json", CARD, WEIGHTS]
    assert [file["size"] for file in hub.ask("list_repo_tree", repo_id="acme/law", revision="prod")][3] == weights[
        "size"
    ]
    names = (CONFIG, "config.json", "1_Pooling/config.json")
    assert [hub.ask("file_exists", repo_id="acme/law", filename=name) for name in names] == [True, False, False]
    revisions = ("prod", "refs/pr/1")
    assert [hub.ask("revision_exists", repo_id="acme/law", revision=name) for name in revisions] == [True, False]
    assert hub.ask("auth_check", repo_id="acme/law") is None


def test_lists_over_pages(hub: HubSession) -> None:
    everything = ["acme/pfeiffer", "acme/both", "acme/news", "acme/law"]  # that this key sees
    queries: tuple[tuple[dict[str, Any], list[str]], ...] = (
        ({}, everything),
        ({"author": "acme"}, everything),
        ({"author": "acme", "limit": 2}, everything[:2]),
        ({"author": "foreign"}, []),
        ({"filter": "legal"}, ["acme/law"]),
        ({"filter": ["peft", "lora"]}, everything[1:]),
        ({"search": "judgements"}, ["acme/law"]),
        ({"sort": "created_at"}, everything),
    )
    for query, expected in queries:
        assert [model["id"] for model in hub.ask("list_models", **query)] == expected, query


def test_who_a_key_is(hub: HubSession) -> None:
    identity = hub.ask("whoami")
    assert [org["name"] for org in identity["orgs"]] == ["acme"]
    assert identity["auth"]["accessToken"]["role"] == "read"


DECLARED_FILES = {
    "weights": (WEIGHTS, 2**30 + 1),
    "config": (CONFIG, 2**24 + 1),
    "samples": ("samples.jsonl", 2**40),
    "silent": (WEIGHTS, None),
}
"""The file of each repository of the little hub, and the size that the hub declares for it."""


OTHER_ANSWERS = {"page": "<html>", "object": "{}", "list": "[1]"}
"""Answers to the repositories `other/...` of the little hub: those of servers that are no hub."""

REQUESTED_PATHS: list[str] = []
"""The paths that the little hub was asked for."""


async def little_hub(scope: Scope, receive: Receive, send: Send) -> None:
    """A hub that lists `DECLARED_FILES`."""
    REQUESTED_PATHS.append(scope["path"])
    name = scope["path"].rpartition("/")[2]
    if name in OTHER_ANSWERS:
        await Response(OTHER_ANSWERS[name])(scope, receive, send)
        return
    file, size = DECLARED_FILES.get(name, (CONFIG, 1))
    sibling = {"rfilename": file} | ({} if size is None else {"size": size})
    commit = "../" * 20 if name == "odd" else "ab" * 20
    info = {"id": f"big/{name}", "sha": commit, "siblings": [{"rfilename": "huge.bin", "size": 2**50}, sibling]}
    await JSONResponse(info)(scope, receive, send)


# --- our own command line -------------------------------------------------------------------------


# `soup push hub:...` takes an adapter from one server, as from any hub, to another.


def push(hub: HubSession, receiver: Live, *arguments: str) -> tuple[int, str, str]:
    line = ["push", *arguments, "--url", receiver.url, "--key", receiver.world.admin]
    return tuple(hub.ask("soup", arguments=line))


def test_from_one_server_to_another(law: World, hub: HubSession, receiver: Live, tmp_path: Path) -> None:
    assert done(push(hub, receiver, "hub:acme/law@prod", "--namespace", "copied"))[0] == "copied/law@1\n"
    there = law.client.get("/v1/adapters/acme/law@1").json()
    here = receiver.world.client.get("/v1/adapters/copied/law").json()
    for field in ("digest", "config", "card", "domain"):
        assert here[field] == there[field], field
    commit = hub.ask("model_info", repo_id="acme/law", revision="prod")["sha"]
    training = {**there["provenance"]["training"], "imported_from": f"acme/law@{commit}"}
    assert here["provenance"] == {**there["provenance"], "training": training}
    assert here["sample"]["digest"] == there["sample"]["digest"]
    pulled = ["pull", "copied/law", str(tmp_path / "law"), "--url", receiver.url, "--key", receiver.world.admin]
    assert hub.ask("soup", arguments=pulled)[0] == 0
    assert (tmp_path / "law" / WEIGHTS).read_bytes() == lora_weights(law, seed=1)
    assert push(hub, receiver, "hub:acme/law@prod", "--namespace", "copied")[1] == "copied/law@1\n"


def test_several_beside_a_folder(hub: HubSession, receiver: Live, tmp_path: Path) -> None:
    pulled = Path(hub.ask("snapshot_download", repo_id="acme/news", local_dir=str(tmp_path / "local")))
    out, _ = done(push(hub, receiver, "hub:acme/both", str(pulled), "hub:acme/pfeiffer"))
    assert out == "default/both@1\ndefault/local@1\ndefault/pfeiffer@1\n"
    pfeiffer = receiver.world.client.get("/v1/adapters/default/pfeiffer").json()
    assert pfeiffer["config"]["method"] == "bottleneck"
    assert pfeiffer["provenance"]["training"]["imported_from"].startswith("acme/pfeiffer@")


def test_a_repository_that_cannot_be_downloaded_does_not_stop_the_others(hub: HubSession, receiver: Live) -> None:
    code, out, err = push(hub, receiver, "hub:foreign/secret", "hub:acme/news", "--namespace", "partly", "--json")
    refused_push, pushed = json.loads(out)["pushes"]
    assert code == 1, err
    assert (refused_push["name"], refused_push["state"]) == ("partly/secret", "refused")
    assert refused_push["error"]["message"].startswith("hub:foreign/secret is not there")
    assert (pushed["ref"], pushed["state"]) == ("partly/news@1", "pushed")


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("hub:foreign/secret", "is not there, or the token of HF_TOKEN may not read it"),
        ("hub:acme/law@nowhere", "the repository has no such revision"),
        ("hub:acme/law@", "names no repository"),
        ("hub:../../etc", "names no repository"),
    ],
)
def test_pushes_of_a_hubs_repository_that_are_refused(hub: HubSession, receiver: Live, source: str, says: str) -> None:
    assert says in " ".join(refused(push(hub, receiver, source, "--namespace", "refused")).split())


def test_a_token_that_a_header_cannot_carry_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_ä")
    monkeypatch.setattr("adaptersoup.client.hub_download.is_offline_mode", lambda: False)
    with directories([Path("hub:acme/law")]) as (_, errors):
        assert ["the token of HF_TOKEN" in error.message for error in errors.values()] == [True]


@pytest.mark.slow
def test_what_is_too_large_or_not_there_is_not_downloaded(receiver: Live, tmp_path: Path) -> None:
    """A hub says how large its files are before any of them is asked for."""
    with serving(little_hub, Settings()) as port:
        session = HubSession(f"http://127.0.0.1:{port}", "x", tmp_path)
        outcomes = [push(session, receiver, f"hub:big/{name}") for name in DECLARED_FILES]
        _, _, odd = push(session, receiver, "hub:big/odd")
        refusals = [refused(push(session, receiver, f"hub:other/{name}")) for name in OTHER_ANSWERS]
    assert "hub:acme/law could not be downloaded" in refused(push(session, receiver, "hub:acme/law"))
    session.close()
    for outcome, (file, size) in zip(outcomes, DECLARED_FILES.values(), strict=True):
        message = f"{file} has {'an unknown number of' if size is None else size} bytes, and at most {MOST_BYTES[file]}"
        assert message in " ".join(refused(outcome).split())
    assert "does not name its commit" in " ".join(odd.split())
    assert all("HF_ENDPOINT is no hub" in " ".join(err.split()) for err in refusals)
    paths = [path for path in REQUESTED_PATHS if "big" in path]
    assert paths == [f"/api/models/big/{name}" for name in [*DECLARED_FILES, "odd"]]  # and no file, nor a tree
