"""Requests that no client would write: read in two ways by two servers, of several lengths, for other hosts."""

from __future__ import annotations

from starlette.datastructures import Headers

from service.http.security.auth import check_local
from tests.attacks.attack import Attack, Outcome, each
from tests.attacks.target import WEIGHTS, Target

PATH = "/v1/adapters/acme/law"
FILE = f"{PATH}/files/{WEIGHTS}"
BODY = b'{"model":"acme/law","prompt":"a","max_tokens":1}'
LOCAL = ("localhost", "127.0.0.1", "::1")


def parsed(answer: bytes) -> Outcome:
    """The first of the answers on a connection; one that is not ours has no code."""
    status, _, rest = answer.partition(b"\r\n")
    return Outcome.of(int(status.split()[1]), rest.partition(b"\r\n\r\n")[2].partition(b"HTTP/1.1")[0])


def raw(
    name: str,
    tries: str,
    lines: str,
    body: bytes = b"",
    *,
    status: int = 400,
    code: str = "invalid",
    says: str = "Invalid",
    first: str = "POST /v1/completions HTTP/1.1",
) -> Attack:
    """Bytes on a connection; what is answered to anything behind the first request is refused too, or not read."""

    def strike(target: Target) -> Outcome:
        head = f"{first}\r\nhost: x\r\nauthorization: Bearer {target.world.admin}\r\n{lines}\r\n"
        answer = target.raw(head.encode("latin-1") + body)
        assert b'"ref":"acme/law@1"' not in answer, "the request that was smuggled in was answered"
        return parsed(answer)

    return Attack(name, tries, status, code, says, strike)


def without_key(name: str, tries: str, first: str, status: int = 401, code: str = "unauthenticated") -> Attack:
    """A request line without a key, as it stands."""
    sent = f"{first}\r\nhost: x\r\nconnection: close\r\n\r\n".encode()
    return Attack(name, tries, status, code, "", lambda target: parsed(target.raw(sent)))


def ranged(name: str, tries: str, span: str, *, status: int = 416) -> Attack:
    """A download of a range; one that is not understood is answered with all of the file, and no more than once."""

    def strike(target: Target) -> Outcome:
        answer = target.world.client.get(FILE, headers={"range": span})
        assert len(answer.content) <= len(target.good)
        text = "all of it" if answer.status_code == 200 and answer.content[:8] == target.good[:8] else ""
        return Outcome(answer.status_code, "", "", text)

    return Attack(name, tries, status, "", "all of it" if status == 200 else "", strike)


def local(name: str, tries: str, says: str, **headers: str) -> Attack:
    """A request to a server without keys, which answers to this machine only."""
    sent = {name.replace("_", "-"): value for name, value in {"host": "localhost:8000", **headers}.items()}
    return Attack(
        name, tries, 403, "forbidden", says, lambda _: Outcome.by(lambda: check_local(Headers(sent), allowed=LOCAL))
    )


SMUGGLED = b"GET " + PATH.encode() + b" HTTP/1.1\r\nhost: x\r\n\r\n"
CLOSE = "connection: close\r\n"
JSON = "content-type: application/json\r\n"
ATTACKS = (
    raw(
        "length and chunks",
        "Has one server read a length and the next one chunks, and a second request between.",
        f"content-length: 4\r\ntransfer-encoding: chunked\r\n{JSON}{CLOSE}",
        b"0\r\n\r\n" + SMUGGLED,
        status=400,
        code="invalid_parameter",
        says="no JSON body",
    ),
    raw(
        "two lengths",
        "Says two lengths, one for each server.",
        f"content-length: 4\r\ncontent-length: {len(BODY)}\r\n",
        BODY,
    ),
    raw("two lengths in a line", "Says two lengths in one line.", f"content-length: 4, {len(BODY)}\r\n", BODY),
    raw("negative length", "Says a length below nothing.", "content-length: -1\r\n", BODY),
    raw("length with a sign", "Says a length that only some readers take.", f"content-length: +{len(BODY)}\r\n", BODY),
    raw("length in hex", "Says a length that only some readers take.", "content-length: 0x30\r\n", BODY),
    raw("length of 30 digits", "Says a length that overflows.", "content-length: " + "9" * 30 + "\r\n", BODY),
    raw(
        "chunks by another word",
        "Hides chunks from one of two servers by a word in front.",
        "transfer-encoding: xchunked\r\n",
        b"0\r\n\r\n" + SMUGGLED,
    ),
    raw(
        "chunks twice",
        "Names the coding twice, for the server that takes the last.",
        "transfer-encoding: identity\r\ntransfer-encoding: chunked\r\n",
        b"0\r\n\r\n" + SMUGGLED,
    ),
    raw(
        "chunk of a negative size",
        "Sends a chunk of a size below nothing.",
        f"transfer-encoding: chunked\r\n{JSON}",
        b"-1\r\nx\r\n0\r\n\r\n",
        says="",
    ),
    raw(
        "chunk of 2^70 bytes",
        "Sends the size of a chunk that overflows.",
        f"transfer-encoding: chunked\r\n{JSON}",
        b"4" + b"0" * 20 + b"\r\nx\r\n0\r\n\r\n",
        says="",
    ),
    raw("space before the colon", "Hides a header from one of two servers by a space.", "content-length : 4\r\n", BODY),
    raw(
        "bare line break in a header",
        "Ends a header with a line break alone, and forges another behind it.",
        "x: y\rcontent-length: 4\r\n",
        BODY,
    ),
    raw("NUL in a header", "Ends a header early for whoever reads it in C.", "x: a\x00b\r\n", BODY),
    raw("headers of 2 MB", "Fills the memory with a header.", "x: " + "a" * 2_000_000 + "\r\n"),
    raw(
        "thousands of headers",
        "Fills the memory with names of headers.",
        "".join(f"x{n}: a\r\n" for n in range(99_999)),
    ),
    raw(
        "path of 2 MB", "Fills the memory and the logs with a path.", "", first="GET /" + "a" * 2_000_000 + " HTTP/1.1"
    ),
    raw("line break in a path", "Forges a second request line.", "", first=f"GET /x\rGET {PATH} HTTP/1.1\r HTTP/1.1"),
    raw(
        "method of another protocol",
        "Has the server open a connection for it.",
        CLOSE,
        first="CONNECT 169.254.169.254:80 HTTP/1.1",
        status=404,
        code="not_found",
        says="",
    ),
    raw(
        "absolute address",
        "Has the server ask another one for it.",
        CLOSE,
        first="GET http://169.254.169.254/latest/meta-data HTTP/1.1",
        status=404,
        code="not_found",
        says="",
    ),
    raw(
        "TRACE",
        "Has its own headers, the key among them, sent back to a page.",
        CLOSE,
        first="TRACE /healthz HTTP/1.1",
        status=405,
        code="method_not_allowed",
        says="",
    ),
    raw(
        "no JSON at all",
        "Sends a request without a body where one is needed.",
        f"{JSON}{CLOSE}",
        status=400,
        code="invalid_parameter",
        says="no JSON body",
    ),
    without_key(
        "page as a door",
        "Reaches a route through the folder of the documentation.",
        "GET /static/../v1/keys HTTP/1.1",
        404,
        "not_found",
    ),
    without_key(
        "health as a door", "Reaches a route through a path that needs no key.", "GET /healthz/../v1/keys HTTP/1.1"
    ),
    without_key(
        "encoded points", "Goes up by points that are encoded.", "GET /static/%2e%2e/v1/keys HTTP/1.1", 404, "not_found"
    ),
    without_key("parameter of a path", "Hides the end of a path behind a semicolon.", "GET /v1/keys;/healthz HTTP/1.1"),
    without_key("NUL in a path", "Ends a path early for whoever reads it in C.", "GET /v1/keys%00/healthz HTTP/1.1"),
    without_key(
        "websocket",
        "Opens a socket, which no scope is asked for.",
        f"GET {PATH} HTTP/1.1\r\nupgrade: websocket\r\nsec-websocket-key: x\r\nsec-websocket-version: 13",
    ),
    without_key(
        "HTTP/2 without asking",
        "Changes to another protocol, past what reads this one.",
        f"GET {PATH} HTTP/1.1\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAARAAAAAAAIAAAAA",
    ),
    ranged("range behind the end", "Reads bytes behind a file.", "bytes=9999999-99999999"),
    ranged("range of 10^30", "Names a byte that overflows.", "bytes=" + "9" * 30 + "-", status=200),
    ranged(
        "thousand ranges",
        "Has a file sent a thousand times in one answer.",
        "bytes=" + ",".join(["0-"] * 1000),
        status=200,
    ),
    ranged("negative range", "Names a byte before the first.", "bytes=-0"),
    ranged("range in other units", "Names units that there are not.", "rows=0-1", status=200),
    local(
        "foreign host",
        "Reaches a server without keys by a name that resolves here.",
        "local host names only",
        host="evil.example",
    ),
    local(
        "host that looks local",
        "Puts the local name in front of another.",
        "local host names only",
        host="localhost.evil.example",
    ),
    local(
        "host behind an at",
        "Puts the local name where a user's stands.",
        "local host names only",
        host="localhost@evil.example",
    ),
    local("address as a name", "Resolves a name to this machine.", "local host names only", host="127.0.0.1.nip.io"),
    local(
        "page of another origin",
        "Has a browser's page on this machine ask.",
        "another origin",
        origin="http://evil.example",
    ),
    local("page without an origin", "Has a file or a sandboxed frame ask.", "another origin", origin="null"),
    local(
        "page of another port",
        "Has another server of this machine ask.",
        "another origin",
        origin="http://localhost:9000",
    ),
    local(
        "world through a proxy",
        "Reaches a server without keys through a proxy.",
        "through a proxy",
        x_forwarded_for="10.0.0.1",
    ),
    local(
        "world through a proxy that says so",
        "Reaches it through a proxy of the newer header.",
        "through a proxy",
        forwarded="for=10.0.0.1",
    ),
    local(
        "world through a proxy of another kind",
        "Reaches it through a proxy of a third header.",
        "through a proxy",
        x_real_ip="10.0.0.1",
    ),
    local("world through a cache", "Reaches it through a cache.", "through a proxy", via="1.1 proxy"),
    local("no host", "Says no host at all, as the first clients did.", "local host names only", host=""),
    local("host that is open", "Opens a bracket and does not close it.", "local host names only", host="[::1"),
    local(
        "port that is a name",
        "Puts the local name where the port stands.",
        "local host names only",
        host="evil.example:localhost",
    ),
    local("empty origin", "Says an origin that is empty.", "another origin", origin=""),
)


@each(ATTACKS)
def test_it_is_refused(target: Target, attack: Attack) -> None:
    target.withstands(attack)
