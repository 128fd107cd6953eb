"""Requests, cancellations and uploads in the audit of their namespace, and the export of the audit as CSV."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from typing import Any

import pytest

from registry.names import sha256_digest
from tests.service.answers import answered
from tests.service.http.stock import push_embedded
from tests.service.passages import passages
from tests.service.servers import Soup, World

BLOB = b"uploaded by a team"


@pytest.fixture(scope="module")
def team(world: World) -> dict[str, Any]:
    """A key of a namespace that has uploaded, fitted and cooked, and cancelled the cook."""
    headers = world.headers(world.key(["read", "write", "admin"], ["team"]))
    client = world.client
    for seed, domain in enumerate(("kitchen", "court")):
        push_embedded(world, f"team/{domain}", passages(domain, 25), seed=seed, domain=domain)
    assert client.put(f"/v1/blobs/{sha256_digest(BLOB)}", content=BLOB, headers=headers).status_code == 201
    client.post("/v1/selectors", json={"selector": {"kind": "posterior"}, "wait": 0}, headers=headers)
    sample = {"texts": passages("kitchen", 25, seed=5)}
    body = {"sample": sample, "selector": {"kind": "uniform"}, "verify": False, "wait": 0, "name": "team/soup"}
    cook = client.post("/v1/soups", json=body, headers=headers).json()
    client.post(f"/v1/jobs/{cook['id']}/cancel", headers=headers)
    return {"headers": headers, "cook": cook["id"]}


def entries(world: World, headers: dict[str, str], **filters: Any) -> list[dict[str, Any]]:
    return list(answered(world.client.get("/v1/audit", params={"limit": 100, **filters}, headers=headers))["data"])


def test_what_a_namespace_asked_for_is_in_its_audit_and_in_no_others(world: World, team: dict[str, Any]) -> None:
    audit = entries(world, team["headers"])
    assert {entry["namespace"] for entry in audit} == {"team"}
    by_action = {entry["action"]: entry for entry in audit}
    assert [(by_action[action]["subject"], by_action[action]["detail"]) for action in ("blob.upload", "soup.ask")] == [
        (sha256_digest(BLOB), {"size": len(BLOB)}),
        (team["cook"], {"name": "team/soup"}),
    ]
    assert by_action["selector.ask"]["detail"] == {"selector": "posterior"}
    assert ("job.cancel" in by_action) == (world.client.get(f"/v1/jobs/{team['cook']}").json()["state"] == "cancelled")
    assert entries(world, world.headers(world.key(["admin"], ["others"]))) == []


def test_a_job_that_has_ended_is_not_cancelled_in_the_audit_either(world: World, team: dict[str, Any]) -> None:
    pushed = push_embedded(world, "team/third", passages("code", 25), seed=9, domain="code")
    world.client.post(f"/v1/jobs/{pushed['job']}/cancel", headers=team["headers"])
    assert entries(world, team["headers"], subject=pushed["job"]) == []


def test_csv_is_all_of_what_json_gives_in_pages(
    world: World, team: dict[str, Any], soup: Soup, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = world.runtime.settings.model_copy(update={"max_page_size": 2})
    with monkeypatch.context() as patch:
        patch.setattr(world.runtime, "services", replace(world.runtime.services, settings=small))
        answer = world.client.get("/v1/audit", params={"format": "csv", "namespace": "team"})
    assert answer.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    listed = entries(world, {}, namespace="team")
    assert len(listed) > 4
    assert [row["subject"] for row in rows] == [entry["subject"] for entry in listed]
    assert [json.loads(row["detail"]) for row in rows] == [entry["detail"] for entry in listed]
    code, out, _ = soup("audit", "--csv", "--namespace", "team")
    assert (code, list(csv.reader(io.StringIO(out)))[1:]) == (0, [list(row.values()) for row in rows])
    assert soup("audit", "--csv", "--lines")[0] == 2
    foreign = world.headers(world.key(["admin"], ["others"]))
    assert len(world.client.get("/v1/audit?format=csv", headers=foreign).text.splitlines()) == 1
