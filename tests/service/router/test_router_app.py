"""A router before replicas that answer, refuse, hang and break off: what passes, what is tried again, what is said."""

from __future__ import annotations

import gc
import hashlib
import json
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from registry.catalogue.replica_rows import ReplicaLoad
from service.hashed_secrets import secret_sha256
from service.router.passing import Passage
from tests.registry.catalogue_rows import add
from tests.service.cluster import client_of, until
from tests.service.router.scripted import (
    SECRET,
    Routed,
    Scripted,
    begin,
    break_off,
    hang,
    listen_nowhere,
    piece,
    routed,
    stream_cut,
    stream_until_released,
    tell,
)
from tests.service.sockets import until_closed

pytestmark = pytest.mark.slow


@pytest.fixture
def clients() -> Iterator[Any]:
    """Makes clients of a router, closed afterwards."""
    opened: list[httpx2.Client] = []

    def client(of: Routed, key: str = SECRET) -> httpx2.Client:
        opened.append(client_of(of.url, key))
        return opened[-1]

    yield client
    for one in opened:
        one.close()


def complete(client: httpx2.Client, model: str, **more: Any) -> httpx2.Response:
    return client.post("/v1/completions", json={"model": model, "prompt": "x", **more})


async def answer_all(me: Scripted, scope: Any, _receive: Any, send: Any) -> None:
    await begin(send, 201, set_cookie="session=theirs", etag='"e"', connection="keep-alive")
    await piece(send, me.id.encode())


def test_a_request_arrives_as_it_was_sent_and_so_does_its_answer(tmp_path: Path, clients: Any) -> None:
    with routed(tmp_path, answer_all) as found:
        client = clients(found)
        headers = {"range": "bytes=0-3", "x-request-id": "mine", "cookie": "a=b"}
        answer = client.put("/v1/b%2Flobs//x?a=%20b&a=c", content=iter([b"one ", b"two"]), headers=headers)
        scope, body = found.replicas[0].seen[-1]
        assert (scope["raw_path"], scope["query_string"], body) == (b"/v1/b%2Flobs//x", b"a=%20b&a=c", b"one two")
        seen = found.replicas[0].headers()
        assert {name: seen[name] for name in headers} == headers
        assert seen["authorization"] == f"Bearer {SECRET}"
        assert seen["host"] == found.url.removeprefix("http://")
        assert seen["x-forwarded-for"] == "127.0.0.1"
        assert (answer.status_code, answer.text, answer.headers["etag"]) == (201, "a", '"e"')
        assert answer.headers["x-soup-replica"] == "a"
        head = clients(found).head("/v1/models")
        assert (head.status_code, head.content) == (201, b"")
        assert "cookie" not in found.replicas[0].headers(), "cookies of one client are not another's"


def test_two_lengths_of_one_body_are_not_handed_on(tmp_path: Path) -> None:
    """A server behind might read them differently: the chunks count, and the length beside them is dropped."""
    with routed(tmp_path, tell) as found:
        head = ["PUT /v1/x HTTP/1.1", "Host: a", "Content-Length: 3", "Transfer-Encoding: chunked", "Connection: close"]
        answer = raw(found.url, "\r\n".join([*head, "", "5", "hello", "0", "", ""]).encode())
        assert answer.startswith(b"HTTP/1.1 200")
        assert found.replicas[0].seen[-1][1] == b"hello"
        assert "content-length" not in found.replicas[0].headers()
        assert not found.router.fleet.members["a"].is_suspect


def raw(url: str, request: bytes) -> bytes:
    """What a server says to these bytes, until it closes."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as one:
        one.sendall(request)
        return until_closed(one)


def test_an_adapter_goes_to_its_first_and_the_base_to_whoever(tmp_path: Path, clients: Any) -> None:
    with routed(tmp_path, tell, tell, tell) as found:
        client, model = clients(found), found.model("c")
        assert {complete(client, model).json()["by"] for _ in range(6)} == {"c"}
        assert {complete(client, "tiny").json()["by"] for _ in range(30)} == {"a", "b", "c"}
        assert {client.get("/v1/models").json()["by"] for _ in range(30)} == {"a", "b", "c"}


@pytest.mark.parametrize("path", ["/v1/blobs/uploads/one", "/push/uploads/one"])
def test_an_uploaders_parts_all_go_to_one(tmp_path: Path, clients: Any, path: str) -> None:
    """With blobs in a bucket that server alone has what came of the upload so far."""
    with routed(tmp_path, tell, tell, tell) as found:
        client = clients(found)
        asked = [client.patch(path, content=b"part"), client.get(path), client.put(path)] * 4
        assert len({one.json()["by"] for one in asked}) == 1


def test_an_alias_that_moves_is_followed(tmp_path: Path, clients: Any) -> None:
    with routed(tmp_path, tell, tell) as found:
        for number, order in enumerate("ab", start=1):
            digest = found.model(order)
            with found.database.write() as catalogue:
                add(catalogue, "acme/moving", digest=digest)
                catalogue.aliases.put("acme", "moving", "live", number)
            client = clients(found)
            until(lambda client=client, order=order: complete(client, "acme/moving@live").json()["by"] == order)
            assert {complete(client, "acme/moving@1").json()["by"] for _ in range(3)} == {"a"}


@pytest.mark.parametrize("lost", [listen_nowhere, break_off], ids=["refuses", "breaks off"])
def test_inference_that_was_not_answered_is_sent_to_the_next(tmp_path: Path, clients: Any, lost: Any) -> None:
    with routed(tmp_path, lost, tell, tell) as found:
        client, model = clients(found), found.model("a", "c")
        answer = complete(client, model)
        assert (answer.json(), answer.headers["x-soup-replica"]) == ({"by": "c"}, "c")
        tried = len(found.replicas[0].seen)
        assert complete(client, model).json() == {"by": "c"}
        assert len(found.replicas[0].seen) == tried, "until it beats again it is not tried before the others"


def test_a_read_is_tried_again_and_a_write_only_where_nothing_was_taken(tmp_path: Path, clients: Any) -> None:
    with routed(tmp_path, break_off, break_off) as found:
        answer = clients(found).post("/v1/soups", json={"recipe": {}})
        assert answer.status_code == 503
        assert "it is not known how far it came" in answer.json()["error"]["message"]
        assert sum(len(one.seen) for one in found.replicas) == 1
    with routed(tmp_path / "reads", break_off, tell) as found:
        for _ in range(4):
            assert clients(found).get("/v1/models").json() == {"by": "b"}
    with routed(tmp_path / "refused", listen_nowhere, tell) as found:
        for _ in range(4):
            assert clients(found).post("/v1/soups", json={}).json() == {"by": "b"}


def test_where_none_answers_the_client_is_told_to_come_back(tmp_path: Path, clients: Any) -> None:
    with routed(tmp_path, listen_nowhere) as found:
        answer = complete(clients(found), "tiny")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
        assert answer.json()["error"]["code"] == "unavailable"
        assert answer.headers["x-request-id"]
    with routed(tmp_path / "none") as found:
        assert complete(clients(found), "tiny").status_code == 503
        assert clients(found).get("/readyz").status_code == 503
        assert clients(found).get("/healthz").status_code == 200


class TestStreams:
    def test_each_event_passes_when_it_is_there(self, tmp_path: Path, clients: Any) -> None:
        with (
            routed(tmp_path, stream_until_released) as found,
            clients(found).stream("POST", "/v1/completions", json={"model": "tiny", "stream": True}) as answer,
        ):
            lines = answer.iter_lines()
            assert next(lines) == 'data: {"n": 1}'
            found.replicas[0].released.set()
            assert [line for line in lines if line] == ["data: [DONE]"]
            assert answer.headers["x-soup-replica"] == "a"

    def test_one_that_breaks_off_ends_with_an_error_after_whole_events(self, tmp_path: Path, clients: Any) -> None:
        cut = stream_cut(b'data: {"n": 1}\n\nda', b'ta: {"n": 2}\n\ndata: {"n": 3')
        with routed(tmp_path, cut, tell) as found:
            answer = complete(clients(found), found.model("a"), stream=True)
            *whole, last = [json.loads(line.removeprefix("data: ")) for line in answer.text.split("\n") if line]
            assert whole == [{"n": 1}, {"n": 2}]
            assert last["error"]["code"] == "unavailable"
            assert "[DONE]" not in answer.text
            assert not found.replicas[1].seen, "what was streamed is not begun again"

    def test_one_of_which_nothing_came_is_begun_elsewhere(self, tmp_path: Path, clients: Any) -> None:
        with routed(tmp_path, stream_cut(), tell) as found:
            assert complete(clients(found), found.model("a"), stream=True).json() == {"by": "b"}

    def test_a_client_that_goes_away_ends_it_at_the_replica(self, tmp_path: Path, clients: Any) -> None:
        with routed(tmp_path, stream_until_released) as found:
            with clients(found).stream("POST", "/v1/completions", json={"model": "tiny"}) as answer:
                next(answer.iter_lines())
            assert found.replicas[0].gone.wait(20)

    def test_so_does_one_that_waits_for_an_answer(self, tmp_path: Path) -> None:
        with routed(tmp_path, hang) as found, client_of(found.url, SECRET) as client:
            with pytest.raises(httpx2.ReadTimeout):
                client.post("/v1/completions", json={"model": "tiny"}, timeout=0.3)
            assert found.replicas[0].gone.wait(20)

    def test_any_other_answer_that_breaks_off_is_cut(self, tmp_path: Path, clients: Any) -> None:
        async def half(_me: Any, _scope: Any, _receive: Any, send: Any) -> None:
            await begin(send, content_length="100")
            await piece(send, b"half", more=True)

        with routed(tmp_path, half) as found, pytest.raises(httpx2.RemoteProtocolError):
            clients(found).get("/v1/adapters/a/b/files/c")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other times")
def test_a_machine_that_is_gone_without_a_word_is_noticed(tmp_path: Path) -> None:
    """An answer may take as long as it takes: it is the connection that is asked whether somebody is there."""

    async def options() -> list[int]:
        passage = Passage()
        request = httpx2.Request("GET", str(found.router.fleet.members["a"].row.url))
        response = await passage._transport.handle_async_request(request)
        one = response.extensions["network_stream"].get_extra_info("socket")
        names = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
        values = [one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)]
        values += [one.getsockopt(socket.IPPROTO_TCP, name) for name in names]
        await response.aclose()
        await passage.close()
        return values

    with routed(tmp_path, tell) as found:
        assert anyio.run(options) == [1, 5, 5, 3, 20_000]


def test_back_pressure_passes_and_is_not_tried_elsewhere(tmp_path: Path, clients: Any) -> None:
    async def full(_me: Any, _scope: Any, _receive: Any, send: Any) -> None:
        await begin(send, 429, retry_after="7")
        await piece(send, b'{"error": {}}')

    with routed(tmp_path, full, tell) as found:
        answer = complete(clients(found), found.model("a"))
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")
        assert not found.replicas[1].seen


def test_a_replica_that_stops_hands_on_what_it_cannot_answer(tmp_path: Path, clients: Any) -> None:
    """It has left, and says 503 to what it did not get done."""
    left = threading.Event()

    async def stopping(_me: Any, _scope: Any, _receive: Any, send: Any) -> None:
        if left.is_set():
            with found.database.beside() as catalogue:
                catalogue.replicas.leave("a")
        await begin(send, 503, retry_after="5")
        await piece(send, b"{}")

    with routed(tmp_path, stopping, tell) as found:
        client, model = clients(found), found.model("a")
        assert complete(client, model).status_code == 503, "it is still there, so its word counts"
        left.set()
        assert complete(client, model).json() == {"by": "b"}


def test_one_that_falls_silent_is_given_up_and_the_next_asked(tmp_path: Path, clients: Any) -> None:
    """It hangs, and beats no more: after two beats what waits for it goes on elsewhere."""
    with routed(tmp_path, hang, tell, beat=1.0) as found:
        over = threading.Event()

        def beat() -> None:
            while not over.wait(0.2):
                with found.database.beside() as catalogue:
                    catalogue.replicas.beat("b", ReplicaLoad(0, 0, 0))

        thread = threading.Thread(target=beat)
        thread.start()
        try:
            assert complete(clients(found), found.model("a")).json() == {"by": "b"}
            assert set(found.router.fleet.members) == {"b"}
        finally:
            over.set()
            thread.join()


def copies(of: bytes) -> set[int]:
    """The bytes objects in this process that are equal to these."""
    gc.collect()
    held = (one for holder in gc.get_objects() for one in gc.get_referents(holder))
    return {id(one) for one in held if type(one) is bytes and len(one) == len(of) and one == of}


class TestWhatIsHeld:
    def test_a_body_too_large_is_refused_here(self, tmp_path: Path, clients: Any) -> None:
        with routed(tmp_path, tell, max_json_bytes=2000, max_json_values=200) as found:
            client = clients(found)
            assert complete(client, "tiny", user="x" * 3000).status_code == 413
            chunks = client.post("/v1/completions", content=iter([b'{"model": "', b"x" * 3000]))
            assert chunks.status_code == 413
            assert complete(client, "tiny", prompt=[[]] * 300).status_code == 413
            assert not found.replicas[0].seen

    def test_a_body_is_held_until_its_answer_begins(self, tmp_path: Path, clients: Any) -> None:
        """A stream may be long, and cannot be begun anew: its body is let go, here and in the client library."""
        with routed(tmp_path, stream_until_released) as found:
            body = b'{"model": "tiny", "stream": true, "prompt": "' + b"m" * 100_003 + b'"}'
            with clients(found).stream("POST", "/v1/completions", content=body) as answer:
                lines = answer.iter_lines()
                next(lines)
                assert found.router._choice._held.total == 0
                assert found.replicas[0].seen[-1][1] == body
                assert len(copies(body)) == 2, "the client's and the replica's, both in this process"
                found.replicas[0].released.set()
                assert [line for line in lines if line] == ["data: [DONE]"]

    def test_nothing_is_held_for_who_has_no_key(self, tmp_path: Path, clients: Any) -> None:
        """Their body passes as it comes: the replica refuses them before it reads any."""
        with routed(tmp_path, tell, max_json_bytes=2000) as found:
            for key in ("sk-soup-" + "x" * 43, "null"):
                assert complete(clients(found, key), "tiny", user="x" * 3000).json() == {"by": "a"}

    @pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"model": 5}', b'{"model": "' + b"a" * 300 + b'"}', b"\xff"])
    def test_what_names_no_model_is_the_replicas_to_refuse(self, tmp_path: Path, clients: Any, body: bytes) -> None:
        with routed(tmp_path, tell) as found:
            answer = clients(found).post("/v1/completions", content=body)
            assert answer.json() == {"by": "a"}
            assert found.replicas[0].seen[-1][1] == body


class TestPlaces:
    def test_who_has_no_key_leaves_room_for_browsers_that_signed_in(self, tmp_path: Path) -> None:
        """Answers of nobody known count by address, with a key or session that is made up as without any."""
        with routed(tmp_path, stream_until_released, max_connections=16) as found, ExitStack() as stack:
            session = "s" * 43
            with found.database.write() as catalogue:
                hashed = hashlib.sha256(SECRET.encode()).hexdigest()
                key = catalogue.keys.by_secret(hashed)
                assert key is not None
                catalogue.sessions.add(
                    secret_sha256(session), secret_sha256=hashed, key_id=key.id,
                    expires_at=datetime.now(UTC) + timedelta(hours=1), most=1,
                )  # fmt: skip
            client = stack.enter_context(httpx2.Client(base_url=found.url, trust_env=False))

            def begin_one(**headers: str) -> int:
                return stack.enter_context(client.stream("GET", "/v1/models", headers=headers)).status_code

            strangers: list[dict[str, str]] = [
                {}, {"authorization": "Bearer a.b.c"}, {"authorization": "Bearer nobody"},
                {"cookie": "soup-session=" + "x" * 43}, {"authorization": f"Basic {SECRET}"},
            ]  # fmt: skip
            statuses = [begin_one(**strangers[number % len(strangers)]) for number in range(10)]
            assert statuses == [200] * 8 + [429] * 2
            assert begin_one(cookie=f"soup-session={session}") == 200
            assert begin_one(authorization=f"Bearer {SECRET}") == 200


def test_who_refused_is_not_said_so_that_nobody_learns_what_exists(tmp_path: Path, clients: Any) -> None:
    """The replica of an adapter that one may not see is that of its digest; of one that does not exist, another."""

    async def refuse(_me: Any, _scope: Any, _receive: Any, send: Any) -> None:
        await begin(send, 404)
        await piece(send, b"{}")

    with routed(tmp_path, refuse, refuse) as found:
        answers = [complete(clients(found), name) for name in (found.model("a"), found.model("b"), "acme/nothing")]
        assert {answer.headers.get("x-soup-replica") for answer in answers} == {None}


def test_the_figures_are_the_operators(tmp_path: Path, clients: Any) -> None:
    with routed(tmp_path, listen_nowhere, tell) as found:
        complete(clients(found), found.model("a"))
        assert httpx2.get(f"{found.url}/metrics").status_code == 401
        text = clients(found).get("/metrics").text
        assert 'soup_router_requests_total{kind="inference",status="200"} 1.0' in text
        assert 'soup_router_lost_total{reason="refused"} 1.0' in text
        assert "soup_router_replicas 2.0" in text
        with found.database.write() as catalogue:
            hashed = hashlib.sha256(b"sk-soup-team").hexdigest()
            catalogue.keys.add("t", hashed, namespaces=("acme",), scopes={"admin"}, prefix="p")
        assert clients(found, "sk-soup-team").get("/metrics").status_code == 403


def test_adapters_of_a_base_go_to_those_that_serve_it(tmp_path: Path, clients: Any) -> None:
    with routed(tmp_path, tell, tell) as found:
        with found.database.engine.begin() as connection:
            connection.exec_driver_sql("""UPDATE replicas SET bases = '{"other": "sha256:1"}' WHERE id = 'a'""")
        model = found.model("a")
        until(lambda: "tiny" not in found.router.fleet.members["a"].row.bases)
        assert {complete(clients(found), model).json()["by"] for _ in range(5)} == {"b"}
        with found.database.write() as catalogue:
            add(catalogue, "acme/foreign", base_model="gone")
        assert complete(clients(found), "acme/foreign").status_code == 200
