"""Forms that a page sends: how large one may be, its fields, and that it is of a page of ours.

A form that is not of one is refused before its route sees it (`cookies.check_form`). Fields are read as browsers write
them (`application/x-www-form-urlencoded`); files come as text that the browser has read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar
from urllib.parse import parse_qsl

from fastapi import Depends, Request
from starlette.requests import ClientDisconnect

from registry.errors import Cancelled, InvalidParameter
from service.http.bodies import Bodies
from service.http.body_limits import Account, BodyLimit, too_large
from service.http.pages.cookies import check_form
from service.http.thread_turns import in_thread

URLENCODED = "application/x-www-form-urlencoded"
MOST_FIELDS = 50
TOKEN = "form"  # noqa: S105  # a field's name
FEW = BodyLimit(lambda _: 4096)
"""Forms with a name or two; the one that signs in is read before anybody is known."""
Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
Fields = Mapping[str, str]


def takes_form(limit: BodyLimit) -> Callable[[Endpoint], Endpoint]:
    """Declare that a page takes a form, and how large it may be."""

    def declare(endpoint: Endpoint) -> Endpoint:
        endpoint.form_limit = limit  # type: ignore[attr-defined]  # for `limit_of`
        return endpoint

    return declare


def limit_of(endpoint: Callable[..., Any]) -> BodyLimit | None:
    """How large a page's form may be; None for a page that takes none."""
    found: BodyLimit | None = getattr(endpoint, "form_limit", None)
    return found


async def read(request: Request, key: str, limit: BodyLimit) -> None:
    """Leave the fields of a request in its state; raises what is wrong with them, Forbidden for a foreign form."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != URLENCODED:
        raise InvalidParameter(f"A form is sent with 'content-type: {URLENCODED}'.")
    bodies: Bodies = request.app.state.bodies
    account: Account = request.state.body_account
    most, body = limit.bytes_of(bodies.settings), bytearray()
    try:
        async for piece in request.stream():
            if len(body) + len(piece) > most:
                raise too_large(most, bodies.settings)
            account.take(key, len(piece))
            body += piece
    except ClientDisconnect as error:
        raise Cancelled("The client went away.") from error
    fields = await in_thread(_fields, bytes(body))
    check_form(request, fields.get(TOKEN, ""))
    request.state.fields = fields


def _fields(body: bytes) -> dict[str, str]:
    """The fields of a form, each once; raises InvalidParameter."""
    try:
        pairs = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, strict_parsing=bool(body), max_num_fields=MOST_FIELDS,
            errors="strict",
        )  # fmt: skip
    except ValueError as error:
        raise InvalidParameter(f"The form is not well formed, or has more than {MOST_FIELDS} fields.") from error
    found = dict(pairs)
    if len(found) != len(pairs):
        raise InvalidParameter("A field of the form was sent twice.")
    return found


async def fields_of(request: Request) -> Fields:
    """The fields that `read` has left."""
    found: Fields = request.state.fields
    return found


Form = Annotated[Fields, Depends(fields_of)]
