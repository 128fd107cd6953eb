"""What a route needs of a key, as a type in its signature: `who: Reader`, `Writer`, `ModelUser`, `Admin`.

Or `Annotated[Principal, Depends(needs("read", "write"))]`. `http.gate` has authenticated the request before.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Depends, Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from registry.errors import Forbidden, Unauthenticated
from service.keys import KeyScope, Principal

_bearer = HTTPBearer(auto_error=False, scheme_name="Key", description="A key of this server: sk-soup-...")


def needs(*scopes: KeyScope) -> Callable[..., Awaitable[Principal]]:
    """A dependency that gives the Principal and raises Forbidden unless it has one of `scopes`."""
    assert scopes, "a route that needs nothing is public: list it in gate.PUBLIC"

    async def principal(
        request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)] = None
    ) -> Principal:
        found = getattr(request.state, "principal", None)
        if not isinstance(found, Principal):  # the gate did not run: deny
            raise Unauthenticated("This needs a key: send 'Authorization: Bearer sk-soup-...'.")
        if not any(found.has(scope) for scope in scopes):
            raise Forbidden(f"This key lacks the scope {' or '.join(repr(scope) for scope in scopes)}.")
        return found

    return principal


Reader = Annotated[Principal, Depends(needs("read"))]
Writer = Annotated[Principal, Depends(needs("write"))]
ModelUser = Annotated[Principal, Depends(needs("infer"))]
Admin = Annotated[Principal, Depends(needs("admin"))]
