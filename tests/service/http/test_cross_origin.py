"""Pages of other origins: those that the setting names may call the API with a key, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient
from pydantic import ValidationError

from service.settings import Settings
from tests.service.servers import World

OURS, THEIRS = "https://app.example.com", "https://elsewhere.test"
ASKING = {"access-control-request-method": "POST", "access-control-request-headers": "authorization, x-stainless-os"}


SETTINGS = {"cors_origins": (OURS,)}


def allowed(answer: Any) -> str | None:
    return answer.headers.get("access-control-allow-origin")


def test_a_browser_asks_for_leave_without_a_key(world: World) -> None:
    answer = TestClient(world.app).options("/v1/completions", headers={"origin": OURS, **ASKING})
    assert (answer.status_code, allowed(answer)) == (200, OURS)
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert "x-stainless-os" in answer.headers["access-control-allow-headers"]
    assert "access-control-allow-credentials" not in answer.headers
    refused = TestClient(world.app).options("/v1/completions", headers={"origin": THEIRS, **ASKING})
    assert (refused.status_code, allowed(refused)) == (400, None)


def test_its_call_needs_the_key_and_its_errors_can_be_read(world: World) -> None:
    answer = world.client.get("/v1/models", headers={"origin": OURS})
    assert (answer.status_code, allowed(answer)) == (200, OURS)
    assert "x-soup-digest" in answer.headers["access-control-expose-headers"]
    assert "origin" in answer.headers["vary"].lower()
    refused = TestClient(world.app).get("/v1/models", headers={"origin": OURS})
    assert (refused.status_code, allowed(refused)) == (401, OURS)
    assert allowed(world.client.get("/v1/models", headers={"origin": THEIRS})) is None
    assert allowed(world.client.get("/v1/models")) is None


@pytest.mark.parametrize("path", ["/models", "/sign-in", "/jobs.json", "/metrics", "/docs", "/api/models", "/v1"])
def test_nothing_but_the_api_is_opened(world: World, path: str) -> None:
    assert allowed(world.client.get(path, headers={"origin": OURS})) is None
    assert allowed(TestClient(world.app).options(path, headers={"origin": OURS, **ASKING})) is None


@pytest.mark.parametrize(
    "origins",
    ["app.example.com", "https://app.example.com/", "https://App.example.com", "ftp://x", "null", "https://*"],
)
def test_what_is_no_origin_is_refused_at_the_start(origins: str) -> None:
    with pytest.raises(ValidationError, match="is not an origin"):
        Settings(cors_origins=origins)


def test_origins_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOUP_CORS_ORIGINS", "https://a.test, http://localhost:3000,http://[::1]:3000")
    assert Settings().cors_origins == ("https://a.test", "http://localhost:3000", "http://[::1]:3000")
    monkeypatch.setenv("SOUP_CORS_ORIGINS", "*")
    assert Settings().cors_origins == ("*",)
    with pytest.raises(ValidationError, match="exclude each other"):
        Settings(no_auth=True)
