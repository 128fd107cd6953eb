"""`benchmarks.scale` measures what it says: small runs of its parts, and that what is wrong is noticed."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2
import pytest

from benchmarks import report
from benchmarks.faults.content import WEIGHTS
from benchmarks.fleet import canaries, kills, stores, traffic
from benchmarks.fleet.front import Meter, metered
from benchmarks.replicas import free_port
from tests.service.cluster import until

pytestmark = pytest.mark.slow
DATA = b"weights"


@pytest.fixture(scope="module")
def fleet() -> Iterator[kills.Fleet]:
    """A server that also works on jobs, the router, PostgreSQL and the store: what all parts that need them share."""
    with kills.fleet(servers=1, workers=0) as found:
        yield found


def test_answers_of_servers_that_come_and_go_are_looked_at(fleet, monkeypatch):
    """One server takes the place of another meanwhile."""
    monkeypatch.setattr(canaries, "CLIENTS", 2)
    monkeypatch.setattr(canaries, "BETWEEN", 600.0)
    result, [first] = report.Result("scale"), fleet.servers
    canaries.ask_while_they_change(result, fleet.at, fleet.servers, fleet.router, requests=40, canaries=4)
    assert (result.figures["wrong_digest"].value, result.figures["wrong_digest"].goal) == (0, 0)
    [row] = result.rows
    assert row["changes"] == ["started", "killed"]
    assert first not in fleet.servers


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


def test_what_is_killed_comes_back_and_nothing_is_lost(fleet, monkeypatch):
    """One of each kind that is there, beside pushes, cooks and streams."""
    monkeypatch.setattr(kills, "SPAN", 0.5)
    monkeypatch.setattr(traffic, "REST", 1.0)
    with fleet.at.client(fleet.router) as client:
        until(lambda: client.get("/v1/models").is_success, "the server that took the other's place")
    result = report.Result("scale")
    kills.strike_all(result, fleet, kills=3)
    [row] = result.rows
    assert (result.figures["kills_survived"].value, result.figures["kills_lost"].value) == (3, 0), row
    assert row["survived"] == dict.fromkeys(("replica", "store", "postgresql"), 1)
    assert all(row["done"][kind] >= 3 for kind in traffic.KINDS)
    assert row["done"]["purges"] >= 1
    with fleet.at.client(fleet.router) as client:
        there = client.get("/v1/adapters/ready/a0").json()
    assert kills.left_of([traffic.Acknowledged("ready/a0", there)], fleet) == [
        f"{digest} of ready/a0, which was purged, is in the store"
        for digest in (there["weights_blob"], there["sample"]["digest"])
    ], "rows are not asked"


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


def test_what_is_there_after_a_purge_is_noticed():
    def found(status: int) -> dict[str, list[str]]:
        transport = httpx2.MockTransport(lambda _: httpx2.Response(status))
        asked = traffic.Traffic(lambda: httpx2.Client(base_url="http://x", transport=transport))
        asked.purged = [traffic.Acknowledged("kept/a0", {"object": "adapter"})]
        return asked.verified()

    assert found(410) == {"lost": [], "wrong": [], "twice": []}
    assert found(200)["wrong"] == ["kept/a0 was purged, and is answered 200"]


def test_requests_at_a_time_are_counted_once():
    moments = iter([0.0, 1.0, 2.0, 4.0, 5.0, 6.0, 7.0, 10.0, 11.0])
    meter = Meter(lambda: next(moments))
    for who, what in (("a", "asked"), ("a", "asked"), ("b", "asked"), ("a", "answered"), ("b", "answered")):
        getattr(meter, what)(who)
    assert meter.seconds() == 5.0
    for who, what in (("a", "asked"), ("b", "asked"), ("b", "answered"), ("a", "answered")):
        getattr(meter, what)(who)
    assert meter.seconds() == 10.0


class Slow(BaseHTTPRequestHandler):
    """Answers each request with as many bytes as a store would."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(DATA)))
        self.end_headers()
        self.wfile.write(DATA)

    def log_message(self, *_: Any) -> None: ...


def test_what_passes_to_the_store_is_timed():
    port = free_port()
    with ThreadingHTTPServer(("127.0.0.1", 0), Slow) as store:
        threading.Thread(target=store.serve_forever, daemon=True).start()
        with metered(port, store.server_port) as meter:
            way = stores.Way("bucket", at=None, meter=meter)
            assert way.timed(lambda: None)[1] == 0
            seconds, of_the_store = way.timed(lambda: httpx2.get(f"http://127.0.0.1:{port}/", trust_env=False))
        store.shutdown()
    assert 0 < of_the_store < seconds


def test_a_bucket_is_held_against_a_folder():
    """By medians; the share of the store is of all the time that the bucket's calls took."""
    folder = stores.Way("folder", at=None, meter=Meter(), pushes=[(0.1, 0.0)] * 3, loads=[(0.2, 0.0)] * 3)
    bucket = stores.Way("bucket", at=None, meter=Meter(), loads=[(0.3, 0.2)] * 3)
    bucket.pushes += [(0.1, 0.05), (0.2, 0.05), (0.7, 0.4)]
    result = report.Result("scale")
    stores.put_figures(result, (folder, bucket), 3)
    assert [round(row["push_ms"]) for row in result.rows] == [100, 200]
    assert [round(row["push_store_ms"]) for row in result.rows] == [0, 50]
    pushes, loads = result.figures["store_vs_folder_pushes"], result.figures["store_vs_folder_loads"]
    assert (pushes.value, loads.value) == (pytest.approx(2.0), pytest.approx(1.5))
    assert "50% of the bucket's time is the store's" in pushes.note
