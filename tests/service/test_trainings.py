"""`POST /v1/trainings`: trained in a process beside the server, pushed with its whole history, and the same once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from registry.errors import SoupError
from registry.names import sha256_digest
from service.client import SoupClient
from tests.service.test_killed_server import until
from tests.service.worlds import BASE_ID, Live, World

TEXTS = [f"The judge of court {i} held that contract {i * 7} was void." for i in range(60)]
VALID = [f"The judge of court {i} held that contract {i * 3} was void." for i in range(100, 125)]
SPEC = {"adapter": {"bottleneck": 4}, "recipe": {"steps": 4, "batch": 2, "block": 32, "learning_rate": 0.01}}


def lines(texts: list[str]) -> bytes:
    return b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)


def put(world: World, data: bytes, **headers: Any) -> str:
    digest = sha256_digest(data)
    answer = world.client.put(f"/v1/blobs/{digest}", content=data, **headers)
    assert answer.status_code in {200, 201}, answer.text
    return digest


def asked(world: World, name: str = "acme/law", **changes: Any) -> dict[str, Any]:
    """A request that trains."""
    return {
        "name": name, "domain": "law", "base_model": BASE_ID, "texts": put(world, lines(TEXTS)),
        "valid": put(world, lines(VALID)), "spec": SPEC, **changes,
    }  # fmt: skip


def ended(world: World, job: dict[str, Any]) -> dict[str, Any]:
    """The job once it is over."""
    assert job["object"] == "job", job
    return until(
        lambda: (now := world.client.get(f"/v1/jobs/{job['id']}").json())["state"] not in {"queued", "running"} and now
    )


def test_a_training_is_a_job_that_pushes_what_it_made(world: World) -> None:
    body = asked(world)
    answer = world.client.post("/v1/trainings", json=body)
    assert answer.status_code == 202, answer.text
    assert answer.headers["location"] == f"/v1/jobs/{answer.json()['id']}"
    done = ended(world, answer.json())
    assert done["state"] == "succeeded", done
    print(done)
    adapter = world.client.get("/v1/adapters/acme/law").json()
    print(json.dumps(adapter, indent=1)[:3000])
    assert adapter["digest"] == done["result"]["digest"]
