"""Forms and query fields that browsers send: the size limit, the CSRF check and the values of fields.

A form of another site is refused before it is read, a form without this browser's token (`cookies`) before its route
is called. Fields are URL-encoded; a file is sent as text that the browser has read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from typing import Annotated, Any, TypeVar
from urllib.parse import unquote_to_bytes

from fastapi import Depends, Query, Request
from pydantic import BeforeValidator

from registry.errors import InvalidParameter, TooSlow
from service.http.pages.cookies import check_site, check_token
from service.http.requests.bodies import read_body
from service.http.requests.body_limits import BodyLimit
from service.http.thread_turns import parse_in_turn

URLENCODED = "application/x-www-form-urlencoded"
MAX_FIELDS = 50
CSRF_FIELD = "form"
CSRF_HEADER = "soup-form"
"""Has the token of a request that a script sends without a form."""
SMALL = BodyLimit(lambda _: 4096)
"""Limit of forms with a name or two, and of the sign-in form, which is read before the sender is known."""
BYTES_PER_CHARACTER = 9
"""Bytes of one URL-encoded character of most languages: three of UTF-8, each as `%E2`."""
SAMPLE = BodyLimit(lambda settings: BYTES_PER_CHARACTER * settings.max_sample_chars + 64 * 1024)
"""Limit of forms with a sample of text."""
ANONYMOUS_SECONDS = 10.0
"""Time for a whole form whose sender is not known: its connection is the last to be closed (`connections`)."""
CHUNK_BYTES = 8 * 1024
"""Bytes of a form that are decoded at once."""
Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
Fields = Mapping[str, str]


def takes_form(limit: BodyLimit) -> Callable[[Endpoint], Endpoint]:
    """Declare that an endpoint takes a form, and its size limit."""

    def declare(endpoint: Endpoint) -> Endpoint:
        endpoint.form_limit = limit  # type: ignore[attr-defined]  # read by `form_limit`
        return endpoint

    return declare


def takes_token(endpoint: Endpoint) -> Endpoint:
    """Declare that an endpoint takes no form but requires the token of a form in the header `soup-form`."""
    endpoint.requires_token = True  # type: ignore[attr-defined]  # read by `requires_token`
    return endpoint


def form_limit(endpoint: Callable[..., Any]) -> BodyLimit | None:
    """The size limit of an endpoint's form, None if it takes no form."""
    return getattr(endpoint, "form_limit", None)


def requires_token(endpoint: Callable[..., Any]) -> bool:
    """Return True if requests to an endpoint must have the token of a form in a header."""
    return getattr(endpoint, "requires_token", False)


def check_csrf_header(request: Request) -> None:
    """Raise Forbidden for a request of another site's page, or without this browser's token in its header."""
    check_site(request)
    check_token(request, request.headers.get(CSRF_HEADER, ""))


async def read_form(request: Request, key_id: str, limit: BodyLimit) -> None:
    """Parse and check a form, and put its fields into the request's state.

    Without a `key_id` the whole form must come within ANONYMOUS_SECONDS. Raises InvalidParameter, TooLarge, TooSlow,
    and Forbidden for a form of another site or session.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != URLENCODED:
        raise InvalidParameter(f"A form is sent with 'content-type: {URLENCODED}'.")
    check_site(request)
    try:
        async with asyncio.timeout(None if key_id else ANONYMOUS_SECONDS):
            body = await read_body(request, key_id, limit, request.app.state.bodies.settings)
    except TimeoutError:
        raise TooSlow(f"The form did not come within {ANONYMOUS_SECONDS:g} seconds.") from None
    fields = await parse_in_turn(_fields, body)
    check_token(request, fields.get(CSRF_FIELD, ""))
    request.state.fields = fields


def _fields(body: bytearray) -> dict[str, str]:
    """The fields of a form; raises InvalidParameter for too many, repeated or malformed fields."""
    if body.count(b"&") >= MAX_FIELDS:
        raise InvalidParameter(f"The form has more than {MAX_FIELDS} fields.")
    fields: dict[str, str] = {}
    begin = 0
    while body and begin <= len(body):
        end = body.find(b"&", begin)
        end = len(body) if end < 0 else end
        equals = body.find(b"=", begin, end)
        try:
            if equals < 0 or not body.isascii():
                raise ValueError
            name, value = _decode(body, begin, equals), _decode(body, equals + 1, end)
        except ValueError:
            raise InvalidParameter("The form is not well formed: fields are ASCII, and decode to UTF-8.") from None
        if name in fields:
            raise InvalidParameter("A field of the form was sent twice.")
        fields[name] = value
        begin = end + 1
    return fields


def _decode(body: bytearray, begin: int, end: int) -> str:
    """The URL-decoded text of `body[begin:end]`, with LF for CRLF; raises ValueError unless it is UTF-8.

    Browsers send every line break of a text field as CRLF.
    Works in chunks, because `unquote_to_bytes` makes an object of each `%E2`: many times the memory of the text.
    """
    decoded = bytearray()
    while begin < end:
        chunk_end = min(begin + CHUNK_BYTES, end)
        cut = body.find(b"%", chunk_end - 2, chunk_end) if chunk_end < end else -1
        chunk_end = chunk_end if cut < 0 else cut  # keeps `%E2` in one chunk
        decoded += unquote_to_bytes(bytes(body[begin:chunk_end]).replace(b"+", b" "))
        begin = chunk_end
    decoded = decoded.replace(b"\r\n", b"\n")
    return decoded.decode()


async def form_fields(request: Request) -> Fields:
    """The fields that `read_form` has put into the request's state."""
    fields: Fields = request.state.fields
    return fields


Form = Annotated[Fields, Depends(form_fields)]


# --- values of fields -----------------------------------------------------------------------------------


def text_or_none(field: str | None) -> str | None:
    """The stripped text of a field, None if it is blank."""
    return (field or "").strip() or None


def parse_date(field: str | None) -> date | None:
    """The date in a field, None if it is blank; raises ValueError."""
    text = text_or_none(field)
    try:
        return None if text is None else date.fromisoformat(text)
    except ValueError:
        raise ValueError("must be a day as YYYY-MM-DD, such as 2026-01-31") from None


def parse_midnight(field: str | None) -> datetime | None:
    """The start, in UTC, of the date in a field, None if it is blank; raises ValueError."""
    day = parse_date(field)
    return None if day is None else datetime(day.year, day.month, day.day, tzinfo=UTC)


Text = Annotated[str | None, Query(max_length=500), BeforeValidator(text_or_none)]
"""A stripped text of a query; None if it is blank, as a browser sends an empty field."""
Day = Annotated[date | None, BeforeValidator(parse_date)]
Midnight = Annotated[datetime | None, BeforeValidator(parse_midnight)]
"""The start of a day, in UTC."""
