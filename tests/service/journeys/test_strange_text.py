"""Text that databases treat unlike: NUL, overlong values, huge numbers, wildcards. Never a 500, on either of them."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from tests.postgres import KINDS
from tests.service.servers import World

DATABASES = KINDS

NUL, LONG, HUGE = "a\x00b", "x" * 5000, "9" * 40
STRANGE = [NUL, LONG, HUGE, "%_\\", "'; DROP TABLE adapters; --", "ÄÖ\u200b\ufeff\U0001f9c2\x7f", "-1"]
PATHS = (
    "/v1/adapters/{}/law",
    "/v1/adapters/acme/{}",
    "/v1/adapters/acme/law@{}",
    "/v1/adapters?cursor={}",
    "/v1/jobs/{}",
    "/v1/jobs?kind={}",
    "/v1/jobs?state={}",
    "/v1/jobs?cursor={}",
    "/v1/selectors/{}",
    "/v1/audit?cursor={}",
    "/v1/models/{}",
    "/v1/blobs/{}",
    "/v1/adapters/acme/law/aliases/{}",
)


@pytest.fixture(scope="module", autouse=True)
def stored(world: World) -> str:
    return str(world.push("acme/law", domain="50% of_it \\ here")["ref"])


def fine(answer: Any) -> None:
    assert answer.status_code < 500, answer.text
    if answer.status_code >= 400:
        assert "\n" not in answer.json()["error"]["message"]


@pytest.mark.parametrize("text", STRANGE, ids=ascii)
def test_in_what_is_asked_for(world: World, text: str) -> None:
    for path in PATHS:
        fine(world.client.get(path.format(quote(text, safe=""))))
    for name in ("q", "domain", "tag", "method", "base_model", "kind"):
        fine(world.client.get("/v1/adapters", params={name: text}))
    for name in ("kitchen", text):
        fine(world.client.delete(f"/v1/keys/{quote(name, safe='')}"))
        fine(world.client.post(f"/v1/jobs/{quote(name, safe='')}/cancel"))


@pytest.mark.parametrize("text", STRANGE, ids=ascii)
def test_in_what_is_sent(world: World, text: str) -> None:
    post, pushed = world.client.post, {"base_model": "tiny", "name": "acme/law", "domain": "d"}
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/v1/keys", {"name": text, "namespaces": None, "scopes": ["read"]}),
        ("/v1/keys", {"name": "k", "namespaces": [text], "scopes": ["read"]}),
        ("/v1/adapters", {**pushed, "name": f"acme/{text}"}),
        ("/v1/adapters", {**pushed, "domain": text, "provenance": {"training": {text: text}}}),
        ("/v1/completions", {"model": text, "prompt": "a"}),
        ("/v1/completions", {"model": "base/tiny", "prompt": text[:50], "max_tokens": 1}),
        ("/v1/select", {"sample": {"texts": [text] * 20}, "pool": {"namespaces": [text], "tag": text}}),
        ("/v1/soups", {"recipe": {"ingredients": [{"ref": text}]}, "wait": 0}),
        ("/v1/soups", {"sample": {"blob": text}, "name": text, "wait": 0}),
    ]
    for path, body in bodies:
        fine(post(path, json=body))
    fine(world.client.put(f"/v1/adapters/acme/law/aliases/{quote(text, safe='')}", json={"version": 1}))
    fine(world.client.patch(f"/v1/namespaces/{quote(text, safe='')}", json={"tuning": "allow"}))
    patch = {"card": {"description": text, "license": text[:200], "metadata": {text: text}}, "domain": text[:200]}
    fine(world.client.patch("/v1/adapters/acme/law", json=patch))
    header = text.encode().replace(b"\x00", b"")
    for name in ("x-request-id", "if-match", "authorization", "if-none-match"):
        fine(world.client.get("/v1/adapters/acme/law", headers={name.encode(): header}))


def test_free_values_come_back_as_they_went(world: World) -> None:
    """A field that may hold anything holds it, NUL included where it is no column of its own."""
    training = {"nul": NUL, "salt": "\U0001f9c2", "big": 10**30, "small": 1e-300, "nested": [[None, True]]}
    world.push("acme/free", seed=5, provenance={"training": training})
    assert world.client.get("/v1/adapters/acme/free").json()["provenance"]["training"] == training


def test_an_overflowing_number_is_no_failure_of_ours(world: World) -> None:
    body = b'{"name": "acme/law", "domain": "d", "base_model": "tiny", "provenance": {"training": {"x": 1e400}}}'
    fine(world.client.post("/v1/adapters", content=body, headers={"content-type": "application/json"}))
    for version in (2**31, 2**63, 10**30):
        assert world.client.get(f"/v1/adapters/acme/law@{version}").status_code in {400, 404}
        fine(world.client.put("/v1/adapters/acme/law/aliases/stable", json={"version": version}))


def test_wildcards_are_searched_for_as_they_are(world: World) -> None:
    world.client.patch("/v1/adapters/acme/law", json={"domain": "50% of_it \\ here"})

    def matching_names(text: str) -> list[str]:
        return [row["name"] for row in world.client.get("/v1/adapters", params={"q": text}).json()["data"]]

    assert matching_names("50% OF_it \\ h") == ["law"]
    assert (
        matching_names("50%of") == matching_names("%it") == ["law"]
    )  # they separate words, as all does that is no letter or digit
    assert matching_names("5%e") == matching_names("0_ of") == matching_names("h_re") == []
