"""The client against a server of a few lines: errors, retries, uploads, paging, jobs, directories."""

from __future__ import annotations

import base64
import gzip
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx2
import pytest

from adaptersoup.client import samples
from adaptersoup.client.additions import Additions
from adaptersoup.client.client import SoupClient
from adaptersoup.client.samples import read_texts
from registry import errors
from registry.errors import (
    Busy,
    Cancelled,
    Conflict,
    DigestMismatch,
    Incompatible,
    InvalidName,
    InvalidParameter,
    InvalidSample,
    NotFound,
    SoupError,
    Unauthenticated,
    Unavailable,
)
from registry.formats import (
    CONFIG_FILE,
    SAMPLES_FILE,
    WEIGHTS_FILE,
    AdapterContents,
    EmbeddingsNote,
    read_directory,
    write_directory,
)
from registry.names import sha256_digest
from registry.spec import BottleneckConfig, SampleSource
from tests.service.scripted_server import Server, events, job, ok, refusal

CONFIG = BottleneckConfig(structure="bapna_firat", bottleneck=4, activation="relu")
DIGEST = "sha256:" + "b" * 64


def raising(error: Exception) -> Callable[[httpx2.Request], httpx2.Response]:
    """An answer that never comes: the request raises `error`."""

    def answer(_: httpx2.Request) -> httpx2.Response:
        raise error

    return answer


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", sorted(errors.BY_CODE))
def test_every_code_comes_back_as_its_class(code: str) -> None:
    server = Server().on("GET /v1/models", refusal(400, code, "One sentence.", param="x", problems=["a", "b"]))
    with pytest.raises(SoupError) as caught:
        server.client().models()
    assert type(caught.value) is errors.BY_CODE[code]
    assert (caught.value.message, caught.value.param) == ("One sentence.", "x")
    assert caught.value.problems == ("a", "b")


@pytest.mark.parametrize(
    ("answer", "kind", "says"),
    [
        *(
            (
                httpx2.Response(status, text="<html>a proxy</html>", headers={"retry-after": "999"}),
                kind,
                str(status),
            )
            for status, kind in (
                (401, Unauthenticated),
                (404, NotFound),
                (429, Busy),
                (502, Unavailable),
                (418, SoupError),
            )
        ),
        (httpx2.Response(429, headers={"retry-after": 5000 * "9"}), Busy, "429"),
        (httpx2.Response(200, text="<html>"), Unavailable, "not answered by an AdapterSoup server"),
        (httpx2.Response(200, json={"status": "maintenance"}), Unavailable, "not answered by an AdapterSoup server"),
        (refusal(404, "brand_new", "A new sentence."), NotFound, "A new sentence"),
        (raising(httpx2.ConnectError("refused")), Unavailable, "is the server running.*soup serve"),
        (raising(httpx2.ReadTimeout("slow")), Unavailable, "SOUP_TIMEOUT"),
        (raising(httpx2.RemoteProtocolError("cut")), Unavailable, "broke"),
        (raising(httpx2.ReadError("")), Unavailable, r"broke \(ReadError\)"),
    ],
)
def test_answers_of_proxies_other_and_newer_servers_and_none(answer: Any, kind: type[SoupError], says: str) -> None:
    with pytest.raises(SoupError, match=says) as caught:
        Server().on("DELETE /v1/keys/k", answer).client().revoke_key("k")
    assert type(caught.value) is kind


@pytest.mark.parametrize("url", ["", "localhost:8000", "ftp://x", "http://", "http://[::1", "file:///etc/passwd"])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(InvalidParameter, match="http://host:port"):
        SoupClient(url)


@pytest.mark.parametrize("url", ["http://u:hunter2@host:8000", "http://u:hun/hunter2@host", "u:hunter2@host:8000"])
def test_an_address_with_a_password_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        SoupClient(url, "sk-soup-x")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "header"), [("sk-soup-x\n", "Bearer sk-soup-x"), (" \n", None), ("", None), (None, None)]
)
def test_a_key_may_end_with_the_line_end_of_its_file(key: str | None, header: str | None) -> None:
    server = Server().on("GET /readyz", ok({}))
    SoupClient("http://soup.test", key, transport=httpx2.MockTransport(server)).json("GET", "/readyz")
    assert server.requests[0].headers.get("authorization") == header


@pytest.mark.parametrize("key", ["hunter2\r\nx-evil: 1", "hunter2\x00", "hunter2ä"])
def test_a_key_that_no_header_can_carry_is_refused_and_not_repeated(key: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        SoupClient("http://soup.test", key)
    assert caught.value.param == "key"
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda client: list(client.adapters(q=99_999 * "a")), "too long"),
        (lambda client: client.complete("base/x", "a", temperature=float("inf")), "not JSON compliant"),
        (lambda client: next(client.stream("base/x", "\ud800")), "surrogates not allowed"),
    ],
)
def test_values_that_no_request_can_carry(call: Callable[[SoupClient], Any], says: str) -> None:
    with pytest.raises(InvalidParameter, match=f"cannot be sent: .*{says}"):
        call(Server().client())


def test_an_answer_without_rows_is_of_another_server() -> None:
    with pytest.raises(Unavailable, match="is no list"):
        list(Server().on("GET /v1/adapters", ok({})).client().adapters())


@pytest.mark.parametrize("ref", ["law", "team/law@", "a/b/c", "../x/y", "team/law?x=1", "v1/keys", "team/a@b/c"])
def test_names_that_are_none_never_leave(ref: str) -> None:
    server = Server()
    with pytest.raises(InvalidName):
        server.client().adapter(ref)
    assert server.requests == []


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.delete_alias("team/law", ""),
        lambda client: client.delete_alias("team/law", "."),
        lambda client: client.delete_alias("team/law", ".."),
        lambda client: client.cancel_job(".."),
        lambda client: client.revoke_key(".."),
        lambda client: client.change_limits(namespace="..", adapters=1),
        lambda client: client.selector(".."),
        lambda client: client.job("\udcff"),
    ],
    ids=["alias-empty", "alias-dot", "alias", "job", "key", "namespace", "selector", "job-byte"],
)
def test_segments_of_a_path_that_are_no_names_never_leave(call: Callable[[SoupClient], Any]) -> None:
    server = Server()
    with pytest.raises(InvalidName, match="neither a name nor an id"):
        call(server.client())
    assert server.requests == []


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirected_change_has_not_been_made(status: int) -> None:
    sign_in = httpx2.Response(status, headers={"location": "https://login.test/?next=soup"})
    server = Server().on("DELETE /v1/adapters/team/law/aliases/prod", sign_in)
    with pytest.raises(Unavailable, match=r"redirected to https://login\.test, and was not carried out"):
        server.client().delete_alias("team/law", "prod")


def test_a_blob_behind_a_redirect_is_not_there() -> None:
    moved = httpx2.Response(301, headers={"location": "https://soup.test/"})
    with pytest.raises(Unavailable, match=r"https://soup\.test.*--url"):
        Server().on(f"HEAD /v1/blobs/{DIGEST}", moved).client().has_blob(DIGEST)


@pytest.mark.parametrize(
    ("route", "call"),
    [
        ("DELETE /v1/adapters/team/law/aliases/prod", lambda client: client.delete_alias("team/law", "prod")),
        (f"PUT /v1/blobs/{sha256_digest(b'data')}", lambda client: client.upload(b"data", anew=True)),
        ("GET /v1/audit", lambda client: client.audit_csv()),
        ("GET /v1/usage", lambda client: client.usage_csv()),
    ],
)
def test_the_page_of_a_proxy_is_no_success(route: str, call: Callable[[SoupClient], Any]) -> None:
    page = httpx2.Response(200, html="<html>maintenance</html>")
    with pytest.raises(Unavailable, match="AdapterSoup server"):
        call(Server().on(route, page).client())


def test_a_blob_of_which_a_proxy_answers_may_not_be_there() -> None:
    assert not Server().on(f"HEAD /v1/blobs/{DIGEST}", httpx2.Response(200)).client().has_blob(DIGEST)


def test_a_redirected_stream_is_no_answer() -> None:
    moved = httpx2.Response(302, headers={"location": "/sign-in"})
    with (
        pytest.raises(Unavailable, match=r"redirected to http://soup\.test"),
        Server().on("POST /v1/completions", moved).client().stream("base/x", "a") as pieces,
    ):
        next(pieces)


def test_a_base_model_is_no_adapter() -> None:
    with pytest.raises(InvalidParameter, match="base model"):
        Server().client().adapter("base/small")


def busy(pause: str) -> httpx2.Response:
    return refusal(429, "busy", "The queue is full.", headers={"retry-after": pause})


# --- retries --------------------------------------------------------------------------------------


def test_a_full_queue_is_waited_for_as_asked() -> None:
    server = Server().on("POST /v1/perplexity", busy("2"), busy("3"), ok({"perplexity": 1.0}))
    assert server.client().perplexity("base/x", ["a"])["perplexity"] == 1.0
    assert server.pauses == [2, 3]


def test_a_full_queue_is_not_waited_for_for_ever() -> None:
    server = Server().on("GET /v1/models", busy("1"))
    with pytest.raises(Busy):
        server.client().models()
    assert len(server.requests) == 6


def test_what_is_asked_once() -> None:
    """A pause of an hour, another error, and a key, of which a repeated request may make two."""
    server = Server().on("GET /v1/models", busy("3600"), refusal(503, "unavailable", "No."))
    server.on("POST /v1/keys", busy("1"))
    with pytest.raises(Busy) as caught:
        server.client().models()
    assert caught.value.retry_after == 3600
    with pytest.raises(Unavailable):
        server.client().models()
    with pytest.raises(Busy):
        server.client().create_key("x", scopes=["read"])
    assert (len(server.requests), server.pauses) == (3, [])


# --- upload ---------------------------------------------------------------------------------------


def test_a_server_that_does_not_say_whether_it_has_it_is_sent_nothing() -> None:
    digest = sha256_digest(b"data")
    server = Server().on(f"HEAD /v1/blobs/{digest}", httpx2.Response(403))
    with pytest.raises(errors.Forbidden):
        server.client().upload(b"data")
    assert server.routes_called() == [f"HEAD /v1/blobs/{digest}"]


def test_a_file_is_streamed_with_its_length(tmp_path: Path) -> None:
    file = tmp_path / "big"
    data = bytes(range(256)) * 10_000
    file.write_bytes(data)
    digest = sha256_digest(data)
    server = Server().on(f"HEAD /v1/blobs/{digest}", httpx2.Response(404)).on(f"PUT /v1/blobs/{digest}", ok({}))
    steps: list[tuple[int, int, str]] = []
    server.client().upload(file, progress=lambda *step: steps.append(step))
    assert (server.requests[-1].content, server.requests[-1].headers["content-length"]) == (data, str(len(data)))
    assert "transfer-encoding" not in server.requests[-1].headers
    assert steps[-1] == (len(data), len(data), "big")


def test_a_repeated_upload_starts_again(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    digest = sha256_digest(b"abc")
    server = Server().on(f"PUT /v1/blobs/{digest}", busy("1"), ok({}))
    server.client().upload(tmp_path / "f")
    assert [request.content for request in server.requests[1:]] == [b"abc", b"abc"]


# --- push -----------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_directory(
        tmp_path / "law",
        AdapterContents(config=CONFIG, domain="law", weights=b"w" * 100, base_model="tiny", texts=["one", "two"]),
    )
    return tmp_path / "law"


def test_a_small_adapter_is_one_request(folder: Path) -> None:
    server = Server().on("POST /v1/adapters", ok({"ref": "team/law@1"}, 201))
    server.client().push_directory(folder, name="team/law", more=Additions(tags=["v2"], metadata={"k": 1}))
    assert server.routes_called() == ["POST /v1/adapters"]
    body = server.body()
    assert base64.b64decode(body["files"][WEIGHTS_FILE]["base64"]) == b"w" * 100
    assert body["sample"] == {"texts": ["one", "two"]}
    assert (body["name"], body["domain"], body["base_model"]) == ("team/law", "law", "tiny")
    assert (body["card"]["tags"], body["card"]["metadata"]) == (["v2"], {"k": 1})


def test_a_large_adapter_goes_up_as_blobs(folder: Path) -> None:
    weights = sha256_digest(b"w" * 100)
    sample = sha256_digest((folder / SAMPLES_FILE).read_bytes())
    server = Server().on("POST /v1/adapters", ok({"ref": "team/law@1"}))
    for digest in (weights, sample):
        server.on(f"PUT /v1/blobs/{digest}", ok({}))
    server.client(inline_bytes=10).push_directory(folder, name="team/law")
    assert (server.body()["files"], server.body()["sample"]) == ({WEIGHTS_FILE: {"digest": weights}}, {"blob": sample})


def test_the_given_sample_wins(folder: Path) -> None:
    server = Server().on("POST /v1/adapters", ok({}))
    server.client().push_directory(folder, name="team/law", more=Additions(texts=["three"], domain="other"))
    assert (server.body()["sample"], server.body()["domain"]) == ({"texts": ["three"]}, "other")


def test_embeddings_stand_in_for_texts(tmp_path: Path) -> None:
    embeddings = (b"vectors", EmbeddingsNote(encoder=DIGEST, unit="passage"))
    write_directory(tmp_path / "e", AdapterContents(config=CONFIG, domain="x", weights=b"w", embeddings=embeddings))
    server = Server().on("POST /v1/adapters", ok({}))
    server.client().push_directory(tmp_path / "e", name="team/e")
    (sent,) = server.body()["sample"]["embeddings"]
    assert (sent["encoder"], sent["unit"]) == (DIGEST, "passage")
    assert base64.b64decode(sent["file"]["base64"]) == b"vectors"


# --- pull -----------------------------------------------------------------------------------------


def serve(tmp_path: Path, **changed: bytes) -> tuple[Server, Path]:
    source = tmp_path / "source"
    write_directory(source, AdapterContents(config=CONFIG, domain="law", weights=b"w" * 3000, texts=["one"]))
    server = Server().on("GET /v1/adapters/team/law", ok({"ref": "team/law@3"}))
    listed = []
    for file in sorted(source.iterdir()):
        data = file.read_bytes()
        listed.append({"name": file.name, "size": len(data), "digest": sha256_digest(data)})
        sent = changed.get(file.name.split(".")[0], data)
        server.on(f"GET /v1/adapters/team/law@3/files/{file.name}", httpx2.Response(200, content=sent))
    listed.append({"name": "../../evil", "size": 1, "digest": DIGEST})
    server.on("GET /v1/adapters/team/law@3/files", ok({"object": "list", "data": listed}))
    return server, source


def test_the_directory_comes_back_as_it_was_and_is_durable(tmp_path: Path, synced: list[str]) -> None:
    server, source = serve(tmp_path)
    synced.clear()
    folder = server.client().pull_directory("team/law", tmp_path / "deep" / "copy")
    assert {p.name: p.read_bytes() for p in folder.path.iterdir()} == {p.name: p.read_bytes() for p in source.iterdir()}
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["copy"]
    assert {f"sync {p.name}" for p in source.iterdir()} <= set(synced)
    assert not any("evil" in request for request in server.routes_called()), "a file that the server makes up"


def test_damage_leaves_nothing(tmp_path: Path) -> None:
    server, _ = serve(tmp_path, adapter_model=b"damaged")
    with pytest.raises(DigestMismatch, match="damaged"):
        server.client().pull_directory("team/law", tmp_path / "copy")
    assert [p.name for p in tmp_path.iterdir()] == ["source"]


def test_a_filled_directory_is_kept_and_nothing_is_asked(tmp_path: Path) -> None:
    server, source = serve(tmp_path)
    with pytest.raises(Conflict, match="--force"):
        server.client().pull_directory("team/law", source)
    assert server.requests == []
    assert server.client().pull_directory("team/law", source, replace=True) == read_directory(source)


def test_a_server_without_the_files(tmp_path: Path) -> None:
    server, _ = serve(tmp_path)
    server.on("GET /v1/adapters/team/law@3/files", ok({"data": []}))
    with pytest.raises(Unavailable, match=CONFIG_FILE):
        server.client().pull_directory("team/law", tmp_path / "copy")


def test_a_digest_is_looked_up_first(tmp_path: Path) -> None:
    server = Server().on(f"GET /v1/adapters/{DIGEST}", ok({"ref": "team/law@3"}))
    server.on("GET /v1/adapters/team/law@3/lineage", ok({"parents": []}))
    assert server.client().lineage(DIGEST)["parents"] == []


# --- paging ---------------------------------------------------------------------------------------


def pages(count: int) -> Server:
    def page(request: httpx2.Request) -> httpx2.Response:
        start = int(request.url.params.get("cursor", "0"))
        if int(request.url.params.get("limit", "3")) > 3:
            return refusal(400, "invalid_parameter", "A page has at most 3 rows here.", param="limit")
        rows = [{"ref": f"a/{i}"} for i in range(start, min(start + 3, count))]
        more = start + len(rows)
        return ok({"data": rows, "next_cursor": str(more) if more < count else None})

    return Server().on("GET /v1/adapters", page)


@pytest.mark.parametrize("count", [0, 1, 3, 4, 10])
def test_every_row_once(count: int) -> None:
    rows = [row["ref"] for row in pages(count).client().adapters(domain="law")]
    assert rows == [f"a/{i}" for i in range(count)]


@pytest.mark.parametrize("limit", [1, 3, 5])
def test_a_limit_across_pages(limit: int) -> None:
    server = pages(10)
    assert len(list(server.client().adapters(limit=limit))) == limit
    assert len(server.requests) == -(-limit // 3)


GONE = raising(httpx2.ConnectError("refused"))
OTHER = httpx2.Response(200, json={"status": "maintenance"})
CUT = raising(httpx2.RemoteProtocolError("peer closed connection"))


# --- jobs -----------------------------------------------------------------------------------------


def test_progress_is_told_and_the_result_awaited() -> None:
    steps: list[tuple[int, int, str]] = []
    progress = {"done": 1, "total": 4, "message": "embedding"}
    server = Server().on("GET /v1/jobs/j1/events", events(("progress", progress), ("done", job())))
    server.on("GET /v1/jobs/j1", ok(job()))
    server.client().wait_job("j1", progress=lambda *step: steps.append(step))
    assert steps == [(1, 4, "embedding")]
    assert server.pauses == []


@pytest.mark.parametrize(
    ("streams", "jobs", "patience", "pauses"),
    [
        ([GONE, GONE, events(("done", {}))], [GONE, GONE, ok(job())], 60, [1.0, 1.0]),
        ([CUT], [ok(job("running")), ok(job("running")), ok(job())], 2, [1.0, 1.0]),
        ([busy("7"), events(("done", {}))], [ok(job())], 1, [7, 1.0]),
        ([events(), events(("done", {}))], [ok(job("running")), ok(job())], 60, [1.0]),
    ],
    ids=["a restart", "a proxy that cuts answers", "the rate of the key", "a stream that ends early"],
)
def test_it_is_waited_for_through(streams: list[Any], jobs: list[Any], patience: float, pauses: list[float]) -> None:
    server = Server().on("GET /v1/jobs/j1/events", *streams).on("GET /v1/jobs/j1", *jobs)
    assert server.client().wait_job("j1", patience=patience)["state"] == "succeeded"
    assert server.pauses == pauses


def test_a_server_that_stays_away_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request fails after ten seconds. The patience begins anew after a refusal."""
    server = Server().on("GET /v1/jobs/j1/events", GONE).on("GET /v1/jobs/j1", GONE, busy("61"), *[OTHER] * 2)
    monkeypatch.setattr(
        "adaptersoup.client.synchronous.calls.monotonic", lambda: 10 * len(server.requests) + sum(server.pauses)
    )
    with pytest.raises(Unavailable, match="not answered by"):
        server.client().wait_job("j1", patience=30)
    assert server.pauses == [1.0, 61, 1.0, 1.0]


@pytest.mark.parametrize(
    ("ended", "kind", "says", "problems"),
    [
        (
            job(
                "failed",
                error={
                    "code": "incompatible",
                    "message": "They differ.",
                    "param": None,
                    "problems": ["a: init", "b: scale"],
                },
            ),
            Incompatible,
            "They differ",
            ("a: init", "b: scale"),
        ),
        (
            job("failed", error={"code": "unavailable", "message": "No encoder.", "param": None, "problems": []}),
            Unavailable,
            "No encoder",
            (),
        ),
        (job("failed", error={"code": "newer", "message": "A sentence."}), SoupError, "A sentence", ()),
        *((job("failed", error=error), SoupError, "failed", ()) for error in (None, {}, {"code": None})),
        (job("cancelled"), Cancelled, "cancelled", ()),
    ],
)
def test_a_job_that_did_not_succeed_raises_its_error_at_once(
    ended: dict[str, Any], kind: type[SoupError], says: str, problems: tuple[str, ...]
) -> None:
    """An unavailable encoder is no server to wait for."""
    server = Server().on("GET /v1/jobs/j1/events", events(("done", ended))).on("GET /v1/jobs/j1", ok(ended))
    with pytest.raises(kind, match=says) as caught:
        server.client().wait_job("j1")
    assert caught.value.problems == problems
    assert server.pauses == []


def test_progress_may_end_a_call() -> None:
    step = {"done": 1, "total": 2, "message": ""}
    server = Server().on("GET /v1/jobs/j1/events", events(("progress", step), ("progress", step)))
    with pytest.raises(Cancelled, match="Enough"):
        server.client().wait_job("j1", progress=Mock(side_effect=Cancelled("Enough.")))


def test_an_unknown_job_is_not_waited_for() -> None:
    server = Server()
    with pytest.raises(NotFound):
        server.client().wait_job("j1")
    assert len(server.requests) == 1


def test_a_pool_that_never_rests() -> None:
    server = Server().on("POST /v1/select", ok(job("queued"), 202))
    server.job_ends(result={"selector": "sel-1"})
    with pytest.raises(Unavailable, match="changes faster"):
        server.client().select(SampleSource(texts=("a",)))


# --- stream ---------------------------------------------------------------------------------------


def test_chunks_until_done() -> None:
    def chunk(text: str) -> dict[str, Any]:
        return {"choices": [{"text": text}]}

    messages = [("message", chunk("Hello")), ("message", chunk(" wörld"))]
    server = Server().on("POST /v1/completions", events(*messages, tail="data: [DONE]\n\ndata: {}\n\n"))
    chunks = server.client().stream("base/x", "hi", max_tokens=3, stop=None)
    assert "".join(each["choices"][0]["text"] for each in chunks) == "Hello wörld"
    assert server.body() == {"model": "base/x", "prompt": "hi", "max_tokens": 3, "stream": True}


@pytest.mark.parametrize(
    ("model", "header"), [("acme/law@2", "acme/law@2"), ("ä\n", "%C3%A4%0A"), ("a" * 999, "a" * 200)]
)
def test_the_model_stands_in_a_header_too(model: str, header: str) -> None:
    """Proxies before several servers choose one by it."""
    server = Server().on("POST /v1/completions", events(tail="data: [DONE]\n\n"), ok({})).on("GET /readyz", ok({}))
    client = server.client()
    list(client.stream(model, "hi"))
    client.complete(model, "hi")
    client.json("GET", "/readyz")
    assert [request.headers.get("x-soup-model") for request in server.requests] == [header, header, None]


@pytest.mark.parametrize(
    ("answer", "kind", "says"),
    [
        (
            events(("message", {"error": {"message": "The base fell over.", "code": "unavailable"}})),
            Unavailable,
            "fell over",
        ),
        (refusal(400, "invalid_prompt", "Empty."), errors.InvalidPrompt, "Empty"),
        (ok({}), Unavailable, "broke"),
        (
            httpx2.Response(200, text="data: <html>\n\n", headers={"content-type": "text/event-stream"}),
            Unavailable,
            "is not a JSON object",
        ),
        (events(("message", {})), Unavailable, "cut off before its end"),
    ],
    ids=["an error in it", "a refusal before it", "no stream", "no JSON", "no end"],
)
def test_a_stream_that_fails(answer: httpx2.Response, kind: type[SoupError], says: str) -> None:
    with pytest.raises(kind, match=says):
        list(Server().on("POST /v1/completions", answer).client().stream("base/x", "hi"))


# --- sample files ---------------------------------------------------------------------------------


GZIPPED = gzip.compress(b'{"text": "x"}\n', mtime=0)


@pytest.fixture
def at(tmp_path: Path) -> Callable[[str, bytes], Path]:
    def write(name: str, data: bytes) -> Path:
        (tmp_path / name).write_bytes(data)
        return tmp_path / name

    return write


@pytest.mark.parametrize(
    ("name", "data", "texts"),
    [
        ("a.jsonl", b'{"text": "x"}\n\n{"text": "y\xe2\x80\xa8z", "id": 1}', ["x", "y\u2028z"]),
        ("a.JSONL", b'{"text": "x"}', ["x"]),
        ("a.txt", b"one\r\nstill one\n\n \t\r\ntwo\r\n\r\nthree\n", ["one\nstill one", "two", "three"]),
        ("a.txt", b'{"text": "x"}', ['{"text": "x"}']),
        ("bare", b'{"text": "x"}', ["x"]),
        ("bare", b"plain", ["plain"]),
        ("bom.txt", b"\xef\xbb\xbfone", ["one"]),
        ("a.jsonl.gz", GZIPPED, ["x"]),
        ("a.txt.gz", gzip.compress(b"x\n\ny", mtime=0), ["x", "y"]),
    ],
)
def test_sample_files_are_read(at: Callable[[str, bytes], Path], name: str, data: bytes, texts: list[str]) -> None:
    assert read_texts(at(name, data)) == texts


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("a.jsonl", b'{"text": "x"}\n{"text": 3}', "line 2, is not an object"),
        ("a.jsonl", b'{"text": "x"}\n["text"]', "line 2"),
        ("a.jsonl", b"plain text", "line 1, is not JSON"),
        ("a.txt", b" \n\n ", "holds no text"),
        ("a.txt", b"\xff\xfe", "not UTF-8"),
        *(("b.jsonl.gz", broken, "is not a whole gzip file|holds no") for broken in (GZIPPED[:-9], b"no gzip", b"")),
    ],
)
def test_sample_files_that_are_refused(at: Callable[[str, bytes], Path], name: str, data: bytes, says: str) -> None:
    with pytest.raises(InvalidSample, match=says):
        read_texts(at(name, data))


def test_stdin_and_absurd_sizes(at: Callable[[str, bytes], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples, "MAX_BYTES", 8)
    for data, fits in ((b"12345678", True), (b"123456789", False)):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
        for path in (Path("-"), at("a.txt", data), at("b.txt.gz", gzip.compress(data))):
            if fits:
                assert read_texts(path) == [data.decode()]
            else:
                with pytest.raises(InvalidSample, match="over 8 bytes"):
                    read_texts(path)


def test_a_missing_sample_file(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="cannot be read"):
        read_texts(tmp_path / "none.jsonl")


def test_a_folder_is_all_of_its_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("three\n\nfour")
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "one"}\n{"text": "two"}'))
    (tmp_path / "README.md").write_text("not this")
    assert read_texts(tmp_path) == ["one", "two", "three", "four"]
    (tmp_path / "c").mkdir()
    with pytest.raises(InvalidSample, match=r"holds no \.jsonl"):
        read_texts(tmp_path / "c")
