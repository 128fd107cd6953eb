"""The hub API as HTTP: headers, what is refused and how, and what somebody might try on it."""

from __future__ import annotations

import hashlib
import http.client
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils._validators import validate_repo_id

from registry.errors import DamagedBlob
from registry.formats import read_directory
from registry.formats.loading_text import loading_text_of
from registry.names import parse_ref
from service.access.keys import NO_AUTH_PRINCIPAL
from service.http.files.hub_revisions import revision_of
from service.http.routes import hub
from tests.service.lora_pushes import lora_weights, push_lora
from tests.service.servers import Live, World, adapter_weights

WEIGHTS, CONFIG, CARD = "adapter_model.safetensors", "adapter_config.json", "README.md"
SETTINGS = {"page_size": 3, "max_page_size": 3}
PASSAGES = [f"The court held that contract {number} was void." for number in range(25)]
ODD = [
    "..",
    ".",
    "%2e%2e",
    "..%2f..%2fetc",
    "a%20b",
    "%00",
    "%0d%0aset-cookie:x",
    "%ff%fe",
    "%c3%a9",
    "0",
    "-1",
    "9" * 40,
    "f" * 40,
    "0" * 40,
    "MAIN",
    "refs%2Fheads%2Fmain",
    "prod@1",
    "1.0",
    "%c2%b2",
    "sha256:" + "0" * 64,
    "x" * 3000,
]


@pytest.fixture(scope="module")
def acme(world: World) -> World:
    push_lora(world, "acme/law", seed=1, sample={"texts": PASSAGES}, card={"description": "Judgements."})
    world.client.put("/v1/adapters/acme/law/aliases/prod", json={"version": 1}).raise_for_status()
    world.push("acme/pfeiffer", seed=4)
    push_lora(world, "foreign/secret", seed=2)
    return world


def resolve(world: World, path: str, method: str = "GET", **headers: str) -> Any:
    return world.client.request(method, f"/acme/law/resolve/{path}", headers=headers)


def raw(live: Live, method: str, path: str) -> tuple[int, Any, bytes]:
    """The answer to a path as it is: other clients would resolve the dots in it."""
    with closing(http.client.HTTPConnection(live.url.removeprefix("http://"))) as connection:
        connection.request(method, path, headers=live.world.headers(live.world.admin))
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()


def error_of(answer: Any) -> tuple[int, str]:
    """The status and the error code of an answer."""
    return answer.status_code, answer.headers["x-error-code"]


def downloaded(world: World, repository: str, into: Path) -> tuple[Path, str]:
    """The files of a repository as a folder beside one of its base model, and the code in its README."""
    folder = into / repository.rpartition("/")[2]
    folder.mkdir()
    for sibling in world.client.get(f"/api/models/{repository}").json()["siblings"]:
        data = world.client.get(f"/{repository}/resolve/main/{sibling['rfilename']}").content
        (folder / sibling["rfilename"]).write_bytes(data)
    (into / "tiny").symlink_to(world.runtime.bases[world.base_id].entry.source)
    return folder, (folder / CARD).read_text().split("```python\n")[1].split("```")[0]


# --- files ----------------------------------------------------------------------------------------


def test_head_says_what_get_gives(acme: World) -> None:
    for name in (CONFIG, WEIGHTS, "samples.jsonl", CARD, "soup.json"):
        head, got = resolve(acme, f"prod/{name}", "HEAD"), resolve(acme, f"prod/{name}")
        assert (head.status_code, got.status_code, head.content) == (200, 200, b"")
        assert {**head.headers, "x-request-id": ""} == {**got.headers, "x-request-id": ""}
        assert int(head.headers["content-length"]) == len(got.content)
        assert re.fullmatch("[0-9a-f]{40}", head.headers["x-repo-commit"])
        assert resolve(acme, f"prod/{name}", range="bytes=5-").content == got.content[5:], "a download goes on"
        stored = name in (WEIGHTS, "samples.jsonl")
        oid = hashlib.sha1(b"blob %d\0" % len(got.content) + got.content).hexdigest()
        digest = hashlib.sha256(got.content).hexdigest() if stored else oid
        assert head.headers["etag"] == f'"{digest}"'
        assert head.headers.get("x-linked-etag") == (f'"{digest}"' if stored else None)
        assert head.headers.get("x-linked-size") == (str(len(got.content)) if stored else None)


def test_the_tree_has_the_same_digests(acme: World) -> None:
    tree = acme.client.get("/api/models/acme/law/tree/main?recursive=true&expand=false").json()
    assert [file["path"] for file in tree] == [CONFIG, "soup.json", CARD, WEIGHTS, "samples.jsonl"]
    for file in tree:
        head = resolve(acme, f"main/{file['path']}", "HEAD").headers
        digest = file["lfs"]["oid"] if "lfs" in file else file["oid"]
        assert (f'"{digest}"', str(file["size"])) == (head["etag"], head["content-length"])
    assert acme.client.get("/api/models/acme/law/tree/main/").json() == tree
    assert error_of(acme.client.get("/api/models/acme/law/tree/main/onnx")) == (404, "EntryNotFound")


@pytest.mark.parametrize(
    "name",
    [
        "../../admin.key",
        "..%2f..%2fadmin.key",
        "%2e%2e/%2e%2e/admin.key",
        "/etc/passwd",
        "%2fetc%2fpasswd",
        "",
        f"./{CARD}",
        f"{CARD}/",
        f"{CARD}%00",
        "config.json",
        "1_Pooling/config.json",
        "..%5c..%5cadmin.key",
        "%c3%a9.json",
        "adapter_model.bin",
        "x" * 3000,
    ],
)
def test_a_repository_has_no_other_file(acme: World, live: Live, name: str) -> None:
    """Whatever is asked for is looked up among five names: nothing of it is ever a path."""
    for method in ("GET", "HEAD"):
        status, headers, body = raw(live, method, f"/acme/law/resolve/main/{name}")
        assert (status, headers["x-error-code"]) == (404, "EntryNotFound"), (name, body)
        assert re.fullmatch("[0-9a-f]{40}", headers["x-repo-commit"])
        assert b"sk-soup" not in body


# --- revisions ------------------------------------------------------------------------------------


@pytest.mark.parametrize("revision", ODD)
def test_odd_revisions_are_not_there(acme: World, live: Live, revision: str) -> None:
    for path in (
        f"/acme/law/resolve/{revision}/{CARD}",
        f"/api/models/acme/law/revision/{revision}",
        f"/api/models/acme/law/tree/{revision}",
    ):
        status, headers, body = raw(live, "GET", path)
        assert status == 404, (path, body)
        assert headers["x-error-code"] == "RevisionNotFound" or "%0a" in path  # which no route matches
        assert "set-cookie" not in headers


def test_one_version_has_several_names(acme: World) -> None:
    infos = {name: acme.client.get(f"/api/models/acme/law/revision/{name}").json() for name in ("main", "1", "prod")}
    commits = {info["sha"] for info in infos.values()}
    assert len(commits) == 1
    commit = commits.pop()
    for path in ("law", f"law/revision/{commit}"):
        assert acme.client.get(f"/api/models/acme/{path}").json() == infos["main"]
    for path in (f"law/revision/{'0' * 16 + commit[16:]}", f"pfeiffer/revision/{commit}"):
        assert acme.client.get(f"/api/models/acme/{path}").status_code == 404


def test_a_commit_whose_card_is_another_has_the_files_that_stay(acme: World) -> None:
    commit = acme.client.get("/api/models/acme/law").json()["sha"]
    other_commit = commit[:16] + "d" * 16 + commit[32:]
    for name in (CONFIG, WEIGHTS, "samples.jsonl"):
        assert resolve(acme, f"{other_commit}/{name}").content == resolve(acme, f"main/{name}").content
    for name in (CARD, "soup.json"):
        assert error_of(resolve(acme, f"{other_commit}/{name}")) == (404, "EntryNotFound")
    listed = acme.client.get(f"/api/models/acme/law/tree/{other_commit}").json()
    assert [file["path"] for file in listed] == [CONFIG, WEIGHTS, "samples.jsonl"]


def test_a_commit_whose_configuration_is_another_is_not_there(acme: World) -> None:
    """A configuration of ours holds the domain: nothing of the older commit would load the adapter."""
    commit = acme.client.get("/api/models/acme/pfeiffer").json()["sha"]
    acme.client.patch("/v1/adapters/acme/pfeiffer", json={"domain": "another"}).raise_for_status()
    for path in (f"/api/models/acme/pfeiffer/revision/{commit}", f"/acme/pfeiffer/resolve/{commit}/{CONFIG}"):
        assert error_of(acme.client.get(path)) == (404, "RevisionNotFound")


def test_main_is_what_the_name_means_whatever_an_alias_is_called(acme: World) -> None:
    push_lora(acme, "acme/two", seed=7)
    push_lora(acme, "acme/two", seed=8)
    acme.client.put("/v1/adapters/acme/two/aliases/main", json={"version": 1}).raise_for_status()
    refs = acme.client.get("/api/models/acme/two/refs").json()
    assert [branch["name"] for branch in refs["branches"]] == ["main"]
    assert refs["branches"][0]["targetCommit"] == refs["tags"][0]["targetCommit"]
    acme.client.delete("/v1/adapters/acme/two@2").raise_for_status()
    assert [tag["name"] for tag in acme.client.get("/api/models/acme/two/refs").json()["tags"]] == ["1"]
    assert error_of(acme.client.get("/api/models/acme/two/revision/2")) == (410, "RevisionNotFound")


def test_every_branch_leads_somewhere_however_many_versions_there_are(
    acme: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in (31, 32, 33):
        push_lora(acme, "acme/many", seed=seed)
    for alias in ("old", "ab" * 20):
        acme.client.put(f"/v1/adapters/acme/many/aliases/{alias}", json={"version": 1}).raise_for_status()
    monkeypatch.setattr(hub, "MOST_REFS", 2)
    refs = acme.client.get("/api/models/acme/many/refs").json()
    assert [tag["name"] for tag in refs["tags"]] == ["3", "2"]
    assert [branch["name"] for branch in refs["branches"]] == ["main", "old"]
    for ref in [*refs["tags"], *refs["branches"]]:
        assert acme.client.get(f"/api/models/acme/many/revision/{ref['name']}").json()["sha"] == ref["targetCommit"]
    assert acme.client.get(f"/api/models/acme/many/revision/{'ab' * 20}").status_code == 404
    acme.client.delete("/v1/adapters/acme/many").raise_for_status()


def test_purged_in_the_middle_of_a_download(acme: World) -> None:
    """Bytes that are on their way come to their end; what is asked for next is gone, and says so."""
    push_lora(acme, "acme/purged", seed=9)
    commit = acme.client.get("/api/models/acme/purged").json()["sha"]
    weights_file = revision_of(acme.runtime.services, NO_AUTH_PRINCIPAL, "acme", "purged", commit).files[WEIGHTS]
    with weights_file.open() as file:
        assert acme.client.post("/v1/adapters/acme/purged@1/purge").status_code == 200
        assert file.read() == lora_weights(acme, seed=9)
    with pytest.raises(DamagedBlob):
        weights_file.open()
    assert error_of(acme.client.head(f"/acme/purged/resolve/{commit}/{WEIGHTS}")) == (410, "RepoNotFound")


# --- who may --------------------------------------------------------------------------------------


def test_public_folders_are_no_way_in(acme: World) -> None:
    assert acme.client.get("/static/law/resolve/main/README.md", headers={"authorization": ""}).status_code == 401


def test_unknown_and_foreign_are_the_same(acme: World) -> None:
    headers = acme.headers(acme.key(["read"], ["acme"]))
    for path in ("/api/models/{}", "/api/models/{}/refs", "/api/models/{}/tree/main", "/{}/resolve/main/README.md"):
        answers = []
        for name in ("foreign/secret", "acme/nothing", "Acme/Law", "acme/law@1", "v1/adapters", "base/tiny"):
            answer = acme.client.get(path.format(name), headers=headers)
            answers.append((*error_of(answer), answer.text.replace(name, "<name>")))
        assert len(set(answers)) == 1, answers
        assert answers[0][:2] == (404, "RepoNotFound")


def test_a_key_that_may_not_read_is_told_the_scope_that_it_lacks(acme: World) -> None:
    answer = acme.client.get("/api/models/acme/law", headers=acme.headers(acme.key(["infer"])))
    assert (answer.status_code, answer.headers["x-error-message"]) == (403, "This key lacks the scope 'read'.")


# --- lists ----------------------------------------------------------------------------------------


def test_each_name_once_on_pages_that_link_on(acme: World) -> None:
    push_lora(acme, "acme/law", seed=21)  # a second version, which moves it to the front
    names, url = [], "/api/models?author=acme&full=true"
    while url:
        answer = acme.client.get(url, headers={"x-forwarded-proto": "https"})
        names += [model["id"] for model in answer.json()]
        url = answer.links.get("next", {}).get("url", "")
        assert not url or url.startswith("https://testserver/api/models?author=acme&full=true&cursor=")
        url = url.replace("https:", "http:")
    assert names == ["acme/law", "acme/two", "acme/pfeiffer"]
    assert len(acme.client.get("/api/models?limit=100000").json()) == 3
    assert acme.client.get("/api/models?cursor=x").status_code == 400


@pytest.mark.parametrize(
    ("proxies", "scheme"),
    [("https,http", "https"), ("HTTPS , http", "https"), ("http,https", "http"), ("", "http")],
)
def test_the_next_page_is_asked_for_as_the_first_was(acme: World, proxies: str, scheme: str) -> None:
    """The first of several proxies says how; else a key would go over the net in the clear."""
    first = acme.client.get("/api/models?limit=1", headers={"x-forwarded-proto": proxies})
    assert first.links["next"]["url"].startswith(f"{scheme}://")


@pytest.mark.parametrize("query", ["sort=downloads", "pipeline_tag=x", "gated=true", "limit=0", "search=%21"])
def test_a_list_that_cannot_be_answered_is_refused(acme: World, query: str) -> None:
    answer = acme.client.get(f"/api/models?{query}")
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")


# --- other kinds ----------------------------------------------------------------------------------


def test_a_folder_of_ours_with_a_readme_that_works(
    acme: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code of the README is run, over the files as they come."""
    folder, code = downloaded(acme, "acme/pfeiffer", tmp_path)
    assert (folder / WEIGHTS).read_bytes() == adapter_weights(acme.runtime, seed=4)
    assert read_directory(folder).config.method == "bottleneck"
    assert 'library_name: "adaptersoup"' in (folder / CARD).read_text()
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    exec(code, namespace)
    plain = namespace["base"].model(**namespace["base"].tokenizer("Once upon a time", return_tensors="pt")).logits
    assert not torch.allclose(namespace["logits"], plain, atol=0.1)


def test_a_folder_of_pefts_with_a_readme_that_works(
    acme: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It loads the folder: `acme/law` may be anybody's on the hub that a reader's client asks."""
    folder, code = downloaded(acme, "acme/law", tmp_path)
    assert "acme/law" not in (folder / CARD).read_text()
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    exec(code, namespace)
    ids = torch.tensor([[0, 30, 31, 32, 33]])
    with torch.inference_mode(), namespace["model"].disable_adapter():
        plain = namespace["model"](ids).logits
    assert not torch.allclose(namespace["model"](ids).logits, plain, atol=0.01)
    for path in re.findall(r'from_pretrained\(.*"(.*)"', code):
        with pytest.raises(HFValidationError):  # where the folder is not there, no hub is asked for it
            validate_repo_id(path)


def test_a_base_model_of_a_hub_is_loaded_by_its_pinned_revision(acme: World) -> None:
    for ref in ("acme/law", "acme/pfeiffer"):
        with acme.registry.database.read() as catalogue:
            config = catalogue.adapters.resolve(None, parse_ref(ref)).config
        loading_text = loading_text_of(config, name="law", base="org/tiny", revision="ab" * 20)
        assert f'"org/tiny", revision="{"ab" * 20}")' in loading_text.text
        assert "./org" not in loading_text.text
