"""Callers with OpenID Connect tokens on a whole server, over HTTP: what they may do, and what is known of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import AuthenticationError

from adaptersoup.client.client import SoupClient
from service.access.identities import identity_id
from tests.postgres import KINDS
from tests.service.answers import answered, refusal_with_code
from tests.service.little_issuer import LittleIssuer, little_issuer
from tests.service.servers import Live, World, open_world, write_bases

DATABASES = KINDS
pytestmark = pytest.mark.one_database  # journeys ask each kind what these do
RECIPE = {"recipe": {"ingredients": [{"ref": "law/a"}, {"ref": "law/b"}]}}
COOK = {"recipe": {"ingredients": [{"ref": "law/a", "weight": 0.25}, {"ref": "law/b", "weight": 0.75}]}}


@pytest.fixture(scope="module")
def issuer() -> Iterator[LittleIssuer]:
    with little_issuer() as issuer:
        yield issuer


@pytest.fixture(scope="module")
def world(
    issuer: LittleIssuer,
    served: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
    database_settings: dict[str, Any],
) -> Iterator[World]:
    """A server that takes the issuer's tokens, with two adapters in `law` and one in `med`."""
    folder = tmp_path_factory.mktemp("oidc")
    bases = write_bases(folder / "bases.toml", served)
    for world in open_world(folder / "data", bases, **database_settings, **issuer.settings(folder)):
        for seed, name in enumerate(("law/a", "law/b", "med/a")):
            world.push(name, seed=seed)
        yield world


@pytest.fixture
def asks(world: World) -> Any:
    """Asks with a token: `asks(token, method, path, **request)`."""
    return lambda token, method, path, **request: world.client.request(
        method, path, headers=world.headers(token), **request
    )


def audit(world: World, **filters: str) -> list[dict[str, Any]]:
    return list(world.client.get("/v1/audit", params=filters).json()["data"])


def test_the_openai_client_takes_a_token_as_its_key(live: Live, issuer: LittleIssuer) -> None:
    client = live.openai(issuer.token("law-team", kid="ec", sub="reader"))
    assert sorted(model.id for model in client.models.list()) == ["law/a", "law/b", "tiny"]
    completion: Any = client.completions.create(model="law/a", prompt="The court held", max_tokens=4, seed=1)
    assert completion.usage.completion_tokens == 4
    with pytest.raises(AuthenticationError, match="expired"):
        live.openai(issuer.token("law-team", exp=int(time.time()) - 100)).models.list()


def test_scopes_and_namespaces_are_those_of_the_token_that_asks(asks: Any, issuer: LittleIssuer) -> None:
    member, guest, nobody = issuer.token("law-team"), issuer.token("guests"), issuer.token("passers-by")
    for path, status in (("/v1/adapters/law/a", 200), ("/v1/adapters/med/a", 404), ("/v1/keys", 403)):
        assert asks(member, "GET", path).status_code == status, path
    refusal_with_code(asks(guest, "GET", "/v1/adapters/law/a"), 403, "forbidden")
    refusal_with_code(asks(nobody, "GET", "/v1/models"), 403, "forbidden")
    assert asks(issuer.token("soup-admins"), "GET", "/metrics").status_code == 200


def test_what_a_caller_does_is_its_own(world: World, asks: Any, issuer: LittleIssuer) -> None:
    """Usage, limits, a soup, a job, an upload and its audit hang on one id, whichever token asked."""
    id = identity_id(issuer.url, "worker")
    law_token, med_token = issuer.token("law-team", sub="worker"), issuer.token("med-team", sub="worker", kid="ec")
    assert asks(law_token, "POST", "/v1/soups", json={"name": "law/half", **RECIPE}).status_code == 201
    where = asks(law_token, "POST", "/v1/blobs/uploads").headers["location"]
    assert asks(med_token, "GET", where).status_code == 204
    assert asks(issuer.token("law-team", sub="another"), "GET", where).status_code == 404
    assert asks(law_token, "DELETE", where).status_code == 204
    answer = asks(
        med_token, "POST", "/v1/completions", json={"model": "law/half", "prompt": "a", "max_tokens": 3}
    ).json()
    world.runtime.services.usage.write()
    (used,) = asks(law_token, "GET", "/v1/usage", params={"by": "key_id"}).json()["data"]
    assert (used["key_id"], used["requests"], used["tokens_out"]) == (id, 1, answer["usage"]["completion_tokens"])
    assert {entry["action"] for entry in audit(world, key_id=id)} >= {"key.create", "soup.cook"}
    assert world.client.patch(f"/v1/keys/{id}/limits", json={"requests_per_minute": 1}).status_code == 200
    answers = [
        asks(token, "POST", "/v1/completions", json={"model": "law/half", "prompt": "a", "max_tokens": 1})
        for token in (law_token, med_token)
    ]
    assert [answer.status_code for answer in answers] == [200, 429]
    assert int(answers[1].headers["retry-after"]) > 0


def test_a_key_that_a_token_makes_ends_with_the_token(asks: Any, world: World, issuer: LittleIssuer) -> None:
    token = issuer.token("soup-admins", sub="boss")
    body = {"name": "k", "scopes": ["read"], "namespaces": None}
    assert asks(token, "POST", "/v1/keys", json=body).status_code == 403
    soon = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 300))
    assert asks(token, "POST", "/v1/keys", json={**body, "expires_at": soon}).status_code == 201
    lasting = world.client.post("/v1/keys", json=body).json()["id"]
    assert asks(token, "POST", f"/v1/keys/{lasting}/rotate").status_code == 403
    assert asks(token, "DELETE", f"/v1/keys/{lasting}").status_code == 200


def test_an_identity_is_listed_is_not_changed_and_can_be_revoked(asks: Any, world: World, issuer: LittleIssuer) -> None:
    token, id = issuer.token("law-team", sub="leaver"), identity_id(issuer.url, "leaver")
    assert asks(token, "GET", "/v1/adapters").status_code == 200
    (row,) = [key for key in world.client.get("/v1/keys").json()["data"] if key["id"] == id]
    assert (row["name"], row["subject"], row["issuer"]) == ("ada", "leaver", issuer.url)
    assert (row["namespaces"], row["scopes"], row["prefix"]) == (["law"], ["infer", "read", "write"], "oidc")
    for answer in (
        world.client.patch(f"/v1/keys/{id}", json={"scopes": ["admin"]}),
        world.client.post(f"/v1/keys/{id}/rotate"),
        asks(token, "POST", f"/v1/keys/{id}/rotate"),
    ):
        refusal_with_code(answer, 409, "conflict")
    assert world.client.delete(f"/v1/keys/{id}").status_code == 200
    assert asks(token, "GET", "/v1/adapters").status_code == 401
    assert asks(issuer.token("soup-admins", sub="leaver"), "GET", "/v1/adapters").status_code == 401
    world.runtime.key_watch.write()
    assert audit(world, action="key.refuse", subject=id)[0]["detail"] == {"reason": "revoked", "count": 2}


def test_a_token_that_expires_ends_nothing_that_was_begun(asks: Any, issuer: LittleIssuer, client: SoupClient) -> None:
    """A job is of its identity and goes on with what its token brought; the next request needs a token that lasts."""
    begun = answered(
        asks(issuer.token("law-team", sub="night"), "POST", "/v1/soups", json={"name": "law/late", "wait": 0, **COOK}),
        202,
    )
    expired = issuer.token("law-team", sub="night", exp=int(time.time()) - 60)
    assert asks(expired, "GET", f"/v1/jobs/{begun['id']}").status_code == 401
    job = client.wait_job(begun["id"])
    assert (job["state"], job["created_by"]) == ("succeeded", identity_id(issuer.url, "night"))
    assert asks(issuer.token("law-team", sub="night"), "GET", "/v1/adapters/law/late").status_code == 200


def test_a_refused_token_is_not_written_down(
    asks: Any, world: World, issuer: LittleIssuer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    token = issuer.token("law-team", aud="billing")
    answer = asks(token, "GET", "/v1/models")
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    signature = token.rpartition(".")[2]
    world.runtime.key_watch.write()
    assert signature not in caplog.text
    assert signature not in world.client.get("/v1/audit").text
    assert signature not in answer.text
