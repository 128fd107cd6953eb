"""Limits over HTTP: who sets them, what is refused beyond them and until when, and the headers clients read."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import openai
import pytest

from adaptersoup.client.client import SoupClient
from registry.names import sha256_digest
from service.rates import Rates
from tests.adaptersoup.cli.outcome import done
from tests.postgres import KINDS
from tests.service.answers import refusal, refusal_with_code
from tests.service.clock import Clock
from tests.service.http.stock import TEMPLATE
from tests.service.servers import Live, Soup, World

DATABASES = KINDS
pytestmark = pytest.mark.one_database  # test_use_limits.py asks each kind
TEMPLATES = {"tiny": TEMPLATE}
SETTINGS = {"namespace_jobs": 50, "job_workers": 0, "training_workers": 0}
ASK: dict[str, Any] = {"model": "tiny", "prompt": "a b", "max_tokens": 4, "temperature": 0}
CALLS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "a b c", "max_tokens": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a b"}], "max_tokens": 2},
    "/v1/perplexity": {"texts": ["a b c"]},
    "/v1/embeddings": {"input": "a b c"},
}


@pytest.fixture
def clock(world: World, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that only the test moves, and fresh buckets."""
    clock = Clock()
    monkeypatch.setattr(world.runtime, "services", replace(world.runtime.services, rates=Rates(clock)))
    return clock


@dataclass
class Someone:
    """A key with its limits."""

    world: World
    id: str
    secret: str

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return self.world.client.post(path, json=body, headers=self.world.headers(self.secret))

    def limit(self, **numbers: int | None) -> None:
        assert self.world.client.patch(f"/v1/keys/{self.id}/limits", json=numbers).status_code == 200


def someone(world: World, *namespaces: str, **limits: int) -> Someone:
    body = {"name": "one", "scopes": ["read", "write", "infer"], "namespaces": list(namespaces) or None}
    created = world.client.post("/v1/keys", json=body).json()
    key = Someone(world, created["id"], created["secret"])
    if limits:
        key.limit(**limits)
    return key


def limit_namespace(world: World, ns: str, **limits: int | None) -> None:
    assert world.client.patch(f"/v1/namespaces/{ns}/limits", json=limits).status_code == 200


# --- rates ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", CALLS)
def test_every_call_that_infers_is_limited_and_passes_when_it_was_told(world: World, clock: Clock, path: str) -> None:
    key = someone(world, "team", requests_per_minute=2)
    for remaining in (1, 0):
        answer = key.post(path, {"model": "tiny", **CALLS[path]})
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-ratelimit-remaining-requests"] == str(remaining)
    answer = key.post(path, {"model": "tiny", **CALLS[path]})
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "30")
    error = answer.json()["error"]
    assert (error["code"], error["type"], error["param"]) == (
        "rate_limit_exceeded",
        "rate_limit_error",
        "requests_per_minute",
    )
    assert answer.headers["x-ratelimit-remaining-requests"] == "0"
    assert world.client.get(f"/v1/keys/{key.id}/limits").json()["in_use"]["requests_per_minute"] == 2
    for seconds, status in ((29, 429), (1, 200)):
        clock.now += seconds
        assert key.post(path, {"model": "tiny", **CALLS[path]}).status_code == status


def test_openais_client_reads_what_is_left(live: Live, clock: Clock) -> None:
    key = someone(live.world, "team", requests_per_minute=60, tokens_per_minute=60_000)
    client = live.openai(key.secret)
    raw = client.completions.with_raw_response.create(**ASK)
    usage: Any = raw.parse().usage
    assert {name: value for name, value in raw.headers.items() if name.startswith("x-ratelimit")} == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "60000",
        "x-ratelimit-remaining-tokens": str(60_000 - usage.total_tokens),
        "x-ratelimit-reset-tokens": f"{usage.total_tokens}ms",
    }
    with client.completions.with_streaming_response.create(**ASK, stream=True) as streamed:
        assert streamed.headers["x-ratelimit-remaining-requests"] == "58"
        list(streamed.iter_lines())
    key.limit(requests_per_minute=1)
    with pytest.raises(openai.RateLimitError) as late:
        client.completions.create(**ASK)
    assert (late.value.response.headers["retry-after"], late.value.code) == ("120", "rate_limit_exceeded")
    clock.now += 120
    assert client.completions.create(**ASK).choices


def test_without_limits_there_are_no_headers(world: World) -> None:
    answer = world.client.post("/v1/completions", json=ASK)
    assert answer.status_code == 200
    assert not [name for name in answer.headers if name.startswith("x-ratelimit")]


def test_the_tighter_of_key_and_namespace_holds_and_keys_of_a_namespace_share_it(world: World, clock: Clock) -> None:
    limit_namespace(world, "shared", requests_per_minute=2)
    first, second = (someone(world, "shared", requests_per_minute=50) for _ in range(2))
    assert first.post("/v1/completions", ASK).headers["x-ratelimit-limit-requests"] == "2"
    assert second.post("/v1/completions", ASK).status_code == 200
    assert refusal(second.post("/v1/completions", ASK), 429).startswith(
        "Namespace 'shared' has 2 requests a minute; 0 are left"
    )
    assert someone(world, "elsewhere").post("/v1/completions", ASK).status_code == 200


def test_a_model_is_used_in_its_namespace(world: World, clock: Clock) -> None:
    world.push("owner/law", seed=4)
    limit_namespace(world, "owner", requests_per_minute=1)
    key = someone(world, "guest", "owner")
    answers = [key.post("/v1/completions", ASK | {"model": name}) for name in ("owner/law", "owner/law@1", "tiny")]
    assert [answer.status_code for answer in answers] == [200, 429, 200]


def test_more_tokens_than_a_minute_has_are_refused_for_good(world: World, clock: Clock) -> None:
    key = someone(world, "team", tokens_per_minute=20)
    answer = key.post("/v1/completions", ASK | {"n": 8})
    assert "has 20 tokens a minute, and this request needs" in refusal(answer, 413)
    assert "retry-after" not in answer.headers
    assert key.post("/v1/completions", ASK | {"n": 1}).status_code == 200


def test_what_the_engine_refuses_costs_no_tokens(world: World, clock: Clock) -> None:
    key = someone(world, "team", tokens_per_minute=1000)
    answer = key.post("/v1/completions", ASK | {"max_tokens": 900})  # beyond the context
    assert (answer.status_code, answer.headers["x-ratelimit-remaining-tokens"]) == (400, "1000")


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_schema_is_compiled_for_who_was_admitted_and_one_that_cannot_be_costs_no_tokens(
    world: World, clock: Clock, path: str
) -> None:
    key = someone(world, "team", tokens_per_minute=1000, requests_per_minute=2)
    schema = {"type": "integer", "minimum": 2, "maximum": 1}
    prompt_fields = {"prompt": "a"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "a"}]}
    body = {
        "model": "tiny",
        "max_tokens": 20,
        **prompt_fields,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
    }
    for _ in range(2):
        answer = key.post(path, body)
        assert (answer.status_code, answer.headers["x-ratelimit-remaining-tokens"]) == (400, "1000")
    assert key.post(path, body).status_code == 429


def test_a_client_that_goes_away_pays_for_what_was_computed(
    live: Live, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, rates = someone(live.world, "team", tokens_per_minute=1000), live.world.runtime.services.rates
    settled, needed, settle = threading.Event(), list[int](), rates.settle

    def noted(want: Any, count: int) -> None:
        settle(want, count)
        needed.append(count)
        settled.set()

    monkeypatch.setattr(rates, "settle", noted)
    with live.openai(key.secret).completions.create(**ASK | {"max_tokens": 50, "n": 8, "stream": True}) as stream:
        next(iter(stream))
    assert settled.wait(30)
    assert 0 < needed[0] <= 8 * 50 + 10
    usage = live.world.client.get("/v1/usage", params={"key_id": key.id}).json()["total"]
    assert usage["tokens_in"] + usage["tokens_out"] == needed[0]
    after = key.post("/v1/completions", ASK)
    spent = needed[0] + after.json()["usage"]["total_tokens"]
    assert after.headers["x-ratelimit-remaining-tokens"] == str(1000 - spent)


# --- quotas -----------------------------------------------------------------------------------------


def test_adapters_beyond_the_limit_are_refused_until_one_is_retired(world: World) -> None:
    limit_namespace(world, "small", adapters=1)
    world.push("small/one", seed=1)
    world.push("small/one", seed=1)  # known
    files = set(world.registry.blobs.digests())
    with pytest.raises(AssertionError, match=r"Namespace 'small' would have 2 live adapters and soups; its limit is 1"):
        world.push("small/two", seed=222)
    assert set(world.registry.blobs.digests()) == files, "what is refused leaves no bytes"
    assert 'soup_limit_refusals_total{limit="adapters"}' in world.client.get("/metrics").text
    world.client.delete("/v1/adapters/small/one@1")
    world.push("small/two", seed=2)
    refusal_with_code(world.client.post("/v1/adapters/small/one@1/restore"), 413, "quota_exceeded")
    limit_namespace(world, "small", adapters=0)
    world.push("small/two", seed=2)  # known, and nothing is added
    limit_namespace(world, "small", adapters=None)
    assert world.client.post("/v1/adapters/small/one@1/restore").status_code == 200


@pytest.mark.parametrize(("chunked", "letter"), [(False, b"c"), (True, b"d")])
def test_bytes_beyond_the_limit_are_refused_before_they_are_stored(world: World, chunked: bool, letter: bytes) -> None:
    key = someone(world, f"bytes{int(chunked)}", stored_bytes=100)

    def put(data: bytes) -> Any:
        content = iter([data[:10], data[10:]]) if chunked else data
        return world.client.put(f"/v1/blobs/{sha256_digest(data)}", content=content, headers=world.headers(key.secret))

    assert put(letter * 60).status_code == 201
    assert put(letter * 60).status_code == 200, "what it holds already costs nothing"
    files = set(world.registry.blobs.digests())
    message = refusal(put(letter * 41), 413)
    assert message.startswith(f"Key '{key.id}' holds 60 bytes, and this is more than is left; its limit is 100")
    assert set(world.registry.blobs.digests()) == files
    assert put(letter * 40).status_code == 201


@pytest.mark.parametrize("in_parts", [False, True])
def test_bytes_that_others_left_no_room_for_meanwhile_do_not_stay(
    world: World, monkeypatch: pytest.MonkeyPatch, in_parts: bool
) -> None:
    """They passed the first check, as 30 uploads at once do that have room for one."""
    key = someone(world, f"full{int(in_parts)}", stored_bytes=9)
    data, headers = b"ten bytes %d" % in_parts, world.headers(key.secret)
    digest = sha256_digest(data)
    for module in ("registry.uploads.sessions", "service.http.routes.blobs"):
        monkeypatch.setattr(f"{module}.room_for_blob", lambda *_: None)
    path, params = f"/v1/blobs/{digest}", {}
    if in_parts:
        path = world.client.post("/v1/blobs/uploads", json={}, headers=headers).headers["location"]
        range_headers = {**headers, "content-range": f"0-{len(data) - 1}"}
        assert world.client.patch(path, content=data, headers=range_headers).status_code == 202
        params, data = {"digest": digest}, b""
    answer = world.client.put(path, params=params, content=data, headers=headers)
    assert refusal(answer, 413).startswith(f"Key '{key.id}' would hold 11 bytes; its limit is 9")
    assert not world.registry.blobs.has(digest)
    key.limit(stored_bytes=11)
    assert world.client.put(path, params=params, content=data, headers=headers).status_code == 201


def test_jobs_beyond_the_limit_wait(world: World) -> None:
    world.push("busy/one", seed=7)
    key = someone(world, "busy", jobs=1)
    body = {"recipe": {"ingredients": [{"ref": "busy/one"}]}, "wait": 0}
    assert key.post("/v1/soups", body).status_code == 202
    files = set(world.registry.blobs.digests())
    answer = key.post("/v1/soups", body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (429, "jobs")
    assert int(answer.headers["retry-after"]) >= 1
    assert set(world.registry.blobs.digests()) == files
    (job,) = world.client.get("/v1/jobs", params={"kind": "cook"}).json()["data"]
    world.client.post(f"/v1/jobs/{job['id']}/cancel")
    assert key.post("/v1/soups", body).status_code == 202


# --- who sets them ----------------------------------------------------------------------------------


def test_an_upload_in_parts_is_held_to_the_quota_when_it_is_opened_and_when_it_is_finished(world: World) -> None:
    key = someone(world, "parts", stored_bytes=30)
    headers, uploads = world.headers(key.secret), "/v1/blobs/uploads"
    answer = world.client.post(uploads, json={"size": 31}, headers=headers)
    assert (answer.status_code, answer.json()["error"]["param"]) == (413, "stored_bytes")
    path = world.client.post(uploads, json={"size": 20}, headers=headers).headers["location"]
    data = b"a part of 20 bytes.."
    assert world.client.patch(path, content=data, headers={**headers, "content-range": "0-19"}).status_code == 202
    key.limit(stored_bytes=19)
    digest = sha256_digest(data)
    assert world.client.put(path, params={"digest": digest}, headers=headers).status_code == 413
    assert world.client.get(path, headers=headers).headers["upload-offset"] == "20", "nothing is lost"
    assert not world.registry.blobs.has(digest)
    key.limit(stored_bytes=20)
    assert world.client.put(path, params={"digest": digest}, headers=headers).status_code == 201
    assert world.client.get(f"/v1/keys/{key.id}/limits").json()["in_use"]["stored_bytes"] == 20
    assert (
        world.client.post(uploads, json={"size": 20, "digest": digest}, headers=headers).status_code == 202
    )  # it is there


def test_limits_are_shown_changed_in_part_and_audited(world: World) -> None:
    key = someone(world, "team", adapters=3, jobs=2)
    key.limit(jobs=None, requests_per_minute=7)
    key_limits = world.client.get(f"/v1/keys/{key.id}/limits").json()
    nothing = dict.fromkeys(("tokens_per_minute", "stored_bytes", "jobs"))
    assert key_limits["limits"] == key_limits["in_force"] == {**nothing, "adapters": 3, "requests_per_minute": 7}
    quotas = {"stored_bytes": 0, "adapters": 0, "jobs": 0}
    assert key_limits["in_use"] == {**quotas, "requests_per_minute": 0, "tokens_per_minute": None}
    entry = world.client.get("/v1/audit", params={"subject": key.id, "limit": 1}).json()["data"][0]
    assert (entry["action"], entry["detail"]["limits"], entry["detail"]["before"]["jobs"]) == (
        "key.limits",
        key_limits["limits"],
        2,
    )
    namespace = world.client.get("/v1/namespaces/untouched/limits").json()
    assert (namespace["limits"]["jobs"], namespace["in_force"]["jobs"]) == (None, 50), "the server's default"


def test_a_namespaces_own_admin_is_held_to_its_limits(world: World) -> None:
    headers = world.headers(world.key(["admin"], ["held"]))
    assert world.client.patch("/v1/namespaces/held/limits", json={"jobs": 9}, headers=headers).status_code == 403
    assert world.client.get("/v1/namespaces/held/limits", headers=headers).status_code == 200


def test_numbers_that_are_no_limit_are_refused(world: World) -> None:
    wrong: list[dict[str, Any]] = [
        {field: value} for field in ("requests_per_minute", "stored_bytes") for value in (-1, 10**15 + 1, 1.0, "7")
    ]
    for body in (*wrong, {"tokens_per_minute": 0}, {"requests": 1}, {}):
        assert world.client.patch("/v1/namespaces/wrong/limits", json=body).status_code == 400
    assert not any(world.client.get("/v1/namespaces/wrong/limits").json()["limits"].values())


def test_the_client_and_the_command_line_set_them(world: World, client: SoupClient, soup: Soup) -> None:
    key = someone(world, "team")
    assert client.change_limits(key_id=key.id, jobs=4)["in_force"]["jobs"] == 4
    out, _ = done(soup("limits", "set", "--of-key", key.id, "--jobs", "default", "--adapters", "12"))
    assert out.splitlines()[0].split() == ["LIMIT", "SET", "IN", "FORCE", "IN", "USE"]
    assert client.limits(key_id=key.id)["limits"]["adapters"] == 12
    assert '"kind": "namespace"' in done(soup("limits", "show", "--namespace", "team", "--json"))[0]
    assert soup("limits", "show")[0] == 1
    assert soup("limits", "set", "--namespace", "team", "--jobs", "-3")[0] == 2


class TestPostgreSQL:
    DATABASES = ("postgresql",)  # where transactions run beside each other

    def test_of_pushes_at_once_only_one_passes(self, world: World) -> None:
        limit_namespace(world, "raced", adapters=1)

        def push(seed: int) -> bool:
            try:
                world.push(f"raced/n{seed}", seed=seed)
            except AssertionError:
                return False
            return True

        with ThreadPoolExecutor(4) as pool:
            assert sum(pool.map(push, range(30, 34))) == 1
        assert world.client.get("/v1/namespaces/raced/limits").json()["in_use"]["adapters"] == 1
