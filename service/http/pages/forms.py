"""Forms that a page sends: how large one may be, its fields, and that it is of a page of ours.

One of another site is refused before it is read, one of another browser before its route sees it (`cookies`). Fields
are read as browsers write them (`application/x-www-form-urlencoded`); files come as text that the browser has read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar
from urllib.parse import unquote_to_bytes

from fastapi import Depends, Request
from starlette.concurrency import run_in_threadpool

from registry.errors import InvalidParameter, TooSlow
from service.http.pages.cookies import check_site, check_token
from service.http.requests.bodies import LARGE_JSON, gathered
from service.http.requests.body_limits import BodyLimit
from service.http.thread_turns import parsing_turn

URLENCODED = "application/x-www-form-urlencoded"
MOST_FIELDS = 50
TOKEN = "form"  # noqa: S105  # a field's name
HEADER = "soup-form"
"""Where that is, of what is no form."""
FEW = BodyLimit(lambda _: 4096)
"""Forms with a name or two; the one that signs in is read before anybody is known."""
ENCODED = 9
"""Bytes of a form for one character of most languages: three of UTF-8, each as `%E2`."""
SAMPLE = BodyLimit(lambda settings: ENCODED * settings.max_sample_chars + 64 * 1024)
"""Forms with a sample of text."""
STRANGER_SECONDS = 10.0
"""How long a form may take in all while nobody is known: its connection gives way to others last (`connections`)."""
PIECE = 8 * 1024
"""Bytes of a form that are decoded at once."""
Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
Fields = Mapping[str, str]


def takes_form(limit: BodyLimit) -> Callable[[Endpoint], Endpoint]:
    """Declare that a page takes a form, and how large it may be."""

    def declare(endpoint: Endpoint) -> Endpoint:
        endpoint.form_limit = limit  # type: ignore[attr-defined]  # for `limit_of`
        return endpoint

    return declare


def takes_token(endpoint: Endpoint) -> Endpoint:
    """Declare that what a page's script sends there is no form, and has the token of its forms in a header."""
    endpoint.form_token = True  # type: ignore[attr-defined]  # for `wants_token`
    return endpoint


def wants_token(endpoint: Callable[..., Any]) -> bool:
    """Whether what is sent there has to have the token of a form in its header."""
    return getattr(endpoint, "form_token", False)


def check_header(request: Request) -> None:
    """Raises Forbidden for what a page of another site sends, and without the token of a form of ours."""
    check_site(request)
    check_token(request, request.headers.get(HEADER, ""))


def limit_of(endpoint: Callable[..., Any]) -> BodyLimit | None:
    """How large a page's form may be; None for a page that takes none."""
    found: BodyLimit | None = getattr(endpoint, "form_limit", None)
    return found


async def read(request: Request, key: str, limit: BodyLimit) -> None:
    """Leave the fields of a request in its state; raises what is wrong with them, Forbidden for a foreign form.

    `key` is empty while nobody is known: all of the form then has to come within STRANGER_SECONDS.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != URLENCODED:
        raise InvalidParameter(f"A form is sent with 'content-type: {URLENCODED}'.")
    check_site(request)
    try:
        async with asyncio.timeout(None if key else STRANGER_SECONDS):
            body = await gathered(request, key, limit, request.app.state.bodies.settings)
    except TimeoutError:
        raise TooSlow(f"The form did not come within {STRANGER_SECONDS:g} seconds.") from None
    fields = await _parsed(body)
    check_token(request, fields.get(TOKEN, ""))
    request.state.fields = fields


async def _parsed(body: bytearray) -> dict[str, str]:
    """The fields of a form; of a large one as `bodies` parses JSON: in a thread, one at a time."""
    if len(body) <= LARGE_JSON:
        return _fields(body)
    async with parsing_turn():
        return await run_in_threadpool(_fields, body)


def _fields(body: bytearray) -> dict[str, str]:
    """The fields of a form, each once; raises InvalidParameter."""
    if body.count(b"&") >= MOST_FIELDS:
        raise InvalidParameter(f"The form has more than {MOST_FIELDS} fields.")
    found: dict[str, str] = {}
    begin = 0
    while body and begin <= len(body):
        end = body.find(b"&", begin)
        end = len(body) if end < 0 else end
        equals = body.find(b"=", begin, end)
        try:
            if equals < 0 or not body.isascii():
                raise ValueError
            name, value = _decoded(body, begin, equals), _decoded(body, equals + 1, end)
        except ValueError:
            raise InvalidParameter("The form is not well formed: fields are ASCII, and decode to UTF-8.") from None
        if name in found:
            raise InvalidParameter("A field of the form was sent twice.")
        found[name] = value
        begin = end + 1
    return found


def _decoded(body: bytearray, begin: int, end: int) -> str:
    """The text of a name or value, which lies in `body` there; raises ValueError unless it is UTF-8.

    A piece at a time: the library makes an object of each `%E2`, many times the memory of the whole.
    """
    found = bytearray()
    while begin < end:
        until = min(begin + PIECE, end)
        cut = body.find(b"%", until - 2, until) if until < end else -1
        until = until if cut < 0 else cut  # `%E2` is not cut in two
        found += unquote_to_bytes(bytes(body[begin:until]).replace(b"+", b" "))
        begin = until
    return found.decode()


async def fields_of(request: Request) -> Fields:
    """The fields that `read` has left."""
    found: Fields = request.state.fields
    return found


Form = Annotated[Fields, Depends(fields_of)]


def numbered(form: Fields, name: str, most: int) -> list[str]:
    """What the fields `name-1`, `name-2` and so on hold, each once, without those that are empty."""
    given = [form.get(f"{name}-{number}", "").strip() for number in range(1, most + 1)]
    return list(dict.fromkeys(one for one in given if one))
