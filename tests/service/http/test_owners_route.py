"""Owners over HTTP: said at a push or changed later, found by, in files and in the hub, and in the audit."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.service.answers import answered, refusal
from tests.service.servers import World

SETTINGS = {"job_workers": 0}  # jobs stay in the queue
HOSTILE = '"><script>alert(1)</script> {{7*7777}}'


@pytest.fixture(scope="module")
def stocked(world: World) -> World:
    world.push("acme/law", seed=1, owner="legal@acme.example", sample={"texts": [f"Court {n}." for n in range(25)]})
    world.push("acme/lay", seed=2)
    world.push("other/law", seed=3, owner="legal@acme.example")
    return world


def change(world: World, ref: str, **body: Any) -> Any:
    return world.client.patch(f"/v1/adapters/{ref}", json=body)


def test_lists_by_owner_have_what_the_key_sees(stocked: World) -> None:
    adapters = stocked.client.get("/v1/adapters?owner=legal@acme.example").json()["data"]
    assert {adapter["ref"] for adapter in adapters} == {"acme/law@1", "other/law@1"}
    reader = stocked.headers(stocked.key(["read"], ["acme"]))
    adapters = stocked.client.get("/v1/adapters?owner=legal@acme.example", headers=reader).json()["data"]
    assert [(adapter["ref"], adapter["owner"]) for adapter in adapters] == [("acme/law@1", "legal@acme.example")]
    assert stocked.client.get("/v1/adapters?owner=legal").json()["data"] == []
    (card,) = [model for model in stocked.client.get("/v1/models").json()["data"] if model["id"] == "acme/law"]
    assert (card["owner"], card["owned_by"]) == ("legal@acme.example", "acme")


def test_an_owner_is_changed_and_taken_away_and_all_else_stays(stocked: World) -> None:
    original = stocked.client.get("/v1/adapters/acme/lay").json()
    refits = stocked.client.get("/v1/jobs?kind=fit").json()["data"]
    updated = change(stocked, "acme/lay", owner="food team").json()
    unchanged_fields = ("card", "domain", "digest", "created_at")
    assert {name: updated[name] for name in unchanged_fields} == {name: original[name] for name in unchanged_fields}
    assert (updated["owner"], updated["etag"] != original["etag"]) == ("food team", True)
    assert change(stocked, "acme/lay", domain="lay").json()["owner"] == "food team"
    assert change(stocked, "acme/lay", owner=None).json()["owner"] is None
    (newest, _, first) = stocked.client.get("/v1/audit?subject=acme/lay@1&action=adapter.change").json()["data"]
    assert (first["detail"]["owner"], newest["detail"]["owner"]) == ("food team", "")
    assert stocked.client.get("/v1/jobs?kind=fit").json()["data"] == refits


@pytest.mark.parametrize("owner", ["", " ", "a\nb", "a\u202eb", "x" * 201, 7])
def test_what_names_nobody_is_refused_and_the_field_is_named(stocked: World, owner: object) -> None:
    assert "owner" in refusal(change(stocked, "acme/law", owner=owner), 400)
    assert stocked.client.get("/v1/adapters/acme/law").json()["owner"] == "legal@acme.example"


def test_the_hub_says_it_and_what_a_commit_pins_stays(stocked: World) -> None:
    """Whoever pinned a commit has the same files, and a change that was prepared of another version is taken."""

    def files() -> dict[str, tuple[str, str]]:
        listed = stocked.client.get("/v1/adapters/acme/law@1/files").json()["data"]
        pinned = {
            file["name"]: stocked.client.get(f"/acme/law/resolve/{commit}/{file['name']}").text for file in listed
        }
        return {file["name"]: (file["digest"], pinned[file["name"]]) for file in listed}

    stocked.push("acme/law", seed=4)
    commit = stocked.client.get("/api/models/acme/law/revision/1").json()["sha"]
    files_before, etag = files(), stocked.client.get("/v1/adapters/acme/law@1").json()["etag"]
    assert "owner" not in files_before["README.md"][1]
    for set_owner in (
        lambda: change(stocked, "acme/law@2", owner=HOSTILE),
        lambda: stocked.push("acme/law", seed=5, owner="us"),
    ):
        set_owner()
        hub = stocked.client.get("/api/models/acme/law/revision/1").json()
        assert (hub["sha"], hub["cardData"]["owner"] in (HOSTILE, "us")) == (commit, True)
        assert files() == files_before
    headers = {"if-match": f'"{etag}"'}
    answered(stocked.client.patch("/v1/adapters/acme/law@1", json={"owner": "legal@acme.example"}, headers=headers))
    assert stocked.client.delete("/v1/adapters/acme/law@3").status_code == 200
    assert stocked.client.delete("/v1/adapters/acme/law@2").status_code == 200


@pytest.mark.parametrize(
    "fields",
    [
        {"verify": False},
        {"verify": False, "owner": "us", "mixing": {"method": "average"}},
        {"sample": {"texts": ["A contract."]}, "effort": "tune", "tuning": {"passes": 3}},
    ],
)
def test_a_cook_without_new_fields_is_one_that_the_last_release_can_do(stocked: World, fields: dict[str, Any]) -> None:
    """Its workers refuse a request with a field that they do not know, also in its `tuning`."""
    body = {"recipe": {"ingredients": [{"ref": "acme/law@1"}]}, "name": "acme/law", **fields}
    job = stocked.client.post("/v1/soups", json={**body, "wait": 0}).json()["id"]
    with stocked.runtime.database.read() as catalogue:
        blob = catalogue.jobs.get(None, job).arguments["request"]
    assert json.loads(stocked.registry.blobs.read(blob))["request"] == body


@pytest.mark.parametrize("path", ["soups", "trainings"])
def test_what_is_cooked_and_trained_is_nobodys_that_names_nobody(stocked: World, path: str) -> None:
    for owner_field, named in (({}, False), ({"owner": "a\nb"}, True)):
        answer = stocked.client.post(f"/v1/{path}", json={"name": "acme/law", **owner_field})
        assert (answer.status_code, "owner" in answer.text) == (400, named)
