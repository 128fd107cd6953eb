"""`benchmarks.scale` measures what it says: small runs of its parts, and that what is wrong is noticed."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from benchmarks import report
from benchmarks.faults.content import WEIGHTS
from benchmarks.fleet import canaries, kills, stores, traffic
from benchmarks.fleet.front import Meter

pytestmark = pytest.mark.slow
DATA = b"weights"


def test_answers_of_servers_that_come_and_go_are_looked_at(monkeypatch):
    monkeypatch.setattr(canaries, "CLIENTS", 2)
    result = report.Result("scale")
    canaries.measure_wrong(result, requests=40, canaries=4, replicas=1)
    assert (result.figures["wrong_digest"].value, result.figures["wrong_digest"].goal) == (0, 0)
    [row] = result.rows
    assert row["changes"] == ["started", "killed"] * (len(row["changes"]) // 2)


def test_an_answer_of_another_adapter_is_noticed():
    alias = canaries.Alias("a@live", ["sha256:1", "sha256:2"], moves=3, acknowledged=2)
    assert alias.may_mean(2) == {"sha256:1", "sha256:2"}
    assert alias.may_mean(3) == {"sha256:2"}
    choices = {"choices": [{"text": "x", "logprobs": {"token_logprobs": [-1.0]}}]}

    def judged(digest: str, **known: tuple[str, float]) -> canaries.Canaries:
        found = canaries.Canaries({"1": ("x", -1.0), "2": ("y", -1.0), **known}, {"canary/a0": "1"}, [alias])
        answer = httpx2.Response(200, json=choices, headers={"x-soup-digest": digest})
        with httpx2.Client(base_url="http://x", transport=httpx2.MockTransport(lambda _: answer)) as client:
            found.ask(client, random.Random(1))
        return found

    assert judged("1").wrong == []
    assert judged("2").wrong == ["canary/a0: 2"]
    assert judged("1", **{"1": ("y", -1.0)}).wrong == ["canary/a0: 1"]
    assert judged("1", **{"1": ("x", -1.1)}).wrong == ["canary/a0: 1"]


def test_what_is_killed_comes_back_and_nothing_is_lost(monkeypatch):
    """One of each kind, beside pushes, cooks and streams."""
    monkeypatch.setattr(kills, "SPAN", 0.5)
    result = report.Result("scale")
    kills.measure_kills(result, kills=4, servers=1, workers=1)
    [row] = result.rows
    assert (result.figures["kills_survived"].value, result.figures["kills_lost"].value) == (4, 0), row
    assert row["survived"] == dict.fromkeys(kills.KINDS, 1)
    assert all(row["done"][kind] >= 4 for kind in traffic.KINDS)


def judged(answers: Callable[[str], httpx2.Response], **answer: Any) -> dict[str, list[str]]:
    """What is found wrong with a push that was acknowledged as `answer`, where the server says this by path."""
    found = traffic.Traffic(
        lambda: httpx2.Client(
            base_url="http://x", transport=httpx2.MockTransport(lambda request: answers(request.url.path))
        )
    )
    found._pushed = [traffic.Acknowledged("kept/a0", {"object": "adapter", "digest": "d", "job": "j", **answer})]
    return {kind: those for kind, those in found.verified().items() if those}


def test_what_is_lost_wrong_or_there_twice_is_noticed():
    row = {"version": 1, "digest": "d", "weights_blob": f"sha256:{hashlib.sha256(DATA).hexdigest()}"}

    def says(path: str, *, state: str = "succeeded", data: bytes = DATA, there: bool = True, **more: Any) -> Any:
        if path == "/v1/jobs/j":
            return httpx2.Response(200, json={"state": state})
        if path == f"/v1/adapters/kept/a0/files/{WEIGHTS}":
            return httpx2.Response(200, content=data)
        assert path == "/v1/adapters/kept/a0"
        return httpx2.Response(200 if there else 404, json={**row, **more})

    assert judged(says) == {}
    assert judged(lambda path: says(path, there=False)) == {"lost": ["kept/a0: 404"]}
    assert judged(lambda path: says(path, state="failed")) == {"lost": ["kept/a0: its job j is failed: None"]}
    assert judged(lambda path: says(path, version=2)) == {"twice": ["kept/a0 has 2 versions"]}
    assert judged(says, digest="other") == {"wrong": ["kept/a0 is d and was acknowledged as other"]}
    assert judged(lambda path: says(path, data=b"half")) == {
        "wrong": ["kept/a0: its weights are answered 200, 4 bytes"]
    }


def test_requests_at_a_time_are_counted_once():
    moments = iter([0.0, 1.0, 2.0, 4.0, 5.0, 6.0, 7.0, 10.0, 11.0])
    meter = Meter(lambda: next(moments))
    for who, what in (("a", "asked"), ("a", "asked"), ("b", "asked"), ("a", "answered"), ("b", "answered")):
        getattr(meter, what)(who)
    assert meter.seconds() == 5.0
    for who, what in (("a", "asked"), ("b", "asked"), ("b", "answered"), ("a", "answered")):
        getattr(meter, what)(who)
    assert meter.seconds() == 10.0


def test_a_bucket_is_held_against_a_folder():
    result = report.Result("scale")
    stores.measure_stores(result, adapters=2, bottleneck=8)
    assert [row["blobs"] for row in result.rows] == ["folder", "bucket"]
    folder, bucket = result.rows
    assert folder["push_store_ms"] == folder["load_store_ms"] == 0
    assert 0 < bucket["push_store_ms"] < bucket["push_ms"]
    assert bucket["load_store_ms"] > 0
    assert set(result.figures) == {"store_vs_folder_pushes", "store_vs_folder_loads"}
