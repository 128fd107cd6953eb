"""Which headers pass a router: all but those of one connection, and what it adds about where a request came from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from starlette.types import Scope

Header = tuple[bytes, bytes]
HOP_BY_HOP = frozenset(
    {
        b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
        b"trailer", b"transfer-encoding", b"upgrade", b"expect",
    }
)  # fmt: skip
"""RFC 9110, section 7.6.1; and `Expect`, which the router's own server has answered."""
OURS = frozenset({b"x-soup-replica"})
DATED = frozenset({b"date"})
"""The router's server writes its own."""


def end_to_end(headers: Iterable[Header], *, but: frozenset[bytes] = frozenset()) -> list[Header]:
    """Those that are not of one connection, nor named in its `Connection`, nor of `but`; names in lower case."""
    found = [(name.lower(), value) for name, value in headers]
    named = {
        one.strip().lower() for name, value in found if name == b"connection" for one in value.split(b",")
    }  # fmt: skip
    return [(name, value) for name, value in found if name not in HOP_BY_HOP | named | but]


def to_replica(scope: Scope, request_id: str, *, length: int | None) -> list[Header]:
    """The headers of a request as a replica gets them; `length` is that of a body that was gathered.

    A length that came beside chunks is not handed on: what the body is was said by the chunks (RFC 9112, section 6.3).
    """
    chunked = any(name.lower() == b"transfer-encoding" for name, _ in scope["headers"])
    own = {b"x-request-id", *([b"content-length"] if chunked or length is not None else [])}
    headers = end_to_end(scope["headers"], but=frozenset(own))
    client = scope.get("client")
    if client is not None:
        before = [value for name, value in headers if name == b"x-forwarded-for"]
        headers = [one for one in headers if one[0] != b"x-forwarded-for"]
        headers.append((b"x-forwarded-for", b", ".join([*before, client[0].encode()])))
    present = {name for name, _ in headers}
    host = next((value for name, value in headers if name == b"host"), b"")
    for name, value in ((b"x-forwarded-proto", scope["scheme"].encode()), (b"x-forwarded-host", host)):
        if name not in present:
            headers.append((name, value))
    headers.append((b"x-request-id", request_id.encode()))
    if length is not None:
        headers.append((b"content-length", str(length).encode()))
    return headers


def to_client(headers: Sequence[Header], replica: str | None) -> list[Header]:
    """The headers of an answer as the client gets them, with the replica that gave it where that is said."""
    found = end_to_end(headers, but=OURS | DATED)
    return found if replica is None else [*found, (b"x-soup-replica", replica.encode())]
