"""A request on its way through a router: what is looked into."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from service.http.body_limits import HeldBytes
from service.router.call import LOOKED_INTO, Call
from service.settings import Settings


def model_of(body: bytes) -> str | None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    async def send(_message: Any) -> None:
        raise AssertionError("nothing is answered")

    async def read() -> str | None:
        headers = [(b"content-length", str(len(body)).encode())]
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": headers}
        call = Call(scope, receive, send, settings=Settings(), request_id="r")
        account = HeldBytes(2 * LOOKED_INTO * 2).account()
        await call.gather(account, "key")
        account.close()
        return await call.model()

    return asyncio.run(read())


def test_a_body_names_its_model_unless_it_is_too_large_to_be_looked_into() -> None:
    asked = {"model": "team/law", "prompt": ""}
    room = LOOKED_INTO - len(json.dumps(asked))
    assert model_of(json.dumps({**asked, "prompt": "x" * room}).encode()) == "team/law"
    assert model_of(json.dumps({**asked, "prompt": "x" * (room + 1)}).encode()) is None
