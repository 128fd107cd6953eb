"""What passes a router of a request's headers and of an answer's."""

from __future__ import annotations

from typing import Any

from service.router.headers import to_client, to_replica


def scope(*headers: tuple[bytes, bytes], **more: Any) -> dict[str, Any]:
    return {"headers": list(headers), "client": ("10.1.1.1", 5), "scheme": "http", **more}


def test_what_is_of_one_connection_does_not_pass() -> None:
    sent = scope(
        (b"host", b"soup.example"), (b"connection", b"close, X-Private"), (b"x-private", b"1"), (b"te", b"trailers"),
        (b"transfer-encoding", b"chunked"), (b"upgrade", b"h2c"), (b"expect", b"100-continue"),
        (b"keep-alive", b"5"), (b"authorization", b"Bearer k"), (b"traceparent", b"00-1-2-01"),
    )  # fmt: skip
    found = to_replica(sent, "id", length=None)
    assert found == [
        (b"host", b"soup.example"), (b"authorization", b"Bearer k"), (b"traceparent", b"00-1-2-01"),
        (b"x-forwarded-for", b"10.1.1.1"), (b"x-forwarded-proto", b"http"), (b"x-forwarded-host", b"soup.example"),
        (b"x-request-id", b"id"),
    ]  # fmt: skip


def test_a_proxy_in_front_is_believed_what_it_says_of_the_client_and_is_named_after_it() -> None:
    sent = scope((b"host", b"a"), (b"x-forwarded-for", b"9.9.9.9"), (b"x-forwarded-proto", b"https"))
    found = to_replica(sent, "id", length=None)
    assert (b"x-forwarded-for", b"9.9.9.9, 10.1.1.1") in found
    assert [value for name, value in found if name == b"x-forwarded-proto"] == [b"https"]


def test_a_body_that_was_gathered_has_one_length() -> None:
    found = to_replica(scope((b"content-length", b"7")), "id", length=3)
    assert [value for name, value in found if name == b"content-length"] == [b"3"]


def test_a_client_cannot_name_the_request_or_the_replica_for_us() -> None:
    assert [value for name, value in to_replica(scope((b"x-request-id", b"theirs")), "ours", length=None)
            if name == b"x-request-id"] == [b"ours"]  # fmt: skip
    assert to_client([(b"X-Soup-Replica", b"other"), (b"etag", b"e"), (b"date", b"d")], "mine") == [
        (b"etag", b"e"), (b"x-soup-replica", b"mine"),
    ]  # fmt: skip
    assert to_client([(b"connection", b"close"), (b"retry-after", b"3")], None) == [(b"retry-after", b"3")]
